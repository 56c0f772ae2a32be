"""Slots, combine weights, churn and tokens without experts, counted token by token."""

import dataclasses
import functools
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.distance import cosine, jensenshannon

from moeprobe.metrics import token_kinds
from moeprobe.metrics.analyses import weights
from moeprobe.metrics.analyses.churn import Churn
from moeprobe.metrics.analyses.set_match import SetMatch
from moeprobe.metrics.analyses.slot_match import SlotMatch
from moeprobe.metrics.analyses.unserved import Unserved
from moeprobe.metrics.analyses.weights import WeightsAnalysis
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.routing.record import LayerPair, LayerRouting
from tests.metrics.pairing import chance, kappa, mean, scattered, tokens_of, values
from tests.routing.routings import aligned, expert_choice, routing, soft

LABELS = np.arange(4) % 2
WEIGHTS = np.array([[1, 0], [1, 2], [1, 1], [1, 0]], dtype=float)
VALID = torch.rand(4, 7, generator=torch.Generator().manual_seed(9)) < 0.7


def dropping(layer: LayerRouting, share: float = 0.4) -> LayerRouting:
    """A share of the choices finds no room."""
    kept = torch.rand(layer.processed.shape, generator=torch.Generator().manual_seed(5)) > share
    return dataclasses.replace(layer, processed=layer.processed & kept)


@functools.cache
def pairs() -> dict[str, LayerPair]:
    return {
        "soft": aligned(soft(4, seed=1), soft(4, seed=2)),
        "soft, crops": scattered(soft(4, seed=3, prefix=0), soft(4, seed=4, prefix=0)),
        "soft, padding": aligned(soft(4, seed=5, valid=VALID), soft(4, seed=6)),
        "experts choose": aligned(expert_choice(4, seed=1, capacity=2), expert_choice(4, seed=2, capacity=1)),
        "experts choose, crops": scattered(expert_choice(4, seed=1), expert_choice(4, seed=2)),
        "tokens choose": aligned(routing(4, seed=1), routing(4, seed=2, valid=VALID)),
        "tokens choose one": aligned(routing(4, top_k=1, seed=3), routing(4, top_k=1, seed=4, valid=VALID)),
        "tokens are dropped": scattered(
            dropping(routing(4, top_k=1, seed=1)), dropping(routing(4, top_k=1, seed=2))
        ),
    }


HARD = [case for case, pair in pairs().items() if pair.view.top_k]
SOFT = [case for case, pair in pairs().items() if not pair.view.top_k]


@pytest.mark.parametrize("case", SOFT)
def test_slots_by_a_loop(case: str) -> None:
    pair = pairs()[case]
    assert pair.reference.slot is not None and pair.view.slot is not None
    for tokens in SlotMatch().sums(pair):
        trials: list[tuple[int, int, object, object]] = [
            (image, place, int(pair.reference.slot[image, one]), int(pair.view.slot[image, other]))
            for image, place, one, other in tokens_of(pair, tokens)
        ]
        found = values(SlotMatch(class_null=True), pair, tokens, WEIGHTS, LABELS)
        nulls = [
            "pooled",
            "class",
            *(["position"] if pair.aligned else []),
            *(["image"] * (tokens == "patch")),
        ]
        names = [("slot_match", ""), *itertools.product(("slot_match_chance", "slot_match_kappa"), nulls)]
        assert {key[:2] for key in found} == set(names)
        assert found["slot_match", "", None][1] == [sum(t[0] == i for t in trials) for i in range(4)]
        for column, null in itertools.product(range(2), nulls):
            weight = WEIGHTS[:, column]
            raw = mean([(weight[t[0]], float(t[2] == t[3])) for t in trials])
            match, level = chance(
                trials,
                weight,
                null=null,
                labels=LABELS,
                pair=pair,
                tokens=tokens,
                alike=lambda a, b: float(a == b),
            )
            for key, value in {
                ("slot_match", ""): raw,
                ("slot_match_chance", null): level,
                ("slot_match_kappa", null): kappa(match, level),
            }.items():
                assert found[*key, None][0][column] == pytest.approx(value, rel=1e-9, nan_ok=True)


def combined(layer: LayerRouting, image: int, token: int) -> np.ndarray | None:
    """What the combination gives each expert for a token; None where that is nothing."""
    gates = layer.gates[image, token].double().numpy()
    if layer.top_k:
        used = np.zeros_like(gates)
        for expert, processed in zip(
            layer.selected[image, token].tolist(), layer.processed[image, token].tolist(), strict=True
        ):
            if expert >= 0 and processed:
                used[expert] = gates[expert]
        gates = used
    return gates if gates.any() else None


@pytest.mark.parametrize("at_once", [1, 7, 2**18])
@pytest.mark.parametrize("few", [0, 1000])
@pytest.mark.parametrize("case", pairs())
def test_weights_by_a_loop(case: str, few: int, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows compared by their few entries and as a whole, however many pairs are compared at once."""
    monkeypatch.setattr(weights, "FEW_ENTRIES", few)
    monkeypatch.setattr(token_kinds, "NUMBERS_AT_ONCE", at_once)
    pair = pairs()[case]
    for tokens in WeightsAnalysis().sums(pair):
        every = [
            (image, place, combined(pair.reference, image, one), combined(pair.view, image, other))
            for image, place, one, other in tokens_of(pair, tokens)
        ]
        trials: list[tuple[int, int, object, object]] = [
            t for t in every if t[2] is not None and t[3] is not None
        ]
        found = values(WeightsAnalysis(), pair, tokens, WEIGHTS)
        inside = tokens == "patch"
        expected_names = {("weight_cosine", ""), ("weight_distance", "")}
        expected_names |= {(f"weight_cosine_{what}", "pooled") for what in ("chance", "kappa")}
        if inside:
            sums = itertools.product(("weight_cosine", "weight_distance"), ("chance", "kappa"))
            expected_names |= {(f"{name}_{what}", "image") for name, what in sums}
        expected_names |= {("unweighted", "")} if pair.view.top_k else set()
        assert {key[:2] for key in found} == expected_names
        assert found["weight_cosine", "", None][1] == [sum(t[0] == i for t in trials) for i in range(4)]
        for column in range(2):
            weight = WEIGHTS[:, column]
            expected = {}
            for name, alike in (("cosine", cosine), ("distance", _distance)):
                likeness = lambda a, b, alike=alike: 1 - alike(a, b)  # noqa: E731
                raw = mean([(weight[t[0]], likeness(t[2], t[3])) for t in trials])
                expected[f"weight_{name}", ""] = raw if name == "cosine" else 1 - raw
                for null in ("pooled", "image") if name == "cosine" else ("image",):
                    match, level = chance(
                        trials, weight, null=null, labels=LABELS, pair=pair, tokens=tokens, alike=likeness
                    )
                    expected[f"weight_{name}_chance", null] = level if name == "cosine" else 1 - level
                    expected[f"weight_{name}_kappa", null] = kappa(match, level)
            expected["unweighted", ""] = mean(
                [(weight[t[0]], float(t[2] is None or t[3] is None)) for t in every]
            )
            for key in expected_names:
                value = expected[key]
                assert found[*key, None][0][column] == pytest.approx(value, abs=2e-6, nan_ok=True), key


def _distance(one: np.ndarray, other: np.ndarray) -> float:
    return float(jensenshannon(one, other, base=2))


@pytest.mark.parametrize("case", HARD)
def test_churn_by_a_loop(case: str) -> None:
    pair = pairs()[case]

    def experts(layer: LayerRouting, image: int, token: int) -> set[int]:
        both = zip(layer.selected[image, token].tolist(), layer.processed[image, token].tolist(), strict=True)
        return {expert for expert, processed in both if expert >= 0 and processed}

    trials = [
        (image, place, experts(pair.reference, image, one), experts(pair.view, image, other))
        for image, place, one, other in tokens_of(pair, "patch")
    ]
    shown = {(image, place): own for image, place, *own in tokens_of(pair, "patch")}
    found = values(Churn(), pair, "patch", WEIGHTS)
    assert len(found) == 5 + 5  # in all with two nulls, and of five experts
    for column in range(2):
        weight = WEIGHTS[:, column]
        for expert in (None, *range(5)):
            lost = [
                (weight[image], float(e not in after))
                for image, _, before, after in trials
                for e in before
                if expert in (None, e)
            ]
            assert found["churn", "", expert][0][column] == pytest.approx(mean(lost), nan_ok=True)
        for null in ("pooled", "image"):
            stays, drawn = [], []
            for image in range(4):
                own = [t for t in trials if t[0] == image]
                if null == "pooled":
                    pairs_of = [(a, b) for a, b in itertools.product(own, trials) if b[0] != image]
                else:
                    pairs_of = [
                        (a, b)
                        for a, b in itertools.product(own, own)
                        if all(x != y for x, y in zip(shown[a[:2]], shown[b[:2]], strict=True))
                    ]
                had = sum(len(a[2]) for a, _ in pairs_of)
                if had == 0:
                    continue
                stays += [(weight[image], float(e in a[3])) for a in own for e in a[2]]
                # Between images all pairs count alike; an image by itself counts as often as it has experts to keep.
                scale = 1 if null == "pooled" else sum(len(a[2]) for a in own) / had
                drawn += [
                    (scale * weight[image] * (weight[b[0]] if null == "pooled" else 1), float(e in b[3]))
                    for a, b in pairs_of
                    for e in a[2]
                ]
            level = mean(drawn)
            assert found["churn_chance", null, None][0][column] == pytest.approx(1 - level, nan_ok=True)
            expected = kappa(mean(stays), level)
            assert found["churn_kappa", null, None][0][column] == pytest.approx(expected, nan_ok=True)
    of = [t[0] for t in trials for _ in t[2]]
    assert found["churn", "", None][1] == [of.count(image) for image in range(4)]


@pytest.mark.parametrize("case", HARD)
def test_tokens_without_experts_by_a_loop(case: str) -> None:
    layer = pairs()[case].view
    pair = aligned(layer, layer)
    for tokens, places in (("patch", range(1, 7)), ("prefix", range(1))):
        there = [(i, t) for i in range(4) for t in places if layer.valid[i, t]]
        alone = [
            (1.0, float(not (layer.processed[i, t] & (layer.selected[i, t] >= 0)).any())) for i, t in there
        ]
        value, trials = values(Unserved(), pair, tokens, np.ones((4, 1)))["unserved", "", None]
        assert value[0] == pytest.approx(mean(alone))
        assert trials == [sum(i == image for i, _ in there) for image in range(4)]


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999), kind=st.sampled_from([routing, expert_choice, soft]), prefix=st.integers(0, 1)
)
def test_what_does_not_move_is_steady(seed: int, kind: object, prefix: int) -> None:
    assert callable(kind)
    layer = kind(4, seed=seed, prefix=prefix)
    pair = aligned(layer, layer)
    found = values(WeightsAnalysis(), pair, "patch", np.ones((4, 1)))
    assert found["weight_distance", "", None][0][0] == 0
    assert found["weight_cosine", "", None][0][0] == pytest.approx(1, abs=1e-6)
    assert found["weight_distance_kappa", "image", None][0][0] == pytest.approx(1)
    assert found["weight_cosine_kappa", "pooled", None][0][0] == pytest.approx(1, abs=1e-5)
    if layer.top_k:
        found = values(Churn(), pair, "patch", np.ones((4, 1)))
        assert found["churn", "", None][0][0] == 0 and found["churn_kappa", "pooled", None][0][0] == 1
    else:
        assert values(SlotMatch(), pair, "patch", np.ones((4, 1)))["slot_match", "", None][0][0] == 1


def test_one_expert_for_all_has_collapsed_by_every_measure() -> None:
    layer = routing(4, top_k=1)
    layer.selected[...] = 2
    found = values(WeightsAnalysis(), aligned(layer, layer), "patch", np.ones((4, 1)))
    assert found["weight_cosine_chance", "pooled", None][0][0] == 1
    assert all(np.isnan(value[0]) for (name, _, _), (value, _) in found.items() if name.endswith("_kappa"))
    found = values(Churn(), aligned(layer, layer), "patch", np.ones((4, 1)))
    assert found["churn_chance", "pooled", None][0][0] == 0
    assert all(np.isnan(value[0]) for (name, _, _), (value, _) in found.items() if name.endswith("_kappa"))
    same = dataclasses.replace(soft(4), gates=torch.full((4, 7, 5), 0.2))
    found = values(WeightsAnalysis(), aligned(same, same), "patch", np.ones((4, 1)))
    assert all(np.isnan(value[0]) for (name, _, _), (value, _) in found.items() if name.endswith("_kappa"))


@pytest.mark.parametrize("case", ["experts choose", "experts choose, crops"])
@pytest.mark.parametrize("analysis", [WeightsAnalysis(), Churn()])
def test_what_older_runs_recorded_is_used_where_nothing_moved_and_left_out_elsewhere(
    analysis: LayerAnalysis, case: str
) -> None:
    """They lack the sums over pairs of patches without one in common: of aligned views those are all pairs."""
    pair = pairs()[case]
    columns = {name: column.numpy() for name, column in analysis.sums(pair)["patch"].items()}
    later = ("weight_others", "weight_cosine_others", "churn_kept_by_others", "churn_had_by_others")
    older = {name: column for name, column in columns.items() if name not in later}
    new, old = (
        {
            (metric.name, metric.null, metric.expert): metric.statistic.evaluate(WEIGHTS)
            for metric in analysis.estimators(each, aligned=pair.aligned)
        }
        for each in (columns, older)
    )
    assert pair.aligned == (new.keys() == old.keys())
    assert {key for key in new if key not in old} == {
        key for key in new if key[1] == "image" and not pair.aligned
    }
    for key, value in old.items():
        assert value == pytest.approx(new[key], rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("num_experts", [3, 7, 8, 11])
@pytest.mark.parametrize("grid", [(1, 2), (4, 4), (14, 14)])
def test_gates_that_are_all_alike_have_no_kappa_whatever_their_sums_are_rounded_to(
    num_experts: int, grid: tuple[int, int]
) -> None:
    layer = soft(4, num_experts=num_experts, grid=grid)
    same = dataclasses.replace(layer, gates=torch.randn(num_experts).softmax(-1).expand_as(layer.gates))
    found = values(WeightsAnalysis(), aligned(same, same), "patch", np.ones((4, 1)))
    assert all(np.isnan(value[0]) for (name, _, _), (value, _) in found.items() if name.endswith("_kappa"))


@pytest.mark.parametrize(
    ("analysis", "layer"),
    [
        (SetMatch(), expert_choice(4)),
        (SlotMatch(), soft(4)),
        (WeightsAnalysis(), soft(4)),
        (WeightsAnalysis(), expert_choice(4)),
        (Churn(), expert_choice(4)),
    ],
)
def test_where_nothing_corresponds_there_are_no_values(analysis: LayerAnalysis, layer: LayerRouting) -> None:
    nothing = torch.full((4, 6), -1)
    found = values(analysis, LayerPair(layer, layer, nothing, nothing, aligned=True), "patch", WEIGHTS)
    assert all(np.isnan(value).all() and not any(trials) for value, trials in found.values())


def test_padding_may_hold_anything() -> None:
    layer = soft(4, valid=VALID)
    spoilt = dataclasses.replace(layer, gates=layer.gates.masked_fill(~VALID[..., None], torch.nan))
    one, other = (values(WeightsAnalysis(), aligned(a, a), "patch", np.ones((4, 1))) for a in (layer, spoilt))
    assert all(other[key][0] == pytest.approx(value, nan_ok=True) for key, (value, _) in one.items())


@pytest.mark.parametrize("num_experts", [8, 64])
def test_weights_that_have_not_moved_have_a_cosine_of_exactly_one(num_experts: int) -> None:
    """Summed in float32 it was 1.00000002, and the next router's 0.99999998 looked worse."""
    layer = soft(4, grid=(14, 14), num_experts=num_experts)
    found = WeightsAnalysis().sums(aligned(layer, layer))["patch"]
    assert torch.equal(found["weight_cosine"], found["weight_trials"].double())
    moved = dataclasses.replace(layer, gates=layer.gates.roll(1, -1))
    assert (
        WeightsAnalysis().sums(aligned(layer, moved))["patch"]["weight_cosine"] < found["weight_trials"]
    ).all()


@pytest.mark.parametrize("case", ["tokens choose one", "tokens are dropped"])
def test_single_experts_weigh_as_if_there_was_room_for_a_second(case: str) -> None:
    pair = pairs()[case]

    def with_room(layer: LayerRouting) -> LayerRouting:
        selected = torch.cat([layer.selected, torch.full_like(layer.selected, -1)], -1)
        processed = torch.cat([layer.processed, torch.zeros_like(layer.processed)], -1)
        return dataclasses.replace(layer, selected=selected, processed=processed)

    counted = WeightsAnalysis().sums(pair)
    general = WeightsAnalysis().sums(
        dataclasses.replace(pair, reference=with_room(pair.reference), view=with_room(pair.view))
    )
    for tokens, columns in general.items():
        assert list(counted[tokens]) == list(columns)
        for name, column in columns.items():
            assert counted[tokens][name].dtype == column.dtype
            torch.testing.assert_close(
                counted[tokens][name], column, rtol=0, atol=1e-6 if "distance" in name else 0
            )
