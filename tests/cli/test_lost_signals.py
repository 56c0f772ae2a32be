"""A signal that arrives where Python ignores exceptions still ends the command, with the signal's exit code."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import Trained

pytestmark = [
    pytest.mark.slow,
    pytest.mark.promise,
    pytest.mark.skipif(sys.platform == "win32", reason="sends signals"),
]
NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if sys.platform != "win32" else ()
# In place of ``moeprobe list`` a command in which the signal is raised by ``__del__``, and that goes on to its end.
COMMAND = """
import signal, sys
import typer
from moeprobe.cli import main
from moeprobe.cli.commands import explain
from moeprobe.errors import UserError

class Last:
    def __del__(self):
        signal.raise_signal({number})

def listing() -> None:
    Last()
    print("at its end")
    {end}

explain.listing = listing
sys.argv = ["moeprobe", "list"]
main()
"""
# A signal comes in a hook of the first fork: of a loader process.
AT_FORK = """
import os, signal, sys
from moeprobe.cli import main
waiting = [signal.SIGTERM]
os.register_at_fork(after_in_parent=lambda: waiting and signal.raise_signal(waiting.pop()))
main()
"""
SPREAD = """
import os, signal
from moeprobe.runtime.processes import spread
from moeprobe.runtime.signals import Ending
os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGTERM))
with Ending():
    for number in spread(lambda number: number, 2, processes=2):
        print("a piece")
"""


def ran(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("number", "end"),
    [
        *((number, "pass") for number in NUMBERS),
        (signal.SIGTERM, "raise typer.Exit(3)"),
        (signal.SIGTERM, "raise UserError('One sentence.')"),
    ],
)
def test_the_end_of_a_command(number: signal.Signals, end: str) -> None:
    done = ran(COMMAND.format(number=int(number), end=end))
    assert (done.returncode, done.stdout) == (128 + number, "at its end\n")


def test_progress(trained: Trained, tmp_path: Path) -> None:
    words = ["confidence", trained["prc"], "--limit", "20", "--workers", "1", "--out", tmp_path / "out"]
    done = ran(AT_FORK, *map(str, words))
    assert "Exception ignored" in done.stderr, "the signal was raised where nobody hears it"
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "Ended by SIGTERM." in done.stderr.splitlines()
    assert not (tmp_path / "out" / "table.csv").exists()


def test_pieces_of_statistics() -> None:
    done = ran(SPREAD)
    assert done.returncode and "Exception ignored" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("Terminated: Ended by SIGTERM")
    assert not done.stdout
