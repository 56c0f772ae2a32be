"""What holds for every declared metric; a new one is tested the moment the file of its analysis exists."""

import itertools
import re

import numpy as np
import pytest

from moeprobe.metrics import registry
from moeprobe.metrics.declaration import CHANCE, KAPPA, NULLS, Estimator, Metric, MetricFamily
from moeprobe.metrics.registry import applicable
from moeprobe.metrics.stats.statistic import is_carried
from moeprobe.results.columns import COLUMNS
from moeprobe.runtime import catalog
from tests.contracts.test_analyses import AGGREGATES, EVERY, examples, metrics_of, sums
from tests.routing.routings import aligned, expert_choice, routing, soft

METRICS = [
    one.representative if isinstance(one, MetricFamily) else one for one in registry.all_declarations()
]
# Their rows follow from those of several cells: tests/probes/test_margins.py and test_experts.py
# have them, and tests/probes/test_coverage.py.
FROM_SEVERAL_CELLS = (
    "set_survival_band",
    "experts_price_band",
    "experts_price_beyond",
    "experts_dispensable",
    "experts_price_among",
    "experts_prices_differ_p",
    "experts_missed_rate",
    "experts_measured",
    "experts_covered",
    "experts_covered_even",
    "tokens_needed",
    "tokens_needed_even",
    "inputs_needed",
    "experts_below",
    "subset_tokens",
    "subset_inputs",
)
FAMILIES = [one for one in registry.all_declarations() if isinstance(one, MetricFamily)]


def estimators(name: str) -> list[Estimator]:
    """All that an analysis computes on the examples, matches with every null."""
    return [
        estimator
        for pair in examples(name)
        for columns in sums(name, pair).values()
        for estimator in metrics_of(
            AGGREGATES[name],
            {key: column.numpy() for key, column in columns.items()} | {"label": np.arange(5) % 2},
        )
    ]


@EVERY
def test_what_is_computed_is_declared_and_what_is_declared_is_computed(name: str) -> None:
    computed = [(estimator, registry.find(estimator.name)) for estimator in estimators(name)]
    for estimator, form in computed:
        assert form.declared, estimator.name
        assert form.name == estimator.name
        assert name in registry.analyses_of(estimator.name)
        assert estimator.null in (form.metric.nulls if form.kind != "raw" else ("",)), estimator.key
    for one in catalog.ANALYSES.get(name).measures:
        if one.name in FROM_SEVERAL_CELLS:
            continue
        assert any(form.kind == "raw" and registry.covers(one, form.name) for _, form in computed), one.name
        own = [(e, form) for e, form in computed if registry.covers(one, form.metric.name)]
        for null, kind in itertools.product(
            () if isinstance(one, MetricFamily) else one.nulls, ("chance", "kappa")
        ):
            assert any(e.null == null and form.kind == kind for e, form in own), (one.name, null, kind)


@EVERY
def test_means_of_losses_know_what_each_image_adds(name: str) -> None:
    """Whatever counts nats is guarded against the few images that may carry it."""
    for estimator in estimators(name):
        if registry.find(estimator.name).metric.unit == "nats":
            assert is_carried(estimator.statistic), estimator.name
            added, value = (
                estimator.statistic.contributions(),
                estimator.statistic.evaluate(np.ones((5, 1)))[0],
            )
            assert added.shape == (5,) and added.sum() == pytest.approx(
                value, rel=1e-5, abs=1e-8, nan_ok=True
            )


def test_names_are_said_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names) and len(set(registry.names())) == len(registry.names())
    for name in names:
        assert sum(registry.covers(one, name) for one in registry.all_declarations()) == 1, name


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_declaration_can_be_read(metric: Metric) -> None:
    assert metric.about and not metric.about.endswith(".")
    assert not metric.name.endswith((CHANCE, KAPPA))
    assert set(metric.nulls) <= set(NULLS)
    for other in (metric.below, metric.collapse_of):
        assert not other or registry.find(other).declared
    assert registry.find(metric.name).metric == metric


def test_the_column_of_chance_levels_names_each_of_them() -> None:
    assert set(NULLS) <= set(re.findall(r"\w+", COLUMNS["null"]))


def test_families_hold_the_name_of_their_example() -> None:
    for family in FAMILIES:
        assert family.find(family.representative.name) == family.representative
        assert family.find("accuracy") is None


@pytest.mark.parametrize(
    ("column", "metric", "kind", "direction", "label"),
    [
        ("churn", "churn", "raw", -1, "churn: tokens an expert lost"),
        ("churn_kappa", "churn", "kappa", 1, "κ of churn: tokens an expert lost, within image"),
        ("churn_chance", "churn", "chance", 0, "chance of churn: tokens an expert lost, image"),
        ("top7_set_match_kappa", "top7_set_match", "kappa", 1, "κ of top-7 match, any order, within image"),
        ("switches_above_1e-06", "switches_above_1e-06", "raw", -1, "  with jumps > 1e-6"),
    ],
)
def test_a_suffix_is_taken_off(column: str, metric: str, kind: str, direction: int, label: str) -> None:
    form = registry.find(column)
    assert (form.metric.name, form.kind, form.direction, form.declared) == (metric, kind, direction, True)
    assert form.full_label("image") == label


def test_a_name_that_nobody_declares_says_nothing() -> None:
    form = registry.find("of_another_program")
    assert not form.declared and not form.has_margin and form.direction == 0
    assert form.label() == "of another program"
    assert not registry.find("accuracy_kappa").declared  # accuracy has no chance level
    for twice in ("top1_match_kappa_chance", "top1_match_chance_kappa"):
        assert not registry.find(twice).declared and registry.find(twice).name == twice


def test_where_metrics_apply() -> None:
    def names(*layers: object) -> set[str]:
        return {one.name for one in applicable(aligned(*layers))}  # type: ignore[arg-type]

    tokens, experts, slots = (names(make(seed=1), make(seed=2)) for make in (routing, expert_choice, soft))
    everywhere = {"weight_cosine", "weight_distance", "gate_highest", "s", "s_diagonal"}
    assert everywhere <= tokens & experts & slots
    load = {"load_entropy", "dead_experts", "expert_share", "max_violation", "load_cv", "load_gini"}
    load |= {f"{name}_first" for name in load} | {"dropped", "busiest_expert"}
    assert tokens - experts == {"top1_match", "top{k}_match", "top{k}_set_match", "choice_differs"} | load | {
        "selection_margin_logit",
        "chosen_mass",
    }
    of_tokens = {f"experts_per_token{number}" for number in ("", "_0", "_1", "_2", "_3_or_more")}
    assert experts - tokens == {"unserved_both"} | of_tokens
    assert slots - tokens == {"slot_match"}
    assert {"churn", "unserved", "unweighted", "set_jaccard"} <= (tokens & experts) - slots
    assert "accuracy" not in tokens
