"""Tokens with experts that only one of two checkpoints has: one was pruned, merged or given more experts.

They are excluded from the agreement of all other tokens. For tokens whose experts were removed or merged, a separate
row (tokens ``unshared``) compares their remaining experts with the other checkpoint's choice.

Axes: B texts, P tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

EXPERT_REMOVED = Metric(
    "expert_removed",
    about="share of the tokens that chose, in the reference, an expert that the other checkpoint does not have; they "
    "are left out of the agreement of tokens",
    label="tokens whose expert was removed",
    short="removed",
    rank=20,
)
EXPERTS_MERGED = Metric(
    "experts_merged",
    about="share of the tokens of which two experts became one in the other checkpoint; left out of the agreement too",
    label="tokens of which two experts became one",
    short="merged",
)
EXPERT_ADDED = Metric(
    "expert_added",
    about="share of the tokens that chose an expert that no expert of the reference became; left out of the agreement "
    "too",
    label="tokens with an expert that is new",
    short="added",
)
_METRICS = (EXPERT_REMOVED, EXPERTS_MERGED, EXPERT_ADDED)


@dataclass(frozen=True)
class Reasons:
    """Why a token's experts do not exist on both sides: ``(B, P)`` bool each; ``trial`` marks the tokens whose do."""

    removed: Tensor
    merged: Tensor
    added: Tensor
    trial: Tensor

    @property
    def unshared(self) -> Tensor:
        """``(B, P)`` which tokens have an expert that only one side has, or had two that became one."""
        return self.removed | self.merged | self.added


class Unshared(ModelAnalysis[Reasons]):
    """Shares of tokens with experts that only one side has.

    Two of ten tokens chose an expert that was removed, and one has an expert that is new:

    >>> import torch
    >>> from moeprobe.metrics.analyses.unshared import Reasons, Unshared
    >>> from moeprobe.metrics.by_hand import numbers
    >>> token = torch.arange(10)[None]
    >>> numbers(Unshared(), Reasons(removed=token < 2, merged=token < 0, added=token == 5, trial=token >= 0))
    {'expert_removed': 0.2, 'experts_merged': 0.0, 'expert_added': 0.1}
    """

    measures = _METRICS
    signature = "unshared_trials"

    def sums(self, subject: Reasons) -> dict[str, Tensor]:
        """Return how many tokens there are of each kind per text ``(B,)``."""
        columns = {"unshared_trials": subject.trial.sum(1)}
        for metric, which in zip(_METRICS, (subject.removed, subject.merged, subject.added), strict=True):
            columns[metric.name] = (which & subject.trial).sum(1)
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the shares."""
        return [metric.share_of(columns[metric.name], columns["unshared_trials"]) for metric in _METRICS]
