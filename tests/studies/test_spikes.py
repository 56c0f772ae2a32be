"""Spikes of a training's loss, counted by hand."""

from pathlib import Path

import pytest

from moeprobe.studies.tradeoff.table import spikes


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ([2.0, 1.0, 0.5, 0.4, 0.3], (0, 2)),
        ([2.0, 1.0, 0.5, 2.1, 0.3], (1, 2)),  # the median before is 1
        ([2.0, 1.0, 0.5, 2.0, 0.3], (0, 2)),  # twice the median is not above it
        ([1.0, 1.0, 1.0, 5.0, 5.0, 2.1, 0.1], (3, 4)),  # the median before each is 1
        ([1.0, 9.0, 9.0], (None, 0)),  # nothing has three before it
        ([], (None, 0)),
    ],
)
def test_losses_above_twice_the_median_of_those_before(
    losses: list[float], expected: tuple[int | None, int]
) -> None:
    rows = "".join(f"{64 * step},{loss}\n" for step, loss in enumerate(losses, 1))
    assert spikes(f"step,train_loss\n{rows}", Path("cell")) == expected


def test_without_a_curve_nothing_is_said() -> None:
    assert spikes(None, Path("cell")) == (None, 0)
    assert spikes("step,val_loss\n1,2\n", Path("cell")) == (None, 0)
