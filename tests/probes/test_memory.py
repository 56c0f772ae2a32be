"""Memory that runs out in a forward pass: a sentence, or with ``retry`` batches of half as many images."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import RunWarning, UserError
from moeprobe.probes.engine import loop
from moeprobe.runtime import processes
from moeprobe.runtime.run_files import FINISHED
from tests.commands import Trained, refused
from tests.routing.routings import checkpoint

ROOM = 3
# As PyTorch says it of a CPU, of MPS and of cuBLAS.
SAID = (
    "[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.",
    "MPS backend out of memory (MPS allocated: 17.9 GB, other allocations: 1.0 GB, max allowed: 18.1 GB).",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
)


class Crowded(Vmoe):
    """A model on a device with room for batches of three inputs."""

    def trace(self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True) -> Any:
        if len(images) > ROOM:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return super().trace(images, layers=layers, logits=logits)


def measured(adapter: type[Vmoe], **options: Any) -> api.Result:
    chosen: dict[str, Any] = {"data": "digits", "limit": 10, "sigmas": (0.0, 0.1), "figures": False} | options
    return api.noise_sweep(checkpoint(adapter=adapter), **chosen)


def test_batches_are_halved_until_they_fit(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.warns(RunWarning) as warned:
        result = measured(Crowded, batch_size=8, retry=True, out=out)
    assert [str(one.message) for one in warned] == [
        "Memory ran out in batches of 8 images; continuing with 4.",
        "Memory ran out in batches of 4 images; continuing with 2.",
    ]
    undisturbed = measured(Vmoe, batch_size=2)
    pd.testing.assert_frame_equal(result.table.drop(columns="run"), undisturbed.table.drop(columns="run"))
    assert result.sidecar["batch_size"] == 2
    assert json.loads((out / FINISHED).read_text())["batch_size"] == 2


def test_what_is_done_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory runs out in the second block alone: the first is not run again."""
    sizes: list[int] = []

    class Later(Vmoe):
        def trace(self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True) -> Any:
            sizes.append(len(images))
            if len(sizes) > 2 and len(images) > ROOM:
                raise torch.OutOfMemoryError
            return super().trace(images, layers=layers, logits=logits)

    monkeypatch.setattr(loop, "BLOCK_IMAGES", 4)
    one = checkpoint(adapter=Later)
    with pytest.warns(RunWarning, match="batches of 4 images; continuing with 2"):
        api.confidence(one, data="digits", limit=8, batch_size=4, retry=True, out=tmp_path / "out")
    # A blank image to begin with; the first block of four, the second in vain; a blank one, the second in halves.
    assert sizes == [1, 4, 4, 1, 2, 2]


def test_without_retry_it_is_said() -> None:
    with pytest.raises(UserError) as error:
        measured(Crowded, batch_size=8)
    assert error.value.sentence == (
        "Memory ran out in batches of 8 images; use --batch-size 4, or --retry, which halves it until it fits, "
        "or a device with more."
    )


def test_one_image_does_not_fit() -> None:
    class Full(Vmoe):
        def trace(self, images: Tensor, **more: Any) -> Any:
            if images.std() > 0:  # but for the blank image of the check before
                raise torch.OutOfMemoryError
            return super().trace(images, **more)

    with pytest.warns(RunWarning), pytest.raises(UserError, match="even in batches of one image"):
        measured(Full, batch_size=2, retry=True)


def test_other_errors_are_raised() -> None:
    class Broken(Vmoe):
        def trace(self, images: Tensor, **_: Any) -> Any:
            raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    with pytest.raises(RuntimeError, match="size of tensor a"):
        measured(Broken, batch_size=8, retry=True)


@pytest.mark.parametrize("said", SAID)
def test_memory_in_the_words_of_every_device(said: str) -> None:
    assert processes.ran_out(RuntimeError(said))
    assert not processes.ran_out(ValueError(said)) and not processes.ran_out(RuntimeError("another"))


@pytest.mark.slow
@pytest.mark.promise
def test_the_screen_says_it(trained: Trained) -> None:
    program = """
import sys, torch
from moeprobe.adapters.vmoe import Vmoe
trace = Vmoe.trace
def crowded(self, images, **more):
    if len(images) > 3:
        raise torch.OutOfMemoryError
    return trace(self, images, **more)
Vmoe.trace = crowded
from moeprobe.cli import main
main()
"""
    line = ["confidence", str(trained["prc"]), "--limit", "6", "--batch-size", "6", "--device", "cpu"]
    done = subprocess.run(
        [sys.executable, "-c", program, *line, "--retry"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert done.returncode == 0, done.stderr
    assert "Warning: Memory ran out in batches of 6 images; continuing with 3.\n" in done.stderr
    assert "RunWarning" not in done.stderr


def test_shards_have_batches_of_one_size(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "out"
    said = refused("confidence", trained["prc"], "--shard", "1/2", "--retry", "--out", out)
    assert "batches of one size; leave --retry out" in said
    assert not out.exists()
