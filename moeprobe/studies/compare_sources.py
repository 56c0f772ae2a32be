"""Gather the inputs of a comparison: finished runs as they are, or checkpoints, to be probed with the same question."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from moeprobe.adapters.base import Checkpoint, Model
from moeprobe.errors import FinishedError, UserError
from moeprobe.probes.base import CLEAN, arg_of, fields_of, flag_of
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.run import prepare, run
from moeprobe.probes.registry import to_compare
from moeprobe.results import finished
from moeprobe.results.finished import Measured
from moeprobe.results.folder import Result
from moeprobe.results.stored import SumsStore
from moeprobe.results.values import Analyses
from moeprobe.runtime.catalog import VIEWS
from moeprobe.runtime.progress import Progress

if TYPE_CHECKING:
    from moeprobe.probes.engine.measurement import Measurement

# The run of a comparison of checkpoints, inside its output folder.
_PROBE = "probe"


class Gathered(Protocol):
    """What is to be compared, before and after it is measured."""

    def outline(self) -> Measured:
        """Return the request and the checkpoints; sums only where there are some already."""

    def sample(self) -> Measured:
        """Return enough sums to know which metrics there will be."""

    def measure(self, watcher: Progress) -> Measured:
        """Return the sums of all checkpoints."""


@dataclass(frozen=True)
class FinishedRuns:
    """Runs that are measured already."""

    measured: Measured

    def outline(self) -> Measured:
        """Return the runs."""
        return self.measured

    def sample(self) -> Measured:
        """Return the runs."""
        return self.measured

    def measure(self, watcher: Progress) -> Measured:
        """Return the runs."""
        return self.measured


@dataclass(frozen=True)
class ToProbe:
    """Checkpoints, and the request for each."""

    work: "Measurement[Result]"

    def outline(self) -> Measured:
        """Return the request and the checkpoints, without sums."""
        request = dict(self.work.request)
        return Measured(SumsStore(()), request, request.pop("checkpoints"), {})

    def sample(self) -> Measured:
        """Return the sums of a batch of every checkpoint."""
        return dataclasses.replace(self.outline(), sums=self.work.sample(self.work.options.batch_size))

    def measure(self, watcher: Progress) -> Measured:
        """Probe; with an output folder, in a run of its own inside, which resumes where it stopped."""
        work = self.work
        out = None if work.options.out is None else work.options.out / _PROBE
        try:
            result = run(
                work.probe,
                work.models,
                data=work.data,
                options=dataclasses.replace(work.options, out=out, overwrite=False),
                watcher=watcher,
            )
        except FinishedError:
            assert out is not None
            return dataclasses.replace(finished.read(out), runs={})
        return dataclasses.replace(
            self.outline(), sums=result.sums, checkpoints=result.sidecar["checkpoints"]
        )


def gather(models: Sequence[Model], settings: dict[str, Any], options: Options) -> Gathered:
    """Return finished runs or checkpoints; ``asked`` holds probe, data, view and severities, None = the usual.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    _spare(models, options.out)
    if are_runs(models):
        return FinishedRuns(_of_runs([Path(str(path)) for path in models], settings, options))
    probe = to_compare(settings["probe"], view=settings["view"], severities=settings["severities"])
    work = prepare(probe, models, data=settings["data"], options=options)
    from moeprobe.probes.engine.measurement import Measurement  # here, since it imports torch

    assert isinstance(work, Measurement)
    return ToProbe(work)


def are_runs(models: Sequence[Model]) -> bool:
    """Whether all that is given are folders of runs.

    Raises:
        UserError: some are and some are not.
    """
    runs = [isinstance(item, str | Path) and finished.is_run(Path(item)) for item in models]
    if any(runs) and not all(runs):
        run, checkpoint = models[runs.index(True)], models[runs.index(False)]
        name = checkpoint.name if isinstance(checkpoint, Checkpoint) else checkpoint
        raise UserError(
            f"{run} is a finished run and {name} is not; give runs only, or checkpoints only "
            "(the run's table.json names its checkpoints)."
        )
    return bool(runs) and all(runs)


def _spare(models: Sequence[Model], out: Path | None) -> None:
    """Raise ``UserError`` if the output folder is, or contains, something to be compared."""
    for item in models:
        if out is not None and isinstance(item, str | Path):
            path, folder = Path(item).resolve(), out.resolve()
            if path == folder or folder in path.parents:
                raise UserError(f"{item} is in {out}; choose another --out.")


def _of_runs(paths: Sequence[Path], settings: dict[str, Any], options: Options) -> Measured:
    usual = Options()
    changed = [f"--{name}" for name, value in settings.items() if value is not None]
    changed += [
        flag_of(Options, name)
        for name in fields_of(Options)
        if arg_of(Options, name).in_request and getattr(options, name) != getattr(usual, name)
    ]
    if changed:
        raise UserError(f"Finished runs fix these options; remove {', '.join(changed)}.")
    measured = finished.read_all(paths)
    if options.layers is None:
        return measured
    run_layers = measured.sums.layers
    for layer in options.layers:
        if layer not in run_layers:
            raise UserError(
                f"There is no MoE layer {layer!r} in these runs; there are: {', '.join(run_layers)}."
            )
    layers = {*options.layers, ""}
    return dataclasses.replace(
        measured,
        sums=measured.sums.select(lambda stored: stored.cell.layer in layers),
        request=measured.request | {"layers": list(options.layers)},
    )


def analyses_of(measured: Measured) -> Analyses:
    """Return the analyses of the run, to compute their numbers from the sums again."""
    return make_analyses(measured.request["analyses"], class_null=measured.request.get("class_null", False))


def is_aligned(measured: Measured) -> bool:
    """Whether the view leaves the patches where they are."""
    if "aligned" in measured.request:  # of traces and of variants, which know it themselves
        return bool(measured.request["aligned"])
    name = measured.request["view"]["name"]
    return name != CLEAN and VIEWS.get(name).aligned
