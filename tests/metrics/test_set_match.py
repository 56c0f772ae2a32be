"""The Jaccard index of the experts of corresponding tokens, set by set and draw by draw."""

import dataclasses
import itertools
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.analyses.set_match import SetMatch, different
from moeprobe.metrics.base import SharedColumns
from moeprobe.metrics.stats.chance.sampled import of_choices
from moeprobe.metrics.stats.chance.sets import SetChance
from moeprobe.routing.record import LayerPair, LayerRouting
from tests.metrics.pairing import chance, kappa, mean, scattered, tokens_of, values, with_tokens
from tests.metrics.stats.trials import chance_of
from tests.routing.routings import aligned, expert_choice, routing

LABELS = np.arange(4) % 2
FIVE = "tokens choose five"
WEIGHTS = np.array([[1, 0], [1, 2], [1, 1], [1, 0]], dtype=float)


def pairs() -> dict[str, LayerPair]:
    valid = torch.rand(4, 7, generator=torch.Generator().manual_seed(9)) < 0.7
    five = partial(routing, 4, top_k=5, num_experts=9)
    many = {"num_experts": 40, "capacity": 2}  # more experts than bits in a word
    return {
        "experts choose": aligned(expert_choice(4, seed=1), expert_choice(4, seed=2)),
        "few are taken": aligned(expert_choice(4, seed=1, capacity=1), expert_choice(4, seed=2, capacity=1)),
        "crops": scattered(expert_choice(4, seed=3, capacity=1), expert_choice(4, seed=4, capacity=1)),
        "padding": aligned(expert_choice(4, seed=5, valid=valid), expert_choice(4, seed=6)),
        "forty experts": aligned(expert_choice(4, seed=7, **many), expert_choice(4, seed=8, **many)),
        "no prefix, crops": scattered(expert_choice(4, prefix=0, seed=1), expert_choice(4, prefix=0, seed=2)),
        "tokens choose two": aligned(routing(4, seed=1), routing(4, seed=2)),
        "tokens choose one": aligned(routing(4, top_k=1, seed=1), routing(4, top_k=1, seed=2)),
        "tokens choose one, crops": scattered(routing(4, top_k=1, seed=3), routing(4, top_k=1, seed=4)),
        FIVE: aligned(five(seed=1), five(seed=2)),
        f"{FIVE}, crops": scattered(five(seed=3), five(seed=4)),
        "choices missing": scattered(
            routing(4, top_k=1, seed=8, absent=0.4), routing(4, top_k=1, seed=9, absent=0.4)
        ),
    }


def index(one: object, other: object) -> float | None:
    """|S ∩ T| / |S ∪ T|; None for two empty sets."""
    assert isinstance(one, frozenset) and isinstance(other, frozenset)
    return len(one & other) / len(one | other) if one | other else None


def sets(pair: LayerPair, tokens: str) -> list[tuple[int, int, object, object]]:
    def experts(layer: LayerRouting, image: int, token: int) -> frozenset[int]:
        return frozenset(e for e in layer.selected[image, token].tolist() if e >= 0)

    return [
        (image, place, experts(pair.reference, image, one), experts(pair.view, image, other))
        for image, place, one, other in tokens_of(pair, tokens)
    ]


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("case", pairs())
def test_every_number_by_a_loop(case: str, known: bool) -> None:
    pair = with_tokens(pairs()[case]) if known else pairs()[case]
    for tokens in SetMatch().sums(pair):
        trials = sets(pair, tokens)
        found = values(SetMatch(class_null=True), pair, tokens, WEIGHTS, LABELS)
        nulls = [
            "pooled",
            "class",
            *(["position"] if pair.aligned else []),
            *(["token"] * known),
            *(["image"] * (tokens == "patch")),
        ]
        names = [("set_jaccard", ""), *itertools.product(("set_jaccard_chance", "set_jaccard_kappa"), nulls)]
        names += [("unserved_both", "")] * pair.view.experts_choose
        assert {key[:2] for key in found} == set(names)
        for column in range(2):
            weight = WEIGHTS[:, column]
            own = [(weight[t[0]], index(t[2], t[3])) for t in trials]
            expected = {("set_jaccard", ""): mean([(w, j) for w, j in own if j is not None])}
            if pair.view.experts_choose:
                expected["unserved_both", ""] = mean([(w, float(j is None)) for w, j in own])
            for null in nulls:
                match, level = chance(
                    trials, weight, null=null, labels=LABELS, pair=pair, tokens=tokens, alike=index
                )
                expected["set_jaccard_chance", null] = level
                expected["set_jaccard_kappa", null] = kappa(match, level)
            for (name, null), value in expected.items():
                assert found[name, null, None][0][column] == pytest.approx(value, rel=1e-9, nan_ok=True), name
        count = [sum(t[0] == i and index(t[2], t[3]) is not None for t in trials) for i in range(4)]
        assert found["set_jaccard", "", None][1] == count
        if pair.view.experts_choose:
            assert found["unserved_both", "", None][1] == [sum(t[0] == i for t in trials) for i in range(4)]


def test_for_sets_of_two_chance_is_that_of_the_formula() -> None:
    """(o + q) / 3: o = Σ_e m_A(e) m_B(e) is the mean overlap, q = Σ_S p_A(S) p_B(S) the share of equal sets."""
    pair = aligned(routing(30, seed=1), routing(30, seed=2))
    one, other = (
        layer.selected[:, 1:].reshape(-1, 2).sort(-1).values.tolist() for layer in (pair.reference, pair.view)
    )
    draws = [
        (set(a), set(b))
        for (i, a), (j, b) in itertools.product(enumerate(one), enumerate(other))
        if i // 6 != j // 6
    ]
    overlap = np.mean([len(a & b) for a, b in draws])
    equal = np.mean([a == b for a, b in draws])
    found = values(SetMatch(), pair, "patch", np.ones((30, 1)))
    assert found["set_jaccard_chance", "pooled", None][0][0] == pytest.approx((overlap + equal) / 3)


def test_sets_of_one_are_codes() -> None:
    """Sets of one expert are as alike as equal codes: the chance of the one is the chance of the other."""
    random = np.random.default_rng(0)
    image, stratum = random.integers(0, 25, 300), random.integers(0, 4, 300)
    reference, view = random.integers(0, 6, (2, 300))
    weights = random.integers(0, 4, (25, 7)).astype(float)
    shared = {"image": image, "reference": reference, "view": view, "stratum": stratum, "num_images": 25}
    one, other = chance_of(**shared), SetChance(**shared, sets=np.eye(6))
    np.testing.assert_allclose(other.evaluate(weights), one.evaluate(weights), rtol=1e-12)
    np.testing.assert_allclose(other.influence(), one.influence(), atol=1e-14)


def test_sets_of_one_share_the_levels_of_first_choices() -> None:
    """What the two analyses say of one expert per token is one computation, but where choices are missing."""

    def shared_levels(absent: float) -> list[bool]:
        one, other = (routing(4, top_k=1, seed=seed, absent=absent) for seed in (1, 2))
        pair = aligned(one, other)
        sums = [analysis.sums(pair)["patch"] for analysis in (Match(), SetMatch())]
        columns = SharedColumns({name: column.numpy() for part in sums for name, column in part.items()})
        match, of_sets = (
            {
                estimator.null: estimator.statistic
                for estimator in analysis.estimators(columns, aligned=True)
                if estimator.name.endswith("_chance")
            }
            for analysis in (Match(), SetMatch())
        )
        assert match.keys() == of_sets.keys() == {"pooled", "position", "image"}
        return [match[null] is of_sets[null] for null in match]

    assert all(shared_levels(0))
    assert not any(shared_levels(0.4))


@pytest.mark.parametrize("experts", [1, 8, 9, 63, 64, 65, 130])
def test_different_sets_are_those_of_numpy(experts: int) -> None:
    rows = (np.random.default_rng(experts).random((500, experts)) < 2 / experts).astype(np.float32)
    rows[7] = 0
    expected, which = np.unique(rows, axis=0, return_inverse=True)
    chosen = np.where(rows > 0, np.arange(experts), -1)
    packed = of_choices(chosen, experts)
    assert np.array_equal(packed.members()[:, :experts], rows)
    first, number = different(packed.words)
    assert len(first) == len(expected)
    assert np.array_equal(rows[first][number], expected[which.reshape(-1)])


def test_independent_sets_have_no_kappa_however_many_are_empty() -> None:
    """Each side deals its sets out anew, a third of them empty: 4,000 images leave kappa within .02 of 0."""
    random = np.random.default_rng(1)
    chosen = np.where(random.random((2, 4000, 4, 2)) < 0.6, random.integers(0, 5, (2, 4000, 4, 2)), -1)
    layers = []
    for side in chosen:
        selected = torch.from_numpy(side).to(torch.int16)
        blank = routing(4000, grid=(2, 2), prefix=0)
        layers.append(
            dataclasses.replace(blank, selected=selected, processed=selected >= 0, experts_choose=True)
        )
    found = values(SetMatch(), aligned(*layers), "patch", np.ones((4000, 1)))
    assert 0.02 < found["unserved_both", "", None][0][0] < 0.03  # (.4²)² = .0256
    for null in ("pooled", "position", "image"):
        assert abs(found["set_jaccard_kappa", null, None][0][0]) < 0.02


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 999),
    capacity=st.integers(1, 6),
    num_experts=st.integers(2, 35),
    prefix=st.integers(0, 2),
)
def test_the_same_routing_agrees_wholly_and_images_have_no_order(
    seed: int, capacity: int, num_experts: int, prefix: int
) -> None:
    one, other = (
        expert_choice(5, seed=seed + step, capacity=capacity, num_experts=num_experts, prefix=prefix)
        for step in (0, 1)
    )
    weights = np.ones((5, 1))
    same = values(SetMatch(), aligned(one, one), "patch", weights)
    assert same["set_jaccard", "", None][0] == 1
    for (name, _, _), (value, _) in same.items():
        assert not name.endswith("_kappa") or np.isnan(value[0]) or value[0] == pytest.approx(1)
    order = np.random.default_rng(seed).permutation(5)
    shuffled = [
        dataclasses.replace(
            layer,
            **{name: getattr(layer, name)[order] for name in ("gates", "selected", "processed", "valid")},
        )
        for layer in (one, other)
    ]
    plain = values(SetMatch(), aligned(one, other), "patch", weights)
    mixed = values(SetMatch(), aligned(*shuffled), "patch", weights)
    for key, (value, trials) in plain.items():
        assert mixed[key][0] == pytest.approx(value, rel=1e-12, nan_ok=True)
        assert mixed[key][1] == [trials[i] for i in order]


@pytest.mark.parametrize(
    ("top_k", "null", "images", "trials", "expected"),
    [
        (3, "pooled", 1000, 10**6, "exact"),
        (4, "pooled", 100, 2048, "exact"),
        (4, "pooled", 100, 2049, "sampled"),
        (None, "position", 100, 3000, "sampled"),
        (8, "image", 100, 3200, "exact"),
        (8, "image", 100, 3300, "sampled"),
    ],
)
def test_a_table_says_whether_its_chance_was_sampled(
    top_k: int | None, null: str, images: int, trials: int, expected: str
) -> None:
    row = {"metric": "set_jaccard_chance", "null": null, "top_k": top_k, "images": images, "trials": trials}
    assert SetMatch.facts(pd.DataFrame([row])) == {"chance": expected}
    assert SetMatch.facts(pd.DataFrame([row | {"metric": "top1_match_chance"}])) == {}
