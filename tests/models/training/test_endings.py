"""How a training ends: by a signal, in its last moment, or before; and what the same command does then."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch
from moeprobe.models import config
from moeprobe.models.training import loop
from moeprobe.models.training.loop import Trainer
from moeprobe.runtime.distributed import Alone
from moeprobe.runtime.records import LOCK
from moeprobe.runtime.signals import Ending, Postponed, Terminated
from moeprobe.studies import train as trainings
from tests.commands import pictures, refused, run

pytestmark = [pytest.mark.slow, pytest.mark.pictures]

SETTINGS = """
data: digits
model: {image_size: 16, num_experts: 4, depth: 2, layers: [1]}
optimizer: {learning_rate: 1e-3}
batch_size: 8
steps: 6
evaluate_every: 3
"""
FILES = ("last.safetensors", "best.safetensors", "metrics.csv", "config.yaml", "training.png")


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    path = tmp_path / "small.yaml"
    path.write_text(SETTINGS)
    return ["train", "--config", str(path), "--folder", str(tmp_path / "run"), "--device", "cpu"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a run that nothing happened to."""
    root = tmp_path_factory.mktemp("whole")
    (root / "small.yaml").write_text(SETTINGS)
    with pictures():
        summary = api.train(str(root / "small.yaml"), folder=root / "run", device="cpu")
    assert summary["kept"] is False
    return contents(root / "run")


def contents(folder: Path) -> dict[str, bytes]:
    assert (folder / "finished.json").is_file() and not (folder / "state.safetensors").exists()
    return {name: (folder / name).read_bytes() for name in FILES}


@pytest.mark.promise
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_leaves_a_run_that_the_same_command_finishes(
    number: int, code: int, command: list[str], whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Trainer.train_step

    def ended_step(self: Trainer, batch: Batch) -> dict[str, Tensor]:
        if self.step == 4:
            signal.raise_signal(number)
        return step(self, batch)

    folder = Path(command[4])
    monkeypatch.setattr(Trainer, "train_step", ended_step)
    ended = run(*command)
    assert ended.exit_code == code, ended.output
    last = ended.stderr.splitlines()[-1]
    assert last == f"Step 4 of 6 is saved in {folder}; the same command continues from there."
    monkeypatch.setattr(Trainer, "train_step", step)
    assert run(*command, "--resume", "--svg").exit_code == 0
    assert contents(folder) == whole
    assert (folder / "training.svg").is_file()


def test_a_scheduler_gives_one_command_whatever_there_is(command: list[str], whole: dict[str, bytes]) -> None:
    folder = Path(command[4])
    started = run(*command, "--resume")
    assert started.exit_code == 0, started.output
    assert contents(folder) == whole
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    again = run(*command, "--resume")
    assert again.exit_code == 0 and "Finished already" in again.output
    told = json.loads(run(*command, "--resume", "--json").stdout)
    assert told["kept"] is True and told["steps"] == 6
    # More loader processes are the same training.
    assert run(*command, "--resume", "data.workers=1").exit_code == 0
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    assert "finished run of another configuration" in refused(*command, "--resume", "seed=7")
    assert json.loads(run(*command, "--json").stdout)["kept"]
    (folder / "finished.json").write_text("[]")
    assert "is not what a training writes at its end" in refused(*command, "--resume")


class Killed(BaseException):
    """What nothing catches: the process is gone."""


def in_the_picture(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(trainings, "draw_curve", kill)


def before_the_mark(patch: pytest.MonkeyPatch, folder: Path) -> None:
    patch.setattr(loop, "write_json", kill)


def before_the_state_is_removed(patch: pytest.MonkeyPatch, folder: Path) -> None:
    unlink = Path.unlink

    def killed(path: Path, **more: Any) -> None:
        if path.name == "state.safetensors":
            raise Killed
        unlink(path, **more)

    patch.setattr(Path, "unlink", killed)


def kill(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.promise
@pytest.mark.parametrize("resume", [False, True], ids=["same", "resume"])
@pytest.mark.parametrize("moment", [in_the_picture, before_the_mark, before_the_state_is_removed])
def test_killed_in_its_last_moment_it_is_completed(
    moment: Any, resume: bool, command: list[str], whole: dict[str, bytes], tmp_path: Path
) -> None:
    settings, folder = command[2], tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        moment(patch, folder)
        with pytest.raises(Killed):
            api.train(settings, folder=folder, device="cpu")
    summary = api.train(settings, folder=folder, device="cpu", resume=resume)
    assert summary["kept"] == (moment is before_the_state_is_removed)
    assert contents(folder) == whole


def test_what_an_earlier_version_left_undone_is_done(
    command: list[str], whole: dict[str, bytes], tmp_path: Path
) -> None:
    """A finished run without a picture, or one killed with its lock; the weights are not touched."""
    folder = tmp_path / "run"
    api.train(command[2], folder=folder, device="cpu")
    changed = (folder / "last.safetensors").stat().st_mtime_ns
    for undo in ((folder / "training.png").unlink, (folder / LOCK).touch):
        undo()
        assert api.train(command[2], folder=folder, device="cpu")["kept"] is True
        assert contents(folder) == whole and (folder / "last.safetensors").stat().st_mtime_ns == changed
        assert not (folder / LOCK).exists()
    (folder / "last.safetensors").unlink()
    with pytest.raises(UserError, match=r"without its last\.safetensors"):
        api.train(command[2], folder=folder, device="cpu", resume=True)


def test_the_same_training_is_the_same_but_for_its_workers() -> None:
    one = config.load("digits-prc")
    assert trainings.same_training(one, config.load("digits-prc", ["data.workers=3"]))
    assert not trainings.same_training(one, config.load("digits-prc", ["data=shapes"]))


def test_signals_wait_and_an_ignored_one_stays_ignored() -> None:
    done: list[str] = []

    def work() -> None:
        with Postponed():
            signal.raise_signal(signal.SIGTERM)
            done.append("to its end")

    with Ending() as ending, pytest.raises(Terminated, match="SIGTERM"):
        work()
    assert done and ending.number == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Ending() as ending, Postponed():
        signal.raise_signal(signal.SIGHUP)
    assert ending.number is None and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_other_starting_weights_are_another_run(
    command: list[str], whole: dict[str, bytes], tmp_path: Path
) -> None:
    start = tmp_path / "start.safetensors"
    start.write_bytes(whole["last.safetensors"])
    command = [*command, f"initialise.checkpoint={start}"]
    assert run(*command).exit_code == 0
    assert "Finished already" in run(*command).stdout
    start.write_bytes(whole["last.safetensors"][:-1] + b"?")
    assert f"was trained from other weights than {start} holds now; add --overwrite" in refused(*command)
    start.unlink()
    assert "Finished already" in run(*command).stdout, "what was learned does not need them"


def test_a_finished_training_is_drawn_as_svg_too(command: list[str], whole: dict[str, bytes]) -> None:
    folder = Path(command[4])
    assert run(*command).exit_code == 0
    assert "Finished already" in run(*command, "--svg").stdout
    assert (folder / "training.svg").is_file() and contents(folder) == whole


def test_processes_together_see_what_another_run_finished_meanwhile(
    command: list[str], whole: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    make = trainings.make_trainer

    def overtaken(*arguments: Any, **keywords: Any) -> Trainer:
        monkeypatch.undo()
        api.train(command[2], folder=folder, device="cpu")
        return make(*arguments, **keywords)

    monkeypatch.setattr(trainings, "make_trainer", overtaken)
    summary = trainings.train_together(
        config.load(command[2], []),
        folder=folder,
        device="cpu",
        overwrite=False,
        report=lambda _: None,
        svg=False,
        ranks=Alone(),
    )
    assert summary["kept"] is True and contents(folder) == whole


def test_a_second_signal_changes_nothing_while_a_command_says_why_it_ends() -> None:
    with Ending() as ending:
        with pytest.raises(Terminated, match="Interrupted"):
            signal.raise_signal(signal.SIGINT)
        ending.settle()
        signal.raise_signal(signal.SIGINT)
        assert ending.exit_code(2) == 130
