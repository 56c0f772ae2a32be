"""A pickle in every place where a file is read: nothing of it runs, and it is one sentence."""

from collections.abc import Iterator
from pathlib import Path

# First imported inside a command, its logger would go on writing to the command's captured, closed output.
import datasets  # noqa: F401
import pytest

from moeprobe.runtime.hub import local_unless_allowed
from tests.commands import run, sentence
from tests.security.hostile import PAYLOADS, fires
from tests.security.slots import IGNORED, READ, Made


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing is fetched, and what a command writes to the working directory is seen."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with local_unless_allowed():
        yield


def test_the_payloads_would_fire(tmp_path: Path) -> None:
    """A test that nothing runs would pass as well with files that cannot."""
    fired = {name for name, write in PAYLOADS.items() if fires(write(tmp_path / name), tmp_path)}
    assert fired >= {"pickle 0", "pickle 2", "pickle 5"}


# One of each kind; all of them together take a minute.
FEW = ("pickle 5", "torch", "yaml below")
REST = tuple(name for name in PAYLOADS if name not in FEW)
KINDS = [pytest.param(FEW, id="few"), pytest.param(REST, id="rest", marks=pytest.mark.slow)]


@pytest.mark.parametrize("names", KINDS)
@pytest.mark.parametrize("slot", READ)
def test_what_is_read_is_refused(slot: str, names: tuple[str, ...], tmp_path: Path, made: Made) -> None:
    for number, name in enumerate(names):
        write = PAYLOADS[name]
        folder, marker = tmp_path / str(number), tmp_path / "marker"
        folder.mkdir()
        result = run(*READ[slot](folder, write(marker), made))
        assert not marker.exists(), (slot, name)
        assert result.exit_code == 2, (slot, name, result.output, result.exception)
        assert len(sentence(result)) < 1000, (slot, name, result.stderr)
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize("names", [FEW[1:2], pytest.param(tuple(PAYLOADS), marks=pytest.mark.slow)])
# A finished run is said to be finished, which is a warning.
@pytest.mark.filterwarnings("default::moeprobe.errors.RunWarning")
@pytest.mark.parametrize("slot", IGNORED)
def test_what_is_not_read_does_nothing(slot: str, names: tuple[str, ...], tmp_path: Path, made: Made) -> None:
    for number, name in enumerate(names):
        write = PAYLOADS[name]
        folder, marker = tmp_path / str(number), tmp_path / "marker"
        folder.mkdir()
        result = run(*IGNORED[slot](folder, write(marker), made))
        assert not marker.exists(), (slot, name)
        assert result.exit_code in (0, 2), (slot, name, result.output, result.exception)
        assert "Traceback" not in result.output
