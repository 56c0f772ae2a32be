"""Checks of a run before it begins: of names, declarations and headers of files, then of the loaded models.

``preflight`` refuses a mistyped argument without importing torch, which takes seconds. ``make_spec`` makes the same
checks where models are loaded already, or are another program's, and those that need their routing.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.adapters.base import Checkpoint, Model, Models
from moeprobe.declarations import CLEAN, Probe, Views, registry
from moeprobe.declarations.options import FLOOR_IMAGES, Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.data.base import Dataset, ImageDataset
from moeprobe.inputs.data.readers import naming
from moeprobe.inputs.data.readers.images import Masked
from moeprobe.inputs.modality import IMAGE, TEXT, Modality
from moeprobe.inputs.open import open_view
from moeprobe.inputs.view_names import parse_view
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.metrics.base import Analysis, LayerAnalysis
from moeprobe.models.checkpoints.header import read_info, suffix_of
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.origins import Origin, data_of, make_origin, origin_of
from moeprobe.probes.engine.outputs import without_missing_output
from moeprobe.probes.engine.run_spec import RunSpec, check_layers, check_places, choose_images, chosen_layers
from moeprobe.results.sidecars import Request
from moeprobe.routing.capabilities import check_replayable
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.arguments import several
from moeprobe.runtime.catalog import ANALYSES, VIEWS, is_foreign
from moeprobe.runtime.device import FLOAT32
from moeprobe.runtime.files import resolve
from moeprobe.runtime.short_paths import shortest_ends


@dataclass(frozen=True)
class _Subject:
    """A checkpoint, loaded or not: its name in tables, MoE layers, classes, what it reads, and where it is from."""

    name: str
    layers: Sequence[str]
    class_names: tuple[str, ...]
    modality: Modality
    provenance: Mapping[str, Any]


def preflight(probe: Probe[Any], sources: Sequence[Model], *, data: str | None, options: Options) -> None:
    """Check a probe's arguments before any weights are read.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    probe.check_models(sources)
    subjects = [subject for subject in map(_subject, sources) if subject is not None]
    _check_routing(probe, subjects)
    names = distinct_names([(subject.name, subject.provenance) for subject in subjects])
    origins = [
        make_origin(name, subject.provenance, modality=subject.modality)
        for name, subject in zip(names, subjects, strict=True)
    ]
    if options.max_length is not None:
        for origin in origins:
            check_cut(origin.name, origin.modality)
    # Only some probes have a view, and this module must know none of them: fields are asked for by name.
    view_name: str = getattr(probe, "view", CLEAN)
    view = None if view_name == CLEAN else open_view(view_name)
    view_name = parse_view(view_name).name
    if len(subjects) < len(sources):
        # Models that must be loaded first cannot be checked yet, so only the data are.
        if data is not None:
            naming.check_data(data, split=options.split)
            probe.check_data(naming.resolve_name(data)[0], data)
        return
    if getattr(probe, "tokens", None) is not None:
        return  # sequences that take the place of data
    data = data_of(origins, data, files=getattr(probe, "files", ()))
    naming.check_data(data, split=options.split)
    kind = naming.resolve_name(data)[0]
    probe.check_data(kind, data)
    modality = kind.modality
    check_modality(probe, origins, modality, data, view, view_name)
    steps_of(probe, view, view_name)
    check_layers(
        {name: subject.layers for name, subject in zip(names, subjects, strict=True)}, options.layers
    )
    if probe.analyses:
        check_options(probe, options)
    if probe.labels_required:
        classes = {name: subject.class_names for name, subject in zip(names, subjects, strict=True)}
        check_classes(classes, modality, data)


def _subject(model: Model) -> _Subject | None:
    """Return the facts about a checkpoint; None where that takes loading it."""
    if isinstance(model, Checkpoint):
        return _Subject(
            model.name, model.model.layer_names, model.class_names, model.framing.modality, model.provenance
        )
    # Foreign models run their own code when they load; headers tell nothing about them.
    if not isinstance(model, str | Path) or is_foreign(model):
        return None
    info, header = read_info(model)
    # A plug-in's router may be unknown here: better refused before any weights are read.
    info.check_router()
    provenance = {"path": str(info.path), "training": info.training, "served": info.settings.plain()}
    return _Subject(info.name, header.moe_layers, info.class_names, IMAGE, provenance)


def _check_routing(probe: Probe[Any], subjects: Sequence[_Subject]) -> None:
    """Raise ``UserError`` where routing is asked for and a model has none."""
    dense = [subject.name for subject in subjects if not subject.layers]
    if dense and probe.needs_routing:
        alternatives = _join_with_or([kind.name for kind in registry.probes() if not kind.needs_routing])
        raise UserError(
            f"{dense[0]} is dense: it has no MoE layer, so there is no routing for {probe.name}; {alternatives} can "
            "measure it."
        )


def check_some(models: Models) -> list[Model]:
    """Return the models as a list.

    Raises:
        UserError: there is none.
    """
    sources: list[Model] = several(models)
    if not sources:
        raise UserError("Name at least one checkpoint.")
    return sources


def check_folder(probe: Probe[Any], options: Options) -> None:
    """Raise ``UserError`` where nothing is done without an output folder, and none is named."""
    if probe.needs_folder and options.out is None:
        raise UserError(f"Name a folder for {probe.needs_folder}, e.g. {option('out', f'{probe.kind}s')}.")


def distinct_names(models: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return names that distinguish models: their own, or the ends of the paths that they are from.

    Args:
        models: the name and the provenance of each.

    Raises:
        UserError: one is given twice.
    """
    names = [name for name, _ in models]
    if len(set(names)) == len(names):
        return names
    # Names collide, e.g. two trainings of one configuration: the paths tell them apart.
    paths = [_source_path(name, provenance) for name, provenance in models]
    if len(set(paths)) < len(paths):
        raise UserError("The same checkpoint was named twice.")
    return shortest_ends(paths, least=2)


def _source_path(name: str, provenance: Mapping[str, Any]) -> Path:
    """Return where a model is from, without its suffix.

    The files of one folder (best and last) differ in their own names, folders in their parents' names, and modules
    with the same settings in their constructor.
    """
    path = resolve(Path(provenance.get("path", name))).with_suffix("")
    path = path.with_name(f"{path.name}{suffix_of(provenance.get('served', {}))}")
    return path / provenance.get("factory", "").replace(":", ".")


def check_cut(name: str, modality: Modality) -> None:
    """Raise ``UserError`` where texts are to be cut off, and a model reads none."""
    if modality is not TEXT:
        raise UserError(f"{option('max_length')} is for texts, and {name} reads {modality.plural}.")


def check_precision(probe: Probe[Any], options: Options) -> None:
    """Raise ``UserError`` where a probe has no passes in another precision than float32, or no noise floor."""
    if options.precision != FLOAT32 and probe.refuses_precision:
        raise UserError(f"{probe.name} {probe.refuses_precision}; leave {option('precision')} out.")
    # A lower precision changes routing by itself; without the floor nobody could tell that from the perturbation.
    if options.precision != FLOAT32 and not options.floor_images:
        raise UserError(
            f"With {option('precision')}, {option('floor_images')} takes a positive number of images: they show what "
            "the precision alone changes."
        )
    has_floor = probe.noise_floor or options.precision != FLOAT32
    # Only a number other than the default was asked for; it would have no effect.
    if options.floor_images != FLOOR_IMAGES and not has_floor:
        raise UserError(
            f"{probe.name} measures a noise floor only with {option('precision')}; leave {option('floor_images')} out."
        )


def check_options(probe: Probe[Any], options: Options) -> None:
    """Raise ``UserError`` if a common option has no effect in this probe."""
    for name, is_set in (("class_null", options.class_null), ("masks", options.masks is not None)):
        # Checked by analysis and not by probe, so that a new probe with matches needs no entry here.
        if is_set and "match" not in probe.analyses:
            suitable = [kind.name for kind in registry.probes() if "match" in kind.analyses]
            raise UserError(f"{option(name)} is about matches: use it with {_join_with_or(suitable)}.")
    if options.allow_not_finite and not probe.leaves_out:
        suitable = [kind.name for kind in registry.probes() if kind.leaves_out and kind.compares]
        raise UserError(
            f"{probe.name} needs finite gates and scores of all inputs; omit {option('allow_not_finite')}, or use "
            f"it with {_join_with_or(suitable)}."
        )


def _join_with_or(names: Sequence[str]) -> str:
    return " or ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)


def check_modality(
    probe: Probe[Any],
    origins: Sequence[Origin],
    modality: Modality,
    data: str,
    view: PairView | SeverityView | None,
    view_name: str,
) -> None:
    """Raise ``UserError`` unless data, view and models are all about images, or all about texts."""
    for origin in origins:
        if origin.modality is not modality:
            reads = origin.modality
            example = "text:PATH" if reads is TEXT else "folder:PATH"
            raise UserError(
                f"{origin.name} reads {reads.plural}, and {data} holds {modality.plural}; name {reads.plural}, e.g. "
                f"{option('data', example)}."
            )
    if view is not None and view.modality is not modality:
        suited = PairView if probe.views is Views.PAIRS else SeverityView
        fitting = [
            name
            for name in VIEWS.names()
            if VIEWS.get(name).modality is modality and issubclass(VIEWS.get(name), suited)
        ]
        raise UserError(
            f"The view {view_name!r} perturbs {view.modality.plural}, and {data} holds {modality.plural}; use one of "
            f"{', '.join(fitting)}, e.g. {option('view', fitting[0])}."
        )


def check_classes(class_names: Mapping[str, tuple[str, ...]], modality: Modality, data: str) -> None:
    """Raise ``UserError`` unless it is known of every model what its scores are about."""
    unknown = [name for name, classes in class_names.items() if not classes]
    if unknown:
        raise UserError(
            f"The classes of {unknown[0]} are unknown, so there is nothing to evaluate"
            + (
                f"; if it was imported, import it again with {option('classes', data)}; if it is a module of your own, "
                f"set the key classes: {data}."
                if modality is IMAGE
                else ": the model is no classifier of texts."
            )
        )


def steps_of(probe: Probe[Any], view: PairView | SeverityView | None, view_name: str) -> tuple[float, ...]:
    """Return the severities of a probe, none where it has none; with any view, if requested or if nothing else fits.

    Raises:
        UserError: the view makes no pairs where those are compared, or has no severity where that grows.
    """
    severities: Sequence[float] | None = getattr(probe, "severities", None)
    if probe.views is Views.PAIRS and not isinstance(view, PairView):
        raise UserError(
            f"The view {view_name!r} makes no pairs; probe it with: moeprobe sweep --view {view_name}."
        )
    any_view = probe.views is Views.ANY
    either = any_view and (severities is not None or (view is not None and not isinstance(view, PairView)))
    if probe.views is not Views.SEVERITIES and not either:
        return ()
    if not isinstance(view, SeverityView):
        instead = (
            f"leave {option('severities')} out"
            if any_view
            else f"use: moeprobe match-ratio --view {view_name}"
        )
        raise UserError(f"The view {view_name!r} has no severity; {instead}.")
    steps = view.severities if severities is None else tuple(severities)
    _check_severities(steps)
    view.check(steps)
    return steps


def _check_severities(severities: tuple[float, ...]) -> None:
    """Raise ``UserError`` unless there is at least one severity and none is named twice."""
    if not severities:
        raise UserError("Name at least one severity.")
    if len(set(severities)) < len(severities):
        raise UserError(f"A severity is named twice in {', '.join(map(str, severities))}.")


def make_spec(probe: Probe[Any], models: Sequence[Checkpoint], *, data: str, options: Options) -> RunSpec:
    """Return the specification of a run, the same for every checkpoint.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    view_name: str = getattr(probe, "view", CLEAN)
    attribute: bool = getattr(probe, "attribute", False)
    dataset = _open_data(data, options)
    # Some views need the data set, e.g. to find images of other classes, so they are opened after it.
    view = None if view_name == CLEAN else open_view(view_name, dataset=dataset)
    view_name = parse_view(view_name).name
    check_modality(probe, [origin_of(model) for model in models], dataset.modality, data, view, view_name)
    steps = steps_of(probe, view, view_name)
    if view is not None and not view.aligned:
        check_places(
            models, f"the view {view_name!r} moves them; use one that does not, such as gaussian_noise"
        )
    check_layers({model.name: model.model.layer_names for model in models}, options.layers)
    analyses = registry.measured_by(probe)
    if probe.optional:
        analyses = without_missing_output(analyses, probe, models)
    if analyses:
        check_applies(probe.kind, make_analyses(analyses), models, layers=options.layers)
    if attribute:
        # Attribution replays routing, which not every model can do: refused here rather than in the first batch.
        _check_attribution(view, models, gates=getattr(probe, "gates", "recomputed"))
        analyses += ("attribution",)
    check_options(probe, options)
    # With other classes than the model's, labels would be compared with scores of something else.
    labeled = all(_same_classes(model, dataset) for model in models)
    if probe.labels_required:
        _check_labels(models, dataset, data, options.split)
    if options.class_null and dataset.class_names is None:
        raise UserError(
            f"{data} {options.split} has no labels, so there is no class for {option('class_null')}."
        )
    spec = RunSpec(
        dataset=dataset,
        indices=choose_images(dataset, limit=options.limit, seed=options.seed),
        view_name=view_name,
        view=view,
        severities=steps,
        analyses=make_analyses(analyses, class_null=options.class_null),
        seed=options.seed,
        layers=options.layers,
        batch_size=options.batch_size,
        skip_bad_images=options.skip_bad_images,
        labeled=labeled,
        replayed_gates=getattr(probe, "gates", "recomputed"),
        floor_images=options.floor_images if probe.noise_floor else 0,
        allow_not_finite=options.allow_not_finite,
    )
    return spec.with_workers(models, options)


def _check_labels(models: Sequence[Checkpoint], dataset: Dataset, data: str, split: str) -> None:
    """Raise ``UserError`` unless the data have labels for the models' classes."""
    check_classes({model.name: model.class_names for model in models}, dataset.modality, data)
    if not all(_same_classes(model, dataset) for model in models):
        raise UserError(_not_evaluated(models, dataset, data, split))


def _open_data(data: str, options: Options) -> Dataset:
    """Return the data set, with the masks that are named."""
    dataset = naming.open_data(data, split=options.split)
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
        if not routing:
            check_layers({model.name: model.model.layer_names}, layers)
        if not any(applies(layer) for layer in routing):
            raise UserError(
                f"In no layer of {model.name} ({routing[0].router}) {missing}: tokens must choose fewer than all "
                f"experts, {condition}"
            )


def routers_of(checkpoint: Checkpoint, layers: tuple[str, ...] | None) -> dict[str, list[int]]:
    """Return by layer the number of experts, and how many a token chooses; 0 where tokens do not choose."""
    names = chosen_layers(checkpoint.model.layer_names, layers)
    routings = routing_of_blank_input(checkpoint, layers)
    return {
        name: [routing.num_experts, routing.choices_per_token]
        for name, routing in zip(names, routings, strict=True)
    }
