"""Forced flips: sets, samples, and prices against passes that are made one token at a time, by hand."""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.judging.headlines import RunTables, headlines_of, sentences_of
from moeprobe.metrics.analyses.flips import FORCED, FlipsAnalysis, ForcedFlips
from moeprobe.models.nn.capture import moe_layers, switch_experts
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.probes.flips import Flips
from moeprobe.probes.flips.price import CleanPass, ForcedSets, forced_sets, price_flips
from moeprobe.probes.flips.sentences import sentences
from moeprobe.results.finished import read_result
from moeprobe.routing.capabilities import Replayable, Resumable
from moeprobe.routing.record import LayerRouting, RoutingTrace
from tests.commands import Trained, refused, run
from tests.routing.routings import Softened, checkpoint, routing, tiny

IMAGES = 3
LAYERS = ("blocks.1", "blocks.3")


def ours(**arguments: Any) -> Vmoe:
    return Vmoe(tiny(**arguments), mean=(0.5,) * 3, std=(0.25,) * 3)


def images(count: int = IMAGES, seed: int = 3) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def clean_pass(model: Any, pixels: Tensor, *, resumes: bool = True) -> CleanPass:
    scores, trace = model.trace(pixels)
    labels = torch.tensor([0, 3, -1])[: len(pixels)]
    return CleanPass(pixels, scores, trace, labels, model.trunks(pixels) if resumes else {})


def sets_of(model: Any, clean: CleanPass, layer: str, *, patches: int = 16) -> dict[str, ForcedSets]:
    perturbed = model.trace(clean.images + 0.3 * images(len(clean.images), seed=9), logits=False)[1]
    names = [f"test/{number}" for number in range(len(clean.images))]
    return forced_sets(
        clean.routing.layers[layer], perturbed.layers[layer], names, name=layer, patches=patches, seed=0
    )


def prices(model: Any, clean: CleanPass, layer: str, **options: Any) -> dict[str, ForcedFlips]:
    arguments = {"batch_size": 7, "is_later_fixed": True} | options
    return {
        forced: price_flips(model, clean, layer, sets, **arguments)
        for forced, sets in sets_of(model, clean, layer).items()
    }


@contextmanager
def by_hand(
    model: Vmoe, sets: Mapping[str, Tensor], weights: Mapping[str, Tensor] | None = None
) -> Iterator[None]:
    """Layers whose output is summed up token by token and expert by expert, with these sets ``(T, K)``.

    ``weights`` ``(T, E)`` are used in place of the router's.
    """

    def summed(experts: MlpExperts, gates: Tensor, tokens: Tensor, selected: Tensor) -> Tensor:
        output = torch.zeros_like(tokens)
        for token in range(len(tokens)):
            for expert in selected[token].tolist():
                hidden = tokens[token] @ experts.fc1.weight[expert] + experts.fc1.bias[expert]
                hidden = torch.nn.functional.gelu(hidden, approximate="tanh")
                given = hidden @ experts.fc2.weight[expert] + experts.fc2.bias[expert]
                output[token] += gates[token, expert] * given
        return output

    def exchange(name: str) -> Any:
        def hook(layer: Any, arguments: tuple[Tensor], _output: Tensor) -> Tensor:
            (tokens,) = arguments
            assert len(tokens) == 1
            gates = (weights or {}).get(name, layer.router(tokens).logits.softmax(-1)[0])
            return summed(layer.experts, gates, tokens[0], sets[name])[None]

        return hook

    layers = moe_layers(model.model)
    handles = [layers[name].register_forward_hook(exchange(name)) for name in sets]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def test_a_plan_counts_flips_of_class_tokens_and_of_no_other_layer() -> None:
    """Two patches and the class token get four sets each, after the clean and the perturbed pass."""
    model = Path(__file__).parents[2] / "checkpoints" / "reference" / "digits-baseline-k2-seed0"
    planned = run("flips", model, "--patches", 2, "--layers", "blocks.1", "--limit", 4, "--dry-run")
    assert "1 checkpoint x 4 images x 14 forward passes = 56 passes" in planned.output


@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.parametrize("is_later_fixed", [True, False])
@pytest.mark.parametrize("layer", LAYERS)
def test_prices_are_those_of_whole_passes_by_hand(top_k: int, is_later_fixed: bool, layer: str) -> None:
    model = ours(top_k=top_k)
    clean = clean_pass(model, images())
    found = prices(model, clean, layer, is_later_fixed=is_later_fixed)
    assert set(found) == set(FORCED) - ({"first"} if top_k == 1 else set())
    measured = 0
    for forced, flips in found.items():
        other_sets = sets_of(model, clean, layer)[forced]
        for image, token in other_sets.weight.nonzero()[::5].tolist():
            sets = {
                name: trace.selected[image].long().clone()
                for name, trace in clean.routing.layers.items()
                if is_later_fixed or name <= layer
            }
            assert set(sets[layer][token].tolist()) != set(other_sets.selected[image, token].tolist())
            sets[layer][token] = other_sets.selected[image, token].long()
            with by_hand(model, sets):
                scores = model.trace(clean.images[image : image + 1])[0]
            assert scores is not None
            before, after = (one.double().log_softmax(-1) for one in (clean.scores[image], scores[0]))
            predicted, label = int(before.argmax()), int(clean.labels[image])
            fall = float(before[predicted] - after[predicted])
            assert float(flips.fall[image, token]) == pytest.approx(fall, abs=2e-5)
            assert bool(flips.answer[image, token]) == (int(after.argmax()) != predicted)
            price = float(flips.price[image, token])
            if label < 0:
                assert math.isnan(price)
            else:
                assert price == pytest.approx(float(before[label] - after[label]), abs=2e-5)
            measured += 1
    assert measured > 10
    assert float(found["random"].fall.abs().max()) > 1e-3, "such flips are seen"


@pytest.mark.parametrize("layer", LAYERS)
def test_a_model_that_cannot_resume_is_run_as_a_whole(layer: str) -> None:
    model = ours()
    resumed, whole = (prices(model, clean_pass(model, images(), resumes=r), layer) for r in (True, False))
    for forced, flips in resumed.items():
        torch.testing.assert_close(whole[forced].fall, flips.fall, atol=2e-5, rtol=0)
        assert whole[forced].output is None and flips.output is not None


def test_a_layer_of_equal_experts_has_no_price() -> None:
    model = ours()
    switch_experts(model.model, only=0)
    for moe_layer in moe_layers(model.model).values():
        moe_layer.router.renormalise = True
    clean = clean_pass(model, images())
    for layer in LAYERS:
        for flips in prices(model, clean, layer).values():
            assert int((flips.weight > 0).sum()) > 5
            assert float(flips.fall.abs().max()) < 1e-5
            assert not flips.answer.any()
            assert flips.output is not None and float(flips.output.max()) < 1e-4


def test_an_expert_of_a_known_offset_has_the_known_price() -> None:
    """In the last layer the class token gets gate × offset, and the rest is a normalization and a head."""
    model = ours(top_k=1)
    layer = LAYERS[-1]
    experts = moe_layers(model.model)[layer].experts
    assert isinstance(experts, MlpExperts)
    offsets = torch.randn(experts.num_experts, 64, generator=torch.Generator().manual_seed(2))
    offsets = offsets[:, : experts.fc2.bias.shape[1]]
    experts.fc2.weight.zero_()
    experts.fc2.bias.copy_(offsets)
    clean = clean_pass(model, images())
    before_layer: list[Tensor] = []
    block = model.model.get_submodule(layer)
    handle = block.norm2.register_forward_hook(
        lambda _module, inputs, _output: before_layer.append(inputs[0])
    )
    model.trace(clean.images)
    handle.remove()
    flips, sets = prices(model, clean, layer)["random"], sets_of(model, clean, layer)["random"]
    gates = clean.routing.layers[layer].gates
    for image in range(IMAGES):
        scores = []
        for selected in (clean.routing.layers[layer].selected, sets.selected):
            expert = int(selected[image, 0, 0])
            hidden = before_layer[0][image, 0] + gates[image, 0, expert] * offsets[expert]
            with torch.no_grad():
                normed = model.model.norm(hidden[None, None])
                scores.append(model.model.forward_head(normed)[0].double().log_softmax(-1))
        predicted = int(clean.predicted[image])
        known = float(scores[0][predicted] - scores[1][predicted])
        assert float(flips.fall[image, 0]) == pytest.approx(known, abs=1e-5)
        assert flips.output is not None
        one, two = (int(s[image, 0, 0]) for s in (clean.routing.layers[layer].selected, sets.selected))
        change = gates[image, 0, two] * offsets[two] - gates[image, 0, one] * offsets[one]
        expected = float(change.norm() / (gates[image, 0, one] * offsets[one]).norm())
        assert float(flips.output[image, 0]) == pytest.approx(expected, rel=1e-5)


def test_what_cannot_reach_the_answer_costs_exactly_nothing() -> None:
    model = ours()
    clean = clean_pass(model, images())
    reached = [model.reached_from(layer, clean.trunks[layer].hidden) for layer in LAYERS]
    assert reached[0].all()
    assert reached[1].tolist() == [True] + [False] * 16
    for flips in prices(model, clean, LAYERS[1]).values():
        assert (flips.fall[:, 1:] == 0).all() and not flips.answer[:, 1:].any()
        assert flips.output is not None and float(flips.output[:, 1:].max()) > 0.01
    pooled = ours(global_pool="avg")
    clean = clean_pass(pooled, images())
    # The class token is no part of the mean.
    assert pooled.reached_from(LAYERS[1], clean.trunks[LAYERS[1]].hidden).tolist() == [False] + [True] * 16


def test_no_gradient_is_left_on_the_model() -> None:
    model = ours()
    clean = clean_pass(model, images())
    prices(model, clean, LAYERS[0])
    assert all(parameter.grad is None for parameter in model.model.parameters())
    scores = model.trace(clean.images)[0]
    assert scores is not None and torch.equal(scores, clean.scores), "all hooks are gone"


@pytest.mark.parametrize("num_experts", [2, 5])
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_forced_sets_are_other_sets(num_experts: int, top_k: int) -> None:
    if top_k >= num_experts:
        return
    layer = routing(4, num_experts=num_experts, top_k=top_k)
    names = list("abcd")
    found = forced_sets(
        layer, routing(4, num_experts=num_experts, top_k=top_k, seed=5), names, name="l", patches=3, seed=0
    )
    for forced, sets in found.items():
        for image, token in sets.weight.nonzero().tolist():
            one, two = layer.selected[image, token].tolist(), sets.selected[image, token].tolist()
            assert len(set(two)) == top_k and set(one) != set(two)
            ranked = layer.gates[image, token].argsort(descending=True).tolist()
            if forced == "runner_up":
                assert set(two) == {*ranked[: top_k - 1], ranked[top_k]}
            if forced == "first":
                assert set(two) == set(ranked[1 : top_k + 1])


def test_samples_stand_for_all_that_could_be_drawn() -> None:
    layer = routing(4, absent=0.3)
    layer = dataclasses.replace(layer, valid=layer.valid & (torch.arange(7) < 6))
    names = list("abcd")
    found = forced_sets(layer, routing(4, seed=5), names, name="l", patches=2, seed=0)
    is_full = layer.valid & (layer.selected >= 0).all(-1)
    differs = ~layer.selects_the_same(routing(4, seed=5))
    for forced, sets in found.items():
        eligible = is_full & differs if forced == "view" else is_full
        assert (sets.weight[~eligible] == 0).all()
        torch.testing.assert_close(sets.weight.sum(1), eligible.sum(1).double())
        assert (sets.weight[:, 1:] > 0).sum(1).tolist() == eligible[:, 1:].sum(1).clamp_max(2).tolist()
        assert torch.equal(sets.weight[:, 0] > 0, eligible[:, 0]), "every prefix token"
    alone = forced_sets(rows(layer, 2), rows(routing(4, seed=5), 2), ["c"], name="l", patches=2, seed=0)
    for forced, sets in alone.items():
        assert torch.equal(sets.weight[0], found[forced].weight[2])
        assert torch.equal(sets.selected[0], found[forced].selected[2])


def rows(layer: LayerRouting, image: int) -> LayerRouting:
    names = ("gates", "selected", "processed", "valid")
    return dataclasses.replace(layer, **{name: getattr(layer, name)[image : image + 1] for name in names})


def test_means_are_weighted() -> None:
    nan = math.nan
    flips = ForcedFlips(
        weight=torch.tensor([[2.0, 0.0, 1.0], [1.0, 1.0, 0.0]]).double(),
        price=torch.tensor([[1.0, 99.0, 4.0], [nan, nan, nan]]).double(),
        fall=torch.tensor([[-1.0, nan, 4.0], [0.5, -0.5, nan]]).double(),
        answer=torch.tensor([[True, True, False], [False, True, False]]),
        output=None,
    )
    sums = {name: column.numpy() for name, column in FlipsAnalysis().sums({"runner_up": flips}).items()}
    found = {one.name: one for one in FlipsAnalysis().estimators(sums, aligned=True)}
    values = {name: one.statistic.evaluate(np.ones((2, 1)))[0] for name, one in found.items()}
    assert values == pytest.approx(
        {
            "flip_price_runner_up": 2.0,
            "flip_fall_runner_up": 2 / 5,
            "flip_size_runner_up": 7 / 5,
            "flip_beyond_runner_up": 1.0,
            "flip_answer_runner_up": 3 / 5,
        }
    )
    assert found["flip_price_runner_up"].trials.tolist() == [2, 0]
    assert found["flip_size_runner_up"].trials.tolist() == [2, 2]


class Whole(Replayable):
    """A model that replays, and cannot resume."""

    def __init__(self, model: Vmoe) -> None:
        self.model, self.layer_names, self.group_images = model, model.layer_names, model.group_images

    def trace(self, images: Any, **options: Any) -> tuple[Tensor | None, RoutingTrace]:
        return self.model.trace(images, **options)

    def replay(self, images: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        return self.model.replay(images, routing, gates=gates)


def test_a_run_says_the_same_of_a_model_that_cannot_resume() -> None:
    one = checkpoint("a")
    assert isinstance(one.model, Vmoe) and isinstance(one.model, Resumable)
    other = Checkpoint("b", Whole(one.model), one.framing, provenance=one.provenance)
    assert not isinstance(other.model, Resumable)
    probe = Flips(severities=[0.3], patches=2)
    tables = [api.probe(probe, [model], data="digits", limit=20).table for model in (one, other)]
    keys = ["layer", "tokens", "metric"]
    both = tables[0].merge(tables[1], on=keys, suffixes=("", "_whole"))
    assert len(both) == len(tables[1]) > 50
    np.testing.assert_allclose(both["value"], both["value_whole"], atol=2e-5)
    without = set(tables[0]["metric"]) - set(tables[1]["metric"])
    assert without == {f"flip_output_{forced}" for forced in FORCED}


@pytest.mark.slow
@pytest.mark.promise
def test_any_batch_gives_the_same_prices() -> None:
    model = checkpoint()
    probe = Flips(severities=[0.3], patches=2)
    tables = [api.probe(probe, [model], data="digits", limit=24, batch_size=size).table for size in (24, 7)]
    np.testing.assert_allclose(tables[0]["value"], tables[1]["value"], atol=2e-6)
    counts = tables[0][tables[0]["metric"].eq("flip_size_random")]
    patches = counts[counts["tokens"].eq("patch")].set_index("layer")["trials"]
    assert patches.to_dict() == dict.fromkeys(LAYERS, 48)
    deciles = counts[counts["tokens"].str.startswith("margin ")].groupby("layer")["trials"].sum()
    assert deciles.to_dict() == dict.fromkeys(LAYERS, 48)


@pytest.mark.pictures
def test_the_command(trained: Trained, tmp_path: Path) -> None:
    done = run("flips", trained["prc"], trained["baseline"], "--limit", "24", "--out", tmp_path / "flips")
    said = " ".join(done.stdout.split())
    assert "the only one of the run" in said
    finished = read_result(tmp_path / "flips")
    alone = RunTables(sidecar=finished.sidecar, table=finished.table, comparison=None)
    [sentence] = sentences_of(alone, headlines_of(alone)[2])
    assert "the share of flips that change the answer is: " in sentence
    assert "prc: flips of patches in blocks." in done.stdout and "cannot reach the answer" in done.stdout
    assert (tmp_path / "flips/figures/flips.png").exists()
    rows = json.loads((tmp_path / "flips/table.json").read_text())
    assert rows["request"]["patches"] == 8 and rows["request"]["later"] == "fixed"


def test_refusals(trained: Trained) -> None:
    model = trained["prc"]
    assert "moves patches" in refused("flips", model, "--view", "affine")
    assert "--patches takes a whole number" in refused("flips", model, "--patches", "0")
    assert "--later is fixed or free" in refused("flips", model, "--later", "no")
    assert "--severities takes one severity" in refused("flips", model, "--severities", "0.1,0.2")
    limited = checkpoint(trained_capacity=True, eval_capacity_factor=1.0)
    for other in (limited, checkpoint(router="softmax_expert_choice"), checkpoint(adapter=Softened)):
        with pytest.raises(UserError, match="without a limit of capacity"):
            api.probe(Flips(), [other], data="digits", limit=20)


def test_a_price_that_few_images_carry_is_said_with_what_is_known() -> None:
    rows = [
        {"metric": "flip_price_runner_up", "flag": "few_carriers", "carriers": 4, "value": 0.001},
        {"metric": "flip_beyond_runner_up", "flag": "", "value": 0.041, "ci_low": 0.028, "ci_high": 0.059},
        {"metric": "flip_size_runner_up", "flag": "few_carriers", "carriers": 3, "value": 0.002},
    ]
    shared = {"checkpoint": "a", "layer": "l", "tokens": "patch", "images": 360, "dataset": "digits"}
    [said] = sentences(pd.DataFrame([shared | row for row in rows]))
    assert said == (
        "a, l: half of the price of a flip is carried by 4 of 360 images, so it has no interval. "
        "4.1 % [2.8, 5.9] of the flips move the log-probability by more than 0.01 nats. "
        "By a rough estimate, 900 images would be enough."
    )
    rows[0]["flag"] = ""
    assert sentences(pd.DataFrame([shared | row for row in rows])) == []
