"""Statistics at full size: how long two noise sweeps of 50,000 images take to summarize, compare and report.

    python -m benchmarks.full_size FOLDER [--images 50000] [--patches 144] [--layers 4] [--severities 10] [--top-k 1]

The sums are made up and written as a run writes them; what reads them are the functions of the commands, in as many
processes as they take (``taskset`` gives them fewer cores). Printed are seconds, the largest resident memory so far,
and bytes.
"""

import argparse
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from moeprobe import api
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.provenance import provenance
from moeprobe.results.stored import of_file
from moeprobe.results.summaries import summarize
from moeprobe.studies.bench.made_up import ABOUT, ANALYSES, NAMES, Size, write
from moeprobe.studies.bench.measure import cpu_seconds


def main() -> None:
    """Make the sums, and time what is done with them."""
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
    asked = parser.parse_args()
    size = Size(asked.images, asked.patches, asked.layers, asked.severities, asked.top_k)
    asked.folder.mkdir(parents=True, exist_ok=True)
    path = asked.folder / "sums.parquet"
    if not path.exists():
        _timed("made up", lambda: write(path, size))
    cells = size.images * size.cells
    print(f"{path.stat().st_size:,} bytes, {path.stat().st_size / cells:.0f} per image and cell", flush=True)
    run, compared = asked.folder / "run", asked.folder / "compare"
    _timed("summarized", lambda: _summarize(path, run))
    _timed("compared", lambda: api.compare([run], out=compared, overwrite=True))
    _timed("reported", lambda: api.report([run, compared], out=asked.folder / "report", overwrite=True))
    pages = sum(file.stat().st_size for file in (asked.folder / "report").rglob("*") if file.is_file())
    print(f"report: {pages:,} bytes")


def _timed(what: str, work: Callable[[], object]) -> None:
    begun, used = time.perf_counter(), cpu_seconds()
    work()
    own, others = (
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(
        f"{what}: {time.perf_counter() - begun:.1f} s, {cpu_seconds() - used:.1f} CPU s of all processes, peak "
        f"{own:.0f} MiB, of the largest process that it started {others:.0f} MiB",
        flush=True,
    )


def _summarize(path: Path, run: Path) -> None:
    sums = of_file(path)
    table, comparison = summarize(sums, analyses=make_analyses(ANALYSES), about=ABOUT)
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
    with OutputFolder(run, request, overwrite=True) as folder:
        folder.write(Result(table, comparison, sums, sidecar))
        folder.finish(sidecar)


if __name__ == "__main__":
    main()
