"""Some of many experts, measured one by one: how many passes, which experts, and what they find."""

import re
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.declarations.options import Options
from moeprobe.models.nn.capture import switch_experts
from moeprobe.probes.engine.run import prepare
from moeprobe.probes.experts import Experts
from moeprobe.probes.experts.redundancy import sentences
from moeprobe.probes.experts.sampled import Effort, stratified
from tests.probes.test_experts import LAYERS, LIMIT, banded, labeled, layers_of, measured

pytestmark = pytest.mark.resamples
FEW = 3


@cache
def plain(per_layer: int) -> pd.DataFrame:
    return measured(labeled(), experts_per_layer=per_layer)


def of_single_experts(table: pd.DataFrame, metric: str) -> pd.Series:
    rows = table[(table["metric"] == metric) & table["expert"].notna()]
    return rows.set_index(["layer", "expert"])["value"]


def mean_of(table: pd.DataFrame, metric: str, layer: str) -> dict[str, Any]:
    keep = (table["metric"] == metric) & (table["layer"] == layer) & table["expert"].isna()
    [row] = table[keep].to_dict("records")
    return row


@pytest.mark.parametrize(
    ("experts", "per_layer", "draws", "expected", "passes"),
    [
        ([8] * 2, None, None, (None, 4), 49),
        # The default: 24 of 768 experts.
        ([64] * 12, None, None, (2, 1), 97),
        ([64] * 12, 8, None, (8, 1), 241),
        ([64] * 12, 64, None, (None, 4), 1633),
        # More draws are wanted, and cost no experts.
        ([8] * 2, None, 20, (None, 20), 113),
        ([64] * 12, None, 2, (2, 2), 145),
        # An expert of each layer at least.
        ([128] * 48, None, None, (1, 1), 289),
        # What --layers leaves of them.
        ([128] * 16, None, None, (1, 1), 97),
        # A layer with fewer experts than are drawn has all of them.
        ([4, 64], 8, 1, (8, 1), 31),
    ],
)
def test_many_experts_take_no_more_passes_than_a_hundred(
    experts: list[int], per_layer: int | None, draws: int | None, expected: Any, passes: int
) -> None:
    effort = Effort.of([experts, [4]], per_layer, draws)
    assert (effort.per_layer, effort.draws) == expected and effort.passes(experts) == passes


def test_a_plan_says_the_passes() -> None:
    one = prepare(Experts(experts_per_layer=FEW), [labeled()], data="digits", options=Options(limit=3))
    assert one.passes == 1 + 2 * (2 * FEW + 4)


def test_drawn_experts_are_of_all_loads() -> None:
    loads = np.random.default_rng(0).permutation(64)
    drawn = [stratified(loads, 4, name="l", seed=seed) for seed in range(200)]
    # One of each quarter, and each expert about as often as any other.
    assert all((np.bincount(loads[one] // 16) == 1).all() for one in drawn)
    counts = np.bincount(np.concatenate(drawn), minlength=64)
    assert counts.sum() == 800 and counts.min() >= 2 and counts.max() <= 28


def test_drawn_experts_have_the_prices_of_a_full_run() -> None:
    tables = {per_layer: plain(per_layer) for per_layer in (FEW, 8)}
    for metric in ("experts_price_without", "experts_price_forced", "experts_accuracy_forced"):
        few, every = (of_single_experts(table, metric) for table in tables.values())
        assert len(few) == 2 * FEW and len(every) == 16
        pd.testing.assert_series_equal(few, every.loc[few.index], rtol=0, atol=2e-6)
    counted = tables[FEW][tables[FEW]["metric"] == "experts_measured"]
    assert counted[["value", "trials"]].to_numpy(float).tolist() == [[FEW, 8]] * 2
    assert "experts_measured" not in set(tables[8]["metric"])
    said = sentences(tables[FEW])
    assert said[0].startswith(f"a: {2 * FEW} of 16 experts are measured one by one, {FEW} of each layer")
    assert "measured" not in " ".join(sentences(tables[8]))
    assert not re.search(r"\d experts (are not|show|differ)", " ".join(said)), "these are the measured ones"
    # Another batch size measures the same experts.
    again = measured(labeled(), experts_per_layer=FEW, batch_size=7)
    np.testing.assert_allclose(again["value"], tables[FEW]["value"], atol=2e-6)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            None,
            "expert 0 the loss rises by at most 0.1 nats, 1 by 0.2 (upper ends for all judged experts at once).",
        ),
        (0.15, "a, l: 1 of 2 judged experts may go, each alone, at a loss below 0.15 nats"),
        (0.05, "a, l: none of the 2 judged experts may go at a loss below 0.05 nats"),
    ],
)
def test_no_sentence_takes_measured_experts_for_all(loss: float | None, words: str) -> None:
    of_layer = {"checkpoint": "a", "layer": "l", "metric": "experts_measured", "value": 2, "trials": 64}
    counted = pd.DataFrame([of_layer | {"tokens": "", "dataset": "digits"}])
    said = sentences(pd.concat([counted, banded([0.1, 0.2], loss)], ignore_index=True))
    assert (
        said[0].startswith("a: 2 of 64 experts are measured one by one, 2 of each layer") and words in said[1]
    )


def test_an_expert_drawn_for_each_input_stands_for_all() -> None:
    draws, every = 10, plain(8)
    few = measured(labeled(), experts_per_layer=1, draws=draws)
    for kind in ("without", "forced"):
        row, expected = (mean_of(table, f"experts_price_{kind}", LAYERS[0]) for table in (few, every))
        assert row["trials"] == draws * LIMIT
        prices = of_single_experts(every, f"experts_price_{kind}")[LAYERS[0]]
        # Single prices vary more than their means, on which experts are told apart.
        error = 8 * float(prices.std()) / np.sqrt(draws * LIMIT)
        assert row["value"] == pytest.approx(expected["value"], abs=error)


def planted(expert: int) -> Checkpoint:
    """A model whose experts are alike, but one of the first MoE layer."""
    model = labeled()
    assert isinstance(model.model, Vmoe)
    switch_experts(model.model.model, only=0)
    random = torch.Generator().manual_seed(3)
    for name, layer in layers_of(model).items():
        layer.router.renormalise = True
        for parameter in layer.experts.parameters():
            parameter.copy_(parameter[:1].expand_as(parameter).clone())
            if name == LAYERS[0]:
                parameter[expert] = torch.randn(parameter[expert].shape, generator=random)
    return model


def test_an_expert_that_matters_is_found_where_it_is_measured() -> None:
    drawn = of_single_experts(plain(FEW), "experts_price_without")
    inside = [int(expert) for expert in drawn[LAYERS[0]].index]
    outside = next(expert for expert in range(8) if expert not in inside)
    found = measured(planted(inside[1]), experts_per_layer=FEW)
    prices = of_single_experts(found, "experts_price_without")[LAYERS[0]].abs()
    assert list(prices.index) == inside, "routers, and so loads, are the same"
    assert prices.idxmax() == inside[1] and prices[inside[1]] > 1e-3
    # Without another one it may be the runner-up of some tokens, and more is not lost.
    assert prices.drop(inside[1]).max() < prices[inside[1]] / 2
    missed = measured(planted(outside), experts_per_layer=FEW, draws=4)
    row = mean_of(missed, "experts_price_without", LAYERS[0])
    assert abs(row["value"]) > 1e-4, "the mean over all experts has it"
