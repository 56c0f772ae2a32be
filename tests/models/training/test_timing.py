"""The time of steps, without what lies between them, and through interruptions."""

import contextlib
import time
from pathlib import Path

import pytest
import torch

from moeprobe.models.training.loop import Clock
from tests.models.training.tiny import CPU, STEPS, trainer


def test_steps_are_timed_without_what_lies_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock of our own: steps of 1, 5 and 2 s, a pause of 100 s after each."""
    now = 0.0
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    clock = Clock(CPU)
    now = 7.0
    clock.start()
    for seconds in (1, 5, 2):
        with clock.step():
            now += seconds
        now += 100
    # A step that is interrupted is made again, and is none.
    with contextlib.suppress(KeyboardInterrupt), clock.step():
        now += 50
        raise KeyboardInterrupt
    summary = clock.summary()
    assert (summary["step_seconds"], summary["timed_steps"]) == (2.0, 3)
    assert summary["training_seconds"] == 1 + 5 + 2 + 3 * 100 + 50
    resumed = Clock(CPU)
    resumed.restore(clock.state())
    now += 1000  # between the two runs nothing is counted
    resumed.start()
    with resumed.step():
        now += 3
    assert resumed.summary()["step_seconds"] == 2.5 and resumed.summary()["timed_steps"] == 4
    assert resumed.summary()["training_seconds"] == 358 + 3


def test_a_run_says_how_long_it_took(tmp_path: Path) -> None:
    summary = trainer(tmp_path).run()
    assert summary["timed_steps"] == STEPS and summary["device"].startswith("cpu (")
    assert 0 < STEPS * summary["step_seconds"] / 2 < summary["training_seconds"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_step_on_a_gpu_is_timed_by_the_gpu() -> None:
    """The call returns long before the products are done."""
    matrix = torch.rand(8192, 8192, device="cuda")
    (matrix @ matrix).sum().item()
    clock = Clock(torch.device("cuda"))
    begun = time.perf_counter()
    for _ in range(3):
        with clock.step():
            for _ in range(20):
                matrix @ matrix
    torch.cuda.synchronize()
    whole = time.perf_counter() - begun
    assert 3 * clock.summary()["step_seconds"] == pytest.approx(whole, rel=0.3)
