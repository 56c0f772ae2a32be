"""Whether a probe applies to a model's routing, checked before anything is run or written."""

from collections.abc import Sequence

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.modality import IMAGE
from moeprobe.metrics.base import Analysis, LayerAnalysis
from moeprobe.probes.engine.layers import chosen_layers
from moeprobe.routing.record import LayerRouting


def check_choices(
    models: Sequence[Checkpoint], consequence: str, *, layers: tuple[str, ...] | None = None
) -> None:
    """Raise ``UserError`` if a selected layer routes softly (nothing is chosen); ``consequence`` ends the sentence."""
    for model in models:
        for routing in routing_of_blank_input(model, layers):
            if routing.top_k == 0:
                raise UserError(
                    f"In {model.name} ({routing.router}) every expert gets a share of every token, so "
                    f"{consequence}; leave it out."
                )


def check_applies(
    kind: str, analyses: Sequence[Analysis], models: Sequence[Checkpoint], *, layers: tuple[str, ...] | None
) -> None:
    """Raise ``UserError`` if nothing that ``kind`` measures by its ``analyses`` exists in any of the models."""
    layer_analyses = [analysis for analysis in analyses if isinstance(analysis, LayerAnalysis)]
    if len(layer_analyses) < len(analyses):
        return  # a model's output always exists
    routings = [routing for model in models for routing in routing_of_blank_input(model, layers)]
    if not any(analysis.applies(routing) for analysis in layer_analyses for routing in routings):
        routers = " and ".join(
            dict.fromkeys(f"{routing.router} with {routing.num_experts} experts" for routing in routings)
        )
        names = ", ".join(model.name for model in models)
        raise UserError(
            f"Nothing that {kind} measures exists in {names} ({routers}); choose another command."
        )


def check_images(models: Sequence[Checkpoint], consequence: str) -> None:
    """Raise ``UserError`` if a model does not read images; ``consequence`` ends the sentence."""
    for model in models:
        if model.framing.modality is not IMAGE:
            raise UserError(
                f"{model.name} reads {model.framing.modality.plural}, which have no patches, so {consequence}."
            )


def gives_scores(model: Checkpoint) -> bool:
    """Whether a model returns class scores, and not only its routing."""
    return model.model.trace(model.framing.blank())[0] is not None


def routing_of_blank_input(checkpoint: Checkpoint, layers: tuple[str, ...] | None) -> list[LayerRouting]:
    """Return the routing of one black image, or short text: its kind does not depend on the input."""
    model = checkpoint.model
    layer_names = chosen_layers(model.layer_names, layers)
    return list(model.trace(checkpoint.framing.blank(), layers=layer_names, logits=False)[1].layers.values())
