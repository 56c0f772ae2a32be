"""How much does the output jump when tokens switch experts? Figure 1 of the PRC paper, and its number.

A jump is measured at one input: the output for the routing just before the switch against the output for the routing
just after it. So it is neither the change of the pixels between two steps, nor does it depend on the step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Analysis, Columns, Estimator
from moeprobe.metrics.declaration import Metric, MetricFamily

if TYPE_CHECKING:
    from torch import Tensor


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


SWITCHES = Metric(
    "switches",
    about="points along the severity at which a token changes its set of experts, per image",
    noun="number of switches per image",
    better="less",
    unit="count",
)
SWITCHED_TOKENS = Metric(
    "switched_tokens",
    about="tokens that change their set of experts along the severity, counted at each switch, per image",
    label="tokens switched",
    better="less",
    unit="count",
)
JUMP_SUM = Metric(
    "jump_sum",
    about="sum of the jumps of the output at the switches, per image; a jump is the change of the clean prediction's "
    "probability by switching experts alone, at one input",
    label="sum of the jumps",
    noun="sum of the jumps per image",
    better="less",
    unit="probability",
)
JUMP_LARGEST = Metric(
    "jump_largest",
    about="largest jump of the output at a switch, averaged over images",
    label="largest jump",
    better="less",
    unit="probability",
)
JUMP_MEAN = Metric(
    "jump_mean",
    about="jump of the output at a switch, averaged over switches",
    label="jump of a switch",
    better="less",
    unit="probability",
)


def _above(threshold: str) -> Metric:
    return Metric(
        f"switches_above_{threshold}",
        about=f"switches per image whose jump is larger than {threshold}",
        label=f"with jumps > {threshold.replace('e-06', 'e-6')}",
        better="less",
        unit="count",
        below="switches",
    )


def _variation(steps: str) -> Metric:
    return Metric(
        f"total_variation_{steps}_steps",
        about=f"sum of the absolute changes of the probability of the clean prediction over {steps} steps, per image",
        better="less",
        unit="probability",
    )


SWITCHES_ABOVE = MetricFamily("switches_above_{x}", r"switches_above_([\d.e-]+)", _above, example=("0.01",))
TOTAL_VARIATION = MetricFamily(
    "total_variation_{n}_steps", r"total_variation_(\d+)_steps", _variation, example=("100",)
)


class DiscontinuityAnalysis(PathAnalysis):
    """Switches along a severity, the jumps of the output at them, and the total variation of the output.

    Tokens switch twice on the way of one image, one and then two of them, which moves the probability by −0.1 and −0.3.
    In three steps it goes from 0.9 over 0.8 and 0.4 to 0.5, which is 0.1 + 0.4 + 0.1:

    >>> import numpy as np
    >>> from moeprobe.metrics.analyses.discontinuity import DiscontinuityAnalysis, Path
    >>> from moeprobe.metrics.by_hand import numbers
    >>> steps, probability = np.array([0, 1, 2, 3]), np.array([0.9, 0.8, 0.4, 0.5])
    >>> switch, jump, tokens = np.array([0.5, 1.5]), np.array([-0.1, -0.3]), np.array([[1], [2]])
    >>> value = numbers(DiscontinuityAnalysis(), [Path("image", "model", 0, steps, probability, switch, jump, tokens)])
    >>> [value[name] for name in ("switches", "switched_tokens", "jump_sum", "jump_mean", "total_variation_3_steps")]
    [2.0, 3.0, 0.4, 0.2, 0.6]
    """

    measures = (
        SWITCHES,
        SWITCHED_TOKENS,
        JUMP_SUM,
        JUMP_LARGEST,
        SWITCHES_ABOVE,
        TOTAL_VARIATION,
        JUMP_MEAN,
    )
    signature = "followed"

    def sums(self, paths: Sequence[Path]) -> dict[str, Tensor]:
        """Return per image: switches, tokens switched, sum and largest of the jumps, switches above thresholds."""
        import torch

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
            metric: columns[metric.name] for metric in (SWITCHES, SWITCHED_TOKENS, JUMP_SUM, JUMP_LARGEST)
        }
        (counts,) = _COUNTS.keys() & columns.keys()
        per_image |= {
            SWITCHES_ABOVE.make(f"{threshold:g}"): columns[counts][:, number]
            for number, threshold in enumerate((_COUNTS[counts], *THRESHOLDS[1:]))
        }
        (steps,) = set(columns["steps"].tolist())
        per_image[TOTAL_VARIATION.make(str(steps))] = columns["total_variation"]
        estimators = [metric.mean_of(column, images) for metric, column in per_image.items()]
        return [*estimators, JUMP_MEAN.mean_of(columns["jump_sum"], columns["switches"])]


def _floats(values: Sequence[float]) -> Tensor:
    import torch

    return torch.tensor(np.asarray(values, dtype=np.float64))
