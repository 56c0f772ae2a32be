"""How much does the output jump when tokens switch experts? Figure 1 of the PRC paper, and the number behind it.

A jump is measured at one input: the output for the routing just before the switch against the output for the routing
just after it. So it is neither the change of the pixels between two steps, nor does it depend on the step.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.metrics.base import Analysis, Columns, Estimator
from moeprobe.metrics.stats.bootstrap import Ratio

# Jumps in probability above which switches are counted. Two passes differ by rounding where the routing is the same to
# the output, so those below the first did not reach it, or not to be seen.
THRESHOLDS = (1e-6, 0.0001, 0.001, 0.003, 0.01, 0.03, 0.1)
# The column of counts, and the first threshold; runs made before it was 1e-6 have it under the second name, from 0.
_COUNTS = {"switches_beyond": THRESHOLDS[0], "switches_above": 0.0}


@dataclass(frozen=True)
class Path:
    """The output of one model for one image as a severity grows.

    Attributes:
        image_id: name of the image.
        checkpoint: whose output it is.
        target: class whose probability is followed, the one predicted for the clean image.
        severity: ``(N,)`` the steps.
        probability: ``(N,)`` at the steps.
        switch: ``(M,)`` severities at which at least one token changes its set of experts, in ascending order.
        jump: ``(M,)`` change of the probability by the switch, at one input.
        tokens: ``(M, L)`` how many tokens of each MoE layer switch there.
    """

    image_id: str
    checkpoint: str
    target: int
    severity: NDArray[np.float64]
    probability: NDArray[np.float64]
    switch: NDArray[np.float64]
    jump: NDArray[np.float64]
    tokens: NDArray[np.int64]


class PathAnalysis(Analysis):
    """An analysis of how the model's output moves along a severity."""

    @abstractmethod
    def sums(self, paths: Sequence[Path]) -> dict[str, Tensor]:
        """Return columns with one entry per path, that is, per image."""


class Discontinuity(PathAnalysis):
    """Switches along a severity, the jumps of the output at them, and the total variation of the output."""

    signature = "followed"

    def sums(self, paths: Sequence[Path]) -> dict[str, Tensor]:
        """Return per image: switches, tokens switched, sum and largest of the jumps, switches above thresholds."""
        size = [np.abs(path.jump) for path in paths]
        above = [[int((jumps > threshold).sum()) for threshold in THRESHOLDS] for jumps in size]
        return {
            "followed": torch.ones(len(paths), dtype=torch.int64),
            "steps": torch.tensor([len(path.severity) - 1 for path in paths]),
            "switches": torch.tensor([len(path.jump) for path in paths]),
            "switched_tokens": torch.tensor([int(path.tokens.sum()) for path in paths]),
            "jump_sum": _floats([jumps.sum() for jumps in size]),
            "jump_largest": _floats([jumps.max(initial=0) for jumps in size]),
            "total_variation": _floats([np.abs(np.diff(path.probability)).sum() for path in paths]),
            "switches_beyond": torch.tensor(above).reshape(len(paths), len(THRESHOLDS)),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return means per image, the mean jump of a switch, and the total variation with its number of steps."""
        images = columns["followed"]
        per_image = {
            name: columns[name] for name in ("switches", "switched_tokens", "jump_sum", "jump_largest")
        }
        (counts,) = _COUNTS.keys() & columns.keys()
        per_image |= {
            f"switches_above_{threshold:g}": columns[counts][:, number]
            for number, threshold in enumerate((_COUNTS[counts], *THRESHOLDS[1:]))
        }
        (steps,) = set(columns["steps"].tolist())
        per_image[f"total_variation_{steps}_steps"] = columns["total_variation"]
        found = [_mean(name, column, images) for name, column in per_image.items()]
        return [*found, _mean("jump_mean", columns["jump_sum"], columns["switches"])]


def _floats(values: Sequence[float]) -> Tensor:
    return torch.tensor(np.asarray(values, dtype=np.float64))


def _mean(name: str, numerator: NDArray[np.generic], count: NDArray[np.generic]) -> Estimator:
    return Estimator(name, "", Ratio(numerator.astype(np.float64), count.astype(np.float64)), count)
