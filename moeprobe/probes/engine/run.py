"""One life cycle for all probes: load, check, measure, write, draw."""

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from moeprobe.adapters.base import Checkpoint, Model, Models
from moeprobe.errors import FinishedError, RunWarning, UserError, option
from moeprobe.probes.base import Probe
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.preflight import check_precision, check_some, preflight
from moeprobe.probes.engine.shard import Shard, check_splits
from moeprobe.results.earlier_format import is_earlier
from moeprobe.results.sidecars import read_sidecar
from moeprobe.runtime import processes
from moeprobe.runtime.progress import Progress, progress_of

if TYPE_CHECKING:
    from moeprobe.probes.engine.work import Plan, ProbeWork

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
        raise UserError(f"Name a folder for {probe.needs_folder}, e.g. {option('out', f'{probe.kind}s')}.")
    sources = check_some(models)
    work = prepare(probe, sources, data=data, options=options)
    while True:
        try:
            return work.execute(progress_of(watcher))
        except (RuntimeError, MemoryError) as error:
            options = _smaller(options, error)
        work = prepare(probe, sources, data=data, options=options)


def run_once(start: Callable[[Options], R], models: Sequence[Checkpoint], options: Options) -> R | None:
    """Start a run that is part of a study, in the folder of ``options``; None where it is finished there.

    A finished run is repeated if nobody knows whether it is of these models, or if its tables lack the load of all
    choices (an earlier format).

    Raises:
        UserError: something else was run in that folder meanwhile.
    """
    from moeprobe.probes.engine.models import are_hashed  # here, since it imports torch

    try:
        return start(dataclasses.replace(options, overwrite=False))
    except FinishedError as error:
        if are_hashed(models) and not is_earlier(read_sidecar(error.folder)):
            return None
    return start(dataclasses.replace(options, overwrite=True))


def _smaller(options: Options, error: Exception) -> Options:
    """Return options with batches of half as many images, where that may mend an error; raises it where not.

    What is finished of the first try stays in its folder.
    """
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
) -> "Plan":
    """Return what ``run``, or a shard of it, would cost, by running a few images and writing nothing."""
    if shard is not None:
        check_splits(probe)
    work = prepare(probe, check_some(models), data=data, options=options or Options(**probe.defaults))
    if shard is not None:
        work.set_shard(shard)
    return work.plan()


def prepare(
    probe: Probe[R], sources: Sequence[Model], *, data: str | None, options: Options
) -> "ProbeWork[R]":
    """Return the work that ``run`` does, checked."""
    check_precision(probe, options)
    probe.check_options(options)
    preflight(probe, sources, data=data, options=options)
    # Here, since it imports torch, and finished runs are compared without.
    from moeprobe.probes.engine.models import load_models

    return probe.prepare(load_models(sources, options), data, options)
