"""Perturbations whose cost is predicted: other views than the one whose flips are priced, and what their flips cost.

Axes: B images, T tokens, L layers, P perturbations, C cells of the price list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.inputs.open import open_view
from moeprobe.inputs.view_names import split_views
from moeprobe.inputs.views.base import SeverityView
from moeprobe.metrics.analyses.flip_costs import FOLDS, PRICED_KINDS, PredictedCosts
from moeprobe.metrics.analyses.flips import DECILES, ForcedFlips
from moeprobe.probes.engine.batch_sums import ForwardPass, exchange, log_probability
from moeprobe.probes.engine.measurement import ExtendedView
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.flips.price import CleanPass
from moeprobe.routing.capabilities import Replayable
from moeprobe.routing.record import LayerRouting
from moeprobe.runtime.seeds import generator

# What tables call all held-out perturbations together.
HELD_OUT = "held out"


@dataclass(frozen=True)
class HeldOut:
    """A view whose flips are no part of any price.

    Attributes:
        name: as the user wrote it, in the column ``view``.
        view: what perturbs.
    """

    name: str
    view: SeverityView[Any, Any, Any]

    @property
    def severities(self) -> tuple[float, ...]:
        """All of the view that change anything."""
        return self.view.severities[1:]


@dataclass(frozen=True)
class WithHeldOut(ExtendedView):
    """A view, then all held-out ones at all of their severities."""

    held_out: tuple[HeldOut, ...]

    def perturb(
        self, source: Any, *, framing: Any, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Any]:
        """Return ``source`` at each severity, then under each held-out perturbation."""
        views = self.view.perturb(source, framing=framing, severities=severities, rng=rng)
        for each in self.held_out:
            views += each.view.perturb(source, framing=framing, severities=each.severities, rng=rng)
        return views


def open_held_out(names: Sequence[str], spec: RunSpec) -> tuple[HeldOut, ...]:
    """Return the views that are named, each ``NAME`` or ``NAME,key=value``.

    Raises:
        UserError: there is no such view, it does not fit, or it is the one whose flips are priced.
    """
    views: dict[str, SeverityView[Any, Any, Any]] = {}
    for name in split_views(names):
        if name in views:
            raise UserError(f"{option('predict')} names {name} twice.")
        view = open_view(name, dataset=spec.dataset)
        if (
            not isinstance(view, SeverityView)
            or not view.aligned
            or view.modality is not spec.dataset.modality
        ):
            raise UserError(
                f"{option('predict')} takes views of {spec.dataset.modality.plural} with a severity that leave patches "
                f"in place, e.g. {option('predict', 'gaussian_blur')}; got {name!r}."
            )
        if view == spec.view:
            raise UserError(
                f"{name} is the view whose flips are priced; {option('predict')} takes other views, and "
                f"{option('view')} another one to price."
            )
        views[name] = view
    return tuple(HeldOut(name, view) for name, view in views.items())


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
