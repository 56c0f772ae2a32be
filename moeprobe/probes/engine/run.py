"""One life cycle for all probes: load, check, measure, write, draw."""

from typing import TYPE_CHECKING, TypeVar

from moeprobe.adapters.base import Models
from moeprobe.errors import UserError
from moeprobe.probes.base import Probe
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.preflight import preflight
from moeprobe.probes.engine.shard import Shard, check_splits
from moeprobe.runtime.progress import Progress, progress_of

if TYPE_CHECKING:
    from moeprobe.probes.engine.work import Plan, Work

R = TypeVar("R")


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
    if probe.needs_folder and options.out is None:
        raise UserError(f"Name a folder for {probe.needs_folder}, e.g. --out {probe.name}s.")
    work = prepare(probe, models, data=data, options=options)
    # Here, since it brings pandas, and what is mistyped is refused without.
    from moeprobe.results.folder import output_folder

    with output_folder(options.out, work.request, overwrite=options.overwrite) as folder:
        return work.execute(folder, progress_of(watcher))


def plan(
    probe: Probe[R],
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    shard: Shard | None = None,
) -> "Plan":
    """Return what ``run``, or a shard of it, would cost, by running a few images and writing nothing."""
    if shard is not None:
        check_splits(probe)
    work = prepare(probe, models, data=data, options=options or Options(**probe.defaults))
    if shard is not None:
        work.take(shard)
    return work.plan()


def prepare(probe: Probe[R], models: Models, *, data: str | None, options: Options) -> "Work[R]":
    """Return the work that ``run`` does, checked."""
    probe.check_options(options)
    preflight(probe, models, data=data, options=options)
    # Here, since it imports torch, and finished runs are compared without.
    from moeprobe.probes.engine.models import load_models

    return probe.prepare(load_models(models, options), data, options)
