"""What a device is that is not here: a sentence that says what is."""

from typing import Any

import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.runtime.device import choose_device, full_float32


@pytest.fixture(autouse=True)
def only_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)


@pytest.mark.parametrize("name", ["cuda", "cuda:1"])
def test_cuda_where_there_is_none(name: str) -> None:
    with pytest.raises(UserError) as found:
        choose_device(name)
    assert found.value.sentence == (
        "CUDA is not available: this PyTorch sees only a CPU. Use --device auto, or run moeprobe doctor."
    )


def test_another_device_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(UserError, match="sees only a CPU and MPS"):
        choose_device("cuda")


def test_float32_is_full_while_it_lasts() -> None:
    places: tuple[Any, ...] = (torch.backends.cudnn.conv, torch.backends.cuda.matmul)  # type: ignore[attr-defined]
    before = [place.fp32_precision for place in places]
    with full_float32():
        assert [place.fp32_precision for place in places] == ["ieee", "ieee"]
    assert [place.fp32_precision for place in places] == before
