"""Where the time of a probe's run goes, from images in files to the last figure, for the size of the digits models.

    python -m benchmarks.profiles [PROBE ...] [--out reports/profiles]

A thread looks at what the main thread does, a hundred times a second, and counts the look for the innermost room of
moeprobe on its stack: what waits for images that other processes draw counts for files and views. It is wall time of
one run, after a run of the first probe that warms up. ``docs/results/speed.md`` shows the table beside the targets
that this size misses.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import pandas as pd

from benchmarks.speed.facts import load_average, machine
from benchmarks.speed.parts.probes import DIGITS, PROBES, SHARES
from benchmarks.speed.sweeps import Sizes, Subject
from moeprobe.results.sidecars import provenance
from moeprobe.runtime.files import write_csv, write_json

VIEWS, PASSES, STATISTICS, FIGURES, REST = (
    "files and views",
    "passes and reading routers",
    "sums and statistics",
    "figures",
    "the rest",
)
# Where a file lies, and what it works for. The engine works for whoever it calls.
_ROOMS = {
    "moeprobe/inputs/": VIEWS,
    "moeprobe/adapters/": PASSES,
    "moeprobe/models/": PASSES,
    "moeprobe/routing/": PASSES,
    "moeprobe/metrics/": STATISTICS,
    "moeprobe/judging/": STATISTICS,
    "moeprobe/results/figures/": FIGURES,
}
# The same of libraries: they work for the room that calls them, if one does.
_LIBRARIES = {"torch/autograd/": PASSES, "torch/nn/": PASSES, "matplotlib/": FIGURES}
KINDS = (VIEWS, PASSES, STATISTICS, FIGURES, REST)
_PAUSE = 0.01


def main() -> None:
    """Profile the probes, and print or keep the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("probes", nargs="*", default=[*SHARES], metavar="PROBE")
    parser.add_argument("--out", type=Path, help="folder of table.csv and table.json")
    asked = parser.parse_args()
    about = {"machine": machine("cpu"), "load_at_start": load_average(), **provenance()}
    table = profile(asked.probes)
    print(table.to_string(index=False))
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        write_csv(asked.out / "table.csv", table)
        write_json(asked.out / "table.json", about)


def profile(probes: Sequence[str], sizes: Sizes = DIGITS) -> pd.DataFrame:
    """Return seconds and shares of each kind of work, a row per probe."""
    with tempfile.TemporaryDirectory() as folder:
        subject = Subject(sizes, Path(folder), "cpu")
        subject.ask(PROBES[probes[0]]())
        rows = []
        for name in probes:
            begun = time.perf_counter()
            looks = look_at(partial(subject.ask, PROBES[name]()))
            seconds = time.perf_counter() - begun
            shares = {kind: looks[kind] / looks.total() for kind in KINDS}
            rows.append({"probe": name, "images": sizes.images, "seconds": seconds, **shares})
    return pd.DataFrame(rows).round(3)


def look_at(work: Callable[[], object]) -> Counter[str]:
    """Do the work, and return how many looks found each kind of work."""
    looks: Counter[str] = Counter()
    main_thread, done = threading.get_ident(), threading.Event()

    def look() -> None:
        while not done.wait(_PAUSE):
            looks[kind_of(sys._current_frames()[main_thread])] += 1

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        work()
    finally:
        done.set()
        thread.join()
    return looks


def kind_of(frame: FrameType) -> str:
    """Return what a stack works for, by the innermost room of moeprobe on it; else by the innermost library."""
    paths = [inner.f_code.co_filename.replace("\\", "/") for inner in _outwards(frame)]
    for kinds in (_ROOMS, _LIBRARIES):
        for path in paths:
            for place, kind in kinds.items():
                if place in path:
                    return kind
    return REST


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


if __name__ == "__main__":
    main()
