"""Rollouts that slime saved."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprobe.recordings.log_rows import Fault, Tokens, token_array
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture, Reader, Stated, count, objects_under
from moeprobe.recordings.responses import array_of

_KEY = "rollout_routed_experts"


class Slime(Reader):
    """slime, miles: ``samples[i].rollout_routed_experts`` in a file of ``--save-debug-rollout-data`` (torch)."""

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether samples have the key."""
        return any(_KEY in sample for sample in objects_under(response, "samples"))

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each sample; it has none where the request was aborted."""
        return [
            Capture(
                None if sample.get(_KEY) is None else array_of(sample[_KEY], _KEY, dims=3),
                stated=Stated.of(tokens),
                last=True,
                name=name,
                tokens=tokens,
            )
            for (name, tokens), sample in zip(
                self.sequences(response), objects_under(response, "samples"), strict=True
            )
        ]

    def sequences(self, response: Mapping[str, Any]) -> Sequence[tuple[str, Tokens | None]]:
        """Return the tokens of each sample, the last ``response_length`` of which were generated."""
        rollout = count(response.get("rollout_id"))
        sequences = []
        for index, sample in enumerate(objects_under(response, "samples")):
            number = count(sample.get("index"))
            name = f"{0 if rollout is None else rollout}/{index if number is None else number}"
            sequences.append((name, _tokens(sample)))
        return sequences

    def log_probabilities(self, response: Mapping[str, Any]) -> Sequence[Any]:
        """Return ``rollout_log_probs`` of each sample."""
        return [sample.get("rollout_log_probs") for sample in objects_under(response, "samples")]


def _tokens(sample: Mapping[str, Any]) -> Tokens | None:
    if not sample.get("tokens"):
        return None
    ids = token_array(sample["tokens"], "tokens")
    generated = count(sample.get("response_length"))
    if generated is None or generated > len(ids):
        raise Fault(f"response_length takes a whole number from 0 to the {len(ids)} tokens")
    return Tokens(ids, len(ids) - generated)
