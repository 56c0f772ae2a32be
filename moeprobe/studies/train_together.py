"""One training by several processes, as torchrun starts them: each has a part of every batch, the first one writes."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from moeprobe.models.config import TrainConfig
from moeprobe.models.training.loop import Trainer
from moeprobe.models.training.reporting import Report
from moeprobe.runtime.distributed import Ranks, own_device
from moeprobe.runtime.folders import RunFolder
from moeprobe.runtime.replacing import in_use_first
from moeprobe.studies.train import FAMILY, check_run_folder, complete, draw_curve, make_trainer


def train_together(
    config: TrainConfig,
    *,
    folder: Path | None,
    device: str,
    resume: bool,
    overwrite: bool,
    report: Callable[[Report], None],
    svg: bool,
    ranks: Ranks,
) -> dict[str, Any]:
    """Train a model as ``train`` does, as one of several processes; returns the summary, the same in each.

    A run goes on with another number of processes: its state is that of one.

    Raises:
        UserError: what ``train`` raises, in any of the processes; or one of them is gone.
    """
    folder = Path("checkpoints") / config.name if folder is None else folder
    first = ranks.rank == 0
    state = None
    if first:
        with in_use_first(folder):
            state = check_run_folder(folder, config, resume=resume, overwrite=overwrite)
    state = ranks.exchange(state)[0]
    if state == "finished":
        summary = complete(folder, config) if first else None
        return ranks.exchange(summary)[0] | {"folder": str(folder), "kept": True}
    trainer = make_trainer(config, folder=folder, device=own_device(device), ranks=ranks)
    if not first:
        ranks.exchange("ready")
        summary = _run(
            trainer, ranks, resumed=state == "unfinished", report=lambda _: None, draw=lambda: None
        )
    else:
        with RunFolder(folder, FAMILY) as own:
            # Once more, when no other process can change it.
            check_run_folder(folder, config, resume=resume, overwrite=overwrite)
            if overwrite:
                own.clear()
            ranks.exchange("ready")
            draw = partial(draw_curve, own.path, config, svg=svg)
            summary = _run(trainer, ranks, resumed=state == "unfinished", report=report, draw=draw)
            own.check()
    return ranks.exchange(summary)[0] | {"folder": str(folder), "kept": False}


def _run(
    trainer: Trainer,
    ranks: Ranks,
    *,
    resumed: bool,
    report: Callable[[Report], None],
    draw: Callable[[], None],
) -> dict[str, Any]:
    if resumed:
        trainer.resume()
    try:
        return trainer.run(report, draw=draw)
    except KeyboardInterrupt:
        if trainer.wish.granted:
            ranks.leave()
        raise
