"""V-MoE's own objective: balance the experts."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.training.objectives.base import BatchViews, Objective, Term, balancing_terms


@dataclass(frozen=True)
class Balanced(Objective):
    """Importance and load loss of V-MoE (Riquelme et al. 2021), with their published weights.

    On request GShard's loss (Lepikhin et al. 2021) and the z-loss (Zoph et al. 2022). With all weights 0 the routers
    are not balanced at all.
    """

    importance_weight: float = 0.005
    load_weight: float = 0.005
    gshard_weight: float = 0.0
    z_weight: float = 0.0

    needs_pairs: ClassVar[bool] = False

    def terms(self, decisions: Mapping[str, Decision], views: BatchViews) -> dict[str, Term]:
        """Return the balancing terms that weigh something."""
        return balancing_terms(
            decisions,
            importance_weight=self.importance_weight,
            load_weight=self.load_weight,
            gshard_weight=self.gshard_weight,
            z_weight=self.z_weight,
        )
