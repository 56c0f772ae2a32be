"""How evenly are the experts used? Always to be read together with a match ratio: a collapsed router matches perfectly.

All K choices of a token are a load. Metrics whose names end in ``_first`` count its first choice alone, where K > 1.
Where experts choose their tokens all are equally busy, whatever they choose: see ``unserved`` there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.load import CountBelow, Entropy
from moeprobe.metrics.stats.statistic import Share

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


def first_of(metric: Metric, description: str) -> Metric:
    """Return the form of a metric of load that counts the first choices alone, for K > 1."""
    return replace(
        metric,
        name=f"{metric.name}_first",
        about=f"{description}; only where K > 1",
        label=f"{metric.label}, first choices",
        short=f"{metric.short}, first",
        noun=f"{metric.noun} by first choices",
        headline=False,
        along="",
    )


LOAD_ENTROPY = Metric(
    "load_entropy",
    about="entropy of the experts' shares of all K choices, divided by log E: 1 = even, 0 = all to one expert",
    label="load entropy (1 = even)",
    short="load entropy",
    noun="load entropy",
    rank=21,
    headline=True,
    along="tokens choose",
    collapsed_at_zero=True,
)
LOAD_ENTROPY_FIRST = first_of(
    LOAD_ENTROPY, "the same of the first choices: 0 = one expert is first for all tokens"
)
DEAD_EXPERTS = Metric(
    "dead_experts",
    about="how many experts are hardly ever chosen: their share of all K choices is less than a tenth of an even "
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
DEAD_EXPERTS_FIRST = replace(
    first_of(
        DEAD_EXPERTS,
        "how many experts are hardly ever chosen first, though they may be chosen second: their share of the first "
        "choices is less than 1 / (10 E)",
    ),
    headline=True,
)
EXPERT_SHARE = Metric(
    "expert_share",
    about="share of all K choices of the tokens that go to an expert (column expert); 1 / E where the load is even",
    label="share of the choices",
)
EXPERT_SHARE_FIRST = first_of(EXPERT_SHARE, "share of the first choices that go to an expert (column expert)")


def dead_limit(num_experts: int) -> float:
    """Return the share of the choices below which one of E experts counts as dead: 1 / (10 E).

    >>> from moeprobe.metrics.analyses.load import dead_limit
    >>> dead_limit(8)
    0.0125
    """
    return 1 / (10 * num_experts)


class LoadAnalysis(LayerAnalysis):
    """How the choices are spread over the experts: entropy, experts hardly chosen, and the share of each.

    Half of the tokens choose expert 0 of four, a quarter each experts 1 and 2: an entropy of 1.5 of 2 bits, and one
    dead expert:

    >>> from moeprobe.metrics.analyses.load import LoadAnalysis
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> value = numbers(LoadAnalysis(), pair(route([[0, 0, 0, 0, 1, 1, 2, 2]], num_experts=4)))
    >>> value["load_entropy"], value["dead_experts"], value["expert_share 0"]
    (0.75, 1.0, 0.5)
    """

    measures = (
        LOAD_ENTROPY,
        DEAD_EXPERTS,
        EXPERT_SHARE,
        LOAD_ENTROPY_FIRST,
        DEAD_EXPERTS_FIRST,
        EXPERT_SHARE_FIRST,
    )
    signature = "load"
    per_expert = signature

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose experts, and there is more than one."""
        return layer.tokens_choose and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return how many patches of the view, or of both views, chose each expert, ``(B, E)``."""
        return {pair.view.modality.token: loads(self.signature, pair.views)}

    @staticmethod
    def sums_of_counts(counts: Tensor, *, top_k: int) -> dict[str, Tensor]:
        """Return the columns for counts ``(B, E)`` of all choices, where no token is known."""
        import torch

        every = {"load": counts}
        return every if top_k == 1 else every | {"load_of_sets": torch.ones_like(counts[:, 0])}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the entropy of the pooled load, the number of dead experts, and the shares of each."""
        every, first = loads_of(self.signature, columns)
        return [
            *_of_load(every, LOAD_ENTROPY, DEAD_EXPERTS, EXPERT_SHARE),
            *_of_load(first, LOAD_ENTROPY_FIRST, DEAD_EXPERTS_FIRST, EXPERT_SHARE_FIRST),
        ]


def _of_load(
    load: NDArray[np.generic] | None, entropy: Metric, dead: Metric, share: Metric
) -> Iterator[Estimator]:
    """Yield what a load ``(n, E)`` says under the names of its form; nothing where it is not known."""
    if load is None:
        return
    counts, trials = load.astype(np.float64), load.sum(1)
    total = trials.astype(np.float64)
    yield entropy.raw(Entropy(counts), trials)
    yield dead.raw(CountBelow(counts, dead_limit(load.shape[1])), trials)
    for expert, load_of_expert in enumerate(counts.T.copy()):
        yield share.raw(Share(load_of_expert, total), trials, expert=expert)


def loads(name: str, layers: Sequence[LayerRouting]) -> dict[str, Tensor]:
    """Return how often patches choose each expert, ``(B, E)``, added up over layers of one kind.

    ``{name}`` counts first choices and, for K > 1, ``{name}_any`` all of them. Sets have no first choice: ``{name}``
    then counts all, and ``{name}_of_sets`` says so.
    """
    import torch

    def count(choices: int) -> Tensor:
        return torch.stack([_histogram(layer, choices) for layer in layers]).sum(0)

    top_k = layers[0].top_k
    if not layers[0].ordered:
        every = count(top_k)
        return {name: every, f"{name}_of_sets": torch.ones_like(every[:, 0])}
    return {name: count(1)} | ({f"{name}_any": count(top_k)} if top_k > 1 else {})


def loads_of(name: str, columns: Columns) -> tuple[NDArray[np.generic] | None, NDArray[np.generic] | None]:
    """Return the load of all choices and, if different, of first choices; None where unknown."""
    if f"{name}_of_first" in columns:
        return None, columns[name]
    if f"{name}_any" in columns:
        return columns[f"{name}_any"], columns[name]
    return columns[name], None


def _histogram(layer: LayerRouting, choices: int) -> Tensor:
    """Return how often each expert is among the first ``choices`` of a patch, ``(B, E)``."""
    import torch

    selected = layer.selected[:, layer.num_prefix_tokens :, :choices].long()
    present = layer.valid[:, layer.num_prefix_tokens :, None] & (selected >= 0)
    histogram = torch.zeros(len(selected), layer.num_experts, dtype=torch.int64, device=selected.device)
    return histogram.scatter_add(1, selected.clamp_min(0).flatten(1), present.long().flatten(1))
