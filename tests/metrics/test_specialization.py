"""What experts specialize in: planted routers, and loops over tokens."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from moeprobe.inputs.data.checkerboard import Checkerboard
from moeprobe.inputs.images import Framing
from moeprobe.metrics.analyses.balance import Balance
from moeprobe.metrics.analyses.coactivation import Coactivation
from moeprobe.metrics.analyses.color_bias import ColorBias
from moeprobe.metrics.analyses.information import Information
from moeprobe.metrics.analyses.variation import VariationAnalysis
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.routing.record import LayerPair, LayerRouting
from tests.routing.routings import aligned, expert_choice, routing, soft


def chosen(experts: torch.Tensor, *, num_experts: int = 4) -> LayerRouting:
    """The routing in which patch j of image b has the expert ``experts[b, j]``; a prefix token has expert 0."""
    layer = routing(len(experts), grid=(4, 4), num_experts=num_experts, top_k=1)
    with_prefix = torch.cat([torch.zeros(len(experts), 1, dtype=torch.long), experts], 1)
    selected = with_prefix[..., None].to(torch.int16)
    gates = torch.nn.functional.one_hot(with_prefix, num_experts).float()
    return dataclasses.replace(layer, selected=selected, gates=gates, processed=selected >= 0)


def values(analysis: LayerAnalysis, pair: LayerPair, **more: np.ndarray) -> dict[Any, float]:
    """All numbers of the patches, by name where they are about no expert."""
    columns = {name: column.numpy() for name, column in analysis.sums(pair)["patch"].items()} | more
    one = np.ones((len(pair.view.gates), 1))
    return {
        e.name if e.expert is None else (e.name, e.expert, e.expert_b): float(e.statistic.evaluate(one)[0])
        for e in analysis.estimators(columns, aligned=True)
    }


def colored(experts: torch.Tensor, colors: torch.Tensor) -> LayerPair:
    """A pair whose patches have the gray levels ``colors`` ``(B, 16)`` in [0, 1]."""
    pixels = colors.view(-1, 1, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3).expand(-1, 3, -1, -1)
    layer = chosen(experts)
    return dataclasses.replace(aligned(layer, layer), pixels=pixels.contiguous())


def test_each_planted_router_has_the_information_that_it_goes_by() -> None:
    random = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 4
    gray = torch.randint(0, 4, (240, 16), generator=random)
    place = torch.arange(16).expand(240, 16) // 4
    routers = {"class": labels[:, None].expand(240, 16), "position": place, "color": gray}
    for kind, experts in routers.items():
        found = values(Information(), colored(experts, gray / 4 + 0.1), label=labels.numpy())
        for other in routers:
            value = found[f"{other}_information"]
            assert value > 0.95 if other == kind else abs(value) < 0.02, (kind, other)


def test_position_and_color_that_go_together_are_not_counted_as_color() -> None:
    """Where the color follows from the place alone, exchanging whole images changes nothing."""
    place = torch.arange(16).expand(60, 16) // 4
    found = values(Information(), colored(place, place / 4 + 0.1))
    assert found["color_information_plain"] == pytest.approx(1)
    assert found["color_information_permuted"] == pytest.approx(1)
    assert found["color_information"] == pytest.approx(0, abs=1e-12)


def test_prefix_tokens_stay_apart() -> None:
    labels = np.arange(40) % 4
    experts = torch.from_numpy(labels)[:, None].expand(40, 16)
    sums = Information().sums(colored(experts, torch.rand(40, 16)))
    columns = {name: column.numpy() for name, column in sums["prefix"].items()} | {"label": labels}
    estimators = {e.name: e for e in Information().estimators(columns, aligned=True)}
    assert set(estimators) == {"class_information", "class_information_plain", "class_information_permuted"}
    assert estimators["class_information_plain"].statistic.evaluate(np.ones((40, 1)))[0] == 0
    assert estimators["class_information"].trials.tolist() == [1] * 40


@pytest.mark.parametrize(
    "layer", [expert_choice(6, grid=(4, 4)), soft(6, grid=(4, 4))], ids=["experts", "soft"]
)
def test_a_token_of_several_experts_counts_once(layer: LayerRouting) -> None:
    columns = Information().sums(aligned(layer, layer))["patch"]
    shares = columns["informed_expert_shares"].view(6, 16, 5)
    for b, j in itertools.product(range(6), range(16)):
        token = j + 1
        if layer.experts_choose:
            own = {int(e) for e in layer.selected[b, token] if e >= 0}
            expected = [1 / len(own) if e in own else 0.0 for e in range(5)]
        else:
            expected = (layer.gates[b, token].double() / layer.gates[b, token].double().sum()).tolist()
        assert shares[b, j].tolist() == pytest.approx(expected, abs=1e-7)


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("top_k", [1, 2])
def test_balance_against_loops(top_k: int, ordered: bool) -> None:
    layer = dataclasses.replace(routing(6, grid=(4, 4), top_k=top_k, seed=3), ordered=ordered)
    found = values(Balance(), aligned(layer, layer))
    forms = {"": top_k} | ({"_first": 1} if top_k > 1 and ordered else {})
    assert len(found) == 3 * len(forms)
    for form, choices in forms.items():
        counts = np.zeros(5)
        for b, t, k in itertools.product(range(6), range(1, 17), range(choices)):
            counts[int(layer.selected[b, t, k])] += 1
        shares = counts / counts.sum()
        assert found[f"max_violation{form}"] == pytest.approx(5 * max(shares) - 1)
        variation = np.sqrt(np.mean((counts - counts.mean()) ** 2)) / counts.mean()
        assert found[f"load_cv{form}"] == pytest.approx(variation)
        gini = sum(abs(one - other) for one in shares for other in shares) / (2 * 5)
        assert found[f"load_gini{form}"] == pytest.approx(gini)


@pytest.mark.parametrize(
    ("experts", "expected"), [([0] * 16, (3, 3**0.5, 0.75)), (list(range(4)) * 4, (0, 0, 0))]
)
def test_balance_at_its_ends(experts: list[int], expected: tuple[float, float, float]) -> None:
    layer = chosen(torch.tensor([experts] * 5))
    found = values(Balance(), aligned(layer, layer))
    assert tuple(found[name] for name in ("max_violation", "load_cv", "load_gini")) == pytest.approx(expected)


@pytest.mark.parametrize("layer", [routing(6, seed=2), expert_choice(6, seed=2)], ids=["tokens", "experts"])
def test_variation_against_loops(layer: LayerRouting) -> None:
    found = values(VariationAnalysis(), aligned(layer, layer))
    for of, weights in (("gates", layer.gates), ("weights", layer.weights)):
        terms = []
        for expert in range(5):
            sums = [sum(float(weights[b, t, expert]) for t in range(1, 7)) for b in range(6)]
            mean = sum(sums) / 6
            terms.append(sum((one - mean) ** 2 for one in sums) / 6 / (mean + 1e-6))
        assert found[f"image_variation_{of}"] == pytest.approx(sum(terms) / 5, rel=1e-5)
        most = 6 * (1 - 1 / 5)
        assert found[f"image_variation_{of}_share"] == pytest.approx(sum(terms) / 5 / most, rel=1e-5)


def test_variation_is_most_where_whole_images_go_to_one_expert() -> None:
    layer = chosen((torch.arange(400) % 4)[:, None].expand(400, 16))
    found = values(VariationAnalysis(), aligned(layer, layer))
    # 16 patches, E = 4: S (1 − 1 / E) = 12; ε takes a millionth off.
    assert found["image_variation_gates"] == pytest.approx(12, rel=1e-5)
    assert found["image_variation_gates_share"] == pytest.approx(1, rel=1e-5)


@pytest.mark.parametrize(
    "layer", [routing(6, top_k=2, seed=4), expert_choice(6, seed=4)], ids=["tokens", "experts"]
)
def test_coactivation_against_loops(layer: LayerRouting) -> None:
    have = [
        {int(e) for e in layer.selected[b, t] if e >= 0} for b in range(6) for t in range(1, 7)
    ]  # fmt: skip
    have = [own for own in have if own]
    found = values(Coactivation(), aligned(layer, layer))
    assert len(found) == 2 * 10
    for one, other in itertools.combinations(range(5), 2):
        both = sum({one, other} <= own for own in have) / len(have)
        alone = [sum(e in own for own in have) / len(have) for e in (one, other)]
        assert found["coactivation", one, other] == pytest.approx(both)
        assert found["coactivation_lift", one, other] == pytest.approx(both / (alone[0] * alone[1]))


def test_the_lift_of_even_random_choices() -> None:
    """E (K − 1) / (K (E − 1)) = 5 · 1 / (2 · 4) = 0.625 for 2 of 5."""
    layer = routing(400, grid=(8, 8), top_k=2)
    found = values(Coactivation(), aligned(layer, layer))
    lifts = [value for (name, *_), value in found.items() if name == "coactivation_lift"]
    assert np.mean(lifts) == pytest.approx(0.625, abs=0.01)


def boards() -> tuple[torch.Tensor, np.ndarray, torch.Tensor]:
    """Pixels, labels, and which of the eight colors ``(56, 16)`` each patch has."""
    data = Checkerboard(split="test", location=None)
    pixels = torch.stack([Framing(32).clean(data.example(i).image).pixels for i in range(len(data))])
    corner = pixels[:, :, ::8, ::8].flatten(2)
    return pixels, data.labels(), (corner * torch.tensor([4, 2, 1])[:, None]).sum(1).long()


@pytest.mark.parametrize(
    ("by", "same_color", "same_place"), [("color", 1.0, 0.0), ("place", None, 1.0), ("pair", 1.0, 1.0)]
)
def test_color_bias_of_planted_routers(by: str, same_color: float | None, same_place: float) -> None:
    pixels, labels, color = boards()
    experts = {
        "color": color,
        "place": torch.arange(16).expand(56, 16) % 8,
        "pair": torch.from_numpy(labels % 8)[:, None].expand(56, 16),
    }[by]
    layer = chosen(experts, num_experts=8)
    found = values(ColorBias(), dataclasses.replace(aligned(layer, layer), pixels=pixels), label=labels)
    assert found["same_place"] == same_place
    if same_color is not None:
        assert found["same_color"] == same_color
        assert found["same_color_kappa"] == 1
    else:
        assert abs(found["same_color_kappa"]) < 0.15
    assert (found["same_place_kappa"] == 1) == (same_place == 1)


def test_color_bias_against_loops() -> None:
    pixels, labels, color = boards()
    layer = expert_choice(56, grid=(4, 4), seed=1, num_experts=8, capacity=4)
    pair = dataclasses.replace(aligned(layer, layer), pixels=pixels)
    own = [
        [{int(e) for e in layer.selected[b, t] if e >= 0} for t in range(1, 17)] for b in range(56)
    ]  # fmt: skip

    def same(one: set[int], other: set[int]) -> float:
        return len(one & other) / (len(one) * len(other))

    in_color = [
        same(own[b][i], own[b][j])
        for b in range(56) for i, j in itertools.permutations(range(16), 2)
        if color[b, i] == color[b, j] and own[b][i] and own[b][j]
    ]  # fmt: skip
    in_place = [
        same(own[b][i], own[b + 1][i])
        for b in range(0, 56, 2)
        for i in range(16)
        if own[b][i] and own[b + 1][i]
    ]
    found = values(ColorBias(), pair, label=labels)
    assert found["same_color"] == pytest.approx(np.mean(in_color))
    assert found["same_place"] == pytest.approx(np.mean(in_place))
    columns = {name: column.numpy() for name, column in ColorBias().sums(pair)["patch"].items()} | {
        "label": labels
    }
    (share, *_) = [e for e in ColorBias().estimators(columns, aligned=True) if e.name == "same_place"]
    # Two boards of one pair of colors are one observation.
    assert np.count_nonzero(share.trials) == 28 and share.trials.sum() == len(in_place)


def test_boards_are_cells_of_two_colors_and_their_inverse() -> None:
    data = Checkerboard(split="val", location="3x4")
    assert len(data) == 56 and data.num_classes == 28
    for first in range(0, 56, 2):
        one, other = (np.asarray(data.example(first + k).image) for k in (0, 1))
        assert one.shape == (12, 12, 3)
        for row, column in np.ndindex(12, 12):
            source = one if (row // 3 + column // 3) % 2 == 0 else other
            assert (source[row, column] == one[0, 0]).all()
        assert (one[0, 0] != other[0, 0]).any()
    assert len({data.example(i).image.tobytes() for i in range(56)}) == 56
