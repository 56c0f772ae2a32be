"""Prices of single flips against what all flips of a perturbation cost: planted models, and loops by hand."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.metrics.analyses.flip_costs import FOLDS, PRICED_KINDS, FlipCostsAnalysis, PredictedCosts
from moeprobe.metrics.stats.statistic import standard_error
from moeprobe.probes.flips import Flips
from moeprobe.routing.capabilities import Replayable
from moeprobe.routing.record import LayerRouting, RoutingTrace
from tests.commands import Trained, refused
from tests.routing.routings import checkpoint, expert_choice

# Intervals are asserted.
pytestmark = pytest.mark.resamples


LIMIT = 40
HELD_OUT = ["corruption,kind=shot_noise", "corruption,kind=impulse_noise"]


@dataclass
class Planted(Replayable):
    """Two layers whose tokens have expert 1 where red and blue differ, which gray images never do.

    The log-probability of class 0 falls by a price for each token on expert 1, and by the noise of the pixels. Joint
    flips cost ``1 + more`` times as much, the more the more there are.
    """

    prices: tuple[float, float] = (0.02, 0.005)
    more: float = 0.0

    layer_names = ("first", "second")
    group_images = 1

    def trace(
        self, images: Tensor, *, layers: Any = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        differing = (
            (images[:, 0] - images[:, 2]).unfold(1, 8, 8).unfold(2, 8, 8).mean((-1, -2)).abs().flatten(1)
        )
        limits = zip(self.layer_names, (0.02, 0.05), strict=True)
        trace = RoutingTrace({name: self._layer(differing - limit) for name, limit in limits})
        return (self.replay(images, trace) if logits else None), trace

    def replay(self, images: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        layers = routing.layers
        if len(layers) < len(self.layer_names):
            layers = self.trace(images, logits=False)[1].layers | layers
        counts = [layers[name].selected[..., 0].double().sum(1) for name in self.layer_names]
        fall = sum(price * count for price, count in zip(self.prices, counts, strict=True))
        fall = fall * (1 + self.more * sum(counts)) + (images[:, 0] - images[:, 1]).abs().double().mean(
            (1, 2)
        )
        scores = torch.full((len(images), 10), -40.0, dtype=torch.float64)
        scores[:, 0] = -0.1 - fall
        scores[:, 1] = torch.log(-torch.expm1(scores[:, 0]))
        return scores

    def _layer(self, above: Tensor) -> LayerRouting:
        gates = torch.stack([torch.zeros_like(above), above], -1).softmax(-1)
        selected = (above > 0).to(torch.int16)[..., None]
        return LayerRouting(
            gates, None, selected, selected >= 0, torch.ones_like(above, dtype=torch.bool), PatchGrid(4, 4, 8), 0,
            gates_sum_to_one=True, token_local=True, router="planted",
        )  # fmt: skip


def table_of(model: Replayable, **options: Any) -> pd.DataFrame:
    own = checkpoint()
    planted = Checkpoint("planted", model, own.framing, provenance=own.provenance)
    probe = Flips(patches=options.pop("patches", 4), predict=HELD_OUT)
    result = api.probe(probe, [planted], data="digits", limit=options.pop("limit", LIMIT), **options)
    table = result.table
    return table[
        table["metric"].str.startswith("flip_cost") | table["metric"].isin(["flip_damage", "flip_count"])
    ]


def values(table: pd.DataFrame, metric: str) -> pd.DataFrame:
    return table[table["metric"] == metric]


def test_prices_that_add_up_predict_the_cost() -> None:
    table = table_of(Planted())
    cost, predicted = (
        values(table, name)["value"].to_numpy() for name in ("flip_cost", "flip_cost_predicted")
    )
    assert len(cost) == 10 and (cost > 0.03).all() and cost.max() > 1.5 * cost.min()
    np.testing.assert_allclose(predicted, cost, rtol=1e-6)
    for metric in ("flip_cost_slope", "flip_cost_r2", "flip_cost_slope_clean", "flip_cost_r2_clean"):
        row = values(table, metric).iloc[0]
        assert row[["value", "ci_low", "ci_high"]].tolist() == pytest.approx([1, 1, 1], abs=1e-6), metric
    np.testing.assert_allclose(values(table, "flip_cost_share")["value"], 1, rtol=1e-6)
    assert (values(table, "flip_damage")["value"].to_numpy() > 1.1 * cost).all(), "pixels do damage, too"


def test_a_layer_that_ignores_its_routing_costs_nothing() -> None:
    table = table_of(Planted(prices=(0.0, 0.0)))
    assert (values(table, "flip_count")["value"] > 1).all()
    assert (values(table, "flip_damage")["ci_low"] > 0.01).all()
    for metric in ("flip_cost", "flip_cost_predicted", "flip_cost_clean"):
        rows = values(table, metric)
        assert (rows["value"] == 0).all() and (rows["ci_low"] <= 0).all() and (rows["ci_high"] >= 0).all()
    for metric in ("flip_cost_share", "flip_cost_slope", "flip_cost_r2", "flip_cost_slope_clean"):
        rows = values(table, metric)
        assert len(rows) and rows["value"].isna().all() and set(rows["flag"]) == {"no_cost"}


def test_flips_that_cost_more_together_have_a_slope_above_one() -> None:
    table = table_of(Planted(more=0.05))
    row = values(table, "flip_cost_slope").iloc[0]
    assert row["ci_low"] > 1.5
    # Single flips are priced without others: 1 + more × 1.
    count = values(table, "flip_count")["value"].to_numpy()
    share = values(table, "flip_cost_share")["value"].to_numpy()
    assert (share < 1.05 / (1 + 0.05 * count) * 1.05).all()


def random_costs(images: int, perturbations: int = 3, layers: int = 2) -> PredictedCosts:
    rng = np.random.default_rng(4)
    cells = layers * PRICED_KINDS
    weight = rng.integers(0, 3, (images, cells)) * (rng.random(cells) < 0.7)
    return PredictedCosts(
        fold=torch.from_numpy(rng.integers(0, FOLDS, images)),
        flips=torch.from_numpy(rng.integers(0, 4, (images, perturbations, cells))),
        weight=torch.from_numpy(weight.astype(float)),
        price=torch.from_numpy(weight * rng.normal(1, 1, (images, cells))),
        corners=torch.from_numpy(rng.normal(0, 1, (images, perturbations, 4)) - [0, 0, 0, 4]),
    )


def numbers(costs: PredictedCosts) -> dict[str, Any]:
    sums = {name: column.numpy() for name, column in FlipCostsAnalysis().sums(costs).items()}
    return {one.name: one.statistic for one in FlipCostsAnalysis().estimators(sums, aligned=True)}


def predicted_by_hand(costs: PredictedCosts, perturbation: int, weights: np.ndarray) -> float:
    total = 0.0
    for image in range(len(costs.fold)):
        for cell, flips in enumerate(costs.flips[image, perturbation].tolist()):
            first = cell // PRICED_KINDS * PRICED_KINDS
            last = cell % PRICED_KINDS == PRICED_KINDS - 1
            pools = [[cell]] if last else [[cell], list(range(first, first + PRICED_KINDS - 1))]
            price = math.nan
            for pool in pools:
                others = [i for i in range(len(costs.fold)) if costs.fold[i] != costs.fold[image]]
                stand_for = sum(weights[i] * float(costs.weight[i, c]) for i in others for c in pool)
                if stand_for:
                    fall = sum(weights[i] * float(costs.price[i, c]) for i in others for c in pool)
                    price = fall / stand_for
                    break
            total += weights[image] * flips * price if flips else 0
    return total / weights.sum()


def test_predictions_are_those_of_a_loop() -> None:
    costs = random_costs(9)
    costs.weight[:, [PRICED_KINDS - 1, 2 * PRICED_KINDS - 1]] = 1
    found = numbers(costs.of(1))["flip_cost_predicted"]
    rng = np.random.default_rng(1)
    for weights in (np.ones(9), rng.integers(1, 4, 9).astype(float)):
        expected = predicted_by_hand(costs, 1, weights)
        assert found.evaluate(weights[:, None])[0] == pytest.approx(expected, rel=1e-12)
    assert np.isfinite(predicted_by_hand(costs, 1, np.ones(9)))


def test_slope_and_r2_are_those_of_a_fitted_line() -> None:
    costs = random_costs(30)
    costs.weight[:, [PRICED_KINDS - 1, 2 * PRICED_KINDS - 1]] = 1
    predicted = np.array([predicted_by_hand(costs, one, np.ones(30)) for one in range(3)])
    clean, pixels, sets, both = (costs.corners[..., corner].numpy() for corner in range(4))
    found, one = numbers(costs), np.ones((30, 1))
    for suffix, cost in (("", (clean - sets + pixels - both) / 2), ("_clean", clean - sets)):
        mean = cost.mean(0)
        slope = np.linalg.lstsq(predicted[:, None], mean, rcond=None)[0][0]
        r2 = 1 - ((mean - slope * predicted) ** 2).sum() / (mean**2).sum()
        assert found[f"flip_cost_slope{suffix}"].evaluate(one)[0] == pytest.approx(slope)
        if not suffix:
            assert found["flip_cost_r2"].evaluate(one)[0] == pytest.approx(r2)
    assert np.isnan(found["flip_cost_r2_clean"].evaluate(one)[0]), "noise around 0 explains nothing"
    statistic = found["flip_cost_slope"]
    jackknife = [statistic.evaluate(1 - np.eye(30)[:, [image]])[0] for image in range(30)]
    error = np.sqrt(29 / 30 * np.square(jackknife - np.mean(jackknife)).sum())
    assert standard_error(statistic.influence(), 30) == pytest.approx(error, rel=0.15)


def test_a_share_needs_a_cost() -> None:
    costs = random_costs(30)
    costs.weight[:, [PRICED_KINDS - 1, 2 * PRICED_KINDS - 1]] = 1
    share = numbers(costs.of(0))["flip_cost_share"]
    assert np.isfinite(share.evaluate(np.ones((30, 1)))[0])
    assert share.value(share.totals()) == pytest.approx(share.evaluate(np.ones((30, 1)))[0])
    costs.corners[..., 3] += 4
    share = numbers(costs.of(0))["flip_cost_share"]
    assert np.isnan(share.evaluate(np.ones((30, 1)))[0]) and math.isnan(share.value(share.totals()))


def test_a_flip_without_a_price_has_no_prediction() -> None:
    costs = random_costs(9)
    costs.weight[:, PRICED_KINDS - 1] = 0
    found = numbers(costs.of(1))["flip_cost_predicted"]
    assert np.isnan(found.evaluate(np.ones((9, 1)))[0]), "no prefix token of the layer was priced"


def test_refusals(trained: Trained) -> None:
    model = trained["prc"]
    assert "--predict names gaussian_blur twice" in refused(
        "flips", model, "--predict", "gaussian_blur,gaussian_blur"
    )
    assert "leave patches in place" in refused("flips", model, "--predict", "affine")
    assert "other views" in refused("flips", model, "--predict", "gaussian_noise")
    assert "use --later fixed" in refused("flips", model, "--predict", "gaussian_blur", "--later", "free")
    assert "leave --layers out" in refused("flips", model, "--predict", "gaussian_blur", "--layers", "last")


class HalfExpertChoice(Planted):
    """The same with a layer in which one token cannot get another set alone."""

    def trace(self, images: Tensor, **options: Any) -> tuple[Tensor | None, RoutingTrace]:
        scores, trace = super().trace(images, **options)
        other = expert_choice(len(images), grid=(4, 4), prefix=0)
        return scores, RoutingTrace(trace.layers | {"second": other})


def test_all_layers_need_prices() -> None:
    with pytest.raises(UserError, match="prices cannot add up"):
        table_of(HalfExpertChoice(), limit=20)
