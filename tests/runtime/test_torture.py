"""A short part of ``make torture``, in a process of its own: it copies itself, and so must have no threads."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="processes are copied")]
ROOT = Path(__file__).parents[2]
PROGRAM = """
import random, signal, sys
from pathlib import Path
from benchmarks.torture.children import load
from benchmarks.torture.faults import Torture
from benchmarks.torture.jobs import JOBS
load()
torture = Torture(JOBS["noise-sweep"], Path(sys.argv[1]) / "work", random.Random(1))
for found in (
    torture.signaled("kill -9", signal.SIGKILL, 2, chain=2),
    torture.signaled("SIGTERM", signal.SIGTERM, 1),
    torture.limits("small files", "FSIZE", (4096,)),
    torture.two_at_once(),
):
    assert found.times and found.partial == found.left == found.tracebacks == 0, found
    assert found.runs == found.same > 0, found
    print(found.fault, sorted(found.codes))
"""


@pytest.mark.promise
def test_what_is_disturbed_ends_as_what_is_not(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "kill -9 [-9]", "SIGTERM [143]", "small files [2]", "two runs in one folder [2]",
    ]  # fmt: skip
