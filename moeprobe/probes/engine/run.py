"""Probe checkpoints: from what is asked to tables, figures and an output folder."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import Models
from moeprobe.errors import UserError
from moeprobe.inputs.views.base import SeverityView
from moeprobe.probes.engine import loop, origins
from moeprobe.probes.engine.checks import make_probe, make_request
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.noise_floor import dtype_name
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.engine.question import CLEAN, Probe
from moeprobe.results import plausibility, summaries
from moeprobe.results.folder import OutputFolder, Result, output_folder, provenance
from moeprobe.results.palette import colours
from moeprobe.results.tables import concatenate
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Watcher, watching

# What takes more than ``engine.loop.run`` and its question, and has a function of its own.
_APART = {
    "contagion": "contagion",
    "discontinuity": "discontinuity",
    "fewshot": "fewshot",
    "trace": "record",
    "analyze-trace": "analyze_trace",
}


@with_options
def probe(
    kind: str,
    models: Models,
    *,
    data: str | None = None,
    view: str = CLEAN,
    severities: Sequence[float] | None = None,
    attribute: str | None = None,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Run one of ``KINDS``.

    Args:
        kind: which, of those without a function of their own (``_APART``).
        models: checkpoints, loaded or by path.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were
            trained on.
        view: perturbation.
        severities: of a sweep; None = the view's own steps.
        attribute: in a sweep, exchange pixels and routing too, with "recomputed" or "replayed" gates; None = not.
        options: what all probes have in common; ``changes`` are applied to them by name.
        watcher: told how the run advances.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    _check_kind(kind)
    options = combine(options, changes)
    loaded = load_models(models, options)
    data = choose_data(data, loaded)
    question = make_probe(
        kind, loaded, data=data, view_name=view, severities=severities, attribute=attribute, options=options
    )
    request = make_request(kind, data, question, options, loaded)
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        result = measure(
            kind,
            question,
            loaded,
            data=data,
            request=request,
            options=options,
            folder=folder,
            watcher=watcher,
        )
        if folder is not None:
            # The tables first: what a figure may stumble over is not lost.
            folder.write(result)
            if options.figures:
                save_figures(result, folder.path / "figures")
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
    run: Callable[..., tuple[pa.Table, list[str]]] = loop.run,
    images_besides: int = 0,
) -> Result:
    """Run every checkpoint over the images with ``run`` and put the tables together; only part files are written.

    ``images_besides`` says how many images ``run`` needs that are none of the question's.
    """
    watcher = watching(watcher)
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
    doubts = _doubts(kind, question, models, data, options.split, table, images)
    sidecar = {
        "request": request,
        "severity_unit": question.view.unit if isinstance(question.view, SeverityView) else None,
        "floor_dtype": dtype_name(choose_device(options.device)) if question.floor_images else None,
        "command": options.command,
        "checkpoints": {model.name: dict(model.provenance) | doubts.get(model.name, {}) for model in models},
        "colours": colours([model.name for model in models]),
        "skipped_images": skipped[0],
        "images_per_second": rates,
        "wall_seconds": time.perf_counter() - started,
        "batch_size": options.batch_size,
        "workers": options.workers,
        "device": str(choose_device(options.device)),
    } | provenance()
    return Result(table, comparison, images, sidecar, figures_of)


def _doubts(
    kind: str,
    question: Probe,
    models: Sequence[Checkpoint],
    data: str,
    split: str,
    table: pd.DataFrame,
    images: pa.Table,
) -> dict[str, dict[str, str]]:
    """Return a warning for each checkpoint whose data are in doubt, or that is no better than chance."""
    # Few-shot classifiers are for data that the model has not seen.
    found = {} if kind == "fewshot" else origins.doubts(models, question.dataset, data, split=split)
    names = question.dataset.class_names
    if question.labelled and names is not None and "accuracy" in set(table["metric"]):
        clean = question.view.severities[0] if isinstance(question.view, SeverityView) else None
        for name, text in plausibility.warnings(table, images, num_classes=len(names), clean=clean).items():
            found[name] = f"{found[name]} It {text}" if name in found else text
    return {name: {"warning": text} for name, text in found.items()}


@dataclass(frozen=True)
class Plan:
    """What a probe would take, judging by a few images."""

    checkpoints: int
    images: int
    passes: int
    timed_images: int
    seconds: float


@checked
def plan(
    kind: str,
    models: Models,
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
    run: Callable[..., object] = loop.run,
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


def _check_kind(kind: str) -> None:
    """Raise ``UserError`` unless this kind is measured here."""
    if kind in _APART:
        raise UserError(f"{kind} has a function of its own; call api.{_APART[kind]}.")


def figures_of(result: Result) -> dict[str, Figure]:
    """Return the figures of a run by name; none where its kind has none."""
    from moeprobe.probes.confidence import figure as confidence
    from moeprobe.probes.contagion import figure as contagion
    from moeprobe.probes.fewshot import figure as fewshot
    from moeprobe.probes.match_ratio import figure as match_ratio
    from moeprobe.probes.s_matrix import figure as s_matrix
    from moeprobe.probes.sweep import figure as sweep

    palette, request = result.sidecar["colours"], result.sidecar["request"]
    drawing: dict[str, Callable[[Any], dict[str, Figure]]] = {
        "match-ratio": partial(match_ratio.draw, colours=palette),
        "s-matrix": partial(s_matrix.draw, colours=palette),
        "confidence": partial(confidence.draw, colours=palette),
        "fewshot": partial(fewshot.draw, colours=palette),
        "contagion": partial(contagion.draw, colours=palette),
        "sweep": partial(
            sweep.draw, colours=palette, unit=result.sidecar["severity_unit"], gates=request["replayed_gates"]
        ),
    }
    draw = drawing.get(request["kind"])
    return {} if draw is None else draw(result.table)


def save_figures(result: Result, folder: Path) -> list[Path]:
    """Write the figures of a run as PNG and SVG; returns the files."""
    from moeprobe.results.figures import save

    return [path for name, figure in result.plot().items() for path in save(figure, folder / name)]
