"""Matches, chance levels and kappa, counted patch by patch."""

import collections
import dataclasses
import itertools
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from moeprobe.metrics.analyses.match import Match, kinds
from moeprobe.metrics.stats.alike import encode
from moeprobe.metrics.stats.statistic import Ratio
from moeprobe.routing.record import LayerPair, LayerRouting
from tests.metrics.pairing import token_id, tokens_of, with_tokens
from tests.routing.routings import aligned, routing


def scattered(layer: LayerRouting, seed: int = 0) -> LayerPair:
    """Pairs as crops make them: other patches on either side, several to one, some without a partner."""
    random = torch.Generator().manual_seed(seed)
    view = routing(len(layer.gates), top_k=layer.top_k, prefix=layer.num_prefix_tokens, seed=seed + 100)
    shape = (len(layer.gates), 6)
    sides = [torch.randint(0, 6, shape, generator=random) for _ in range(2)]
    none = torch.rand(shape, generator=random) < 0.3
    reference, other = (side.masked_fill(none, -1) for side in sides)
    return LayerPair(layer, view, reference, other, aligned=False)


def hit(one: list[int], two: list[int], name: str) -> bool:
    depth = int(name.split("_", maxsplit=1)[0].removeprefix("top"))
    one, two = one[:depth], two[:depth]
    return sorted(one) == sorted(two) if "_set_" in name else one == two


def compared(pair: LayerPair, tokens: str) -> list[tuple[int, int, list[int], list[int]]]:
    """Every trial as (image, slot, choices of the reference, of the view)."""
    prefix, found = pair.reference.num_prefix_tokens, []
    for image, slot in itertools.product(range(len(pair.view.gates)), range(pair.reference_patch.shape[1])):
        if tokens == "prefix":
            if slot >= prefix:
                continue
            sides = [(pair.reference, slot), (pair.view, slot)]
        else:
            patches = int(pair.reference_patch[image, slot]), int(pair.view_patch[image, slot])
            if -1 in patches:
                continue
            sides = [(pair.reference, patches[0] + prefix), (pair.view, patches[1] + prefix)]
        if all(layer.valid[image, token] and layer.selected[image, token, 0] >= 0 for layer, token in sides):
            one, two = (layer.selected[image, token].tolist() for layer, token in sides)
            found.append((image, slot, one, two))
    return found


def pairs() -> dict[str, LayerPair]:
    valid = torch.rand(4, 7, generator=torch.Generator().manual_seed(9)) < 0.7
    return {
        "aligned": aligned(routing(4, seed=1), routing(4, seed=2)),
        "crops": scattered(routing(4, seed=3)),
        "one choice": scattered(routing(4, top_k=1, seed=4)),
        "three choices, no prefix": scattered(routing(4, top_k=3, prefix=0, seed=5)),
        "padding": aligned(routing(4, seed=6, valid=valid), routing(4, seed=7)),
        "choices missing": aligned(routing(4, seed=8, absent=0.4), routing(4, seed=9, absent=0.4)),
        "nothing chosen": aligned(
            routing(4, top_k=1, seed=8, absent=0.4), routing(4, top_k=1, seed=9, absent=0.4)
        ),
    }


@pytest.mark.parametrize("case", pairs())
def test_sums_by_a_loop(case: str) -> None:
    pair = pairs()[case]
    sums = Match().sums(pair)
    assert set(sums) == ({"patch", "prefix"} if pair.reference.num_prefix_tokens else {"patch"})
    for tokens, columns in sums.items():
        trials = compared(pair, tokens)
        for image in range(4):
            own = [trial for trial in trials if trial[0] == image]
            assert columns["trials"][image] == len(own)
            for name in (metric.name for metric, *_ in kinds(pair.view.top_k)):
                expected = sum(hit(one, two, name) for _, _, one, two in own)
                assert columns[name][image] == expected, (tokens, name)
            kept, other = (columns[f"{side}_selected"][image] for side in ("reference", "view"))
            assert kept[(kept[:, 0] >= 0) & (other[:, 0] >= 0)].tolist() == [one for _, _, one, _ in own]


def _token_of(pair: LayerPair, tokens: str, trial: tuple) -> int:
    return token_id(pair, tokens, trial[0], trial[1])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("case", pairs())
def test_metrics_by_a_loop(case: str, known: bool) -> None:
    pair = with_tokens(pairs()[case]) if known else pairs()[case]
    weights = np.array([[1, 0], [1, 2], [1, 1], [1, 0]], dtype=float)
    for tokens, columns in Match().sums(pair).items():
        trials = compared(pair, tokens)
        labels = np.arange(4) % 2
        arrays = {name: column.numpy() for name, column in columns.items()} | {"label": labels}
        metrics = {
            (m.name, m.null): m for m in Match(class_null=True).estimators(arrays, aligned=pair.aligned)
        }
        assert not any(m.null == "class" for m in Match().estimators(arrays, aligned=pair.aligned))
        nulls = (
            ["pooled", "class"]
            + (["position"] if pair.aligned else [])
            + (["token"] if known else [])
            + (["image"] if tokens == "patch" else [])
        )
        names = [metric.name for metric, *_ in kinds(pair.view.top_k)]
        expected = [(name, "") for name in names]
        expected += [(f"{n}_{what}", null) for n in names for what in ("chance", "kappa") for null in nulls]
        # Of texts, each text alike beside all tokens alike.
        expected += [("match_by_input", "")] if known and names[-1] in columns else []
        assert sorted(metrics) == sorted(expected)
        for name, null, column in itertools.product(names, nulls, range(2)):
            weight = weights[:, column]
            strata: dict[str, Callable[[tuple], object]] = {
                "pooled": lambda trial: 0,
                "position": lambda trial: trial[1],
                "image": lambda trial: trial[0],
                "class": lambda trial: (trial[0] % 2, trial[1] if pair.aligned else 0),
                "token": partial(_token_of, pair, tokens),
            }

            shown = {(image, place): own for image, place, *own in tokens_of(pair, tokens)}

            def another(a: tuple, b: tuple, null: str = null, shown: dict = shown) -> bool:
                """Whether b is chance for a: another image's, or of its image without a patch in common."""
                if null != "image":
                    return a[0] != b[0]
                return all(one != two for one, two in zip(shown[a[:2]], shown[b[:2]], strict=True))

            members = collections.defaultdict(list)
            for trial in trials:
                members[strata[null](trial)].append(trial)
            # Without any such pair in its stratum a trial has no chance level.
            used = [
                trial
                for inside in members.values()
                if any(another(a, b) for a, b in itertools.product(inside, inside))
                for trial in inside
            ]
            total = sum(weight[image] for image, *_ in used)
            hits = sum(weight[image] * hit(one, two, name) for image, _, one, two in used)
            match = hits / total if total else np.nan
            agree, counted = 0.0, 0.0
            for stratum in {strata[null](trial) for trial in used}:
                inside = [trial for trial in used if strata[null](trial) == stratum]
                size = sum(weight[t[0]] for t in inside)
                pairs_of = [(a, b) for a in inside for b in inside if another(a, b)]
                number = sum(weight[a[0]] * weight[b[0]] for a, b in pairs_of)
                products = [weight[a[0]] * weight[b[0]] * hit(a[2], b[3], name) for a, b in pairs_of]
                if number:
                    agree += size * sum(products) / number
                    counted += size
            chance = agree / counted if counted else np.nan
            for metric, value in (
                *([((name, ""), match)] if null == "pooled" else []),
                ((f"{name}_chance", null), chance),
                (
                    (f"{name}_kappa", null),
                    (match - chance) / (1 - chance) if not chance > 1 - 1e-9 else np.nan,
                ),
            ):
                found = metrics[metric].statistic.evaluate(weights)[column]
                assert found == pytest.approx(value, rel=1e-9, nan_ok=True), metric
                here = trials if metric[1] == "" else used
                assert metrics[metric].trials.tolist() == [sum(t[0] == i for t in here) for i in range(4)]


def test_routing_by_image_alone_is_no_match_within_an_image() -> None:
    """Every patch of an image goes to the image's expert: full match, well above chance, and nothing within."""
    expert = torch.arange(40) % 8
    layer = routing(40, grid=(2, 3), num_experts=8, top_k=1, prefix=0)
    layer.selected[..., 0] = expert[:, None]
    columns = Match().sums(aligned(layer, layer))["patch"]
    arrays = {name: column.numpy() for name, column in columns.items()}
    found = {
        (m.name, m.null): m.statistic.evaluate(np.ones((40, 1)))[0]
        for m in Match().estimators(arrays, aligned=True)
    }
    assert found["top1_match", ""] == found["top1_match_kappa", "pooled"] == 1
    assert found["top1_match_chance", "image"] == 1 and np.isnan(found["top1_match_kappa", "image"])


def test_without_correspondence_the_match_within_an_image_is_chance() -> None:
    """Patches drawn from the image's own few experts, independently in both views: kappa within is 0, pooled is not."""
    random = np.random.default_rng(0)
    few = random.integers(0, 8, (500, 1, 2))
    one, two = (np.take_along_axis(few, random.integers(0, 2, (500, 9, 1)), -1)[..., 0] for _ in range(2))
    columns = {
        "trials": np.full(500, 9),
        "top1_match": (one == two).sum(1),
        "reference_selected": one[..., None],
        "view_selected": two[..., None],
        "unmoved": np.ones(500, dtype=int),
    }
    found = {
        (m.name, m.null): m.statistic.evaluate(np.ones((500, 1)))[0]
        for m in Match().estimators(columns, aligned=False)
    }
    # 4,500 trials in 500 images: a standard error of about .01.
    assert abs(found["top1_match_kappa", "image"]) < 0.04 and found["top1_match_kappa", "pooled"] > 0.4


def test_patches_that_meet_in_one_are_not_chance_for_each_other() -> None:
    """Four of twelve patches meet in each of three: a match of .7 with 8 even experts is κ = (.7 − 1/8) / (1 − 1/8)."""
    random = np.random.default_rng(1)
    chosen, partner = random.integers(0, 8, (4000, 3)), np.tile(np.arange(12) // 4, (4000, 1))
    view = np.take_along_axis(chosen, partner, 1)
    kept = random.random((4000, 12)) < 0.7
    reference = np.where(kept, view, (view + random.integers(1, 8, (4000, 12))) % 8)
    columns = {
        "trials": np.full(4000, 12),
        "top1_match": kept.sum(1),
        "reference_selected": reference[..., None],
        "view_selected": view[..., None],
        "reference_token": np.tile(np.arange(12), (4000, 1)),
        "view_token": partner,
    }

    def within(columns: dict[str, np.ndarray], *, aligned: bool = False) -> list[float]:
        return [
            metric.statistic.evaluate(np.ones((4000, 1)))[0]
            for metric in Match().estimators(columns, aligned=aligned)
            if (metric.name, metric.null) == ("top1_match_kappa", "image")
        ]

    expected = (0.7 - 1 / 8) / (1 - 1 / 8)
    assert within(columns) == [pytest.approx(expected, abs=0.01)]
    # Runs that do not say which patches met have no such line, rather than a wrong one.
    older = {name: column for name, column in columns.items() if not name.endswith("_token")}
    assert within(older) == []
    (wrong,) = within(older, aligned=True)
    assert wrong < expected - 0.05


def test_kinds_of_match() -> None:
    assert [metric.name for metric, *_ in kinds(1)] == ["top1_match"]
    assert [metric.name for metric, *_ in kinds(2)] == ["top1_match", "top2_match", "top2_set_match"]
    assert [metric.name for metric, *_ in kinds(4)] == [
        "top1_match", "top2_match", "top2_set_match", "top4_match", "top4_set_match",
    ]  # fmt: skip


def test_the_same_two_experts_in_another_order_are_the_same_set() -> None:
    one = routing(1, grid=(1, 1), prefix=0)
    one.selected[0, 0] = torch.tensor([3, 1])
    two = dataclasses.replace(one, selected=one.selected.flip(-1))
    columns = Match().sums(aligned(one, two))["patch"]
    assert [int(columns[name][0]) for name in ("top1_match", "top2_match", "top2_set_match")] == [0, 0, 1]


def test_where_every_expert_is_chosen_the_set_says_nothing() -> None:
    layer = routing(2, num_experts=3, top_k=3)
    columns = Match().sums(aligned(layer, layer))["patch"]
    assert "top3_match" in columns and "top2_set_match" in columns and "top3_set_match" not in columns
    metrics = Match().estimators({name: column.numpy() for name, column in columns.items()}, aligned=True)
    assert not any(metric.name.startswith("top3_set") for metric in metrics)


def test_what_it_applies_to() -> None:
    assert Match().applies(routing())
    assert not Match().applies(routing(num_experts=1, top_k=1))
    soft = routing()
    assert not Match().applies(dataclasses.replace(soft, selected=soft.selected[..., :0]))


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("experts", [5, 2**20])
def test_codes_are_equal_where_choices_are(experts: int, ordered: bool) -> None:
    rng = np.random.default_rng(0)
    # Few different values, so that rows repeat; the largest and the absent one among them.
    values = rng.choice([-1, 0, experts - 1], (40, 4))
    codes = encode((values if ordered else np.sort(values)) + 1, base=experts + 1)
    rows = [tuple(row if ordered else sorted(row)) for row in values.tolist()]
    for one, two in itertools.combinations(range(40), 2):
        assert (codes[one] == codes[two]) == (rows[one] == rows[two])


def test_a_match_is_a_ratio_of_sums_not_a_mean_of_ratios() -> None:
    columns = {
        "trials": np.array([1, 9]),
        "top1_match": np.array([0, 9]),
        "reference_selected": np.zeros((2, 9, 1), np.int16),
        "view_selected": np.zeros((2, 9, 1), np.int16),
    }
    metric = Match().estimators(columns, aligned=False)[0]
    assert isinstance(metric.statistic, Ratio)
    assert metric.statistic.evaluate(np.ones((2, 1)))[0] == pytest.approx(0.9)
