"""How long training takes: every step by itself, without data and evaluations, and the run as a whole.

On a GPU a step has only been asked for when the call returns, so two events on the device's own queue time it, and
they are read where its numbers are read anyway.
"""

import contextlib
import platform
import statistics
import time
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch

# Durations kept for the median: the last ones, so that the state of a long run stays small.
_KEPT = 1000


class Clock:
    """The durations of a run's steps and of the run; they are kept through interruptions by ``state`` and ``restore``.

    Args:
        device: where the steps run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[float] = deque(maxlen=_KEPT)
        self._pending: list[tuple[Any, Any]] = []
        self._before = 0.0
        self._started = time.perf_counter()

    def start(self) -> None:
        """Begin to count the run's time; what was restored is counted already."""
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def step(self) -> Iterator[None]:
        """Time one step."""
        if self._device.type == "cpu":
            begun = time.perf_counter()
            yield
            self._steps.append(time.perf_counter() - begun)
            return
        kind = torch.cuda.Event if self._device.type == "cuda" else torch.mps.event.Event
        first, last = kind(enable_timing=True), kind(enable_timing=True)
        first.record()
        yield
        last.record()
        self._pending.append((first, last))

    def read(self) -> None:
        """Take in the steps that a device has timed; waits for them."""
        for first, last in self._pending:
            last.synchronize()
            self._steps.append(first.elapsed_time(last) / 1000)
        self._pending.clear()

    @property
    def seconds(self) -> float:
        """Time of the run so far, everything included: steps, data, evaluations, files."""
        return self._before + time.perf_counter() - self._started

    def state(self) -> dict[str, Any]:
        """Return what an interrupted run needs to go on counting, as JSON."""
        self.read()
        return {"seconds": self.seconds, "steps": [float(f"{value:.4g}") for value in self._steps]}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from ``state``."""
        self._before = state["seconds"]
        self._steps.extend(state["steps"])

    def summary(self) -> dict[str, Any]:
        """Return the median step, how many it is of, and the time of the run, in seconds; and on what."""
        self.read()
        return {
            "step_seconds": statistics.median(self._steps),
            "timed_steps": len(self._steps),
            "training_seconds": self.seconds,
            "device": device_name(self._device),
        }


def device_name(device: torch.device) -> str:
    """Return what a device is called, as far as it says what a time was measured on."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device.type} ({platform.machine()}, {torch.get_num_threads()} threads)"
