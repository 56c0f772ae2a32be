"""The life cycle of a run: load and check, compute, write the tables, then the figures, and mark it as finished.

What a killed run continues from is kept by ``loop`` (part files) and ``results.folder`` (whether it may continue).
"""

import contextlib
import dataclasses
import gc
import math
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from moeprobe.adapters.base import Checkpoint, Model, Models
from moeprobe.declarations import Probe
from moeprobe.declarations.options import Options
from moeprobe.errors import FinishedError, RunWarning, UserError, option
from moeprobe.probes.engine.checks import check_folder, check_precision, check_some, preflight
from moeprobe.probes.engine.origins import modality_of_data
from moeprobe.probes.engine.run_spec import RunSpec, chosen_layers
from moeprobe.probes.engine.shard import Shard, check_splits
from moeprobe.results.sidecars import Sidecar, make_sidecar
from moeprobe.runtime import processes
from moeprobe.runtime.catalog import ANALYSES
from moeprobe.runtime.device import FLOAT32, full_float32
from moeprobe.runtime.progress import Progress, progress_of
from moeprobe.runtime.spread import REPLICAS, check_group

# Not at once: they bring what reads Parquet files, and a mistyped argument is refused without.
if TYPE_CHECKING:
    from moeprobe.results.folder import OutputFolder, Result
    from moeprobe.results.sampled_units import SampledUnits
    from moeprobe.results.summaries import About

R = TypeVar("R")
T = TypeVar("T", bound="Result")


@dataclass(frozen=True)
class Plan:
    """The cost of a probe, estimated from a few images.

    Attributes:
        checkpoints: how many there are.
        images: of the run.
        passes: forward passes per image.
        timed_images: on which the estimate rests.
        seconds: that the run takes; NaN = not known, as models of ``hf:`` are not loaded for a plan.
        weights: bytes of these models' weights, by checkpoint and device.
        unit: what an input is called, e.g. "text".
    """

    checkpoints: int
    images: int
    passes: int
    timed_images: int
    seconds: float
    weights: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unit: str = "image"

    def scale_to(self, images: int) -> "Plan":
        """Return the plan for another number of images."""
        return dataclasses.replace(self, images=images, seconds=self.seconds * images / self.images)


class Work(ABC, Generic[R]):
    """A checked run that has not begun; its inputs are checkpoints, traces or other runs.

    A kind of run says how its result is computed, written and drawn; ``execute`` is the same for all of them.

    Attributes:
        request: everything that its numbers depend on, as ``run.json`` keeps it.
        units: what intervals are over; None = the inputs.
        options: where to, and how.
    """

    request: dict[str, Any]
    options: Options
    units: "SampledUnits | None" = None
    _started = 0.0

    @abstractmethod
    def compute(self, folder: "OutputFolder | None", progress: Progress) -> R:
        """Return the result. Meanwhile only parts are written, and files that are too large for memory."""

    def complete(self, result: R) -> None:
        """Add measurements beside the result, before anything is written."""

    def write(self, result: R, folder: "OutputFolder") -> R:
        """Write all but the figures; returns the result as it reads from its files."""
        return result

    def finish(self, result: R, folder: "OutputFolder | None") -> R:
        """Return what the caller receives, with more in its sidecar or more files in the folder."""
        return result

    def draw(self, result: R, folder: "OutputFolder", progress: Progress) -> None:
        """Write the figures; a result without any needs none."""

    def sidecar_of(self, result: R) -> Sidecar:
        """Return what ``table.json`` says of a result."""
        sidecar: Sidecar = result.sidecar  # type: ignore[attr-defined]
        return sidecar

    def execute(self, progress: Progress) -> R:
        """Do the work, in the folder of the options.

        Raises:
            FinishedError: the folder holds this run already, finished.
        """
        from moeprobe.results.folder import output_folder

        options = self.options
        with output_folder(options.out, self.request, overwrite=options.overwrite, svg=options.svg) as folder:
            return self.execute_in(folder, progress)

    def execute_in(self, folder: "OutputFolder | None", progress: Progress) -> R:
        """Do the work in an open folder; without one nothing is written."""
        self._started = time.perf_counter()
        result = self.compute(folder, progress)
        self.complete(result)
        if folder is not None:
            # The tables first: what a figure may stumble over is not lost.
            result = self.write(result, folder)
        result = self.finish(result, folder)
        if folder is not None:
            self.draw(result, folder, progress)
            folder.finish(self.sidecar_of(result))
        return result

    def make_sidecar(self, **facts: Any) -> Sidecar:
        """Return the sidecar of this run: its request, the ``facts`` of its kind, and provenance."""
        return make_sidecar(self.request, command=self.options.command, **facts)

    @property
    def run_name(self) -> str:
        """What its table calls the run: its folder, or its kind."""
        return str(self.request["kind"]) if self.options.out is None else self.options.out.name

    @property
    def seconds(self) -> float:
        """How long the work has taken until now."""
        return time.perf_counter() - self._started

    def run_info(
        self, *, aligned: bool, train_seeds: Mapping[str, int | None], groups: Mapping[str, str]
    ) -> "About":
        """Return what all rows of its table share."""
        from moeprobe.results.summaries import About

        return About.of_request(
            self.request,
            run=self.run_name,
            aligned=aligned,
            train_seeds=train_seeds,
            groups=groups,
            units=self.units,
        )


class TableWork(Work[T]):
    """Work whose result is a table of values, with sums per input and figures."""

    def sidecar_of(self, result: T) -> Sidecar:
        """Return what ``table.json`` says of a result, with how its analyses counted (``Analysis.facts``)."""
        sidecar = super().sidecar_of(result)
        for name in ANALYSES.names():
            sidecar |= ANALYSES.get(name).facts(result.table)
        return sidecar

    def write(self, result: T, folder: "OutputFolder") -> T:
        """Write the tables and the sums; returns the result with the sums as they are in their file."""
        if self.units is not None:
            self.units.write(folder.path)
        return folder.write(result)

    def draw(self, result: T, folder: "OutputFolder", progress: Progress) -> None:
        """Write the figures, if wanted."""
        if self.options.figures:
            from moeprobe.results.figures import save_all

            save_all(result.plot(), folder.path / "figures", svg=self.options.svg)


class ShardedWork(Work[R]):
    """Work whose inputs can be divided among processes: each measures a shard, and one merges them."""

    def set_shard(self, shard: Shard) -> None:
        """Do no more than a shard of the work; of questions that are measured in shards."""
        raise NotImplementedError

    def measure_parts(self, parts: Path, watcher: Progress) -> dict[str, Any]:
        """Write the part files of the selected shard; returns its sidecar."""
        raise NotImplementedError

    def use_shard_parts(self, shards: Mapping[Path, Mapping[str, Any]]) -> None:
        """Merge the parts of shards, in place of measuring; folders of their parts -> their sidecars."""
        raise NotImplementedError

    @property
    def workers(self) -> int:
        """Processes that load inputs."""
        return 0


class ProbeWork(ShardedWork[R]):
    """The work of a probe on checkpoints: it can be planned, and some of it measured in shards.

    Attributes:
        models: the checkpoints.
        data: the data set.
        spec: the run specification.
    """

    models: Sequence[Checkpoint]
    data: str
    spec: RunSpec
    _precision_floors: dict[str, dict[str, Any]] | None = None

    @classmethod
    def learn(cls, probe: Probe[Any], model: Checkpoint, options: Options) -> None:
        """Make the passes over a blank input that the checks of a run need, while the model is in memory.

        Their answers are kept (``blank_passes``): models of ``hf:`` take turns in memory.
        """
        from moeprobe.probes.engine import blank_passes  # here, since it imports torch

        blank_passes.learn(model, options.layers)

    def floor_inputs(self, model: Checkpoint) -> Iterable[Any]:
        """Return the unperturbed inputs, in batches, that show what arithmetic alone changes."""
        from moeprobe.probes.engine.models import clean_inputs  # here, since it imports torch

        return clean_inputs(self.spec, model, self.options.floor_images)

    def complete(self, result: R) -> None:
        """Add to the sidecar the sizes of routers, and what passes in another precision change by themselves."""
        self._add_routers(result)
        if self.options.precision == FLOAT32:
            return
        from moeprobe.results.caveats import PRECISION_FLOOR

        # Without what analyses say of a table, which comes last.
        sidecar = Work.sidecar_of(self, result)
        for model in self.models:
            floor = self.precision_floor(model)
            # For aligned trainings ``checkpoints`` names pairs; the models themselves are under ``trainings``.
            for subjects in (sidecar["checkpoints"], sidecar.get("trainings", {})):
                if model.name in subjects:
                    subjects[model.name] = {**subjects[model.name], PRECISION_FLOOR: floor}

    def precision_floor(self, model: Checkpoint) -> dict[str, Any]:
        """Return which choices of a model the precision of its passes changes by itself; it is measured once."""
        from moeprobe.probes.engine.models import measure_floor

        if self._precision_floors is None:
            self._precision_floors = {}
        if model.name not in self._precision_floors:
            layers = chosen_layers(model.model.layer_names, self.options.layers)
            self._precision_floors[model.name] = measure_floor(model, self.floor_inputs(model), layers)
        return self._precision_floors[model.name]

    def _add_routers(self, result: R) -> None:
        """Add to the sidecar how many experts there are, and a token has, in each layer of several models.

        Numbers about the output alone do not depend on it.
        """
        table = getattr(result, "table", None)
        if len(self.models) < 2 or table is None or not (table["layer"] != "").any():
            return
        from moeprobe.results.caveats import ROUTERS

        checkpoints = Work.sidecar_of(self, result)["checkpoints"]
        for model in self.models:
            if model.name in checkpoints and model.model.layer_names:
                checkpoints[model.name] = {
                    **checkpoints[model.name],
                    ROUTERS: self.routers(model),
                }

    def routers(self, model: Checkpoint) -> Mapping[str, list[int]]:
        """Return by layer the number of experts, and how many a token chooses; 0 where tokens do not choose."""
        from moeprobe.probes.engine.checks import routers_of

        return routers_of(model, self.options.layers)

    @property
    def passes(self) -> int:
        """Forward passes per input."""
        return 1

    def execute_in(self, folder: "OutputFolder | None", progress: Progress) -> R:
        """Do the work in an open folder, with passes in full float32; without a folder nothing is written."""
        with full_float32():
            return super().execute_in(folder, progress)

    @abstractmethod
    def plan(self) -> Plan:
        """Return an estimate of the cost, by doing some of the work; nothing is written."""

    @property
    def workers(self) -> int:
        """Processes that load inputs."""
        return self.spec.workers


def unread_weights(models: Sequence[Checkpoint]) -> dict[str, Mapping[str, int]]:
    """Return the bytes on each device of the models whose weights are not read; empty where there are none."""
    sizes = {model.name: getattr(model.model, "weight_bytes", None) for model in models}
    return {name: size for name, size in sizes.items() if size is not None}


def time_sample(
    spec: RunSpec,
    models: Sequence[Checkpoint],
    *,
    images: int,
    passes: int,
    run: Callable[..., object],
) -> Plan:
    """Return the cost of a probe, estimated from its first ``images``."""
    weights, unit = unread_weights(models), spec.dataset.modality.name
    if weights:
        return Plan(len(models), len(spec.indices), passes, 0, math.nan, weights, unit)
    sample = dataclasses.replace(spec, indices=spec.indices[:images], skip_bad_images=True, shard=None)
    seconds = 0.0
    for model in models:
        # One image first, outside the timing: the first pass compiles kernels and fills caches.
        run(dataclasses.replace(sample, indices=sample.indices[:1]), model)
        begun = time.perf_counter()
        run(sample, model)
        seconds += time.perf_counter() - begun
    return Plan(
        checkpoints=len(models),
        images=len(spec.indices),
        passes=passes,
        timed_images=len(sample.indices),
        seconds=seconds * len(spec.indices) / len(sample.indices),
        unit=unit,
    )


def run(
    probe: Probe[R],
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
) -> R:
    """Ask checkpoints what a probe asks.

    Args:
        probe: the question, with its parameters.
        models: checkpoints, loaded or by path.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        options: what all probes have in common; None = the probe's own defaults.
        watcher: receives how the run advances.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    options = options or Options(**probe.defaults)
    check_folder(probe, options)
    sources = check_some(models)
    work = prepare(probe, sources, data=data, options=options)
    # Every round halves the batches, so this ends: a batch of one image raises a UserError.
    while True:
        try:
            return work.execute(progress_of(watcher))
        except (RuntimeError, MemoryError) as error:
            options = _smaller(options, error)
        # The models of this try may be in circles of references, and would stay beside those of the next.
        del work
        gc.collect()
        work = prepare(probe, sources, data=data, options=options)


def learn(probes: Iterable[Probe[Any]], model: Checkpoint, options: Options) -> None:
    """Make the passes that the checks of several probes need, while a model is in memory; see ``Probe.learn``."""
    for probe in probes:
        # A probe that does not apply says so when it is prepared.
        with contextlib.suppress(UserError):
            probe.learn(model, options)


def run_once(start: Callable[[Options], R], models: Sequence[Checkpoint], options: Options) -> R | None:
    """Start a run that is part of a study, in the folder of ``options``; None where it is finished there.

    A finished run is repeated if nobody knows whether it is of these models.

    Raises:
        UserError: something else was run in that folder meanwhile.
    """
    from moeprobe.probes.engine.models import are_hashed  # here, since it imports torch

    try:
        return start(dataclasses.replace(options, overwrite=False))
    except FinishedError:
        # Without a hash, a checkpoint may have changed under the same name since the run.
        if are_hashed(models):
            return None
    return start(dataclasses.replace(options, overwrite=True))


def _smaller(options: Options, error: Exception) -> Options:
    """Return options with batches of half as many images, where that may mend an error; raises it where not.

    What is finished of the first try stays in its folder.
    """
    # Only running out of memory is mended by smaller batches; other errors would come again.
    if not processes.ran_out(error):
        raise error
    size = options.batch_size
    if size <= options.group_images:
        least = "one image" if size == 1 else f"one group of {options.group_images} images"
        raise UserError(f"Memory ran out even in batches of {least}; use a device with more.") from None
    if not options.retry:
        raise UserError(
            f"Memory ran out in batches of {size} images; use {option('batch_size', size // 2)}, or "
            f"{option('retry')}, which halves it until it fits, or a device with more."
        ) from None
    warnings.warn(
        RunWarning(f"Memory ran out in batches of {size} images; continuing with {size // 2}."), stacklevel=2
    )
    return dataclasses.replace(options, batch_size=size // 2, overwrite=False)


def plan(
    probe: Probe[R],
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    shard: Shard | None = None,
) -> Plan:
    """Return what ``run``, or a shard of it, would cost, by running a few images and writing nothing."""
    if shard is not None:
        check_splits(probe)
    # The same checks as a run: a plan must not promise what would be refused.
    options = options or Options(**probe.defaults)
    work = prepare(probe, check_some(models), data=data, options=options, unopened=True)
    if shard is not None:
        work.set_shard(shard)
    return work.plan()


def prepare(
    probe: Probe[R],
    sources: Sequence[Model],
    *,
    data: str | None,
    options: Options,
    unopened: bool = False,
) -> ProbeWork[R]:
    """Return the work that ``run`` does, checked; ``unopened`` reads no weights of ``hf:`` models, to count it."""
    models = open_models(probe, sources, data=data, options=options, unopened=unopened)
    return check_work(probe, probe.prepare(models, data, options), options)


def check_work(probe: Probe[R], work: ProbeWork[R], options: Options) -> ProbeWork[R]:
    """Return the work of opened models; raises ``UserError`` where an option does not suit it."""
    if options.unit is not None and work.units is None:
        raise UserError(f"{probe.kind} has no intervals, so nothing is sampled; leave {option('unit')} out.")
    return work


def open_models(
    probe: Probe[Any],
    sources: Sequence[Model],
    *,
    data: str | None,
    options: Options,
    unopened: bool = False,
) -> list[Checkpoint]:
    """Return the models of a run, loaded, with all checked that can be checked before."""
    check_precision(probe, options)
    probe.check_options(options)
    check_group(options.parallel)
    if options.parallel != REPLICAS and probe.refuses_parallel:
        raise UserError(f"{probe.name} {probe.refuses_parallel}; leave {option('parallel')} out.")
    preflight(probe, sources, data=data, options=options)
    # Here, since it imports torch, and finished runs are compared without.
    from moeprobe.probes.engine.models import load_models

    # Sequences of tokens take the place of data.
    is_given = getattr(probe, "tokens", None) is not None
    modality = None if is_given else modality_of_data(data, files=getattr(probe, "files", ()))
    return load_models(
        sources,
        options,
        modality=modality,
        one_at_a_time=not probe.needs_all_models(),
        learn=lambda model: probe.learn(model, options),
        unopened=unopened,
    )
