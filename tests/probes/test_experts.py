"""Experts banned, forced and compared: passes by hand, planted duplicates, sums over all permutations."""

import collections
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.metrics.analyses.expert_outputs import ExpertOutputsAnalysis, LayerOutputs
from moeprobe.metrics.analyses.experts import INTERVENTIONS, ExpertsAnalysis
from moeprobe.models.nn.capture import moe_layers, switch_experts
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.probes.engine.run_spec import choose_images
from moeprobe.probes.experts import Experts
from moeprobe.probes.experts.measure import _interventions
from moeprobe.probes.experts.redundancy import dispensable, nearest_pairs, sentences
from moeprobe.results.values import estimators
from tests.commands import Trained, run
from tests.probes.test_flips import Whole, by_hand
from tests.routing.routings import Softened, checkpoint, digits, with_numpy_weights

# Intervals are asserted.
pytestmark = pytest.mark.resamples


LIMIT = 24
LAYERS = ("blocks.1", "blocks.3")


def labeled(**arguments: Any) -> Checkpoint:
    """A tiny model of unlike experts (new ones are nearest_pairs), whose scores are said to be about digits."""
    names, model = digits().class_names, checkpoint(**arguments)
    assert names is not None
    random = torch.Generator().manual_seed(7)
    for layer in layers_of(model).values():
        for parameter in layer.experts.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=random))
    return dataclasses.replace(model, class_names=names)


def measured(model: Checkpoint, **options: Any) -> pd.DataFrame:
    return api.experts(model, data="digits", **({"limit": LIMIT, "draws": 1} | options)).table


def layers_of(model: Checkpoint) -> dict[str, Any]:
    assert isinstance(model.model, Vmoe)
    return dict(moe_layers(model.model.model))


def of_experts(table: pd.DataFrame, metric: str, layer: str) -> list[float]:
    rows = table[(table["metric"] == metric) & (table["layer"] == layer)]
    return rows.dropna(subset="expert").sort_values("expert")["value"].tolist()


@pytest.mark.parametrize("top_k", [1, 2])
def test_interventions_are_those_of_whole_passes_by_hand(top_k: int) -> None:
    one = labeled(top_k=top_k)
    assert isinstance(one.model, Vmoe)
    model, layer = one.model, LAYERS[0]
    table = measured(one)
    expert = 2
    falls: dict[str, list[float]] = {"without": [], "forced": []}
    hits: dict[str, list[bool]] = {"without": [], "forced": []}
    for index in choose_images(digits(), limit=LIMIT, seed=0):
        example = digits().example(index)
        pixels = torch.from_numpy(np.array(example.image)).permute(2, 0, 1)[None].float() / 255
        scores, trace = model.trace(pixels)
        assert scores is not None
        gates, clean = trace.layers[layer].gates[0], trace.layers[layer].selected[0].long()
        sets = {"without": clean.clone(), "forced": clean.clone()}
        for token in range(len(clean)):
            ranked = gates[token].argsort(descending=True).tolist()
            has = clean[token].tolist()
            if expert in has:
                sets["without"][token, has.index(expert)] = next(e for e in ranked if e not in has)
            else:
                sets["forced"][token, -1] = expert
        for kind, selected in sets.items():
            with by_hand(model, {layer: selected}):
                after = model.trace(pixels)[0]
            assert after is not None
            difference = scores.double().log_softmax(-1) - after.double().log_softmax(-1)
            falls[kind].append(float(difference[0, example.label]))
            hits[kind].append(int(after.argmax()) == example.label)
    for kind, expected in falls.items():
        assert np.std(expected) > 1e-4, "such interventions are seen"
        assert of_experts(table, f"experts_price_{kind}", layer)[expert] == pytest.approx(
            np.mean(expected), abs=2e-5
        )
        assert of_experts(table, f"experts_accuracy_{kind}", layer)[expert] == pytest.approx(
            np.mean(hits[kind])
        )


def test_a_duplicated_expert_is_found_redundant_and_no_other() -> None:
    """With one expert per token a copy of expert and router column takes over: nothing changes."""
    model = labeled(top_k=1)
    before = measured(model)
    pairs = {}
    for name, layer in layers_of(model).items():
        shares = np.array(of_experts(before, "expert_share", name))
        first, copy = pairs[name] = int(shares.argmax()), int(shares.argmin())
        for parameter in (*layer.experts.parameters(), layer.router.gate.weight):
            parameter[copy] = parameter[first]
    table = measured(model, loss=1e-5)
    for name, pair in pairs.items():
        prices, shares = (
            np.array(of_experts(table, m, name)) for m in ("experts_price_without", "expert_share")
        )
        assert shares[list(pair)].sum() > 0.2
        np.testing.assert_allclose(prices[list(pair)], 0, atol=1e-6)
        if name == LAYERS[0]:  # in the last layer an expert of patches alone is missed by nobody
            redundant = set(np.flatnonzero(np.abs(prices) < 1e-6))
            assert redundant == {*pair, *np.flatnonzero(shares == 0)} and len(redundant) < 7
            may_go = np.array(of_experts(table, "experts_dispensable", name)) == 1
            assert set(np.flatnonzero(may_go)) == redundant
        rows = table[table["layer"] == name].set_index(["metric", "expert", "expert_b"])["value"]
        both = tuple(sorted(pair))
        assert rows["expert_distance", *both] == pytest.approx(0, abs=1e-6)
        assert rows["expert_cka", *both] == pytest.approx(1)
        assert rows["expert_distance_permuted", *both] > 0.05
        assert (rows["expert_distance"].drop(both) > 0.1).all()
        nearest = nearest_pairs(table).set_index("layer").loc[name]
        assert (nearest["expert"], nearest["expert_b"]) == both


def test_a_layer_of_equal_experts_misses_none() -> None:
    model = labeled()
    assert isinstance(model.model, Vmoe)
    switch_experts(model.model.model, only=0)
    for layer in layers_of(model).values():
        layer.router.renormalise = True
    table = measured(model)
    prices = table[table["metric"].str.startswith("experts_price_")]
    # Eight experts and their mean, banned and forced; random and permuted sets; all banned ones at once, and beyond.
    assert len(prices) == 2 * (2 * 9 + 2 + 8 + 8)
    assert prices["value"].abs().max() < 1e-5
    assert (table.loc[table["metric"].str.startswith("experts_answer_"), "value"] == 0).all()
    np.testing.assert_allclose(table.loc[table["metric"] == "expert_distance", "value"], 0, atol=1e-6)


def test_an_expert_of_known_outputs_has_the_known_saliency_and_distance() -> None:
    model = labeled()
    offsets = torch.randn(8, 64, generator=torch.Generator().manual_seed(2))
    for layer in layers_of(model).values():
        assert isinstance(layer.experts, MlpExperts)
        layer.experts.fc2.weight.zero_()
        layer.experts.fc2.bias.copy_(offsets)
    table = measured(model)
    norms = offsets.norm(dim=-1)
    rows = table[table["layer"] == LAYERS[0]].set_index(["metric", "expert", "expert_b"])["value"]
    for i, j in itertools.combinations(range(8), 2):
        expected = float((offsets[i] - offsets[j]).square().sum() / ((norms[i] ** 2 + norms[j] ** 2) / 2))
        assert rows["expert_distance", i, j] == pytest.approx(expected, rel=1e-5)
        # Constants are as far apart on any other patch.
        assert rows["expert_distance_permuted", i, j] == pytest.approx(expected, rel=1e-5)
    saliency = table.loc[table["metric"] == "expert_saliency", "value"].dropna()
    assert len(saliency) > 8 and saliency.between(0, float(norms.max())).all()


def test_pairs_have_a_mean_with_an_interval_of_its_own() -> None:
    table = measured(labeled())
    for metric in ("expert_distance", "expert_distance_permuted", "expert_cka"):
        for _, rows in table[table["metric"] == metric].groupby("layer"):
            of_pairs, [mean] = rows.dropna(subset=["expert"]), rows[rows["expert"].isna()].to_dict("records")
            assert len(of_pairs) == 28 and mean["value"] == pytest.approx(of_pairs["value"].mean())
            assert mean["ci_high"] - mean["ci_low"] < (of_pairs["ci_high"] - of_pairs["ci_low"]).mean()


def outputs_of(images: int = 3, patches: int = 5, experts: int = 3, width: int = 4) -> LayerOutputs:
    random = torch.Generator().manual_seed(1)
    outputs = torch.randn(images, patches, experts, width, generator=random)
    outputs[:, :, 1] += outputs[:, :, 0]
    weights = torch.rand(images, patches, experts, generator=random)
    return LayerOutputs(outputs, weights * (weights > 0.5), torch.ones(images, patches, dtype=torch.bool))


def values_of(subject: LayerOutputs) -> dict[tuple[str, int | None, int | None], float]:
    analysis = ExpertOutputsAnalysis()
    columns = {name: column.numpy() for name, column in analysis.sums(subject).items()}
    ones = np.ones((len(subject.valid), 1))
    return {
        (one.name, one.expert, one.expert_b): float(one.statistic.evaluate(ones)[0])
        for one in analysis.estimators(columns, aligned=True)
    }


def test_permuted_distances_are_means_over_all_derangements() -> None:
    subject = outputs_of(patches=4)
    found = values_of(subject)
    orders = [p for p in itertools.permutations(range(4)) if all(a != b for a, b in enumerate(p))]
    assert len(orders) == 9
    a, b = subject.outputs[:, :, 0].double(), subject.outputs[:, :, 1].double()
    norm = (a.square().sum() + b.square().sum()) / 2
    assert found["expert_distance", 0, 1] == pytest.approx(float((a - b).square().sum() / norm))
    distances = [float((a - b[:, list(order)]).square().sum() / norm) for order in orders]
    assert found["expert_distance_permuted", 0, 1] == pytest.approx(np.mean(distances))


def test_alignment_is_that_of_the_definition() -> None:
    """The unbiased HSIC as the mean of its kernel over all ordered quadruples of different patches."""

    def hsic(k: Tensor, m: Tensor) -> float:
        terms = [
            k[i, j] * (m[i, j] + m[q, r] - 2 * m[i, q])
            for i, j, q, r in itertools.permutations(range(len(k)), 4)
        ]
        return float(sum(terms) / len(terms))

    subject = outputs_of()
    sums = np.zeros(3)
    for image in subject.outputs.double():
        kernels = [image[:, expert] @ image[:, expert].T for expert in (0, 1)]
        sums += [hsic(kernels[a], kernels[b]) for a, b in ((0, 1), (0, 0), (1, 1))]
    assert values_of(subject)["expert_cka", 0, 1] == pytest.approx(sums[0] / np.sqrt(sums[1] * sums[2]))


def test_alignment_is_blind_to_rotation_and_scale_and_padding() -> None:
    subject = outputs_of(patches=12)
    rotation = torch.from_numpy(stats.ortho_group.rvs(4, random_state=0)).float()
    subject.outputs[:, :, 2] = 3 * subject.outputs[:, :, 0] @ rotation
    found = values_of(subject)
    assert found["expert_cka", 0, 2] == pytest.approx(1, abs=1e-6)
    assert found["expert_cka", 0, 1] < 0.95
    padded = LayerOutputs(
        torch.cat([subject.outputs, torch.full((3, 2, 3, 4), torch.nan)], 1),
        torch.cat([subject.weights, torch.full((3, 2, 3), torch.nan)], 1),
        torch.cat([subject.valid, torch.zeros(3, 2, dtype=torch.bool)], 1),
    )
    assert values_of(padded) == pytest.approx(found)


def test_independent_outputs_have_no_alignment() -> None:
    random = torch.Generator().manual_seed(5)
    outputs = torch.randn(400, 8, 2, 6, generator=random)
    subject = LayerOutputs(outputs, torch.ones(400, 8, 2), torch.ones(400, 8, dtype=torch.bool))
    assert abs(values_of(subject)["expert_cka", 0, 1]) < 0.02


def test_a_model_that_only_replays_has_the_same_prices() -> None:
    one = labeled()
    assert isinstance(one.model, Vmoe)
    other = dataclasses.replace(one, model=Whole(one.model))
    tables = [measured(model).fillna({"expert": -1}) for model in (one, other)]
    keys = ["layer", "tokens", "metric", "expert"]
    both = tables[0].merge(tables[1], on=keys, suffixes=("", "_whole"))
    assert len(both) == len(tables[1]) > 50
    np.testing.assert_allclose(both["value"], both["value_whole"], atol=2e-5)
    assert set(tables[0]["metric"]) - set(tables[1]["metric"]) == {
        "expert_distance", "expert_distance_permuted", "expert_cka", "expert_saliency",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.promise
def test_any_batch_gives_the_same() -> None:
    model = labeled()
    tables = [measured(model, batch_size=size) for size in (24, 7)]
    np.testing.assert_allclose(tables[0]["value"], tables[1]["value"], atol=2e-6)


def test_of_texts_the_price_is_the_fall_of_the_log_probability(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from tests.adapters.tiny_texts import olmoe, texts

    folder = olmoe(tmp_path / "one", spread=3.0)
    (tmp_path / "lines.txt").write_text("\n".join(texts(22)), encoding="utf-8")
    data = f"text:{tmp_path / 'lines.txt'}"
    table = api.experts(f"hf:{folder}", data=data, batch_size=5).table
    assert {"experts_price_without", "experts_price_random"} <= set(table["metric"])
    assert not table["metric"].str.startswith(("experts_accuracy", "experts_answer", "expert_cka")).any()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    first = table["layer"].loc[table["layer"] != ""].iloc[0]
    prices = of_experts(table, "experts_price_without", first)
    expert, falls = int(np.abs(prices).argmax()), 0.0
    for text in texts(22):
        ids = tokenizer(text, return_tensors="pt").input_ids
        falls += _log_probability(model, ids) - _log_probability(model, ids, banned=expert)
    is_of_one = (table["metric"] == "experts_price_without") & table["expert"].notna()
    count = int(table.loc[is_of_one, "trials"].iloc[0])
    assert prices[expert] == pytest.approx(falls / count, abs=2e-6)
    assert abs(falls / count) > 5e-5


def _log_probability(model: Any, ids: Tensor, *, banned: int | None = None) -> float:
    """The log-probability of a text by the library alone; the first layer's router cannot choose one expert."""
    gate = model.model.layers[0].mlp.gate

    def forward(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = hidden.reshape(-1, hidden.shape[-1]) @ gate.weight.T
        probabilities = logits.softmax(-1)
        allowed = probabilities.clone()
        allowed[:, banned] = -1
        selected = allowed.topk(gate.top_k, dim=-1).indices
        return logits, probabilities.gather(1, selected), selected

    if banned is not None:
        gate.forward = forward
    with torch.no_grad():
        scores = model(ids).logits[0].double().log_softmax(-1)
    if banned is not None:
        del gate.forward
    return float(scores[:-1].gather(-1, ids[0, 1:, None]).sum())


_PRICES = ("experts_price_without", "experts_price_band", "experts_price_beyond")


def test_bounds_hold_for_all_experts_at_once() -> None:
    """Of 16 experts in two layers: t standard errors at Bonferroni's level, from the sums of single images.

    Experts whose price a few images carry have no bound, no mark and no place on the list.
    """
    images, loss = 60, 0.1
    model = with_numpy_weights(labeled())
    result = api.experts(model, data="digits", limit=images, draws=1, loss=loss, figures=False)
    table = result.table
    bounds = dispensable(table).set_index(["layer", "expert"])["highest"]
    t = stats.t.ppf(1 - 0.025 / 16, images - 1)
    [layer, *_] = [cell for cell in result.sums if cell.cell.layer == LAYERS[0] and not cell.cell.tokens]
    prices = layer.load_all()[1]["experts_price_without"]
    sizes = np.sort(np.abs(prices), axis=0)[::-1]
    carriers = 1 + (sizes.cumsum(0) < sizes.sum(0) / 2).sum(0)
    assert 1 < (carriers < 10).sum() < 7, "some of each"
    ends = prices.mean(0) + t * prices.std(0, ddof=1) / np.sqrt(images)
    of_layer = bounds[LAYERS[0]].sort_index()
    assert list(of_layer.index) == list(np.flatnonzero(carriers >= 10))
    np.testing.assert_allclose(of_layer, ends[carriers >= 10], rtol=1e-9)
    single = table[table["expert"].notna() & table["metric"].isin(["experts_dispensable", *_PRICES])]
    rows = single.set_index(["metric", "layer", "expert"]).sort_index()
    for expert, count in enumerate(carriers):
        plain, band, mark = (
            rows.loc[f"experts_{name}", LAYERS[0], expert]
            for name in ("price_without", "price_band", "dispensable")
        )
        if count < 10:
            assert (plain["flag"], band["flag"], band["carriers"]) == ("few_carriers",) * 2 + (count,)
            assert np.isnan([plain["ci_high"], band["ci_high"], mark["value"]]).all()
        else:
            assert band["ci_high"] >= plain["ci_high"] and mark["value"] == (band["ci_high"] < loss)
        beyond = (np.abs(prices[:, expert]) > loss).mean()
        assert rows.loc["experts_price_beyond", LAYERS[0], expert]["value"] == pytest.approx(beyond)
    below = {name: sorted(bounds[name].index[bounds[name] < loss]) for name in LAYERS}
    assert 0 < sum(map(len, below.values())) < 16
    numbers = table[(table["metric"] == "experts_dispensable") & table["expert"].isna()].set_index("layer")
    assert numbers["value"].to_dict() == {name: len(experts) for name, experts in below.items()}
    assert (numbers["severity"] == loss).all() and (numbers["flag"] == "").all()
    said = [line for line in sentences(table) if f"{LAYERS[0]}:" in line]
    unjudged = int((carriers < 10).sum())
    assert (
        said[0].split(": ")[1].startswith(f"{len(below[LAYERS[0]])} of {8 - unjudged} judged experts may go")
    )
    assert f"{unjudged} of 8 experts are not judged, since few images carry" in said[1]
    assert f"by more than {loss:g} nats. By a rough estimate" in said[1]
    # Of a single one that is not judged.
    others = (table["metric"] == "experts_price_band") & (table["flag"] == "few_carriers")
    others &= (table["layer"] == LAYERS[0]) & (table["expert"] != int(np.flatnonzero(carriers < 10)[0]))
    alone = " ".join(sentences(table.assign(flag=table["flag"].mask(others, ""))))
    assert "1 of 8 experts is not judged, since few images carry the price of its ban" in alone
    # A share of images stays one where intervals count patients.
    of_patients = " ".join(sentences(table.assign(unit="patient")))
    assert (
        f"% of the images by more than {loss:g} nats" in of_patients and "few patients carry" in of_patients
    )


def banded(ends: list[float], loss: float | None = None) -> pd.DataFrame:
    """The rows of banned experts of a layer with these upper ends."""
    band = pd.DataFrame({"metric": "experts_price_band", "expert": range(len(ends)), "ci_high": ends})
    mark = pd.DataFrame({"metric": ["experts_dispensable"] * (loss is not None), "severity": loss})
    return pd.concat([band, mark]).assign(
        checkpoint="a", layer="l", value=0.0, expert_b=np.nan, ci_low=np.nan, images=100
    )


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (
            None,
            "without expert 1, the loss of no input changes; without expert 2 the loss rises by at most 0.061 nats",
        ),
        (
            0.1,
            "3 of 5 judged experts may go, each alone, at a loss below 0.1 nats (95 % for all at once): experts 1–3.",
        ),
        (
            0.08,
            "2 of 5 judged experts may go, each alone, at a loss below 0.08 nats (95 % for all at once): experts 1, 2.",
        ),
        (
            1e-9,
            "1 of 5 judged experts may go, each alone, at a loss below 1e-09 nats (95 % for all at once): expert 1.",
        ),
    ],
)
def test_sentences_name_the_experts_that_may_go(loss: float | None, words: str) -> None:
    assert words in sentences(banded([0.2, 0.0, 0.0612, 0.09, 0.4], loss))[0]


def test_an_upper_end_near_zero_is_rounded_up() -> None:
    assert "at most 0.0001 nats, 2 by 0.0002, 0 by" in sentences(banded([0.2, 3e-7, 2e-4]))[0]


def test_no_expert_may_go() -> None:
    [said] = sentences(banded([0.2, 0.1], 0.05))
    of_two = "none of the 2 judged experts may go at a loss below 0.05 nats; the lowest upper end is 0.1, of expert 1."
    assert said == f"a, l: {of_two}"


def test_numbers_of_experts_are_texts_in_a_file() -> None:
    pair = {"checkpoint": "a", "layer": "l", "expert": "2", "expert_b": "3"}
    named = ("expert_distance", "expert_distance_permuted", "expert_cka")
    of_pair = pd.DataFrame(
        [
            pair | {"metric": name, "value": 0.5, "severity": "", "ci_low": np.nan, "ci_high": np.nan}
            for name in named
        ]
    )
    assert "outputs of experts 2 and 3 are nearest: distance 0.50, with permuted" in sentences(of_pair)[-1], (
        "texts of a file"
    )


def test_the_nearest_pair_is_that_of_the_least_distance_over_permuted_patches() -> None:
    distances = {(0, 1): (0.5, 0.5), (0, 2): (0.6, 1.2), (1, 2): (0.9, 1.0)}
    table = pd.DataFrame(
        [
            {"checkpoint": "a", "layer": "l", "expert": i, "expert_b": j, "metric": metric, "value": value}
            | {"ci_low": value - 0.05, "ci_high": value + 0.05, "images": 100}
            for (i, j), values in distances.items()
            for metric, value in zip(("expert_distance", "expert_distance_permuted"), values, strict=True)
        ]
    )
    [pair] = nearest_pairs(table).itertuples()
    assert (pair.expert, pair.expert_b) == (0, 2)
    assert pair.rivals == " (separated from all others)"
    wide = table.assign(ci_low=table["value"] - 0.4, ci_high=table["value"] + 0.4)
    assert nearest_pairs(wide)["rivals"].tolist() == [" (not separated from 1 and 2, 0 and 1)"]


def test_draws_are_of_each_input_and_their_mean_is_taken() -> None:
    model = labeled()
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    layer = model.model.trace(pixels)[1].layers[LAYERS[0]]
    arguments: dict[str, Any] = {"name": "l", "seed": 0, "draws": 3}
    names = ["a", "b", "c"]
    drawn = {k: list(v) for k, v in _interventions(layer, names, **arguments).items()}
    assert [len(sets) for sets in drawn.values()] == [8, 8, 3, 3]
    few = _interventions(layer, names, **arguments, measured=[1, 6])
    assert {kind: len(list(sets)) for kind, sets in few.items()} == {
        "without_drawn": 3, "forced_drawn": 3, "without": 2, "forced": 2, "random": 3, "permuted": 3,
    }  # fmt: skip
    maps = set()
    for sets, image in itertools.product(drawn["permuted"], range(3)):
        pairs = set(
            zip(layer.selected[image].flatten().tolist(), sets[image].flatten().tolist(), strict=True)
        )
        before, after = zip(*pairs, strict=True)
        assert len(set(before)) == len(set(after)) == len(pairs), "each expert has one other name"
        assert all(a != b for a, b in pairs)
        maps.add(frozenset(pairs))
    assert len(maps) > 6
    alone = _interventions(layer, names[::-1], **arguments)
    assert (next(alone["random"])[2] == drawn["random"][0][0]).all(), "whatever the batch"
    assert not (drawn["random"][0] == drawn["random"][1]).all()


@pytest.mark.parametrize("top_k", [1, 2, 7])
def test_random_sets_and_relabeled_ones_are_never_the_clean_ones(top_k: int) -> None:
    model = labeled(top_k=top_k)
    pixels = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    layer = model.model.trace(pixels)[1].layers[LAYERS[0]]
    drawn = _interventions(layer, ["a", "b", "c"], name="l", seed=0, draws=8)
    clean = layer.selected.sort(-1).values
    for kind in ("random", "permuted"):
        for sets in drawn[kind]:
            others = sets.sort(-1).values
            assert (others[..., 1:] > others[..., :-1]).all(), "experts of a set differ"
            assert (others != clean).any(-1).all(), kind


def test_random_sets_are_drawn_evenly_from_the_others() -> None:
    model = labeled(top_k=2)
    pixels = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    layer = model.model.trace(pixels)[1].layers[LAYERS[0]]
    drawn = _interventions(layer, ["a", "b"], name="l", seed=0, draws=600)["random"]
    token = torch.stack([sets[0, 0] for sets in drawn]).sort(-1).values.tolist()
    counts = collections.Counter(map(tuple, token))
    assert len(counts) == 8 * 7 // 2 - 1
    # A draw of the clean set goes to one with one of its experts, so those come a little more often.
    assert max(counts.values()) < 3 * 600 / 27 and min(counts.values()) > 600 / 27 / 3


def test_the_mean_of_a_kind_is_over_all_its_interventions() -> None:
    price = np.random.default_rng(0).normal(size=(5, 3))
    columns = {
        f"experts_{name}_{kind}": values
        for kind in INTERVENTIONS
        for name, values in (("price", price), ("trials", np.ones(5)), ("inputs", np.ones(5)))
    }
    found = {
        (one.name, one.expert): (float(one.statistic.evaluate(np.ones((5, 1)))[0]), int(one.trials.sum()))
        for one in estimators(columns, (ExpertsAnalysis(),), aligned=True)
    }
    for kind in ("without", "permuted"):
        assert found[f"experts_price_{kind}", None] == (pytest.approx(price.mean()), 15)
    assert found["experts_price_without", 1] == (pytest.approx(price[:, 1].mean()), 5)
    assert ("experts_price_permuted", 0) not in found


@pytest.mark.pictures
def test_the_command(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "experts"
    done = run("experts", trained["prc"], trained["baseline"], "--limit", 60, "--loss", 0.5, "--out", out)
    assert "judged experts may go, each alone, at a loss below 0.5 nats" in done.stdout
    assert "number of experts that may go alone" in done.stdout and "are nearest" in done.stdout
    assert "rise of the loss with random sets" in done.stdout
    for name in ("experts", "expert-distances"):
        assert (tmp_path / f"experts/figures/{name}.png").exists()
    assert json.loads((tmp_path / "experts/table.json").read_text())["request"]["kind"] == "experts"


@pytest.mark.parametrize("wrong", [{"loss": 0.0}, {"loss": float("nan")}, {"draws": 0}])
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"^{next(iter(wrong))} takes a"):
        Experts(**wrong)


def test_refusals() -> None:
    limited = checkpoint(trained_capacity=True, eval_capacity_factor=1.0)
    unlimited = [checkpoint(router=router) for router in ("softmax_expert_choice", "soft_moe")]
    for other in (limited, *unlimited, checkpoint(adapter=Softened)):
        with pytest.raises(UserError, match="without a limit of capacity"):
            api.probe(Experts(), [other], data="digits", limit=20)
