"""Running the command line in tests."""

import pkgutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner, Result

from moeprobe.cli.app import app
from moeprobe.metrics.stats.bootstrap import NUM_RESAMPLES, Bootstrap
from moeprobe.metrics.stats.linearized import multiply_influences
from moeprobe.recordings.unknown_file import LINES as CONVERSION
from moeprobe.runtime.records import RECORD

Trained = dict[str, Path]
# Seconds until something hangs: far more than anything takes on a machine with ten times the load.
PATIENCE = 1800
# Typer's runner makes all commands again for every call, which takes longer than most refusals.
COMMAND = get_command(app)
# For many commands in one process that has nothing of the tests: ``ended(words)`` is exit code, output and errors.
SCRIPT = """
import gc, json, sys
from typer.main import get_command
from typer.testing import CliRunner
from moeprobe.cli.app import app
command = get_command(app)
gc.freeze()
gc.set_threshold(10_000)
def ended(words):
    with CliRunner().isolation() as (_, errors, output):
        try:
            command.main(words, prog_name="moeprobe")
        except SystemExit as end:
            code = end.code or 0
        sys.stdout.flush()
        sys.stderr.flush()
        return code, output.getvalue().decode(), errors.getvalue().decode()
"""


def run(*arguments: object) -> Result:
    """Run a command inside this process, as ``CliRunner.invoke`` does."""
    runner = CliRunner()
    error: BaseException | None = None
    with runner.isolation() as (stdout, stderr, output):
        try:
            COMMAND.main([str(argument) for argument in arguments], prog_name="moeprobe")
            code: object = 0
        except SystemExit as ended:
            code, error = ended.code or 0, ended
        except Exception as raised:
            code, error = 1, raised
        sys.stdout.flush()
        sys.stderr.flush()
        out, err, both = stdout.getvalue(), stderr.getvalue(), output.getvalue()
    assert isinstance(code, int)
    info = (type(error), error, error.__traceback__) if error and error.__traceback__ else None
    return Result(runner, out, err, both, None, code, error if code else None, info)


def shell(*arguments: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as a shell does."""
    command = [sys.executable, "-m", "moeprobe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


@contextmanager
def started(*arguments: object, **kwargs: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a process of its own, which does not outlive the test."""
    command = [sys.executable, "-m", "moeprobe", *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **kwargs)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_for(path: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a running process has written a file."""
    deadline = time.monotonic() + PATIENCE
    while not path.exists():
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.02)


# What draws and writes the figures of runs, by what stands in for it. To draw takes longer than many a probe.
_UNDRAWN: dict[str, Callable[..., object]] = {
    "moeprobe.probes.engine.run.TableWork.draw": lambda *_: None,
    "moeprobe.probes.overlay.measure.Drawing.draw": lambda *_: None,
    "moeprobe.studies.compare.ComparisonWork.draw": lambda *_: None,
    "moeprobe.studies.tradeoff.run.draw_figures": lambda *_, **__: None,
    "moeprobe.results.figures.curves.draw_training": lambda *_, **__: None,
    "moeprobe.results.figures.save": lambda *_, **__: [],
}
_DRAWN = {name: pkgutil.resolve_name(name) for name in _UNDRAWN}


@contextmanager
def without_pictures() -> Iterator[None]:
    """Figures of runs are neither drawn nor written; so it is in all tests, but for those marked ``pictures``."""
    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in _UNDRAWN.items():
            patch.setattr(name, stand_in)
        yield


@contextmanager
def pictures() -> Iterator[None]:
    """Figures are drawn and written, as users have it."""
    with pytest.MonkeyPatch.context() as patch:
        for name, whole in _DRAWN.items():
            patch.setattr(name, whole)
        yield


# What draws 2,000 resamples, or multipliers in their place, unless it is told another number.
_RESAMPLING: tuple[tuple[Any, str], ...] = (
    (Bootstrap.__init__, "num_resamples"),
    (multiply_influences, "num_multipliers"),
)


@contextmanager
def resampled(number: int) -> Iterator[None]:
    """Intervals come from so many resamples."""
    with pytest.MonkeyPatch.context() as patch:
        for function, name in _RESAMPLING:
            patch.setitem(function.__kwdefaults__ or {}, name, number)
        yield


@pytest.fixture(scope="module", autouse=True)
def few_resamples(request: pytest.FixtureRequest) -> Iterator[None]:
    """A tenth of the resamples, in folders of tests that run whole commands and look at no digit of an interval."""
    with nullcontext() if request.node.get_closest_marker("resamples") else resampled(NUM_RESAMPLES // 10):
        yield


@pytest.fixture(autouse=True)
def every_resample(request: pytest.FixtureRequest) -> Iterator[None]:
    """All of them in tests that are marked ``resamples``."""
    with resampled(NUM_RESAMPLES) if request.node.get_closest_marker("resamples") else nullcontext():
        yield


def names_in(folder: Path) -> set[str]:
    """What lies in a run's folder, without its record of that."""
    return {path.name for path in folder.iterdir()} - {RECORD}


def sentence(result: Result | subprocess.CompletedProcess[str]) -> str:
    """The one line of a user's error; anything else on standard error fails, but for lines that convert a file."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert lines[1:] in ([], CONVERSION.splitlines()), result.stderr
    assert lines[0].startswith("Error: ")
    assert "Traceback" not in result.stderr
    return lines[0]


def refused(*arguments: object) -> str:
    """Run what must be refused; returns its sentence."""
    result = run(*arguments)
    assert result.exit_code == 2, (result.exit_code, result.output)
    return sentence(result)
