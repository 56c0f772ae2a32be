"""Statistics at full size: how long two noise sweeps of 50,000 images take to summarize, compare and report.

    python -m benchmarks.full_size FOLDER [--images 50000] [--patches 144] [--layers 4] [--severities 10] [--top-k 1]

The sums are made up and written as a run writes them; the functions of the commands read them, in as many processes as
they take (``taskset`` gives them fewer cores). Each step is a process of its own. Measured are its seconds, the CPU's
seconds, the memory that it and the processes that it starts hold at a time (shared pages count once; Linux), and the
bytes that it writes. ``--out reports/full-size`` keeps the table, from which ``docs/results/speed.md`` is written.
"""

import argparse
import multiprocessing
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.speed.facts import load_average, machine
from benchmarks.speed.made_up import ABOUT, ANALYSES, NAMES, Size, write
from benchmarks.speed.measure import cpu_seconds_of_children
from moeprobe import api
from moeprobe.judging.summarize import summarize
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.sidecars import Sidecar, provenance
from moeprobe.results.stored import of_file
from moeprobe.runtime.files import write_csv, write_json

SUMS = "sums.parquet"
# Seconds between two looks at the memory, and how many times as long as a look they are at least.
_PAUSE, _TIMES_A_LOOK = 0.1, 20


def main() -> None:
    """Make the sums, and measure what is done with them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, number in (
        ("images", 50_000),
        ("patches", 144),
        ("layers", 4),
        ("severities", 10),
        ("top-k", 1),
    ):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--out", type=Path, help="folder of table.csv and table.json")
    asked = parser.parse_args()
    size = Size(asked.images, asked.patches, asked.layers, asked.severities, asked.top_k)
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / SUMS
    about = {"size": asdict(size), "machine": machine("cpu"), "load_at_start": load_average(), **provenance()}
    if not path.exists():
        write(path, size)
    about["bytes_per_image_and_cell"] = path.stat().st_size / (size.images * size.cells)
    print(f"{path.stat().st_size:,} bytes, {about['bytes_per_image_and_cell']:.0f} per image and cell")
    rows = [
        {"step": name, **measure_step(work, asked.folder), "bytes": _bytes(asked.folder / name)}
        for name, work in STEPS.items()
    ]
    table = pd.DataFrame(rows).round(2)
    print(table.to_string(index=False))
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        write_csv(asked.out / "table.csv", table)
        write_json(asked.out / "table.json", about)


def _summarize(folder: Path) -> None:
    sums = of_file(folder / SUMS)
    table, comparison = summarize(sums, analyses=make_analyses(ANALYSES), run_info=ABOUT)
    request = {
        "kind": "noise-sweep", "data": "made-up", "split": "test", "seed": 0, "analyses": list(ANALYSES),
        "view": {"name": "gaussian_noise"}, "severities": sorted(set(table["severity"])), "layers": None,
    }  # fmt: skip
    checkpoints = {name: {"sha256": name * 64} for name in NAMES}
    sidecar: dict[str, Any] = {
        "request": request,
        "checkpoints": checkpoints,
        "colours": {},
        "skipped_images": [],
    }
    sidecar |= {"command": "", "wall_seconds": 0.0, "device": "cpu"} | provenance()
    with OutputFolder(folder / "summarize", request, overwrite=True) as out:
        out.write(Result(table, comparison, sums, Sidecar(sidecar)))
        out.finish(sidecar)


def _compare(folder: Path) -> None:
    api.compare([folder / "summarize"], out=folder / "compare", overwrite=True)


def _report(folder: Path) -> None:
    api.report([folder / "summarize", folder / "compare"], out=folder / "report", overwrite=True)


# What is done with the sums; each writes the folder of its name.
STEPS: dict[str, Callable[[Path], None]] = {
    "summarize": _summarize,
    "compare": _compare,
    "report": _report,
}


def measure_step(work: Callable[[Path], None], folder: Path) -> dict[str, float]:
    """Return seconds, CPU seconds and MiB of a step; it runs in a new process, which shares no pages with this one."""
    begun, used = time.perf_counter(), cpu_seconds_of_children()
    process = multiprocessing.get_context("spawn").Process(target=work, args=(folder,))
    process.start()
    most = 0.0
    while process.is_alive():
        looked = time.perf_counter()
        most = max(most, _resident(process.pid))
        # A look takes milliseconds per process, in which its memory is locked.
        process.join(max(_PAUSE, _TIMES_A_LOOK * (time.perf_counter() - looked)))
    if process.exitcode != 0:
        raise SystemExit(f"The step ended with exit code {process.exitcode}.")
    if not most:
        raise SystemExit("This system does not say how much memory a process holds.")
    return {
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": cpu_seconds_of_children() - used,
        "mebibytes": most,
    }


def _resident(pid: int | None) -> float:
    """Return the MiB that a process and those that it started hold, shared pages in equal parts."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
        own = int(rollup.split("\nPss:")[1].split()[0]) / 1024
        started = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except (OSError, IndexError):
        return 0.0  # it has just ended
    return own + sum(_resident(int(child)) for child in started)


def _bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
