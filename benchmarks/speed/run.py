"""All parts that were asked for, one after the other, and the folder of what they found."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from benchmarks.speed import facts, parts
from benchmarks.speed.measure import Clock, cpu_seconds, measure
from benchmarks.speed.parts.base import Settings
from benchmarks.speed.table import frame, rows
from moeprobe.results.folder import output_folder
from moeprobe.results.sidecars import provenance
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.files import write_csv
from moeprobe.runtime.progress import Progress

_QUICK_ROUNDS = 2
# Seconds that a contestant works for in a round, at the least; the CPU's seconds are counted in larger steps.
_SHORTEST = {"wall": 0.02, "cpu": 0.1}


@dataclass(frozen=True)
class BenchResult:
    """What was measured.

    Attributes:
        table: a line per contestant and whom it is put against; the columns are ``columns.BENCH_COLUMNS``.
        sidecar: what was asked, the machine, and provenance.
    """

    table: pd.DataFrame
    sidecar: dict[str, Any]


def bench(
    given: Sequence[str] = (),
    *,
    settings: Settings | None = None,
    out: Path | None = None,
    overwrite: bool = False,
    command: str = "",
    watcher: Progress | None = None,
) -> BenchResult:
    """Measure parts of the benchmark.

    Args:
        given: their names; none = all.
        settings: how.
        out: folder of table.csv and table.json; None writes nothing.
        overwrite: replace an earlier run there.
        command: what was typed, for the sidecar.
        watcher: receives the progress.

    Raises:
        UserError: there is no such part or device, or the folder cannot be taken.
        DisagreementError: contestants compute different values.
    """
    chosen, settings = parts.chosen(given), settings or Settings()
    device = choose_device(settings.device)
    request = {"kind": "bench", "parts": chosen, **asdict(settings)}
    with output_folder(out, request, overwrite=overwrite) as folder, _Threads(settings.threads):
        # Of the program as it began: files may change while it runs.
        about = {"machine": facts.machine(str(device)), "load_at_start": facts.load_average(), **provenance()}
        clock = _clock(settings, device)
        found: list[dict[str, Any]] = []
        for name in chosen:
            part = parts.part(name)
            for race in part.races(settings):
                rounds = settings.rounds or (_QUICK_ROUNDS if settings.quick else race.rounds or part.rounds)
                measured = measure(
                    race,
                    rounds=rounds,
                    clock=clock,
                    watcher=watcher or Progress(),
                    warm_up=not settings.quick,
                )
                found += rows(race, measured, part=name, judge=not settings.quick)
        about["load_at_end"] = facts.load_average()
        result = BenchResult(frame(found), {"request": request, "command": command, **about})
        if folder is not None:
            write_csv(folder.path / "table.csv", result.table)
            folder.finish(result.sidecar)
    return result


class _Threads:
    """Torch computes with so many threads inside of this."""

    def __init__(self, number: int | None) -> None:
        self._number, self._before = number, torch.get_num_threads()

    def __enter__(self) -> None:
        if self._number is not None:
            torch.set_num_threads(self._number)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self._before)


def _clock(settings: Settings, device: torch.device) -> Clock:
    shortest = 0 if settings.quick else _SHORTEST[settings.clock]
    if settings.clock == "wall":
        return Clock(shortest, _wait(device))
    return Clock(shortest, _wait(device), cpu_seconds)


def _wait(device: torch.device) -> Callable[[], object]:
    """Return what waits until a device is done."""
    if device.type == "cuda":
        return torch.cuda.synchronize
    return torch.mps.synchronize if device.type == "mps" else lambda: None
