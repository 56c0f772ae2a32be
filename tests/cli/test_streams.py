"""Standard streams that are closed, as services and cron may leave them: commands do their work all the same."""

import subprocess
import sys
from pathlib import Path

import pytest

# Real shells, which take their time.
pytestmark = [pytest.mark.slow, pytest.mark.promise]

CLOSED = {"output": ">&-", "errors": "2>&-", "output and input": "<&- >&-", "all": "<&- >&- 2>&-"}
closed = pytest.mark.parametrize("redirection", CLOSED.values(), ids=CLOSED)
# As a library in C does: it prints to the numbers of the streams, while a file is open.
PRINTS = """
import os
with open("mine", "w") as file:
    file.write("kept")
    file.flush()
    os.write(1, b"noise")
    os.write(2, b"noise")
"""


def ran(redirection: str, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    shell = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "moeprobe", *words]
    return subprocess.run(shell, cwd=folder, capture_output=True, text=True, check=False)


@closed
def test_a_command_ends_as_it_does_with_streams(redirection: str, tmp_path: Path) -> None:
    assert ran(redirection, "list", "configs", folder=tmp_path).returncode == 0
    wrong = ran(redirection, "inspect", "nothing", folder=tmp_path)
    assert wrong.returncode == 2
    assert "2>" in redirection or wrong.stderr.startswith("Error: There is no checkpoint 'nothing'")


@closed
def test_what_a_library_prints_goes_into_no_file(redirection: str, tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    ran(redirection, "--plugins", "prints.py", "list", "configs", folder=tmp_path)
    assert (tmp_path / "mine").read_text() == "kept"
