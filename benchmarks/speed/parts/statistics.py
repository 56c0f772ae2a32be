"""What intervals of many images take: time of one cell, against resamples of the same; memory of many, against few."""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.speed.made_up import ANALYSES, Size, write
from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import Contestant, DisagreementError, Race, Target
from moeprobe.metrics.stats import linearized
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results.stored import of_file
from moeprobe.results.values import Evaluator

_RESAMPLED, _LINEARIZED = "2,000 resamples", "influences, in blocks"
# Experts of a token that are compared with one: time grows with them at most.
_SEVERAL = (2, 8)
_SUMMARIZE = """
import sys
from pathlib import Path
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results.stored import of_file
from moeprobe.judging.summarize import summarize
from moeprobe.runtime.processes import largest_resident
from benchmarks.speed.made_up import ABOUT, ANALYSES
summarize(of_file(Path(sys.argv[1])), analyses=make_analyses(ANALYSES), run_info=ABOUT)
print(largest_resident())
"""


class Statistics(Part):
    """Linearized intervals against resamples, several experts per token against one, and memory of many images."""

    rounds = 7

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield the races of one cell, and that of memory, each process on its own."""
        images, few, many = (60, 50, 100) if settings.quick else (linearized.LARGEST, 500, 20_000)
        patches = 16 if settings.quick else 144
        with tempfile.TemporaryDirectory() as folder:
            one = Path(folder) / "one.parquet"
            write(one, Size(images, patches))
            yield Race(
                f"one cell of {images:,} images x {patches} patches",
                [
                    Contestant(_LINEARIZED, _valued(one, largest=0), "ours"),
                    Contestant(_RESAMPLED, _valued(one, largest=images)),
                ],
                1e-9,
                [Target(_LINEARIZED, _RESAMPLED, at_most=0.1)],
                ratio="time",
            )
            cells = {"k = 1": one}
            for top_k in _SEVERAL:
                cells[f"k = {top_k}"] = Path(folder) / f"{top_k}.parquet"
                write(cells[f"k = {top_k}"], Size(images, patches, top_k=top_k))
            yield Race(
                f"several experts per token, {images:,} images x {patches} patches",
                [Contestant(name, _valued(path, largest=0), "ours") for name, path in cells.items()],
                None,
                [Target(f"k = {top_k}", "k = 1", at_most=top_k) for top_k in _SEVERAL],
                against="k = 1",
                ratio="time",
            )
            contestants = []
            for number in (few, many):
                path = Path(folder) / f"{number}.parquet"
                write(path, Size(number, patches))
                contestants.append(Contestant(f"{number:,} images", _peak(path), "ours"))
            yield Race(
                f"peak memory of a summary, {patches} patches",
                contestants,
                None,
                [Target(f"{many:,} images", f"{few:,} images", at_most=1.1)],
                against=f"{few:,} images",
                ratio="time",
                unit="MiB",
                meter=lambda returned: float(str(returned)),
            )


def _valued(path: Path, *, largest: int) -> Callable[[], list[float]]:
    """Return what computes the numbers of a cell, linearized where it holds more than ``largest`` images."""

    def work() -> list[float]:
        cell = next(iter(of_file(path)))
        value = Evaluator(make_analyses(ANALYSES), aligned=True, seed=0, largest=largest)
        return [one.point for one in value(cell).numbers.values()]

    return work


def _peak(path: Path) -> Callable[[], str]:
    """Return what summarizes sums in a process of its own; it returns the peak of its memory."""

    def work() -> str:
        line = [sys.executable, "-c", _SUMMARIZE, str(path)]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        if done.returncode:
            raise DisagreementError(
                f"A summary ended with {done.returncode}, and said: {done.stderr.strip()}"
            )
        return done.stdout.strip()

    return work
