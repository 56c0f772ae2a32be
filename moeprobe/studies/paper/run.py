"""Make the PRC paper's tables and figures for pairs of checkpoints: which probes it takes, and its folder."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, Unpack

import pandas as pd

from moeprobe.adapters.base import Checkpoint, Model, Models
from moeprobe.declarations import Probe
from moeprobe.declarations.options import Keywords, Options, combine, with_options
from moeprobe.errors import UserError, option
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.inputs.modality import IMAGE
from moeprobe.probes.confidence import Confidence
from moeprobe.probes.correspond import Correspond
from moeprobe.probes.discontinuity import LARGEST_JUMP, Discontinuity
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.blank_passes import routing_of_blank_input
from moeprobe.probes.engine.checks import check_images
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.origins import choose_data, describe_origins
from moeprobe.probes.engine.run import Plan, Work
from moeprobe.probes.engine.run_spec import study_request
from moeprobe.probes.evaluate import Evaluate
from moeprobe.probes.match_ratio import MatchRatio
from moeprobe.probes.noise_sweep import NoiseSweep
from moeprobe.probes.overlay import Overlay
from moeprobe.probes.s_matrix import SMatrix
from moeprobe.results.finished import read_result
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import Sidecar
from moeprobe.routing.capabilities import refusal_to_replay
from moeprobe.runtime.arguments import several
from moeprobe.runtime.files import atomic_file, write_csv
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.studies.compare import Comparison, ComparisonWork, runs_to_compare
from moeprobe.studies.paper import tables

# What the paper's tables and figures are made of: which checkpoints, which probes, and where they are kept.

T = TypeVar("T")
# Folder of a probe -> the probe, and what ``tables.NUMBERS`` calls it.
PROBES: dict[str, tuple[Probe[Result], str]] = {
    "match-ratio": (MatchRatio(), "random_crop"),
    "match-ratio-prc-crops": (MatchRatio(view="prc_crops"), "prc_crops"),
    "confidence": (Confidence(), "confidence"),
    "noise-sweep": (NoiseSweep(), "noise"),
    "eval": (Evaluate(), tables.EVALUATION),
}


@dataclass(frozen=True)
class Job:
    """What is to be made: pairs of checkpoints, what the tables call the two of a pair, and the data."""

    pairs: list[tuple[Checkpoint, Checkpoint]]
    names: tuple[str, str]
    data: str
    options: Options
    labeled: bool
    replayable: bool

    @property
    def probes(self) -> dict[str, tuple[Probe[Result], str]]:
        """The probes that there are for these models and data."""
        return {
            name: (self._with_attribution(probe), number)
            for name, (probe, number) in PROBES.items()
            if self.labeled or not probe.labels_required
        }

    def _with_attribution(self, probe: Probe[Result]) -> Probe[Result]:
        """Return a sweep that says what of the change is switching, where the models can tell."""
        attributes = isinstance(probe, NoiseSweep) and self.replayable
        return dataclasses.replace(probe, attribute=True) if attributes else probe  # type: ignore[call-arg]

    @property
    def opens_by_name(self) -> bool:
        """Whether the compared model of the first pair reads images when it is opened by its name alone."""
        return "pictures" not in self.pairs[0][1].provenance

    @property
    def notes(self) -> list[str]:
        """What is left out, in sentences."""
        notes = []
        if not self.labeled:
            notes.append(f"No accuracy: {self.data} has no labels of the models' classes.")
        if not self.replayable:
            notes.append("No jumps and no attribution: a model cannot replay a routing.")
        if not self.opens_by_name:
            notes.append("No picture of corresponding patches: a model reads images beside a prompt.")
        return notes


def make_job(models: Sequence[Model], *, data: str | None, options: Options) -> Job:
    """Return the planned tables and figures, checked before anything is run."""
    if len(models) < 2 or len(models) % 2:
        raise UserError(
            "The paper compares pairs: name a reference and a checkpoint to compare with it (and more such pairs); "
            f"got {len(models)} checkpoint{'s' if len(models) != 1 else ''}."
        )
    names = options.names
    if names is not None and (len(names) != 2 or len(set(names)) < 2):
        raise UserError(
            f"{option('names')} takes two different names, for the two of a pair; got {', '.join(names)}."
        )
    loaded = load_models(
        models,
        options,
        modality=IMAGE,
        one_at_a_time=True,
        learn=lambda model: engine.learn([probe for probe, _ in PROBES.values()], model, options),
    )
    check_images(loaded, "the paper's tables and figures cannot be made")
    for model in loaded:
        for layer in routing_of_blank_input(model, options.layers):
            if not layer.tokens_choose:
                raise UserError(
                    f"The paper's tables are of routers whose tokens choose experts, and {model.name} has "
                    f"{layer.router}; use match-ratio or sweep, which measure any."
                )
    data = choose_data(data, loaded)
    classes = open_data(data, split=options.split).class_names
    pairs = list(zip(loaded[::2], loaded[1::2], strict=True))
    return Job(
        pairs=pairs,
        names=(names[0], names[1]) if names is not None else (pairs[0][0].name, pairs[0][1].name),
        data=data,
        options=options,
        labeled=all(bool(model.class_names) and model.class_names == classes for model in loaded),
        replayable=all(
            refusal_to_replay(model.model) is None and model.model.group_images == 1 for model in pairs[0]
        ),
    )


def limit_images(options: Options, max_images: int) -> Options:
    """Return the options with at most so many images."""
    limit = max_images if options.limit is None else min(max_images, options.limit)
    return dataclasses.replace(options, limit=limit)


KIND = "paper"
# Following one image takes hundreds of passes: a hundred images are enough to tell jumps apart.
JUMP_IMAGES = 100


@dataclass(frozen=True)
class PaperResult:
    """The numbers of the paper's tables.

    Attributes:
        table: one number per row: top_k, seed, layer, number, kind (value or difference), model, value, interval.
        load: one expert per row: how many patches choose it first.
        markdown: the tables.
        notes: omitted parts, in sentences.
        sidecar: request and provenance.
    """

    table: pd.DataFrame
    load: pd.DataFrame
    markdown: str
    notes: list[str]
    sidecar: Sidecar


@dataclass(frozen=True)
class PaperPlan:
    """What the tables and figures would take: a plan for each folder, and all of it in seconds."""

    parts: dict[str, Plan]
    seconds: float


@with_options
def paper(
    models: Models,
    *,
    data: str | None = None,
    jump_images: int = JUMP_IMAGES,
    remarks: Sequence[str] = (),
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> PaperResult:
    """Make the tables and figures of the PRC paper for two checkpoints; the tables for further pairs too.

    With an output folder it holds ``tables.md``, ``seeds.csv``, ``load.csv`` and, for the first pair, a run folder per
    probe with its figures; an interrupted call resumes.

    Args:
        models: the reference and the compared checkpoint; then, if wanted, further pairs (other training seeds,
            another k), of which only the tables are made.
        data: data set of images; None = the one that the checkpoints were trained on.
        jump_images: how many images the output is followed on.
        remarks: paragraphs about these checkpoints, for ``tables.md``.
        options: common options; ``changes`` are applied to them by name. ``names`` call the two of a pair; None
            = the names of the first pair.
        watcher: receives the progress of the work.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    options = combine(options, changes)
    job = make_job(several(models), data=data, options=options)
    work = _PaperWork(job, several(models)[1], jump_images=jump_images, remarks=remarks)
    return work.execute(progress_of(watcher))


class _PaperWork(Work[PaperResult]):
    """Run all probes for each pair; the runs of the first pair have folders inside, and further figures."""

    def __init__(self, job: Job, model: Model, *, jump_images: int, remarks: Sequence[str]) -> None:
        self.job, self.model, self.jump_images, self.remarks = job, model, jump_images, remarks
        self.options = options = job.options
        self.models = [checkpoint for pair in job.pairs for checkpoint in pair]
        self.request = study_request(
            KIND,
            self.models,
            options,
            data=job.data,
            jump_images=jump_images,
            names=list(job.names),
            # The order says which is the reference, and whose probes are in the folder.
            pairs=[[model.name for model in pair] for pair in job.pairs],
        )

    def compute(self, folder: OutputFolder | None, progress: Progress) -> PaperResult:
        """Run the probes, and make the tables."""
        job = self.job
        table, load = _numbers(job, progress)
        dataset = open_data(job.data, split=self.options.split)
        checkpoints = describe_origins(self.models, dataset, job.data, split=self.options.split)
        text = tables.markdown(table, load, data=job.data, remarks=[*self.remarks, *job.notes])
        return PaperResult(table, load, text, job.notes, self.make_sidecar(checkpoints=checkpoints))

    def write(self, result: PaperResult, folder: OutputFolder) -> PaperResult:
        """Write the tables."""
        write_csv(folder.path / "seeds.csv", result.table)
        write_csv(folder.path / "load.csv", result.load)
        with atomic_file(folder.path / "tables.md") as temporary:
            temporary.write_text(result.markdown, encoding="utf-8")
        return result

    def draw(self, result: PaperResult, folder: OutputFolder, progress: Progress) -> None:
        """Draw what belongs to no table, in run folders inside."""
        draw_figures(self.job, folder.path, jump_images=self.jump_images, model=self.model, progress=progress)


def _numbers(job: Job, watcher: Progress) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Measure all pairs; returns their numbers, and the load of their experts."""
    rows: list[dict[str, object]] = []
    loads: list[dict[str, object]] = []
    for index, pair in enumerate(job.pairs):
        out = job.options.out if index == 0 else None
        results = {
            number: _result(job, pair, probe, watcher, None if out is None else out / name)
            for name, (probe, number) in job.probes.items()
        }
        top_k, seed = routing_of_blank_input(pair[0], job.options.layers)[0].top_k, pair[0].train_seed
        called = {model.name: name for model, name in zip(pair, job.names, strict=True)}
        rows += tables.number_rows(results, called, top_k=top_k, seed=seed)
        loads += tables.load_rows(results["confidence"], called, top_k=top_k, seed=seed)
    return pd.DataFrame(rows), pd.DataFrame(loads)


@with_options
def plan_paper(
    models: Models,
    *,
    data: str | None = None,
    jump_images: int = JUMP_IMAGES,
    options: Options | None = None,
    **changes: Unpack[Keywords],
) -> PaperPlan:
    """Say what ``paper`` would take before it draws, by running a few images of the first pair and writing nothing."""
    options = combine(options, changes)
    job = make_job(several(models), data=data, options=options)
    pair = job.pairs[0]
    parts = {
        name: engine.plan(probe, pair, data=job.data, options=options)
        for name, (probe, _) in job.probes.items()
    }
    seconds = len(job.pairs) * sum(part.seconds for part in parts.values())
    parts["s-matrix"] = engine.plan(SMatrix(), pair, data=job.data, options=options)
    seconds += parts["s-matrix"].seconds
    if job.replayable:
        followed = limit_images(options, jump_images)
        parts["discontinuity"] = engine.plan(Discontinuity(), pair, data=job.data, options=followed)
        seconds += parts["discontinuity"].seconds
    return PaperPlan(parts, seconds)


def _result(
    job: Job, pair: tuple[Checkpoint, Checkpoint], probe: Probe[Result], watcher: Progress, out: Path | None
) -> Result:
    """Return the result of a probe: from its folder where an earlier call has finished it, else run.

    Without a folder of its own only what the tables need is measured.
    """
    if isinstance(probe, NoiseSweep) and out is None:
        probe = NoiseSweep(severities=(tables.SIGMA,))
    result = engine.run_once(
        lambda options: engine.run(probe, pair, data=job.data, options=options, watcher=watcher),
        pair,
        dataclasses.replace(job.options, out=out),
    )
    if result is not None:
        return result
    assert out is not None
    return read_result(out)


def draw_figures(job: Job, folder: Path, *, jump_images: int, model: Model, progress: Progress) -> None:
    """Draw what belongs to no table, of the first pair; what an earlier call has drawn is kept."""
    pair, data = job.pairs[0], job.data
    source = pair[1].provenance.get("path", "") if isinstance(model, Checkpoint) else model

    def draw(probe: Probe[Any], max_images: int | None = None) -> Callable[[Options], object]:
        return lambda options: engine.run(
            probe,
            pair,
            data=data,
            options=options if max_images is None else limit_images(options, max_images),
            watcher=progress,
        )

    drawings = {
        "s-matrix": draw(SMatrix()),
        "overlay": draw(Overlay()),
        "animation": draw(Overlay(count=2, animate=True)),
        "compare": lambda options: _compare_sweeps(folder / "noise-sweep", options, progress),
    }
    if source and job.opens_by_name:
        drawings["correspond"] = lambda options: Correspond(model=source, data=data, count=2).ask(
            dataclasses.replace(options, names=None), progress
        )
    if job.replayable:
        drawings["discontinuity"] = draw(Discontinuity(pick=LARGEST_JUMP), max_images=jump_images)
    for name, make in drawings.items():
        engine.run_once(make, pair, dataclasses.replace(job.options, out=folder / name))


def _compare_sweeps(run: Path, options: Options, progress: Progress) -> Comparison:
    # All other options are fixed by the run.
    options = Options(
        names=options.names,
        out=options.out,
        overwrite=options.overwrite,
        svg=options.svg,
        command=options.command,
    )
    return ComparisonWork(runs_to_compare([run], options), options).execute(progress)
