"""One run by several processes: each measures a shard inside of the run's folder, the first puts them together."""

import dataclasses
from pathlib import Path
from typing import Any, TypeVar

from moeprobe.adapters.base import Models
from moeprobe.errors import FinishedError, UserError, option
from moeprobe.probes.base import Probe
from moeprobe.probes.engine.options import Options
from moeprobe.probes.engine.preflight import check_some
from moeprobe.probes.engine.run import prepare
from moeprobe.probes.engine.shard import Shard, check_batches
from moeprobe.probes.engine.work import ProbeWork
from moeprobe.results.folder import OutputFolder, figures_as_asked
from moeprobe.runtime.distributed import Ranks, own_device
from moeprobe.runtime.files import PARTS, SHARD, SHARDS, Scratch, is_folder, read_json
from moeprobe.runtime.progress import Progress

R = TypeVar("R")
# What the first process says instead of "ready".
_FINISHED = "finished"


def run_together(
    probe: Probe[R],
    models: Models,
    *,
    data: str | None,
    options: Options,
    ranks: Ranks,
    watcher: Progress,
) -> R | None:
    """Ask checkpoints what a probe asks, as one of several processes; returns None but in the first.

    What is no loop over images is done by the first alone.

    Raises:
        UserError: what ``run`` raises, in any of the processes; or one of them is gone.
    """
    if probe.needs_folder and options.out is None:
        raise UserError(f"Name a folder for {probe.needs_folder}, e.g. {option('out', f'{probe.kind}s')}.")
    check_batches(options)
    options = dataclasses.replace(options, device=own_device(options.device))
    if ranks.rank and not probe.splits:
        return None
    work = prepare(probe, check_some(models), data=data, options=options)
    if not probe.splits:
        return work.execute(watcher)
    scratch = Scratch() if options.out is None and ranks.rank == 0 else None
    out = Path(ranks.exchange(str(options.out if scratch is None else scratch.path))[0])
    if ranks.rank:
        if ranks.exchange("ready")[0] == _FINISHED:
            return None
        if not is_folder(out):
            raise UserError(
                "The processes do not see the same files; name a folder that all machines share, with "
                f"{option('out', 'FOLDER')}."
            )
        _measure(work, out, options, ranks, watcher)
        ranks.exchange("measured")
        return None
    try:
        with figures_as_asked(svg=options.svg):
            opened = OutputFolder(out, work.request, overwrite=options.overwrite)
    except FinishedError:
        ranks.exchange(_FINISHED)
        raise
    with opened as folder:
        names = [f"{SHARDS}/{number}-of-{ranks.size}" for number in range(1, ranks.size + 1)]
        folder.expect(names)
        ranks.exchange("ready")
        _measure(work, out, options, ranks, watcher)
        ranks.exchange("measured")
        shards = {out / name / PARTS: read_json(out / name / SHARD) for name in names}
        work.use_shard_parts(shards)
        return work.execute_in(None if scratch else folder, watcher)


def _measure(work: ProbeWork[Any], out: Path, options: Options, ranks: Ranks, watcher: Progress) -> None:
    """Measure the shard of this process, unless that was done before an interruption."""
    shard = Shard(of=ranks.size, number=ranks.rank + 1)
    work.set_shard(shard)
    request = work.request | {"shard": str(shard), "batch_size": options.batch_size}
    shard_folder = out / SHARDS / f"{shard.number}-of-{shard.of}"
    try:
        with OutputFolder(shard_folder, request, overwrite=options.overwrite) as folder:
            sidecar = work.measure(folder.parts, watcher)
            folder.finish_shard(
                {"shard": str(shard), "request": request} | sidecar | {"workers": options.workers}
            )
    except FinishedError:
        pass
