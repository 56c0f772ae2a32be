"""V-MoE's own objective: balance the experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from moeprobe.nn.routers.base import Decision
from moeprobe.training.objectives.base import Objective, Term, Views, balancing_terms


@dataclass(frozen=True)
class Balanced(Objective):
    """Importance and load loss of V-MoE (Riquelme et al. 2021), with their published weights."""

    importance_weight: float = 0.005
    load_weight: float = 0.005

    needs_pairs: ClassVar[bool] = False

    def terms(self, decisions: Mapping[str, Decision], views: Views) -> dict[str, Term]:
        """Return the two balancing terms."""
        return balancing_terms(
            decisions, importance_weight=self.importance_weight, load_weight=self.load_weight
        )
