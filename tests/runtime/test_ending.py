"""A process that is one of several ends with its work, before its interpreter is taken down."""

import os
import subprocess
import sys

import pytest

ALONE = dict.fromkeys(("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"), "")
ONE_OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
# A global object is deleted when the interpreter is taken down, which is when a thread of gloo would be ended.
COMMAND = """
import atexit, os, sys
from moeprobe.cli import main

class Last:
    def __del__(self, write=os.write):
        write(2, b"taken down.")

sys.last = Last()  # deleted even where nothing is collected at the end
atexit.register(os.write, 2, b"at exit.")
sys.argv = ["moeprobe", "--version"]
main()
"""


def ran(variables: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], env=os.environ | variables, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("variables", "said"), [(ALONE, "at exit.taken down."), (ONE_OF_TWO, "at exit.")], ids=["alone", "of two"]
)
def test_a_command_of_several_processes_ends_before_its_interpreter(
    variables: dict[str, str], said: str
) -> None:
    done = ran(variables, "-c", COMMAND)
    assert (done.returncode, done.stderr) == (0, said)
    assert done.stdout.startswith("moeprobe ")  # a pipe, which is written to at the end


@pytest.mark.parametrize("variables", [ALONE, ONE_OF_TWO], ids=["alone", "of two"])
@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("pass", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('gone')", 1, "gone\n"),
        ("raise ZeroDivisionError('a bug')", 1, "ZeroDivisionError: a bug\n"),
        ("raise KeyboardInterrupt", -2, "KeyboardInterrupt\n"),
    ],
)
def test_the_code_and_the_words_are_those_of_python(
    variables: dict[str, str], how: str, code: int, said: str
) -> None:
    script = f"import sys\nfrom moeprobe.runtime.distributed import ending\nwith ending():\n    {how}\n"
    done = ran(variables, "-c", script)
    assert done.returncode == code
    assert done.stderr.endswith(said) and bool(done.stderr) is bool(said)


def test_a_reader_that_is_gone_changes_nothing() -> None:
    script = "from moeprobe.runtime.distributed import ending\nwith ending():\n    print('words')\n"
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as out:
        variables = os.environ | ONE_OF_TWO | {"PYTHONUNBUFFERED": ""}
        done = subprocess.run([sys.executable, "-c", script], env=variables, stdout=out, check=False)
    assert done.returncode == 0


def test_numbers_that_are_none_are_the_users_to_mend() -> None:
    done = ran(ONE_OF_TWO | {"WORLD_SIZE": "many"}, "-m", "moeprobe", "train", "--config", "digits-baseline")
    assert done.returncode == 2
    assert "WORLD_SIZE is a whole number" in done.stderr and "Traceback" not in done.stderr
