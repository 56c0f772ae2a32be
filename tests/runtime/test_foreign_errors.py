"""Whose an error is that arose while a foreign model ran: the model's, ours, or the machine's."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from moeprobe.errors import UserError
from moeprobe.routing.record import join_batches
from moeprobe.runtime import foreign_errors
from moeprobe.runtime.foreign_errors import running


class Raising(nn.Module):
    """A module of a user that raises in its forward pass."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        raise self.error


class Unprintable(Exception):  # noqa: N818 — named for what it is
    def __str__(self) -> str:
        raise ValueError("no text")


def sentence(net: nn.Module, values: torch.Tensor | None = None) -> str:
    with pytest.raises(UserError) as caught, running("theirs"):
        net(torch.zeros(2, 3) if values is None else values)
    assert caught.value.__cause__ is not None
    return str(caught.value)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("no kernel at hand.\nInstall one."), "ValueError: no kernel at hand in its"),
        (KeyError("rope"), "KeyError: 'rope' in its"),
        (AssertionError(), "AssertionError in its"),
        (SystemExit(3), "SystemExit: 3 in its"),
        (Unprintable(), "Unprintable in its"),
        (RuntimeError("a\x1b[2Jb" + "x" * 999), "RuntimeError: a\\x1b[2Jbxxx"),
    ],
)
def test_what_a_model_raises_is_a_sentence_with_its_line(error: BaseException, words: str) -> None:
    said = sentence(Raising(error))
    raised_at = Raising.forward.__code__.co_firstlineno + 1
    assert words in said and f"({__file__}:{raised_at})" in said
    assert said.startswith("theirs raised ") and len(said) < 600 and "\n" not in said


def test_the_line_is_the_models_and_not_that_of_a_library_below_it() -> None:
    class Wrong(nn.Module):
        def forward(self, values: torch.Tensor) -> Any:
            return json.loads("{" * len(values))  # the line named

    expected = Wrong.forward.__code__.co_firstlineno + 1
    assert f"test_foreign_errors.py:{expected})" in sentence(Wrong())


def test_a_model_made_of_torch_alone_is_the_models_too() -> None:
    code = "def call(net, values):\n    with running('theirs'):\n        net(values)\n"
    space: dict[str, Any] = {"running": running}
    exec(compile(code, foreign_errors.__file__, "exec"), space)
    with pytest.raises(UserError, match=r"mat1 and mat2 shapes .* in its forward pass\. Correct"):
        space["call"](nn.Sequential(nn.Linear(4, 4)), torch.zeros(2, 3))


@pytest.mark.parametrize(
    "error",
    [
        KeyboardInterrupt(),
        UserError("Take another."),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_is_not_the_models_fault_passes_through(error: BaseException) -> None:
    with pytest.raises(type(error)) as caught, running("theirs"):
        Raising(error)(torch.zeros(1))
    assert caught.value is error


def hooked(hook: Callable[..., Any]) -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    net[0].register_forward_hook(hook)
    return net


def test_a_bug_of_a_hook_of_moeprobe_stays_one() -> None:
    def ours(*_: Any) -> None:
        join_batches(None)  # type: ignore[arg-type]

    assert "moeprobe/routing" in join_batches.__code__.co_filename
    with pytest.raises(TypeError), running("theirs"):
        hooked(ours)(torch.zeros(2, 3))
    with pytest.raises(TypeError), running("theirs"):
        join_batches(None)  # type: ignore[arg-type]


def test_an_installed_package_is_called_by_its_name(tmp_path: Path) -> None:
    code = tmp_path / "lib" / "site-packages" / "shop" / "moe.py"
    code.parent.mkdir(parents=True)
    code.write_text("\ndef forward():\n    raise IndexError('no such expert')\n")
    space: dict[str, Any] = {}
    exec(compile(code.read_text(), str(code), "exec"), space)
    sentence = r"IndexError: no such expert in its forward pass \(shop/moe.py:3\)"
    with pytest.raises(UserError, match=sentence), running("theirs"):
        space["forward"]()
