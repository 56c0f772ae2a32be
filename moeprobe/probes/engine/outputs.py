"""What models give beside their routing: class scores, features, or nothing; and which analyses need which."""

from collections.abc import Sequence
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import Probe
from moeprobe.errors import UserError
from moeprobe.probes.engine.blank_passes import has_output
from moeprobe.probes.engine.run_spec import OF_FEATURES, chosen_layers
from moeprobe.routing.capabilities import FEATURES, SCORES, Rerouted, check_replayable, output_kind


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


def check_forced_choices(
    model: Checkpoint, layers: Sequence[str] | None, *, irreplayable: str, scoreless: str
) -> None:
    """Raise ``UserError`` unless layers can be made to choose otherwise, and what that does to an output is measured.

    Texts are measured by probabilities of tokens, images by class scores.

    Args:
        model: the checkpoint.
        layers: as chosen by the user; None = all.
        irreplayable: ends the sentence where a routing cannot be replayed.
        scoreless: ends it where there are no class scores.
    """
    if isinstance(model.model, Rerouted):
        model.model.check_replay(chosen_layers(model.model.layer_names, layers))
        return
    check_replayable(model.name, model.model, irreplayable)
    if not gives_scores(model):
        raise UserError(f"{model.name} gives no class scores, so {scoreless}.")
