"""A short part of ``make torture``: system calls that fail."""

import csv
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.torture.disk import JOBS, choose, portions
from benchmarks.torture.injecting import CALLS, ERRORS

ROOT = Path(__file__).parents[2]


def test_the_same_calls_fail_each_time() -> None:
    counts = dict.fromkeys(CALLS, 7) | {"map": 0}
    chosen = choose(counts, 60, random.Random("0-x"))
    assert chosen == choose(counts, 60, random.Random("0-x")) and len(set(chosen)) == 60
    assert all(call != "map" and 1 <= number <= 7 and error in ERRORS[call] for call, number, error in chosen)
    assert len(choose({**dict.fromkeys(CALLS, 0), "lock": 1}, 60, random.Random(0))) == len(ERRORS["lock"])
    assert sum(portions(1000)) == 1000 and len(portions(1000)) == len(JOBS) == 10 and min(portions(1000)) > 5


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("cc") is None, reason="needs Linux and a compiler"
)
def test_what_is_promised_is_kept_where_a_call_fails(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks.torture",
        "--kills",
        "0",
        "--calls",
        "20",
        "--out",
        str(tmp_path),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "20 of 20", done.stdout
    with (tmp_path / "disk.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 20 and {row["exit"] for row in rows} <= {"0", "2"}
    assert "2" in {row["exit"] for row in rows}, "no call has failed"
