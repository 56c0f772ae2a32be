"""What flips of held-out perturbations cost, and the price list that predicts it, for one batch.

Axes: B images, T tokens, L layers, P perturbations, C cells of the price list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from moeprobe.metrics.analyses.flip_costs import FOLDS, PRICED_KINDS, PredictedCosts
from moeprobe.metrics.analyses.flips import DECILES, ForcedFlips
from moeprobe.probes.engine.batch_sums import ForwardPass, exchange, log_probability
from moeprobe.probes.flips.price import CleanPass
from moeprobe.routing.capabilities import Replayable
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.seeds import generator


@dataclass
class PriceList:
    """Falls by priced flips of a batch, layer by layer.

    Attributes:
        kinds: by layer ``(B, T)``, where on the list a token's flip is.
        weights: by layer ``(B, PRICED_KINDS)``, flips that the priced ones stand for.
        prices: by layer, sums of their falls, weighted.
    """

    kinds: dict[str, Tensor] = field(default_factory=dict)
    weights: list[Tensor] = field(default_factory=list)
    prices: list[Tensor] = field(default_factory=list)

    def add(self, name: str, layer: LayerRouting, decile: Tensor, flips: ForcedFlips) -> None:
        """Add the flips of a layer, whose tokens ``(B, T)`` are in a ``decile`` of the margin, or in none."""
        kind = decile.where((decile >= 0) & (decile < DECILES), DECILES)
        kind[:, : layer.num_prefix_tokens] = PRICED_KINDS - 1
        self.kinds[name] = kind
        self.weights.append(_by_kind(kind, flips.weight))
        self.prices.append(_by_kind(kind, (flips.weight * flips.fall).masked_fill(flips.weight == 0, 0)))

    def flips(self, clean: Mapping[str, LayerRouting], perturbed: Mapping[str, LayerRouting]) -> Tensor:
        """Return how many tokens have another set ``(B, C)``."""
        return torch.cat(
            [
                _by_kind(kind, (~clean[name].selects_the_same(perturbed[name]) & clean[name].valid).long())
                for name, kind in self.kinds.items()
            ],
            dim=1,
        )


def predicted_costs(
    model: Replayable,
    clean: CleanPass,
    perturbed: Sequence[ForwardPass],
    price_list: PriceList,
    image_ids: Sequence[str],
    *,
    seed: int,
) -> PredictedCosts:
    """Return flips and prices of a batch, and what each of the perturbed passes does with sets exchanged.

    The half that an image is in belongs to its name and the seed of the run.
    """
    fold = [int(generator(seed, "flip prices", image_id).integers(FOLDS)) for image_id in image_ids]
    clean_pass = (clean.images, clean.scores, clean.routing)
    corners = [
        torch.stack([log_probability(scores, clean.predicted) for scores in exchanged], -1)
        for exchanged in (exchange(model, clean_pass, each, gates="recomputed") for each in perturbed)
    ]
    flips = [price_list.flips(clean.routing.layers, routing.layers) for *_, routing in perturbed]
    return PredictedCosts(
        fold=torch.tensor(fold, device=clean.scores.device),
        flips=torch.stack(flips, dim=1),
        weight=torch.cat(price_list.weights, dim=1),
        price=torch.cat(price_list.prices, dim=1),
        corners=torch.stack(corners, dim=1),
    )


def _by_kind(kind: Tensor, values: Tensor) -> Tensor:
    """Return the sums ``(B, PRICED_KINDS)`` of values ``(B, T)``."""
    return values.new_zeros(len(kind), PRICED_KINDS).scatter_add_(1, kind, values)
