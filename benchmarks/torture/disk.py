"""File systems that fail: the n-th call of a kind, of ten small commands, each of which is then given once more.

What is promised: exit code 0 or 2, no traceback, the same command afterwards ends with the bytes of an undisturbed run,
and neither temporary files nor locks nor open files are left.
"""

import argparse
import csv
import importlib
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from itertools import pairwise
from pathlib import Path

from benchmarks.torture.children import Line, load, started
from benchmarks.torture.injecting import CALLS, ERRORS, compiled, failing, reporting, with_injection
from benchmarks.torture.jobs import CHECKPOINTS, Job, prepared
from benchmarks.torture.looking import fingerprint, left_behind

TABLE = "disk.csv"
# How many calls fail of a command, beside those of others: fewer where a run takes longer.
_WEIGHTS = {
    "train": 0.5,
    "noise-sweep": 0.4,
    "compare checkpoints": 0.4,
    "analyze-trace": 0.5,
    "tradeoff": 0.1,
}
_FEW = ("--limit", "8")
_TRAINING = (
    "steps=2", "epochs=null", "batch_size=8", "evaluate_every=2", "schedule.warmup_steps=1", "data.workers=0",
)  # fmt: skip
_SHARDS = ("confidence", "own", "--limit", "16", "--batch-size", "8")
_TRACE = ("trace", "record", "own", "--view", "gaussian_noise", "--severities", "0.1", *_FEW)


def _job(name: str, *line: str, before: Sequence[Line] = (), timed: tuple[str, ...] = ()) -> Job:
    """Return a command that writes ``out`` and reads ``own``, a copy of a checkpoint, and what others make before."""
    return Job(name, (*line, "--out", "out"), ("out",), lambda folder: prepared(folder, before), timed)


JOBS = (
    Job(
        "train",
        ("train", "--config", "digits-prc", "--folder", "out", "--device", "cpu", *_TRAINING),
        ("out",),
        prepared,
    ),
    _job("confidence", "confidence", "own", *_FEW),
    _job("noise-sweep", "noise-sweep", "own", "--sigmas", "0.1", *_FEW),
    _job(
        "compare",
        "compare",
        "one",
        "two",
        before=(
            ("confidence", "own", *_FEW, "--out", "one"),
            ("confidence", CHECKPOINTS[0], *_FEW, "--out", "two"),
        ),
    ),
    _job("compare checkpoints", "compare", "own", CHECKPOINTS[0], "--probe", "confidence", *_FEW),
    _job(
        "tradeoff",
        "tradeoff",
        "own",
        "measure.limit=8",
        timed=("out/table.csv", "out/figures/*", "cell.json"),
    ),
    _job(
        "merge",
        "merge",
        "shard1",
        "shard2",
        before=[(*_SHARDS, "--shard", f"{one}/2", "--out", f"shard{one}") for one in (1, 2)],
    ),
    _job("trace", *_TRACE),
    _job(
        "analyze-trace",
        "trace",
        "analyze",
        "traces/own/clean.parquet",
        "traces/own/gaussian_noise-0.1.parquet",
        before=[(*_TRACE, "--out", "traces")],
    ),
    Job(
        "import vmoe",
        ("import", "vmoe", "exported/model", "out", "--classes", "digits"),
        ("out",),
        lambda folder: prepared(folder, [("export", "vmoe", "own", "exported/model", "--shards", "2")]),
    ),
)


@dataclass(frozen=True)
class Case:
    """What one call that failed did to a command.

    Attributes:
        command: which command.
        call: a kind of call.
        number: which of them failed, from 1.
        error: what it answered.
        exit: the exit code of the command.
        tracebacks: of the command and of the same given again.
        open: files that the command had left open for writing.
        left: temporary files and locks after the same command again.
        again: the exit code of the same command.
        same: whether its results are those of an undisturbed run.
    """

    command: str
    call: str
    number: int
    error: str
    exit: int
    tracebacks: int
    open: int
    left: int
    again: int
    same: int

    @property
    def kept(self) -> bool:
        """Whether all that is promised holds."""
        return (
            self.exit in (0, 2)
            and self.again == 0
            and self.same == 1
            and self.tracebacks == self.open == self.left == 0
        )


class Disk:
    """A command in a folder on a file system that fails.

    Args:
        job: the command.
        folder: an empty folder for all of it.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder, self._report = job, folder / "here", folder / "report.json"
        self.folder.mkdir(parents=True)
        job.prepare(self.folder)
        code, said = self._run("open", 0, "EIO")
        if code != 0:
            raise RuntimeError(f"{job.name} does not run: {said}")
        report = json.loads(self._report.read_text(encoding="utf-8"))
        self.counts: dict[str, int] = report["counts"]
        # So that no process has to import them again.
        for name in report["modules"]:
            with suppress(Exception):
                importlib.import_module(name)
        self.wanted = fingerprint(self.folder, job)
        job.cleared(self.folder)

    def _run(self, call: str, number: int, error: str) -> tuple[int, str]:
        self._report.unlink(missing_ok=True)
        arm = failing([self.folder], call, number, error)
        report = reporting(self.folder, self._report)
        with started(self.job.line, self.folder, before=arm, after=report) as child:
            child.wait()
        return -999 if child.code is None else child.code, child.said()

    def case(self, call: str, number: int, error: str) -> tuple[Case, str]:
        """Have a call fail, give the command again; returns what came of it, and what was said."""
        code, said = self._run(call, number, error)
        # A process that a signal ended, such as an abort of C++, reports nothing.
        report = self._report.read_text(encoding="utf-8") if self._report.is_file() else '{"open": []}'
        left_open = set(json.loads(report)["open"])
        again, said_again = self._run("open", 0, "EIO")
        found = Case(
            self.job.name,
            call,
            number,
            error,
            exit=code,
            tracebacks=sum("Traceback" in text for text in (said, said_again)),
            open=len(left_open),
            left=len(left_behind(self.folder, self.job.out)),
            again=again,
            same=int(fingerprint(self.folder, self.job) == self.wanted),
        )
        self.job.cleared(self.folder)
        return found, "\n".join((said, *left_open, "Again:", said_again))


def choose(counts: dict[str, int], number: int, rng: random.Random) -> list[tuple[str, int, str]]:
    """Return so many different calls that fail: kinds in turn, then which of them, and with what."""
    kinds = [name for name in CALLS if counts[name]]
    most = sum(counts[name] * len(ERRORS[name]) for name in kinds)
    chosen: dict[tuple[str, int, str], None] = {}
    while len(chosen) < min(number, most):
        call = rng.choice(kinds)
        chosen[call, rng.randint(1, counts[call]), rng.choice(ERRORS[call])] = None
    return list(chosen)


def portions(calls: int) -> list[int]:
    """Return how many calls fail of each command, of so many in all."""
    weights = [_WEIGHTS.get(job.name, 1.0) for job in JOBS]
    ends = [round(calls * sum(weights[:place]) / sum(weights)) for place in range(len(JOBS) + 1)]
    return [end - begin for begin, end in pairwise(ends)]


def make_up(cases: int, out: Path, *, seed: int, commands: str = "") -> None:
    """Have calls fail, as many in all, in a process that can, and write ``disk.csv``."""
    if cases == 0:
        return
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        arguments = ["--calls", str(cases), "--seed", str(seed), "--out", str(out), "--commands", commands]
        with_injection(compiled(Path(folder)), ["-m", "benchmarks.torture.disk", *arguments])


def main() -> None:
    """Run what ``make_up`` asks for: a line per broken promise, and how many were kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--commands", default="")
    asked = parser.parse_args()
    names = asked.commands.split(",") if asked.commands else [job.name for job in JOBS]
    load()
    found: list[Case] = []
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        for job, number in zip(JOBS, portions(asked.calls), strict=True):
            if job.name in names:
                disk = Disk(job, Path(folder).resolve() / job.name.replace(" ", "-"))
                rng = random.Random(f"{asked.seed}-{job.name}")
                found += _cases(disk, choose(disk.counts, number, rng))
                write(asked.out, found)
    print(f"{sum(case.kept for case in found)} of {len(found)}", flush=True)


def _cases(disk: Disk, calls: Sequence[tuple[str, int, str]]) -> list[Case]:
    """Have calls fail one after the other; prints what breaks a promise, and how many kept them."""
    found = []
    for number, call in enumerate(calls):
        if number % 20 == 0:
            print(f"{disk.job.name}: {number} of {len(calls)}", file=sys.stderr, flush=True)
        case, said = disk.case(*call)
        found.append(case)
        if not case.kept:
            print(case, said, sep="\n", flush=True)
    kept = sum(case.kept for case in found)
    print(f"{disk.job.name}: {kept} of {len(found)} kept what is promised", flush=True)
    return found


def write(folder: Path, found: Sequence[Case]) -> None:
    """Put a row per case into ``disk.csv``, instead of those of the same commands."""
    folder.mkdir(parents=True, exist_ok=True)
    path, names = folder / TABLE, [field.name for field in fields(Case)]
    rows = [dict(zip(names, map(str, astuple(case)), strict=True)) for case in found]
    if path.exists():
        with path.open(encoding="utf-8", newline="") as file:
            done = {case.command for case in found}
            rows += [row for row in csv.DictReader(file) if row["command"] not in done]
    order = [job.name for job in JOBS]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: order.index(row["command"])))


if __name__ == "__main__":
    main()
