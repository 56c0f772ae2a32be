"""Probe checkpoints: from what is asked to tables, figures and an output folder."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from moeprobe import summaries, sweeps
from moeprobe.analyses.base import Analysis
from moeprobe.applicability import check_applies, check_choices
from moeprobe.catalog import ANALYSES
from moeprobe.data._masks import Masked
from moeprobe.data.base import ImageDataset
from moeprobe.errors import UserError
from moeprobe.floors import dtype_name
from moeprobe.loading import Model, Options, choose_data, choose_device, load_models, open_data, open_view
from moeprobe.palette import colours
from moeprobe.probes import CLEAN, Checkpoint, Probe, choose_images
from moeprobe.routing import Replayable
from moeprobe.runs import OutputFolder, Result, provenance
from moeprobe.tables import concatenate
from moeprobe.views.base import PairView, SeverityView
from moeprobe.watching import Watcher

# How much the routing of two views agrees; each says of which routers.
_MATCHES = ("match", "set_match", "slot_match")
_AGREEMENT = (*_MATCHES, "weights", "churn")
# What each kind of probe measures.
KINDS: dict[str, tuple[str, ...]] = {
    "match-ratio": (*_AGREEMENT, "load", "unserved"),
    "s-matrix": ("s_matrix", "load", "unserved"),
    "confidence": ("confidence", "load", "unserved"),
    "sweep": (*_AGREEMENT, "confidence", "load", "unserved", "output"),
    "eval": ("output",),
    "discontinuity": ("discontinuity",),
    "fewshot": ("fewshot",),
    "contagion": ("batch_contagion", "token_contagion", "attention_contagion"),
}
# What takes more than ``sweeps.run`` and its question, and has a function of its own.
_APART = ("discontinuity", "fewshot")
# Clean images that a sweep runs again unchanged: arithmetic does not need more.
FLOOR_IMAGES = 256
# What compares two random views of an image.
_OF_PAIRS = ("match-ratio", "s-matrix")


def probe(
    kind: str,
    models: Sequence[Model],
    *,
    data: str | None = None,
    view: str = CLEAN,
    severities: Sequence[float] | None = None,
    attribute: str | None = None,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Any,
) -> Result:
    """Run one of ``KINDS``.

    Args:
        kind: which; discontinuity and fewshot have functions of their own.
        models: checkpoints, loaded or by path.
        data: data set, ``name`` or ``name:location``; None = see ``choose_data``.
        view: perturbation.
        severities: of a sweep; None = the view's own steps.
        attribute: in a sweep, exchange pixels and routing too, with "recomputed" or "replayed" gates; None = not.
        options: what all probes have in common; ``changes`` are applied to them by name.
        watcher: told how the run advances.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    _check_kind(kind)
    options = dataclasses.replace(options or Options(), **changes)
    loaded = load_models(models, options)
    data = choose_data(data, loaded)
    question = make_probe(
        kind, loaded, data=data, view_name=view, severities=severities, attribute=attribute, options=options
    )
    request = make_request(kind, data, question, options, loaded)
    folder = None if options.out is None else OutputFolder(options.out, request, overwrite=options.overwrite)
    result = measure(
        kind, question, loaded, data=data, request=request, options=options, folder=folder, watcher=watcher
    )
    if folder is not None:
        # The tables first: what a figure may stumble over is not lost.
        folder.write(result)
        if options.figures:
            draw_figures(kind, result, folder.path / "figures")
        folder.finish(result.sidecar)
    return result


def measure(
    kind: str,
    question: Probe,
    models: Sequence[Checkpoint],
    *,
    data: str,
    request: dict[str, Any],
    options: Options,
    folder: OutputFolder | None = None,
    watcher: Watcher | None = None,
    run: Callable[..., tuple[pa.Table, list[str]]] = sweeps.run,
    images_besides: int = 0,
) -> Result:
    """Run every checkpoint over the images with ``run`` and put the tables together; only part files are written.

    ``images_besides`` says how many images ``run`` needs that are none of the question's.
    """
    watcher = watcher or Watcher()
    started = time.perf_counter()
    tables, skipped, rates = [], [], {}
    num_images = len(question.indices) + images_besides
    for model in models:
        watcher.start(f"{kind}: {model.name}", num_images)
        if kind == "eval":
            # Its images per second are read: without what the first pass of all alone must do.
            run(dataclasses.replace(question, indices=question.indices[:1], skip_bad_images=True), model)
        begun = time.perf_counter()
        parts = None if folder is None else folder.parts
        table, bad = run(question, model, parts=parts, progress=watcher.advance)
        rates[model.name] = num_images / (time.perf_counter() - begun)
        tables.append(table)
        skipped.append(bad)
    images = concatenate(tables)
    if images.num_rows == 0:
        if all(len(bad) == len(question.indices) for bad in skipped):
            raise UserError(f"None of the {len(question.indices)} images of {data} could be read.")
        names = ", ".join(model.name for model in models)
        raise UserError(
            f"Nothing that {kind} measures applies to the routers of {names}; match-ratio and sweep measure any."
        )
    about = summaries.About(
        run=kind if options.out is None else options.out.name,
        dataset=data,
        split=options.split,
        seed=options.seed,
        aligned=question.view is not None and question.view.aligned,
        train_seeds={model.name: model.train_seed for model in models},
        groups={model.name: model.group for model in models},
    )
    table, comparison = summaries.summarise(images, analyses=question.analyses, about=about)
    sidecar = {
        "request": request,
        "severity_unit": question.view.unit if isinstance(question.view, SeverityView) else None,
        "floor_dtype": dtype_name(choose_device(options.device)) if question.floor_images else None,
        "command": options.command,
        "checkpoints": {model.name: dict(model.provenance) for model in models},
        "colours": colours([model.name for model in models]),
        "skipped_images": skipped[0],
        "images_per_second": rates,
        "wall_seconds": time.perf_counter() - started,
        "batch_size": options.batch_size,
        "workers": options.workers,
        "device": str(choose_device(options.device)),
    } | provenance()
    return Result(table, comparison, images, sidecar)


@dataclass(frozen=True)
class Plan:
    """What a probe would take, judging by a few images."""

    checkpoints: int
    images: int
    passes: int
    timed_images: int
    seconds: float


def plan(
    kind: str,
    models: Sequence[Model],
    *,
    data: str | None = None,
    view: str = CLEAN,
    severities: Sequence[float] | None = None,
    attribute: str | None = None,
    options: Options | None = None,
) -> Plan:
    """Say what ``probe`` would take, by running two batches of each checkpoint and writing nothing."""
    _check_kind(kind)
    options = options or Options()
    loaded = load_models(models, options)
    data = choose_data(data, loaded)
    question = make_probe(
        kind, loaded, data=data, view_name=view, severities=severities, attribute=attribute, options=options
    )
    return time_sample(question, loaded, images=2 * options.batch_size, passes=question.num_passes)


def time_sample(
    question: Probe,
    models: Sequence[Checkpoint],
    *,
    images: int,
    passes: int,
    run: Callable[..., object] = sweeps.run,
) -> Plan:
    """Return what a probe would take, from the time that its first ``images`` take."""
    sample = dataclasses.replace(question, indices=question.indices[:images], skip_bad_images=True)
    seconds = 0.0
    for model in models:
        run(dataclasses.replace(sample, indices=sample.indices[:1]), model)
        begun = time.perf_counter()
        run(sample, model)
        seconds += time.perf_counter() - begun
    return Plan(
        checkpoints=len(models),
        images=len(question.indices),
        passes=passes,
        timed_images=len(sample.indices),
        seconds=seconds * len(question.indices) / len(sample.indices),
    )


def make_probe(
    kind: str,
    models: Sequence[Checkpoint],
    *,
    data: str,
    view_name: str,
    severities: Sequence[float] | None,
    options: Options,
    attribute: str | None = None,
) -> Probe:
    """Put together what is asked of every checkpoint.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    dataset = open_data(data, split=options.split)
    if options.masks is not None:
        dataset = Masked(dataset, options.masks)
    view = None if view_name == CLEAN else open_view(view_name, dataset=dataset)
    steps: tuple[float, ...] = ()
    if kind in _OF_PAIRS and not isinstance(view, PairView):
        raise UserError(
            f"The view {view_name!r} makes no pairs; probe it with: moeprobe sweep --view {view_name}."
        )
    if kind in ("sweep", "discontinuity"):
        if not isinstance(view, SeverityView):
            raise UserError(
                f"The view {view_name!r} has no severity; use: moeprobe match-ratio --view {view_name}."
            )
        steps = view.severities if severities is None else tuple(severities)
        check_severities(steps)
    if options.limit is not None and options.limit < 1:
        raise UserError(f"--limit takes a positive number of images; got {options.limit}.")
    if options.batch_size < 1:
        raise UserError(f"--batch-size takes a positive number of images; got {options.batch_size}.")
    _check_layers(models, options.layers)
    analyses = KINDS[kind]
    check_applies(kind, make_analyses(analyses), models, layers=options.layers)
    if attribute is not None:
        _check_attribution(kind, view, models, attribute)
        analyses += ("attribution",)
    for given, option in ((options.class_null, "--class-null"), (options.masks is not None, "--masks")):
        if given and "match" not in analyses:
            raise UserError(f"{option} is about matches: use it with match-ratio, sweep or noise-sweep.")
    labelled = all(_same_classes(model, dataset) for model in models)
    unknown = [model.name for model in models if not model.class_names]
    if kind == "eval" and unknown:
        raise UserError(
            f"What classes the scores of {unknown[0]} are about is not known, so there is nothing to evaluate; "
            f"where it was imported, import it again with --classes {data}."
        )
    if kind == "eval" and not labelled:
        reason = "has no labels" if dataset.class_names is None else "has other classes than the model"
        raise UserError(f"{data} {options.split} {reason}, so there is nothing to evaluate.")
    if options.class_null and dataset.class_names is None:
        raise UserError(f"{data} {options.split} has no labels, so there is no class for --class-null.")
    return Probe(
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
        labelled=labelled,
        replayed_gates=attribute or "recomputed",
        floor_images=FLOOR_IMAGES if kind == "sweep" else 0,
    )


def make_analyses(names: Sequence[str], *, class_null: bool = False) -> tuple[Analysis, ...]:
    """Return the analyses called so; ``class_null`` concerns matches."""
    return tuple(
        ANALYSES.get(name)(class_null=class_null) if name in _MATCHES else ANALYSES.get(name)()
        for name in names
    )


def _check_kind(kind: str) -> None:
    """Raise ``UserError`` unless this kind is measured here."""
    if kind in _APART:
        raise UserError(f"{kind} has a function of its own; call api.{kind}.")


def _check_attribution(
    kind: str, view: PairView | SeverityView | None, models: Sequence[Checkpoint], gates: str
) -> None:
    """Raise ``UserError`` unless pixels and routing can be exchanged in this sweep."""
    if gates not in ("recomputed", "replayed"):
        raise UserError(f"The gates of a replayed routing are recomputed or replayed; got {gates!r}.")
    if kind != "sweep" or view is None or not view.aligned:
        raise UserError(
            "Only a sweep whose view leaves the patches where they are (such as gaussian_noise) can be attributed."
        )
    for model in models:
        if not isinstance(model.model, Replayable):
            raise UserError(f"{model.name} cannot replay a routing, so its changes cannot be attributed.")
    check_choices(models, "there are no choices to replay")


def check_severities(severities: tuple[float, ...]) -> None:
    """Raise ``UserError`` unless there is at least one severity and none is named twice."""
    if not severities:
        raise UserError("Name at least one severity.")
    if len(set(severities)) < len(severities):
        raise UserError(f"A severity is named twice in {', '.join(map(str, severities))}.")


def _check_layers(models: Sequence[Checkpoint], layers: tuple[str, ...] | None) -> None:
    """Raise ``UserError`` unless each layer is in some checkpoint and each checkpoint has some of the layers."""
    if layers is None:
        return
    there = list(dict.fromkeys(layer for model in models for layer in model.model.layer_names))
    for layer in layers:
        if layer not in there:
            names = ", ".join(model.name for model in models)
            raise UserError(f"There is no MoE layer {layer!r} in {names}; there are: {', '.join(there)}.")
    for model in models:
        if not set(layers) & set(model.model.layer_names):
            own = ", ".join(model.model.layer_names)
            raise UserError(f"{model.name} has none of the layers {', '.join(layers)}; it has: {own}.")


def _same_classes(model: Checkpoint, dataset: ImageDataset) -> bool:
    """Whether the data's labels are known to be about what the model's scores are about."""
    return bool(model.class_names) and model.class_names == dataset.class_names


def make_request(
    kind: str, data: str, probe: Probe, options: Options, models: Sequence[Checkpoint]
) -> dict[str, Any]:
    """Return what determines the numbers of a run; speed (batch size, workers, device) is no part of it."""
    view = {"name": probe.view_name} | (dataclasses.asdict(probe.view) if probe.view is not None else {})  # type: ignore[call-overload]
    return {
        "kind": kind,
        "data": data,
        "split": options.split,
        "view": view,
        "severities": list(probe.severities),
        "analyses": [*KINDS.get(kind, (kind,)), *(("attribution",) if probe.corners else ())],
        "replayed_gates": probe.replayed_gates if probe.corners else None,
        "layers": None if options.layers is None else list(options.layers),
        "limit": options.limit,
        "seed": options.seed,
        "masks": None if options.masks is None else str(options.masks),
        "skip_bad_images": options.skip_bad_images,
        "trained_capacity": options.trained_capacity,
        "class_null": options.class_null,
        "labels_used": probe.labelled and probe.dataset.class_names is not None,
        "checkpoints": {
            model.name: {key: model.provenance.get(key) for key in ("sha256", "capacity", "group_images")}
            for model in models
        },
    }


def draw_figures(kind: str, result: Result, folder: Path) -> list[Path]:
    """Draw the figures of a run as PNG and SVG; returns the files."""
    from moeprobe.figures import confidence as confidence_figure
    from moeprobe.figures import contagion as contagion_figure
    from moeprobe.figures import fewshot as fewshot_figure
    from moeprobe.figures import match_ratio as match_figure
    from moeprobe.figures import s_matrix as matrix_figure
    from moeprobe.figures import save
    from moeprobe.figures import sweep as sweep_figure

    drawing: dict[str, Callable[[Any], dict[str, Any]]] = {
        "match-ratio": partial(match_figure.draw, colours=result.sidecar["colours"]),
        "s-matrix": matrix_figure.draw,
        "confidence": partial(confidence_figure.draw, colours=result.sidecar["colours"]),
        "fewshot": partial(fewshot_figure.draw, colours=result.sidecar["colours"]),
        "contagion": partial(contagion_figure.draw, colours=result.sidecar["colours"]),
        "sweep": partial(
            sweep_figure.draw,
            colours=result.sidecar["colours"],
            unit=result.sidecar["severity_unit"],
            gates=result.sidecar["request"]["replayed_gates"],
        ),
    }
    if kind not in drawing:
        return []
    return [
        path for name, figure in drawing[kind](result.table).items() for path in save(figure, folder / name)
    ]
