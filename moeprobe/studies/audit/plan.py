"""What an audit runs, and on how many images, so that it fits into the minutes that there are."""

import dataclasses
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, FiniteFloat, NonNegativeInt, PositiveInt

from moeprobe.adapters.base import Checkpoint, Model
from moeprobe.declarations import AuditEntry, Probe, registry
from moeprobe.declarations.kinds import audit_entry
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import IMAGE, Modality
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.origins import modality_of_data
from moeprobe.probes.engine.run import ProbeWork
from moeprobe.probes.engine.run_spec import chosen_layers
from moeprobe.results.own_files import STRICT, validate
from moeprobe.runtime.catalog import describe_unknown
from moeprobe.runtime.files import is_file, read_json, write_json

# Images per batch of the timing, which runs two batches of every probe.
_TIMED_BATCH = 4
# Seconds of statistics and figures per forward pass, layer and model, and the same for each image: on one CPU core.
_SECONDS, _SECONDS_OF_IMAGE = 0.25, 0.0003
# Fewer images give no interval; with fewer than the second number the last probes are left out instead.
_FEWEST, _ENOUGH = 20, 100
_SIZES = (20, 30, 40, 60, 80, 100, 150, 200, 300, 400, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10_000)
PLAN = "plan.json"


@dataclass(frozen=True)
class AuditStep:
    """A probe of an audit, and its cost.

    Attributes:
        probe: with its parameters.
        entry: how it joins the audit.
        images: of the run.
        passes: forward passes per image and model.
        seconds: estimated, statistics and figures included.
    """

    probe: Probe[Any]
    entry: AuditEntry
    images: int
    passes: int
    seconds: float

    @property
    def name(self) -> str:
        """The command, and the folder of the run."""
        return self.probe.name

    @property
    def facts(self) -> dict[str, Any]:
        """What ``plan.json`` and ``--dry-run --json`` say of it."""
        return {"probe": self.name, "images": self.images, "passes": self.passes, "seconds": self.seconds}


@dataclass(frozen=True)
class AuditPlan:
    """What an audit runs.

    Attributes:
        steps: in the order in which they run.
        left_out: probe -> why it is not run, in a sentence.
        available: images of the data, or as many as were allowed.
        minutes: how long it may take.
    """

    steps: tuple[AuditStep, ...]
    left_out: Mapping[str, str]
    available: int
    minutes: float

    @property
    def seconds(self) -> float:
        """Estimated time of all steps."""
        return sum(step.seconds for step in self.steps)


@dataclass(frozen=True)
class _Timed:
    """A probe with its costs: seconds of the statistics, per image, and per forward pass of one."""

    probe: Probe[Any]
    entry: AuditEntry
    passes: int
    images: int
    fixed: float
    per_image: float
    per_pass: float

    def seconds(self, images: int) -> float:
        return self.fixed + self.per_image * self.size(images)

    def size(self, images: int) -> int:
        return min(images, self.images, self.entry.most_images or images)


def joining(names: Sequence[str] | None) -> list[tuple[type[Probe[Any]], AuditEntry]]:
    """Return the probes that join an audit, in their order; ``names`` chooses some of them.

    Raises:
        UserError: there is no such probe.
    """
    entries = [(kind, entry) for kind in registry.probes() if (entry := audit_entry(kind)) is not None]
    by_name = {kind.name: kind for kind, _ in entries}
    for name in names or ():
        if name not in by_name:
            raise UserError(describe_unknown("probe of an audit", name, by_name))
    selected = [item for item in entries if names is None or item[0].name in names]
    return sorted(selected, key=lambda item: (item[1].order, item[0].name))


def open_models(
    sources: Sequence[Model], *, data: str | None, probes: Sequence[str] | None, options: Options
) -> list[Checkpoint]:
    """Return the models of an audit; of several large ones, one is in memory at a time.

    Raises:
        UserError: one cannot be opened, or there is no such probe.
    """
    entries = joining(probes)

    def learn(model: Checkpoint) -> None:
        by_kind = {kind: _fields(entry, model.framing.modality) for kind, entry in entries}
        engine.learn(
            [kind(**fields) for kind, fields in by_kind.items() if fields is not None], model, options
        )

    return load_models(sources, options, modality=modality_of_data(data), one_at_a_time=True, learn=learn)


def make_plan(
    models: Sequence[Checkpoint],
    *,
    data: str,
    minutes: float,
    options: Options,
    probes: Sequence[str] | None = None,
) -> AuditPlan:
    """Return what fits into the time, by running a few images through every probe; nothing is written.

    Raises:
        UserError: nothing can be run; the first probe's reason is given.
    """
    timed: list[_Timed] = []
    left_out: dict[str, str] = {}
    reasons: list[UserError] = []
    budget = 60 * minutes
    for kind, entry in joining(probes):
        try:
            probe, work = _prepare(kind, entry, models, data=data, options=options)
            fewest = _fewest_seconds(work, entry, timed)
            if fewest > budget:
                # With hundreds of passes per image, even the timing would take long.
                left_out[kind.name] = _too_long(fewest, _total(timed, _ENOUGH) + fewest, minutes)
            else:
                timed.append(_time(probe, work, entry, models, options=options))
        except UserError as error:
            left_out[kind.name] = error.sentence
            reasons.append(error)
    if not any(item.entry.properties for item in timed):
        raise reasons[0]
    judged = {item.name for probe in timed for item in probe.entry.properties}
    for kind, entry in joining(probes):
        # Another probe judges the same of what these models read.
        if entry.properties and judged.issuperset(item.name for item in entry.properties):
            left_out.pop(kind.name, None)
    available = max(item.images for item in timed)
    sizes = [size for size in _SIZES if size < available] + [available]
    while len(timed) > 1 and _total(timed, min(available, _ENOUGH)) > budget:
        together = _total(timed, min(available, _ENOUGH))
        dropped = timed.pop()
        seconds = dropped.seconds(min(available, _ENOUGH))
        left_out[dropped.probe.name] = _too_long(seconds, together, minutes)
    images = max((size for size in sizes if _total(timed, size) <= budget), default=min(_FEWEST, available))
    steps = tuple(
        AuditStep(item.probe, item.entry, item.size(images), item.passes, item.seconds(images))
        for item in timed
    )
    return AuditPlan(steps, left_out, available, minutes)


def _fields(entry: AuditEntry, modality: Modality) -> Mapping[str, Any] | None:
    """Return the parameters of a probe for models that read images, or texts; None where it does not join."""
    return entry.images if modality is IMAGE else entry.texts


def _total(timed: Sequence[_Timed], images: int) -> float:
    return sum(item.seconds(images) for item in timed)


def _too_long(seconds: float, together: float, minutes: float) -> str:
    """Return why a probe of so many seconds, with those before it ``together``, is left out."""
    return (
        f"takes about {seconds:,.0f} s, and with the probes before it more than {minutes:g} minutes; add --minutes "
        f"{math.ceil(together / 60)}."
    )


def _fewest_seconds(work: ProbeWork[Any], entry: AuditEntry, timed: Sequence[_Timed]) -> float:
    """Return what the passes of a probe take on the fewest images, judging by the probes before; 0 without any."""
    if not timed:
        return 0.0
    images = min(_ENOUGH, entry.most_images or _ENOUGH, *(item.images for item in timed))
    return work.passes * images * min(item.per_pass for item in timed)


def _prepare(
    kind: type[Probe[Any]],
    entry: AuditEntry,
    models: Sequence[Checkpoint],
    *,
    data: str,
    options: Options,
) -> tuple[Probe[Any], ProbeWork[Any]]:
    """Return a probe and its work on a few images; raises ``UserError`` where it does not apply."""
    modality = models[0].framing.modality
    fields = _fields(entry, modality)
    # An entry without fields for a modality has no use for it.
    if fields is None:
        raise UserError(f"{kind.name} does not apply to models that read {modality.plural}.")
    if options.out is None and not kind.printed:
        raise UserError(f"{kind.name} draws pictures only, which need a folder: add {option('out')}.")
    # Batches of whole groups, even in a sample of a few images.
    batch = max(_TIMED_BATCH, options.group_images)
    # Without a folder: the sample must leave nothing behind.
    sample = dataclasses.replace(options, batch_size=batch, out=None, overwrite=False)
    probe = kind(**fields)
    return probe, engine.prepare(probe, models, data=data, options=sample)


def _time(
    probe: Probe[Any],
    work: ProbeWork[Any],
    entry: AuditEntry,
    models: Sequence[Checkpoint],
    *,
    options: Options,
) -> _Timed:
    """Return the costs of a probe, measured on a few images."""
    begun = time.perf_counter()
    plan = work.plan()
    # What comes before the first batch: large models that take turns in memory are read again.
    before = time.perf_counter() - begun - plan.seconds * plan.timed_images / plan.images
    layers = max(len(chosen_layers(model.model.layer_names, options.layers)) for model in models)
    pieces = (entry.statistics or plan.passes) * max(layers, 1) * len(models)
    return _Timed(
        probe,
        entry,
        plan.passes,
        plan.images,
        _SECONDS * pieces + before,
        plan.seconds / plan.images + _SECONDS_OF_IMAGE * pieces,
        plan.seconds / plan.images / plan.passes,
    )


def write_plan(folder: Path, plan: AuditPlan) -> None:
    """Write the sizes of a plan, so that an interrupted audit resumes with the same."""
    steps = [step.facts for step in plan.steps]
    write_json(folder / PLAN, {"steps": steps, "left_out": dict(plan.left_out), "available": plan.available})


class _Step(BaseModel):
    model_config = STRICT

    probe: str
    images: PositiveInt
    passes: NonNegativeInt
    seconds: FiniteFloat


class _Plan(BaseModel):
    model_config = STRICT

    steps: list[_Step]
    left_out: dict[str, str]
    available: PositiveInt


def read_plan(folder: Path, *, modality: str, minutes: float) -> AuditPlan | None:
    """Read the plan of an interrupted audit; None where there is none, or its probes are not there any more.

    Raises:
        UserError: the file is damaged.
    """
    if not is_file(folder / PLAN):
        return None
    content = validate(_Plan, read_json(folder / PLAN), folder / PLAN)
    kinds = {kind.name: (kind, entry) for kind, entry in joining(None)}
    if any(step.probe not in kinds for step in content.steps):
        return None
    steps = []
    for step in content.steps:
        kind, entry = kinds[step.probe]
        fields = entry.images if modality == IMAGE.name else entry.texts
        steps.append(AuditStep(kind(**(fields or {})), entry, step.images, step.passes, step.seconds))
    return AuditPlan(tuple(steps), content.left_out, content.available, minutes)
