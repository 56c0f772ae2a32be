"""How evenly are the experts used? Always to be read together with a match ratio: a collapsed router matches perfectly.

Where experts choose their tokens all are equally busy, whatever they choose: see ``unserved`` there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.below import CountBelow
from moeprobe.metrics.stats.entropy import Entropy
from moeprobe.metrics.stats.statistic import Share

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.pairs import LayerPair
    from moeprobe.routing.record import LayerRouting


LOAD_ENTROPY = Metric(
    "load_entropy",
    about="entropy of the experts' shares of the first choices, divided by log E: 1 = even, 0 = all to one expert",
    label="load entropy (1 = even)",
    short="load entropy",
    noun="load entropy",
    rank=21,
    headline=True,
    along="tokens choose",
    collapsed_at_zero=True,
)
DEAD_EXPERTS = Metric(
    "dead_experts",
    about="how many experts are hardly ever chosen: their share of the first choices is less than a tenth of an even "
    "one, 1 / (10 E)",
    label="dead experts (share < 1 / 10E)",
    short="dead",
    noun="number of dead experts",
    better="less",
    unit="whole",
    rank=22,
    headline=True,
    along="tokens choose",
)
EXPERT_SHARE = Metric(
    "expert_share",
    about="share of the first choices that go to an expert (column expert); 1 / E where the load is even",
    label="share of the first choices",
)
EXPERT_SHARE_ANY = Metric(
    "expert_share_any",
    about="share of all K choices of the tokens that go to an expert (column expert); 1 / E where the load is even; "
    "only where K > 1",
    label="share of all choices",
)
LOAD_ENTROPY_ANY = Metric(
    "load_entropy_any",
    about="entropy of the experts' shares of all K choices, divided by log E: 1 = even; where it is not known which "
    "choice came first (recorded sets)",
    label="load entropy of all choices (1 = even)",
    short="load entropy",
    noun="load entropy of all choices",
    rank=21,
    headline=True,
    along="tokens choose",
    collapsed_at_zero=True,
)
DEAD_EXPERTS_ANY = Metric(
    "dead_experts_any",
    about="how many experts are hardly ever chosen: their share of all K choices is less than 1 / (10 E); where it is "
    "not known which choice came first (recorded sets)",
    label="dead experts (share of all choices < 1 / 10E)",
    short="dead",
    noun="number of dead experts",
    better="less",
    unit="whole",
    rank=22,
    headline=True,
    along="tokens choose",
)


def dead_limit(num_experts: int) -> float:
    """Return the share of the choices below which one of E experts counts as dead: 1 / (10 E)."""
    return 1 / (10 * num_experts)


class Load(LayerAnalysis):
    """How the choices are spread over the experts: entropy, experts hardly chosen, and the share of each."""

    measures = (
        LOAD_ENTROPY,
        DEAD_EXPERTS,
        EXPERT_SHARE,
        EXPERT_SHARE_ANY,
        LOAD_ENTROPY_ANY,
        DEAD_EXPERTS_ANY,
    )
    signature = "load"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose experts, and there is more than one."""
        return layer.tokens_choose and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return how many patches of the view, or of both views, chose each expert, ``(B, E)``: first, and at all.

        Of sets ``load`` is that of all choices, and ``load_of_sets`` says so.
        """
        import torch

        if not pair.view.ordered:
            load = torch.stack([_histogram(layer, layer.top_k) for layer in pair.views]).sum(0)
            return {pair.view.modality.token: {"load": load, "load_of_sets": torch.ones_like(load[:, 0])}}
        columns = {"load": torch.stack([_histogram(layer, 1) for layer in pair.views]).sum(0)}
        if pair.view.top_k > 1:
            every = [_histogram(layer, layer.top_k) for layer in pair.views]
            columns["load_any"] = torch.stack(every).sum(0)
        return {pair.view.modality.token: columns}

    @staticmethod
    def sums_of_counts(counts: Tensor, *, top_k: int) -> dict[str, Tensor]:
        """Return the columns for counts ``(B, E)`` of all choices, where no token is known."""
        import torch

        first = {"load": counts}
        return first if top_k == 1 else first | {"load_of_sets": torch.ones_like(counts[:, 0])}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the entropy of the pooled load, the number of dead experts, and the shares of each."""
        load, trials = columns["load"].astype(np.float64), columns["load"].sum(1)
        sets = "load_of_sets" in columns
        entropy, dead, share = (
            (LOAD_ENTROPY_ANY, DEAD_EXPERTS_ANY, EXPERT_SHARE_ANY)
            if sets
            else (LOAD_ENTROPY, DEAD_EXPERTS, EXPERT_SHARE)
        )
        metrics = [
            entropy.raw(Entropy(load), trials),
            dead.raw(CountBelow(load, dead_limit(load.shape[1])), trials),
            *_shares(share, columns["load"]),
        ]
        # Runs from before all choices were counted have the first alone.
        return metrics + (_shares(EXPERT_SHARE_ANY, columns["load_any"]) if "load_any" in columns else [])


def _shares(metric: Metric, load: NDArray[np.generic]) -> list[Estimator]:
    """Return the estimators of the share of each expert in a load ``(n, E)``."""
    trials, counts = load.sum(1), load.astype(np.float64)
    total = trials.astype(np.float64)
    return [
        metric.raw(Share(own, total), trials, expert=expert) for expert, own in enumerate(counts.T.copy())
    ]


def _histogram(layer: LayerRouting, choices: int) -> Tensor:
    """Return how often each expert is among the first ``choices`` of a patch, ``(B, E)``."""
    import torch

    chosen = layer.selected[:, layer.num_prefix_tokens :, :choices].long()
    present = layer.valid[:, layer.num_prefix_tokens :, None] & (chosen >= 0)
    histogram = torch.zeros(len(chosen), layer.num_experts, dtype=torch.int64, device=chosen.device)
    return histogram.scatter_add(1, chosen.clamp_min(0).flatten(1), present.long().flatten(1))
