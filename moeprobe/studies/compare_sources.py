"""Gather what a comparison is made of: finished runs as they are, or checkpoints, to be probed alike."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import Model
from moeprobe.errors import UserError
from moeprobe.probes.engine import checks, loop
from moeprobe.probes.engine import run as probing
from moeprobe.probes.engine.models import load_models
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.origins import choose_data
from moeprobe.probes.engine.question import CLEAN, Probe
from moeprobe.results import finished
from moeprobe.results.finished import Measured
from moeprobe.results.folder import FinishedError
from moeprobe.results.tables import concatenate
from moeprobe.runtime.progress import Watcher
from moeprobe.studies.comparable import USUAL, offered

# Fields of Options that settle what is probed, by their names on the command line.
_OF_THE_PROBE = {
    "split": "--split",
    "limit": "--limit",
    "seed": "--seed",
    "trained_capacity": "--capacity",
    "group_images": "--group-images",
    "skip_bad_images": "--skip-bad-images",
    "allow_not_finite": "--allow-not-finite",
    "max_length": "--max-length",
    "masks": "--masks",
    "class_null": "--class-null",
}
# The run of a comparison of checkpoints, inside its output folder.
_PROBE = "probe"


class Gathered(Protocol):
    """What is to be compared, before and after it is measured."""

    def asked(self) -> Measured:
        """Return the request and the checkpoints; sums only where there are some already."""

    def sample(self) -> Measured:
        """Return sums enough to know which metrics there will be."""

    def measure(self, watcher: Watcher) -> Measured:
        """Return the sums of all checkpoints."""


@dataclass(frozen=True)
class FinishedRuns:
    """Runs that are measured already."""

    measured: Measured

    def asked(self) -> Measured:
        """Return the runs."""
        return self.measured

    def sample(self) -> Measured:
        """Return the runs."""
        return self.measured

    def measure(self, watcher: Watcher) -> Measured:
        """Return the runs."""
        return self.measured


@dataclass(frozen=True)
class ToProbe:
    """Checkpoints, and what is asked of each."""

    kind: str
    data: str
    view: str
    severities: Sequence[float] | None
    loaded: Sequence[Checkpoint]
    question: Probe
    options: Options

    def asked(self) -> Measured:
        """Return the request and the checkpoints, without sums."""
        request = checks.make_request(self.kind, self.data, self.question, self.options, self.loaded)
        return Measured(pa.table({}), request, request.pop("checkpoints"), {})

    def sample(self) -> Measured:
        """Return the sums of a batch of every checkpoint."""
        indices = self.question.indices[: self.question.batch_size]
        few = dataclasses.replace(self.question, indices=indices, skip_bad_images=True)
        tables = [loop.run(few, model)[0] for model in self.loaded]
        return dataclasses.replace(self.asked(), images=concatenate(tables))

    def measure(self, watcher: Watcher) -> Measured:
        """Probe; with an output folder, in a run of its own inside, which goes on where it stopped."""
        out = None if self.options.out is None else self.options.out / _PROBE
        try:
            result = probing.probe(
                self.kind,
                self.loaded,
                data=self.data,
                view=self.view,
                severities=self.severities,
                options=dataclasses.replace(self.options, out=out, overwrite=False),
                watcher=watcher,
            )
        except FinishedError:
            assert out is not None
            return dataclasses.replace(finished.read(out), runs={})
        return dataclasses.replace(
            self.asked(), images=result.images, checkpoints=result.sidecar["checkpoints"]
        )


def gather(given: Sequence[Model], asked: dict[str, Any], options: Options) -> Gathered:
    """Return finished runs or checkpoints; ``asked`` holds probe, data, view and severities, None = the usual.

    Raises:
        UserError: something named does not exist or does not fit.
    """
    _spare(given, options.out)
    if are_runs(given):
        return FinishedRuns(_of_runs([Path(str(path)) for path in given], asked, options))
    arguments = probe_arguments(**asked)
    loaded = load_models(given, options)
    arguments["data"] = choose_data(asked["data"], loaded)
    question = checks.make_probe(
        arguments["kind"],
        loaded,
        data=arguments["data"],
        view_name=arguments["view"],
        severities=arguments["severities"],
        options=options,
    )
    return ToProbe(**arguments, loaded=loaded, question=question, options=options)


def probe_arguments(
    *, probe: str | None, data: str | None, view: str | None, severities: Sequence[float] | None
) -> dict[str, Any]:
    """Return the arguments of ``engine.run.probe``.

    Raises:
        UserError: there is no such probe, or it takes no view or no severities.
    """
    name, asked = probe or USUAL, offered(probe)
    if view is not None and not asked.chooses:
        raise UserError(f"The probe {name} has no choice of view; leave --view out.")
    if severities is not None and asked.kind != "sweep":
        raise UserError(f"The probe {name} has no severities; leave --severities out.")
    chosen = view or asked.view
    if chosen is None and asked.chooses:
        raise UserError("Name the view of the sweep, e.g. --view affine.")
    return {"kind": asked.kind, "data": data, "view": chosen or CLEAN, "severities": severities}


def are_runs(given: Sequence[Model]) -> bool:
    """Whether all that is given are folders of runs.

    Raises:
        UserError: some are and some are not.
    """
    runs = [isinstance(item, str | Path) and finished.is_run(Path(item)) for item in given]
    if any(runs) and not all(runs):
        run, other = given[runs.index(True)], given[runs.index(False)]
        name = other.name if isinstance(other, Checkpoint) else other
        raise UserError(
            f"{run} is a finished run and {name} is not; give runs only, or checkpoints only "
            "(those of the run are named in its table.json)."
        )
    return bool(runs) and all(runs)


def _spare(given: Sequence[Model], out: Path | None) -> None:
    """Raise ``UserError`` where the output folder is, or holds, what is to be compared."""
    for item in given:
        if out is not None and isinstance(item, str | Path):
            path, folder = Path(item).resolve(), out.resolve()
            if path == folder or folder in path.parents:
                raise UserError(f"{item} lies in {out}; choose another --out.")


def _of_runs(paths: Sequence[Path], asked: dict[str, Any], options: Options) -> Measured:
    usual = Options()
    changed = [f"--{name}" for name, value in asked.items() if value is not None]
    changed += [
        option for name, option in _OF_THE_PROBE.items() if getattr(options, name) != getattr(usual, name)
    ]
    if changed:
        raise UserError(f"What was probed in a finished run is settled; leave out {', '.join(changed)}.")
    measured = finished.together(paths)
    if options.layers is None:
        return measured
    there = [name for name in pc.unique(measured.images["layer"]).to_pylist() if name]
    for layer in options.layers:
        if layer not in there:
            raise UserError(f"There is no MoE layer {layer!r} in these runs; there are: {', '.join(there)}.")
    keep = pc.is_in(measured.images["layer"], pa.array([*options.layers, ""]))
    return dataclasses.replace(
        measured,
        images=measured.images.filter(keep),
        request=measured.request | {"layers": list(options.layers)},
    )
