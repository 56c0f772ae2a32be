"""Checks of checkpoints, their routing, images and a perturbation, before anything is run."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.data.base import Dataset, ImageDataset
from moeprobe.inputs.data.readers.images import Masked
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.inputs.modality import IMAGE
from moeprobe.inputs.open import open_view, parse_view
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.metrics.base import Analysis, LayerAnalysis
from moeprobe.probes import registry
from moeprobe.probes.base import CLEAN, Probe
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.origins import origin_of
from moeprobe.probes.engine.preflight import check_classes, check_modality, check_options, steps_of
from moeprobe.probes.engine.run_spec import RunSpec, check_layers, choose_images, chosen_layers
from moeprobe.results.sidecars import Request
from moeprobe.routing.capabilities import check_replayable
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.catalog import ANALYSES


def make_spec(probe: Probe[Any], models: Sequence[Checkpoint], *, data: str, options: Options) -> RunSpec:
    """Return the specification of a run, the same for every checkpoint.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    view_name: str = getattr(probe, "view", CLEAN)
    attribute: bool = getattr(probe, "attribute", False)
    dataset = _open_data(data, options)
    view = None if view_name == CLEAN else open_view(view_name, dataset=dataset)
    view_name = parse_view(view_name).name
    check_modality(probe, [origin_of(model) for model in models], dataset.modality, data, view, view_name)
    steps = steps_of(probe, view, view_name)
    check_layers({model.name: model.model.layer_names for model in models}, options.layers)
    analyses = registry.measured_by(probe)
    if not all(gives_scores(model) for model in models if probe.optional):
        analyses = tuple(name for name in analyses if name not in probe.optional)
    if analyses:
        check_applies(probe.kind, make_analyses(analyses), models, layers=options.layers)
    if attribute:
        _check_attribution(view, models, gates=getattr(probe, "gates", "recomputed"))
        analyses += ("attribution",)
    check_options(probe, options)
    labeled = all(_same_classes(model, dataset) for model in models)
    if probe.labels_required:
        _check_labels(models, dataset, data, options.split)
    if options.class_null and dataset.class_names is None:
        raise UserError(
            f"{data} {options.split} has no labels, so there is no class for {option('class_null')}."
        )
    return RunSpec(
        dataset=dataset,
        indices=choose_images(dataset, limit=options.limit, seed=options.seed),
        view_name=view_name,
        view=view,
        severities=steps,
        analyses=make_analyses(analyses, class_null=options.class_null),
        seed=options.seed,
        layers=options.layers,
        batch_size=options.batch_size,
        workers=options.workers,
        skip_bad_images=options.skip_bad_images,
        labeled=labeled,
        replayed_gates=getattr(probe, "gates", "recomputed"),
        floor_images=options.floor_images if probe.noise_floor else 0,
        allow_not_finite=options.allow_not_finite,
    )


def _check_labels(models: Sequence[Checkpoint], dataset: Dataset, data: str, split: str) -> None:
    """Raise ``UserError`` unless the data have labels for the models' classes."""
    check_classes({model.name: model.class_names for model in models}, dataset.modality, data)
    if not all(_same_classes(model, dataset) for model in models):
        raise UserError(_not_evaluated(models, dataset, data, split))


def _open_data(data: str, options: Options) -> Dataset:
    """Return the data set, with the masks that are named."""
    dataset = open_data(data, split=options.split)
    if options.masks is None:
        return dataset
    if not isinstance(dataset, ImageDataset):
        raise UserError(f"{option('masks')} are for images, and {data} holds {dataset.modality.plural}.")
    return Masked(dataset, options.masks)


def make_analyses(names: Sequence[str], *, class_null: bool = False) -> tuple[Analysis, ...]:
    """Instantiate analyses by name; ``class_null`` applies to the match analyses."""
    return tuple(
        kind(class_null=class_null) if "class_null" in inspect.signature(kind).parameters else kind()
        for kind in map(ANALYSES.get, names)
    )


def analyses_of(request: Request) -> tuple[Analysis, ...]:
    """Instantiate the analyses of a finished run, to compute its numbers from the sums again."""
    return make_analyses(request.analyses, class_null=request.class_null)


def _check_attribution(
    view: PairView | SeverityView | None, models: Sequence[Checkpoint], *, gates: str
) -> None:
    """Raise ``UserError`` unless pixels and routing can be exchanged along this view."""
    if gates not in ("recomputed", "replayed"):
        raise UserError(f"The gates of a replayed routing are recomputed or replayed; got {gates!r}.")
    if view is not None and not view.aligned:
        raise UserError(
            "Only a sweep whose view leaves the patches where they are (such as gaussian_noise) can be attributed."
        )
    for model in models:
        check_replayable(model.name, model.model, "its changes cannot be attributed")
    check_choices(models, "there are no choices to replay")


def _same_classes(model: Checkpoint, dataset: Dataset) -> bool:
    """Whether the data are known to have the model's classes."""
    return bool(model.class_names) and model.class_names == dataset.class_names


def _not_evaluated(models: Sequence[Checkpoint], dataset: Dataset, data: str, split: str) -> str:
    """Return why there is no accuracy on these data."""
    if dataset.class_names is None:
        return f"{data} {split} has no labels, so there is nothing to evaluate."
    mismatched = next(model for model in models if not _same_classes(model, dataset))
    trained = origin_of(mismatched).data
    default = (
        f"; it was trained on {trained}, which is used if {option('data')} is omitted" if trained else ""
    )
    return (
        f"{data} {split} has other classes than the model {mismatched.name}, so there is nothing to evaluate"
        f"{default}."
    )


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


def check_some_layer(
    models: Sequence[Checkpoint],
    layers: tuple[str, ...] | None,
    applies: Callable[[LayerRouting], bool],
    *,
    missing: str,
    condition: str,
) -> None:
    """Raise ``UserError`` unless a probe ``applies`` to some layer of each model.

    The sentence names the property that is ``missing`` in every layer, and ends in the probe's ``condition`` on the
    tokens' choice.
    """
    for model in models:
        routing = routing_of_blank_input(model, layers)
        if not any(applies(layer) for layer in routing):
            raise UserError(
                f"In no layer of {model.name} ({routing[0].router}) {missing}: tokens must choose fewer than all "
                f"experts, {condition}"
            )


def routing_of_blank_input(checkpoint: Checkpoint, layers: tuple[str, ...] | None) -> list[LayerRouting]:
    """Return the routing of one black image, or short text: its kind does not depend on the input."""
    model = checkpoint.model
    layer_names = chosen_layers(model.layer_names, layers)
    return list(model.trace(checkpoint.framing.blank(), layers=layer_names, logits=False)[1].layers.values())
