"""What models give beside their routing: class scores, features, or nothing; and which analyses need which."""

from collections.abc import Sequence
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import Probe
from moeprobe.probes.engine.blank_passes import has_output
from moeprobe.probes.engine.run_spec import OF_FEATURES
from moeprobe.routing.capabilities import FEATURES, SCORES, output_kind


def without_missing_output(
    analyses: tuple[str, ...], probe: Probe[Any], models: Sequence[Checkpoint]
) -> tuple[str, ...]:
    """Leave out analyses of outputs that some model does not give."""
    kinds = {_output_of(model) for model in models}
    omitted = set(probe.optional)
    if kinds == {SCORES}:
        omitted = {OF_FEATURES}
    elif kinds == {FEATURES}:
        omitted -= {OF_FEATURES}
    return tuple(name for name in analyses if name not in omitted)


def _output_of(model: Checkpoint) -> str | None:
    """Return what a model gives beside its routing: "scores", "features", or None."""
    return output_kind(model.model) if has_output(model) else None


def gives_scores(model: Checkpoint) -> bool:
    """Whether a model returns class scores, and not only its routing or features."""
    return _output_of(model) == SCORES
