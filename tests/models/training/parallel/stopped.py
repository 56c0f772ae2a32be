"""A process of a training that stops after an evaluation: ``python -m tests.models.training.parallel.stopped``."""

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

from moeprobe.models.training.reporting import Report
from moeprobe.runtime import distributed
from tests.models.training.parallel.sharing import COMMON
from tests.models.training.tiny import trainer

# Eight steps with an evaluation every two: without what draws differently in parts, nor what magnifies rounding.
STEPS: dict[str, Any] = COMMON | {"steps": 8, "evaluate_every": 2}


class Stopped(Exception):  # noqa: N818  (a signal, not an error)
    """The evaluation at which a training was to end is done."""


def go_on(folder: Path, *, stop: int | None, ranks: Any = None, **changes: Any) -> None:
    """Begin a training, or go on with it; it stops after the evaluation of a step, None = at its end."""
    one = trainer(folder, ranks=ranks, **STEPS | changes)
    if (folder / "state.safetensors").exists():
        one.resume()

    def report(now: Report) -> None:
        if stop is not None and now.step >= stop:
            raise Stopped

    with contextlib.suppress(Stopped):
        one.run(report)


def main(folder: Path, asked: dict[str, Any]) -> None:
    """Do so as one of several processes."""
    with distributed.together() as ranks:
        go_on(folder, ranks=ranks, **asked)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with distributed.ending():
        main(Path(sys.argv[1]), json.loads(sys.argv[2]))
