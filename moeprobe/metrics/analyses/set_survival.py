"""How many sets of experts have not changed yet as a nested noise grows?

A set that changes and comes back has changed: each token has one *critical σ*, the least at which its set differs.

Axes: B images, J tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

SURVIVAL = Metric(
    "set_survival",
    about="share of tokens whose set of experts is still the clean input's, at this σ and at all smaller ones of the "
    "same noise",
    label="sets not changed yet",
    better="more",
)
# Its rows follow from those of all σ together.
SURVIVAL_BAND = Metric(
    "set_survival_band",
    about="the same share, with an interval that holds at all σ of the curve at once",
    label="sets not changed yet, all σ at once",
    better="more",
)


@dataclass(frozen=True)
class Survivors:
    """Which tokens ``(B, J)`` there are, and which of them have kept their set so far."""

    present: Tensor
    survives: Tensor


class SetSurvivalAnalysis(ModelAnalysis[Survivors]):
    """The survival curve of the sets of tokens along a nested noise.

    Seven of ten tokens have kept their set so far:

    >>> import torch
    >>> from moeprobe.metrics.analyses.set_survival import SetSurvivalAnalysis, Survivors
    >>> from moeprobe.metrics.by_hand import numbers
    >>> tokens = torch.arange(10)[None]
    >>> numbers(SetSurvivalAnalysis(), Survivors(present=tokens >= 0, survives=tokens < 7))
    {'set_survival': 0.7}
    """

    measures = (SURVIVAL, SURVIVAL_BAND)
    signature = "survival_tokens"

    def sums(self, subject: Survivors) -> dict[str, Tensor]:
        """Return how many tokens an image has, and how many kept their set."""
        return {
            self.signature: subject.present.sum(1),
            SURVIVAL.name: (subject.survives & subject.present).sum(1),
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the share."""
        return [SURVIVAL.share_of(columns[SURVIVAL.name], columns[self.signature])]
