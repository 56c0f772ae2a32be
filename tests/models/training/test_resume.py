"""An interrupted run that is resumed ends exactly where an uninterrupted one does."""

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.training import loop
from moeprobe.models.training.loop import Trainer
from moeprobe.runtime.signals import Postponed
from tests.models.training.tiny import STEPS, finish, results, trainer


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("uninterrupted")
    trainer(folder).run()
    metrics = pd.read_csv(folder / "metrics.csv")
    assert list(metrics["step"]) == [4, 8, 12]
    assert {"train_prc_diagonal", "train_main_loss", "val_accuracy", "learning_rate"} <= set(metrics)
    return results(folder)


@pytest.fixture(scope="module")
def writes(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The files of tensors that a run writes, ``best`` only where the accuracy rises, and that is the machine's."""
    written: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        at_write(patch, lambda: None, written)
        trainer(tmp_path_factory.mktemp("counted")).run()
    assert written.count("state.safetensors") == 2 and written.count("last.safetensors") == 3
    return written


class Killed(BaseException):
    """What nothing catches: the process is gone."""


def press_ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


Happening = Callable[[], None]


def at_write(patch: pytest.MonkeyPatch, happen: Happening, written: list[str], number: int = 0) -> None:
    """Before the ``number``-th file of tensors is written; names are added to ``written``."""
    original = checkpoint.write_tensors

    def write(path: Path, *rest: Any) -> None:
        written.append(path.name)
        if len(written) == number:
            happen()
        original(path, *rest)

    patch.setattr(checkpoint, "write_tensors", write)
    patch.setattr("moeprobe.models.training.state.write_tensors", write)


def at_forward(one: Trainer, when: int, happen: Happening) -> None:
    """When the model is called in training for step ``when``."""
    one.model.blocks[2].register_forward_pre_hook(
        lambda module, _: happen() if module.training and one.step == when else None
    )


def at_backward(one: Trainer, when: int, happen: Happening) -> None:
    one.model.pos_embed.register_hook(lambda _: happen() if one.step == when else None)


def in_update(one: Trainer, when: int, happen: Happening) -> None:
    """When half of the parameters are updated."""
    update = one.optimizer.step

    def step(*_: Any) -> None:
        groups = one.optimizer.param_groups
        if one.step != when:
            update()
            return
        one.optimizer.param_groups = groups[:1]
        update()
        happen()
        one.optimizer.param_groups = groups[1:]
        update()
        one.optimizer.param_groups = groups

    one.optimizer.step = step  # type: ignore[assignment, method-assign]


def in_evaluation(one: Trainer, when: int, happen: Happening) -> None:
    one.model.blocks[2].register_forward_pre_hook(
        lambda module, _: happen() if not module.training and one.step == when else None
    )


MOMENTS = [(at_forward, 0), (at_forward, 4), (at_forward, STEPS - 1), (at_backward, 6)]
MOMENTS += [(in_update, 0), (in_update, 5), (in_evaluation, 4)]
MORE_MOMENTS = [
    (at_forward, 1),
    (at_forward, 3),
    (at_forward, 7),
    (in_update, 3),
    (in_update, 11),
    (in_evaluation, 12),
]


@pytest.mark.parametrize(
    ("moment", "when"),
    [
        *MOMENTS,
        *(pytest.param(*moment, marks=[pytest.mark.slow, pytest.mark.promise]) for moment in MORE_MOMENTS),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_ctrl_c_at_any_moment(
    moment: Callable[[Trainer, int, Happening], None],
    when: int,
    uninterrupted_run: dict[str, bytes],
    tmp_path: Path,
) -> None:
    one = trainer(tmp_path)
    pressed: list[int] = []

    def happen() -> None:
        if not pressed:
            pressed.append(when)
            press_ctrl_c()

    moment(one, when, happen)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    assert pressed and not (tmp_path / "finished.json").exists()
    finish(tmp_path)
    assert results(tmp_path) == uninterrupted_run


# Of the files of tensors that a run writes: the first, some between, the last.
PARTS = [
    pytest.param(part / 6, marks=[pytest.mark.slow, pytest.mark.promise] if part % 2 else [])
    for part in range(7)
]


@pytest.mark.parametrize("part", PARTS)
def test_ctrl_c_while_an_evaluation_is_written(
    part: float,
    writes: list[str],
    uninterrupted_run: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is being written is written to its end: metrics, last, best and state belong together."""
    written: list[str] = []
    last = len(writes) - writes[::-1].index("state.safetensors")
    at_write(monkeypatch, press_ctrl_c, written, 1 + round(part * (last - 1)))
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path).run()
    assert written[-1] == "state.safetensors"
    monkeypatch.undo()
    finish(tmp_path)
    assert results(tmp_path) == uninterrupted_run


def test_ctrl_c_while_the_run_is_finished_leaves_it_finished(
    uninterrupted_run: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = loop.write_json

    def write(path: Path, content: Any) -> None:
        press_ctrl_c()
        original(path, content)

    monkeypatch.setattr(loop, "write_json", write)
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path).run()
    assert results(tmp_path) == uninterrupted_run


def die() -> None:
    raise Killed


@pytest.mark.parametrize("part", PARTS)
def test_killed_between_two_files(
    part: float,
    writes: list[str],
    uninterrupted_run: dict[str, bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is tidied up: the process is gone before a file of tensors."""
    at_write(monkeypatch, die, [], 1 + round(part * (len(writes) - 1)))
    with pytest.raises(Killed):
        trainer(tmp_path).run()
    monkeypatch.undo()
    finish(tmp_path)
    assert results(tmp_path) == uninterrupted_run


def test_interrupted_again_and_again(uninterrupted_run: dict[str, bytes], tmp_path: Path) -> None:
    for when in (1, 2, 6, 7, 10):
        one = trainer(tmp_path)
        if (tmp_path / "state.safetensors").exists():
            one.resume()
        at_forward(one, when, press_ctrl_c)
        with pytest.raises(KeyboardInterrupt):
            one.run()
    finish(tmp_path)
    assert results(tmp_path) == uninterrupted_run


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer": {"name": "momentum", "learning_rate": 0.1, "clip_norm": 1.0}},
        {"optimizer": {"name": "lamb", "learning_rate": 0.01}, "views_per_image": 1, "objective": "balanced"},
        {"mixup": 0.2, "objective": "balanced", "loss": "sigmoid", "schedule__name": "linear"},
        {"amp": True},
        {"data__workers": 1},
        {"initialise": "FOLDER/first"},
        {"freeze": ["blocks.*", "!*.router.*"]},
    ],
    ids=lambda changes: "-".join(map(str, changes)),
)
def test_other_runs_resume_as_exactly(changes: dict[str, Any], tmp_path: Path) -> None:
    if "initialise" in changes:
        changes = {"initialise": changes["initialise"].replace("FOLDER", str(tmp_path))}
        trainer(tmp_path / "first", seed=5).run()
    trainer(tmp_path / "whole", **changes).run()
    one = trainer(tmp_path / "cut", **changes)
    at_forward(one, 6, press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    finish(tmp_path / "cut", **changes)
    assert results(tmp_path / "cut") == results(tmp_path / "whole")


def test_seeds_differ(uninterrupted_run: dict[str, bytes], tmp_path: Path) -> None:
    trainer(tmp_path, seed=1).run()
    assert results(tmp_path)["metrics.csv"] != uninterrupted_run["metrics.csv"]


@pytest.fixture
def cut(tmp_path: Path) -> Path:
    one = trainer(tmp_path)
    at_forward(one, 6, press_ctrl_c)
    with pytest.raises(KeyboardInterrupt):
        one.run()
    return tmp_path


def test_a_state_of_something_else_is_refused(cut: Path) -> None:
    state = cut / "state.safetensors"
    with pytest.raises(UserError, match="is the state of another run"):
        trainer(cut, model__num_experts=5).resume()
    with pytest.raises(UserError, match="44 images and noise now has 40"):
        trainer(cut, num=40).resume()
    content = state.read_bytes()
    state.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="truncated"):
        trainer(cut).resume()
    state.write_bytes((cut / "last.safetensors").read_bytes())
    with pytest.raises(UserError, match="not the state of a run"):
        trainer(cut).resume()
    state.unlink()
    with pytest.raises(UserError, match="nothing to resume"):
        trainer(cut).resume()


def test_ctrl_c_waits_and_then_arrives() -> None:
    done: list[str] = []

    def work(error: Exception | None) -> None:
        with Postponed():
            press_ctrl_c()
            press_ctrl_c()
            done.append("to its end")
            if error is not None:
                raise error

    with pytest.raises(KeyboardInterrupt):
        work(None)
    with pytest.raises(ValueError, match="goes first"):
        work(ValueError("an error goes first"))
    assert len(done) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_another_thread_can_train(uninterrupted_run: dict[str, bytes], tmp_path: Path) -> None:
    """Signals belong to the main thread; a notebook's or a server's thread has none to put off."""
    thread = threading.Thread(target=lambda: trainer(tmp_path).run())
    threads = torch.get_num_threads()
    thread.start()
    thread.join()
    assert torch.get_num_threads() == threads
    assert results(tmp_path) == uninterrupted_run
