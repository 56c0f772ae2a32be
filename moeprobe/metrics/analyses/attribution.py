"""How much of the change of the output is caused by switching experts, and how much by the changed features?

With f(x, r) the output for the pixels x routed as r, each clean or perturbed, the whole change is
f(perturbed, perturbed) − f(clean, clean). It is shared out by the mean over the two orders in which pixels and routing
can be exchanged (the Shapley value of two players):

* features  = ½ [f(p, c) − f(c, c)] + ½ [f(p, p) − f(c, p)]
* switching = ½ [f(c, p) − f(c, c)] + ½ [f(p, p) − f(p, c)]
* interaction = f(p, p) − f(p, c) − f(c, p) + f(c, c), which is half in each of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from moeprobe.metrics.base import Columns, CornerAnalysis, Corners, Estimator
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.stats.statistic import Contrast, Ratio, Share
from moeprobe.routing.finite import scores_are_not

if TYPE_CHECKING:
    from torch import Tensor


# (pixels, routing) of each corner.
CORNERS = ("clean_clean", "perturbed_clean", "clean_perturbed", "perturbed_perturbed")
# What each share takes of the corners, in that order.
SHARES = {
    "features": (-0.5, 0.5, -0.5, 0.5),
    "switching": (-0.5, -0.5, 0.5, 0.5),
    "interaction": (1.0, -1.0, -1.0, 1.0),
}
_ABOUT = {
    "features": "the part that the changed pixels have in",
    "switching": "the part that other experts have in",
    "interaction": "the part that pixels and experts have together, half in either, in",
}
_CAUSES = {"features": "features", "switching": "switching experts", "interaction": "both at once"}


@dataclass(frozen=True)
class _Parts(MetricFamily):
    """A value at each corner, and what features and switching have in its change."""

    value: str = ""


def _parts(value: str, what: str, unit: Literal["share", "probability", "other"]) -> _Parts:
    """Return the metrics of a value, ``what`` in words."""

    def make(part: str) -> Metric:
        if part in SHARES:
            description, noun = (
                f"{_ABOUT[part]} the change of {what}",
                f"change of {what} due to {_CAUSES[part]}",
            )
        else:
            pixels, routing = part.split("_")
            description, noun = f"{what} for {pixels} pixels with the routing of {routing} ones", ""
        # Parts of a change are smaller than what a margin is about.
        return Metric(f"{value}_{part}", about=description, noun=noun, unit=unit, margin=False)

    names = "|".join((*CORNERS, *SHARES))
    return _Parts(f"{value}_{{part}}", f"{value}_({names})", make, example=("switching",), value=value)


LOGIT_DISTANCE = _parts("logit_distance", "the distance of the class scores from the clean ones", "other")
CLASS_PROBABILITY = _parts("class_probability", "class probability", "probability")
ACCURACY = _parts("accuracy", "accuracy", "share")


class Attribution(CornerAnalysis):
    """The output with pixels and routing each clean or perturbed, and the part of either in its change.

    The probability of the class that the clean image is given: 0.9, with perturbed pixels 0.7, with the routing of
    perturbed ones 0.8, with both 0.5. Features have ½ (0.7 − 0.9) + ½ (0.5 − 0.8) in the fall, switching has
    ½ (0.8 − 0.9) + ½ (0.5 − 0.7), and together they fall by 0.1 more than one by one:

    >>> import torch
    >>> from moeprobe.metrics.analyses.attribution import Attribution
    >>> from moeprobe.metrics.base import Corners
    >>> from moeprobe.metrics.by_hand import numbers
    >>> logits = tuple(torch.tensor([[p, 1 - p]]).log() for p in (0.9, 0.7, 0.8, 0.5))
    >>> value = numbers(Attribution(), Corners(logits, labels=torch.tensor([0])))
    >>> [value[f"class_probability_{part}"] for part in ("features", "switching", "interaction")]
    [-0.25, -0.15, -0.1]
    """

    measures = (
        LOGIT_DISTANCE,
        CLASS_PROBABILITY,
        ACCURACY,
    )
    signature = "attributed"

    def sums(self, corners: Corners) -> dict[str, Tensor]:
        """Return per image and corner: distance of the scores from the clean ones, class probability, correct.

        The class is the one predicted for the clean image.
        """
        import torch

        clean = corners.logits[0]
        predicted = clean.argmax(1, keepdim=True)
        nothing = torch.stack([scores_are_not(logits) for logits in corners.logits]).any(0)
        labeled = (corners.labels >= 0) & ~nothing
        target = corners.labels.clamp_min(0)
        columns = {"attributed": (~nothing).long(), "attributed_labelled": labeled.long()}
        for name, logits in zip(CORNERS, corners.logits, strict=True):
            distance, probability = (logits - clean).norm(dim=1), logits.softmax(1).gather(1, predicted)[:, 0]
            columns[f"logit_distance_{name}"] = distance.masked_fill(nothing, 0)
            columns[f"class_probability_{name}"] = probability.masked_fill(nothing, 0)
            columns[f"accuracy_{name}"] = ((logits.argmax(1) == target) & labeled).long()
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the corners and the shares; nothing about labels where no image has one."""
        estimators = []
        for family, denominator in (
            (LOGIT_DISTANCE, "attributed"),
            (CLASS_PROBABILITY, "attributed"),
            (ACCURACY, "attributed_labelled"),
        ):
            value, count = family.value, columns[denominator]
            if count.sum() == 0:
                continue
            corners = np.stack([columns[f"{value}_{name}"].astype(np.float64) for name in CORNERS])
            number, bounded = count.astype(np.float64), family is not LOGIT_DISTANCE
            for name, corner in zip(CORNERS, corners, strict=True):
                mean = Share(corner, number) if bounded else Ratio(corner, number)
                estimators.append(family.make(name).raw(mean, count))
            # The weights add up to 0. Less the clean corner, what has no effect cancels exactly, not up to rounding.
            changes = corners - corners[0]
            for name, weights in SHARES.items():
                total, positive_weight = (
                    np.asarray(weights) @ changes,
                    sum(weight for weight in weights if weight > 0),
                )
                contrast = Contrast(total, number, positive_weight) if bounded else Ratio(total, number)
                estimators.append(family.make(name).raw(contrast, count))
        return estimators
