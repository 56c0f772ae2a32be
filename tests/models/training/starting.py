"""Processes that train together, started as torchrun does, or by it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.commands import PATIENCE
from tests.probes.test_ranks import environments


def by_processes(module: str, *arguments: str, number: int = 2) -> None:
    """Run a module of ``parallel`` by several processes, which all end well."""
    command = [sys.executable, "-m", f"tests.models.training.parallel.{module}", *arguments]
    processes = [
        subprocess.Popen(command, env=one, stderr=subprocess.PIPE, text=True) for one in environments(number)
    ]
    errors = [process.communicate(timeout=PATIENCE)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * number, errors


@contextmanager
def torchrun(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Give torchrun two processes to start; it is killed if it is still there at the end."""
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        *arguments,
    ]
    launcher = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield launcher
    finally:
        launcher.kill()
