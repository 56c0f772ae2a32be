"""Batches of verl."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault, Tokens, token_array
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import KEY, Capture, Reader, Stated
from moeprobe.recordings.responses import array_of, is_nested

# What newer trainers call the parts of a sequence, each a tensor of sequences of different lengths.
_PROMPTS, _RESPONSES = ("prompts", "prompt_ids"), ("responses", "response_ids")
_SCORES = ("rollout_log_probs", "response_logprobs")
_MASK, _LOGPROBS, _WRITTEN = "attention_mask", "rollout_log_probs", "response_mask"


class Verl(Reader):
    """verl: tensors ``routed_experts`` (sequences, tokens, layers, k) and ``attention_mask`` of a batch (torch).

    A nested tensor of sequences of different lengths has no padding, and needs no mask.
    """

    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether it has both tensors, or one of them that is known by its axes."""
        batch = _batch(response)
        # Four axes tell it from responses that only use the same key.
        return KEY in batch and getattr(batch[KEY], "ndim", 0) == 4

    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each sequence without its padding, which is zeros and looks like expert 0."""
        if is_nested(_batch(response)[KEY]):
            return self._read_unpadded(response)
        ids = array_of(_batch(response)[KEY], KEY, dims=4)
        mask = self._mask(response)
        if ids.shape[:2] != mask.shape:
            raise Fault(
                f"{KEY} is of {ids.shape[0]} × {ids.shape[1]} tokens, and {_MASK} of {mask.shape[0]} × {mask.shape[1]}"
            )
        captures = []
        for row, (name, tokens) in enumerate(self.sequences(response)):
            row_ids = ids[row][mask[row]]
            # The last token is never routed: its row is zeros, unless the server sent one.
            if len(row_ids) and not row_ids[-1].any():
                row_ids = row_ids[:-1]
            captures.append(Capture(row_ids, stated=Stated.of(tokens), last=True, name=name, tokens=tokens))
        return captures

    def sequences(self, response: Mapping[str, Any]) -> Sequence[tuple[str, Tokens | None]]:
        """Return the tokens of each sequence; ``responses`` says how many places at the end may be generated."""
        if is_nested(_batch(response)[KEY]):
            return self._unpadded_sequences(response)
        batch, mask = _batch(response), self._mask(response)
        # Without ids there is routing but no sequence.
        if "input_ids" not in batch or "responses" not in batch:
            return [(str(row), None) for row in range(len(mask))]
        ids, generated = (array_of(batch[name], name, dims=2) for name in ("input_ids", "responses"))
        if ids.shape != mask.shape or generated.shape[1] > ids.shape[1]:
            raise Fault(f"input_ids, responses and {_MASK} differ in tokens")
        # Prompts are padded on the left: the mask counts what remains.
        prompt = mask[:, : ids.shape[1] - generated.shape[1]].sum(1)
        return [
            (str(row), Tokens(token_array(ids[row][mask[row]], "input_ids"), int(prompt[row])))
            for row in range(len(mask))
        ]

    def log_probabilities(self, response: Mapping[str, Any]) -> Sequence[Any]:
        """Return ``rollout_log_probs`` of each sequence without its padding, which is zeros or -1.

        Where there is a ``response_mask``, tokens that it leaves out (answers of tools) were not generated.
        """
        if is_nested(_batch(response)[KEY]):
            return next((part for part in (_parts(response, name) for name in _SCORES) if part), [])
        batch, mask = _batch(response), self._mask(response)
        if _LOGPROBS not in batch or "responses" not in batch:
            return []
        values = array_of(batch[_LOGPROBS], _LOGPROBS, kinds="f", dims=2)
        # Scores exist for the response's places alone, at the end of the mask.
        valid = mask[:, mask.shape[1] - values.shape[1] :]
        written = valid
        if _WRITTEN in batch:
            written = array_of(batch[_WRITTEN], _WRITTEN, kinds="iub", dims=2) != 0
        generated = tuple(array_of(batch["responses"], "responses", dims=2).shape)
        if not values.shape == written.shape == valid.shape == generated:
            raise Fault(f"{_LOGPROBS}, {_WRITTEN} and responses differ in tokens")
        return [
            [
                value if is_written else None
                for value, is_written in zip(
                    values[row][valid[row]].tolist(), written[row][valid[row]], strict=True
                )
            ]
            for row in range(len(values))
        ]

    def _read_unpadded(self, response: Mapping[str, Any]) -> Sequence[Capture]:
        """Return the routing of sequences that are kept one by one."""
        sequences = self._unpadded_sequences(response)
        return [
            Capture(array_of(ids, KEY, dims=3), stated=Stated.of(tokens), last=True, name=name, tokens=tokens)
            for ids, (name, tokens) in zip(_parts(response, KEY), sequences, strict=True)
        ]

    def _unpadded_sequences(self, response: Mapping[str, Any]) -> list[tuple[str, Tokens | None]]:
        prompts, generated = (
            next((part for part in (_parts(response, name) for name in names) if part), None)
            for names in (_PROMPTS, _RESPONSES)
        )
        count = len(_parts(response, KEY))
        if prompts is None or generated is None:
            # Routing alone is enough for a trace; tokens are not needed.
            return [(str(row), None) for row in range(count)]
        if not len(prompts) == len(generated) == count:
            raise Fault(f"{KEY}, prompts and responses differ in sequences")
        sides = [
            [array_of(part, name, dims=1) for part in parts]
            for parts, name in ((prompts, "prompts"), (generated, "responses"))
        ]
        return [
            (str(row), Tokens(token_array(np.concatenate([first, second]), "responses"), len(first)))
            for row, (first, second) in enumerate(zip(*sides, strict=True))
        ]

    def _mask(self, response: Mapping[str, Any]) -> NDArray[np.bool_]:
        """Return which places are tokens ``(sequences, tokens)``."""
        batch = _batch(response)
        if _MASK not in batch:
            raise Fault(
                f"{_MASK} is missing, and padding is zeros, which look like expert 0; save it beside {KEY}"
            )
        mask = array_of(batch[_MASK], _MASK, kinds="iub", dims=2)
        if not np.isin(mask, (0, 1)).all():
            raise Fault(f"{_MASK} takes 0 and 1")
        return mask.astype(bool)


def _parts(response: Mapping[str, Any], name: str) -> list[Any]:
    """Return the sequences of a nested tensor of a batch; none where it has no such tensor."""
    value: Any = _batch(response).get(name)
    return list(value.unbind()) if is_nested(value) else []


def _batch(response: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the tensors, which may be under ``batch``."""
    batch = response.get("batch")
    return batch if isinstance(batch, dict) else response
