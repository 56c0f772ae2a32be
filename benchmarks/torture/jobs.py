"""The commands that are disturbed, small: what each needs first, what is typed, and where its results go."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.torture.children import Line, started

ROOT = Path(__file__).parents[2]
CHECKPOINTS = tuple(
    str(ROOT / f"checkpoints/reference/digits-{name}-k2-seed0") for name in ("baseline", "prc")
)
_TRAINING = (
    "steps=12", "epochs=null", "batch_size=16", "evaluate_every=3", "schedule.warmup_steps=2", "data.workers=0",
)  # fmt: skip
_SWEEP = {
    "base": "digits-prc", "name": "sweep", "seeds": [0],
    "fixed": {
        "steps": 6, "epochs": None, "batch_size": 16, "evaluate_every": 3, "schedule.warmup_steps": 2,
        "data.workers": 0,
    },
    "cells": [{"model.top_k": [1, 2]}],
    "measure": {"limit": 40},
}  # fmt: skip
_SWEPT = ("noise-sweep", *CHECKPOINTS, "--sigmas", "0,0.1,0.3", "--limit", "120", "--out", "out")
_SHARDS = ("confidence", *CHECKPOINTS, "--limit", "400", "--batch-size", "20")


@dataclass(frozen=True)
class Job:
    """A command.

    Attributes:
        name: of the command.
        line: what is typed.
        out: the folders of its results, in the working directory.
        prepare: makes what it reads, in the working directory.
        timed: patterns of results that hold times, whose bytes differ from run to run.
        blocks: how many equal parts of its images it keeps one by one; 0 = no image goes through a model.
        with_workers: what is typed for the same with loader processes; empty = it has none.
    """

    name: str
    line: Line
    out: tuple[str, ...]
    prepare: Callable[[Path], None] = lambda folder: None
    timed: tuple[str, ...] = ()
    blocks: int = 0
    with_workers: Line = ()

    def cleared(self, folder: Path) -> None:
        """Remove its results."""
        for name in self.out:
            path = folder / name
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)


def _write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content), encoding="utf-8")  # JSON is YAML


def _made(folder: Path, *lines: Line) -> None:
    for line in lines:
        with started(line, folder) as child:
            if child.wait() != 0:
                raise RuntimeError(child.said())


def prepared(folder: Path, lines: Sequence[Line] = ()) -> None:
    """Put a checkpoint into a folder, as ``own``, and what some commands make."""
    shutil.copytree(CHECKPOINTS[1], folder / "own")
    _made(folder, *lines)


def _measure_shards(folder: Path) -> None:
    _made(folder, *((*_SHARDS, "--shard", f"{one}/2", "--out", f"shard{one}") for one in (1, 2)))


JOBS = {
    job.name: job
    for job in (
        Job(
            "train",
            ("train", "--config", "digits-prc", "--resume", "--folder", "out", "--device", "cpu", *_TRAINING),
            ("out",),
            blocks=4,  # evaluations
        ),
        Job(
            "noise-sweep",
            _SWEPT,
            ("out",),
            blocks=2,  # checkpoints
            with_workers=(*_SWEPT, "--workers", "2"),
        ),
        Job(
            "tradeoff",
            ("tradeoff", "sweep.yaml", "--out", "out", "--checkpoints", "trained", "--device", "cpu"),
            ("out", "trained"),
            lambda folder: _write(folder, "sweep.yaml", _SWEEP),
            ("out/table.csv", "out/figures/*", "cell.json"),
            blocks=4,  # a training and its measurement, twice
        ),
        Job("merge", ("merge", "shard1", "shard2", "--out", "out"), ("out",), _measure_shards),
        Job(
            "trace",
            ("trace", "record", CHECKPOINTS[0], "--view", "gaussian_noise", "--limit", "100", "--out", "out"),
            ("out",),
            blocks=1,
        ),
        Job(
            "import vmoe",
            ("import", "vmoe", "exported/model", "out", "--classes", "digits"),
            ("out",),
            lambda folder: _made(
                folder, ("export", "vmoe", CHECKPOINTS[0], "exported/model", "--shards", "2")
            ),
        ),
    )
}
