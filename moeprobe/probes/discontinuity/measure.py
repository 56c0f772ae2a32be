"""Discontinuities of the output along a severity: what is asked, the tables, and the paths that are drawn."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import pandas as pd
import pyarrow as pa
from matplotlib.figure import Figure

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import Models
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example
from moeprobe.inputs.open import pick_images
from moeprobe.metrics.discontinuity import Path as OutputPath
from moeprobe.probes.discontinuity import follow
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.applicability import check_choices
from moeprobe.probes.engine.checks import make_probe, make_request
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.engine.question import Probe
from moeprobe.probes.engine.run import Plan, measure, save_figures, time_sample
from moeprobe.results.folder import Result, output_folder
from moeprobe.results.showing import Figures
from moeprobe.routing.capabilities import Replayable
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.keywords import checked
from moeprobe.runtime.progress import Watcher

KIND = "discontinuity"
MIN_STEPS = 200


@dataclass(frozen=True)
class DiscontinuityResult:
    """What was found: the tables over all images, and the paths of the images that are drawn."""

    result: Result
    paths: list[OutputPath]

    def plot(self) -> Figures:
        """Return the figures by name: the paths that are drawn, and the sizes of the jumps; nothing is written."""
        return self.result.plot()

    def __repr__(self) -> str:
        return f"DiscontinuityResult({self.result!r}, paths={len(self.paths)})"

    def _repr_html_(self) -> str:
        return self.result._repr_html_()


@with_options
def discontinuity(
    models: Models,
    *,
    data: str | None = None,
    view: str = "gaussian_noise",
    steps: int = MIN_STEPS,
    until: float | None = None,
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    count: int = 3,
    options: Options | None = None,
    watcher: Watcher | None = None,
    **changes: Unpack[Keywords],
) -> DiscontinuityResult:
    """Follow the output while a severity grows, find every switch of experts and measure its jump by replay.

    Args:
        models: checkpoints, loaded or by path.
        data: data set, used unless ``files`` are given; None = as in ``engine.run.probe``.
        view: a view with a severity.
        steps: equal steps from no perturbation to the largest, at least 200; switches between them are bisected.
        until: largest severity; None = the last of the view's own steps.
        images: names of images; the tables are then about these alone.
        files: image files of the user's own.
        count: how many of the images are drawn.
        options: common options; ``changes`` are applied to them by name.
        watcher: told how the run advances.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    options = combine(options, changes)
    if count < 1:
        raise UserError(f"Draw a positive number of images; got {count}.")
    loaded, question, data = _ask(
        models, data=data, view=view, steps=steps, until=until, images=images, files=files, options=options
    )
    request = make_request(KIND, data, question, options, loaded)
    request |= {
        "images": [str(name) for name in (files or images)],
        "steps": steps,
        "tolerance": follow.TOLERANCE,
    }
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        result = measure(
            KIND,
            question,
            loaded,
            data=data,
            request=request,
            options=options,
            folder=folder,
            watcher=watcher,
            run=_run,
        )
        if folder is not None:
            folder.write(result)
        examples = _readable(question, count)
        followed = [follow.follow(question, model, example) for model in loaded for example in examples]
        result = dataclasses.replace(result, drawing=_drawing(followed, loaded))
        if folder is not None:
            write_csv(folder.path / "paths.csv", path_table(followed))
            write_csv(folder.path / "switches.csv", switch_table(followed, loaded, question))
            if options.figures:
                save_figures(result, folder.path / "figures")
            folder.finish(result.sidecar)
    return DiscontinuityResult(result, followed)


@checked
def plan_discontinuity(
    models: Models,
    *,
    data: str | None = None,
    view: str = "gaussian_noise",
    steps: int = MIN_STEPS,
    until: float | None = None,
    images: Sequence[str] = (),
    files: Sequence[str | Path] = (),
    options: Options | None = None,
) -> Plan:
    """Say what ``discontinuity`` would take, by following two images; ``passes`` are those of the steps alone."""
    options = options or Options()
    loaded, question, _ = _ask(
        models, data=data, view=view, steps=steps, until=until, images=images, files=files, options=options
    )
    return time_sample(question, loaded, images=2, passes=steps + 1, run=_run)


def _run(question: Probe, model: Checkpoint, **more: Any) -> tuple[pa.Table, list[str]]:
    return loop.run(question, model, run_block=follow.run_block, block_images=follow.BLOCK_IMAGES, **more)


def _ask(
    models: Models,
    *,
    data: str | None,
    view: str,
    steps: int,
    until: float | None,
    images: Sequence[str],
    files: Sequence[str | Path],
    options: Options,
) -> tuple[list[Checkpoint], Probe, str]:
    """Return the checkpoints, what is asked of them, and what the tables call the data."""
    if steps < MIN_STEPS:
        raise UserError(f"A path takes at least {MIN_STEPS} steps; got {steps}.")
    loaded = load_models(models, options)
    _check(loaded)
    data = choose_data(data, loaded, files=files)
    question = make_probe(KIND, loaded, data=data, view_name=view, severities=None, options=options)
    dataset, named, data = pick_images(question.dataset, images=images, files=files, data=data)
    question = dataclasses.replace(
        question,
        dataset=dataset,
        indices=question.indices if named is None else named,
        severities=_severities(question, until=until, steps=steps),
    )
    return loaded, question, data


def _readable(question: Probe, count: int) -> list[Example]:
    """Return the first ``count`` images, but for those that cannot be read and are to be skipped."""
    found: list[Example] = []
    for index in question.indices:
        if len(found) == count:
            break
        try:
            found.append(question.dataset.example(index))
        except UserError:
            if not question.skip_bad_images:
                raise
    return found


def _check(models: Sequence[Checkpoint]) -> None:
    for model in models:
        if not isinstance(model.model, Replayable):
            raise UserError(f"{model.name} cannot replay a routing, so its jumps cannot be measured.")
        if model.model.group_images > 1:
            raise UserError("A path is followed image by image: use --group-images 1.")
    check_choices(models, "there are no switches to find")


def _severities(question: Probe, *, until: float | None, steps: int) -> tuple[float, ...]:
    """Return equal steps from the view's first severity; ``question`` holds the view's own."""
    first = question.severities[0]
    last = question.severities[-1] if until is None else until
    if not last > first:
        raise UserError(f"The largest severity must be above {first:g}; got {last}.")
    return tuple(float(severity) for severity in np.linspace(first, last, steps + 1))


def path_table(followed: Sequence[OutputPath]) -> pd.DataFrame:
    """Return the drawn paths: a row per image, checkpoint and step."""
    parts = [
        pd.DataFrame(
            {
                "checkpoint": path.checkpoint,
                "image_id": path.image_id,
                "class": path.target,
                "severity": path.severity,
                "probability": path.probability,
            }
        )
        for path in followed
    ]
    return pd.concat(parts, ignore_index=True)


def switch_table(followed: Sequence[OutputPath], models: Sequence[Checkpoint], probe: Probe) -> pd.DataFrame:
    """Return the switches of the drawn paths: a row per moment and MoE layer in which tokens switch."""
    names = {model.name: probe.layers_of(model.model) or model.model.layer_names for model in models}
    rows = [
        {
            "checkpoint": path.checkpoint,
            "image_id": path.image_id,
            "severity": path.switch[moment],
            "jump": path.jump[moment],
            "layer": names[path.checkpoint][layer],
            "tokens": path.tokens[moment, layer],
        }
        for path in followed
        for moment, layer in np.argwhere(path.tokens > 0)
    ]
    return pd.DataFrame(rows, columns=["checkpoint", "image_id", "severity", "jump", "layer", "tokens"])


def _drawing(
    followed: Sequence[OutputPath], models: Sequence[Checkpoint]
) -> Callable[[Result], dict[str, Figure]]:
    """Return what draws a result with these paths."""
    names = {model.name: model.class_names for model in models}

    def draw(result: Result) -> dict[str, Figure]:
        from moeprobe.probes.discontinuity import figure

        colours, unit = result.sidecar["colours"], result.sidecar["severity_unit"]
        return figure.draw(result.table, followed, colours=colours, unit=unit, class_names=names)

    return draw
