"""The correlation matrix of paired gates: against a loop, against the training objective, and where it is known."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from moeprobe.inputs.batches import Loading, batches
from moeprobe.inputs.views.random_crop import RandomCrop
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.s_matrix import SMatrixAnalysis
from moeprobe.metrics.base import Estimator
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.bootstrap import Bootstrap, image_weights
from moeprobe.models.training.objectives.base import BatchViews, paired_gates
from moeprobe.models.training.objectives.prc import consistency_terms, correlation, paired_tokens
from moeprobe.probes.engine.loop import run
from moeprobe.probes.engine.run_spec import recipe
from moeprobe.results.stored import of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from moeprobe.routing.record import LayerPair, LayerRouting
from tests.results.stores import cells
from tests.routing.routings import aligned, checkpoint, probe, routing

Array = NDArray[np.float64]


def crops(num_images: int = 6, *, seed: int = 0, prefix: int = 1, num_experts: int = 4) -> LayerPair:
    """Pairs as crops make them: several to one, some without a partner, some padding, view 1 on either side."""
    random = torch.Generator().manual_seed(seed)
    valid = torch.rand(num_images, prefix + 6, generator=random) < 0.9
    reference = routing(num_images, prefix=prefix, num_experts=num_experts, seed=seed + 1, valid=valid)
    view = routing(num_images, prefix=prefix, num_experts=num_experts, seed=seed + 2)
    reference.gates.masked_fill_(~valid[..., None], torch.nan)  # whatever stands in padding must not be read
    none = torch.rand(num_images, 6, generator=random) < 0.3
    sides = [torch.randint(0, 6, (num_images, 6), generator=random).masked_fill(none, -1) for _ in range(2)]
    view_first = torch.rand(num_images, generator=random) < 0.5
    return LayerPair(reference, view, sides[0], sides[1], aligned=False, view_first=view_first)


def by_loop(pair: LayerPair) -> tuple[Array, int]:
    """Equation 3, entry by entry in float64, and the number of pairs."""
    num_experts, prefix = pair.view.num_experts, pair.view.num_prefix_tokens
    total, count = np.zeros((num_experts, num_experts)), 0
    for image, slot in itertools.product(*map(range, pair.reference_patch.shape)):
        patches = int(pair.reference_patch[image, slot]), int(pair.view_patch[image, slot])
        if patches[0] < 0:
            continue
        found: list[tuple[LayerRouting, int]] = list(zip((pair.reference, pair.view), patches, strict=True))
        if not all(layer.valid[image, patch + prefix] for layer, patch in found):
            continue
        if pair.view_first is not None and pair.view_first[image]:
            found.reverse()
        first, second = (layer.gates[image, patch + prefix].double().tolist() for layer, patch in found)
        count += 1
        for i, j in itertools.product(range(num_experts), repeat=2):
            total[i, j] += first[i] * second[j]
    return num_experts / count * total, count


def metrics(pair: LayerPair) -> list[Estimator]:
    columns = SMatrixAnalysis().sums(pair)
    assert set(columns) == {"patch"}
    return SMatrixAnalysis().estimators({k: v.numpy() for k, v in columns["patch"].items()}, aligned=False)


def values(found: list[Estimator]) -> tuple[Array, dict[str, float]]:
    """S, and the numbers read off it, over all images."""
    ones = np.ones((len(found[0].trials), 1))
    value = {metric.key: float(metric.statistic.evaluate(ones)[0]) for metric in found}
    num_experts = 1 + max(metric.expert or 0 for metric in found)
    matrix = [[value[NumberName("s", "", i, j)] for j in range(num_experts)] for i in range(num_experts)]
    return np.array(matrix), {name: number for (name, _, i, _), number in value.items() if i is None}


@pytest.mark.parametrize("prefix", [0, 1])
def test_against_a_loop(prefix: int) -> None:
    pair = crops(prefix=prefix)
    assert pair.view_first is not None and 0 < pair.view_first.sum() < 6
    expected, count = by_loop(pair)
    found = metrics(pair)
    matrix, numbers = values(found)
    np.testing.assert_allclose(matrix, expected, rtol=1e-6)
    assert all(metric.trials.sum() == count for metric in found)
    off = [expected[i, j] for i in range(4) for j in range(4) if i != j]
    assert numbers == pytest.approx(
        {
            "s_diagonal": sum(expected[i, i] for i in range(4)) / 4,
            "s_offdiagonal": sum(off) / 12,
            "prc_diagonal": sum((1 - expected[i, i]) ** 2 for i in range(4)) / 4,
            "prc_offdiagonal": sum(entry**2 for entry in off) / 12,
        },
        rel=1e-6,
    )


def test_a_run_agrees_with_the_objective_on_the_same_images() -> None:
    """Through the sweep and its tables, against what the training objective computes for one batch of all images."""
    model = checkpoint()
    either = RandomCrop(
        first_area=(0.4, 1.0), second_area=(0.4, 1.0)
    )  # each is the smaller one half of the time
    asked = probe("random_crop", either, analyses=(SMatrixAnalysis(),), batch_size=7)
    images, _ = run(asked, model)
    (batch,) = batches(asked.dataset, asked.indices, recipe(asked, model.framing), loading=Loading(30))
    traces = [model.model.trace(view, logits=False)[1] for view in batch.views]
    for _, cell, names, columns in cells(images):
        assert sorted(batch.image_ids) == names
        layers = [trace.layers[cell.layer] for trace in traces]
        grid = layers[0].grid
        assert grid is not None
        first, second, swapped = paired_tokens(BatchViews(batch.to_source, batch.source_size, grid, 1))
        assert 0 < swapped.sum() < 30
        interleaved = torch.stack([layer.gates for layer in layers], dim=1).flatten(0, 1)
        with torch.no_grad():
            gates1, gates2, valid = paired_gates(interleaved, first, second)
        exchange = torch.from_numpy(swapped)[:, None, None]
        small, large = torch.where(exchange, gates2, gates1), torch.where(exchange, gates1, gates2)
        expected, _ = correlation(small, large, valid)
        matrix, numbers = values(SMatrixAnalysis().estimators(columns, aligned=False))
        np.testing.assert_allclose(matrix, expected.numpy(), rtol=1e-6, atol=1e-6)
        assert np.abs(matrix - matrix.T).max() > 1e-3, "a mix-up of the views would not be seen"
        terms = [float(term) for term in consistency_terms(expected.double())]
        assert [numbers["prc_diagonal"], numbers["prc_offdiagonal"]] == pytest.approx(terms, rel=1e-5)
        assert columns["pairs"].sum() == int(valid.sum())


def test_sure_even_and_unmoved_is_the_identity() -> None:
    layer = routing(4, num_experts=6)
    gates = torch.zeros_like(layer.gates)
    gates[:, 1:] = torch.eye(6)  # six patches, an expert each
    same = dataclasses.replace(layer, gates=gates)
    matrix, numbers = values(metrics(aligned(same, same)))
    np.testing.assert_array_equal(matrix, np.eye(6))
    assert numbers == {"s_diagonal": 1, "s_offdiagonal": 0, "prc_diagonal": 0, "prc_offdiagonal": 0}


def test_a_router_that_says_nothing_has_one_over_e_everywhere() -> None:
    layer = routing(4, num_experts=5)
    flat = dataclasses.replace(layer, gates=torch.full_like(layer.gates, 0.2))
    matrix, numbers = values(metrics(aligned(flat, flat)))
    np.testing.assert_allclose(matrix, 1 / 5, rtol=1e-6)
    assert numbers["prc_diagonal"] == pytest.approx(0.8**2) and numbers["prc_offdiagonal"] == pytest.approx(
        0.2**2
    )


def test_a_collapsed_router_has_one_entry_of_e() -> None:
    layer = routing(3, num_experts=5)
    gates = torch.zeros_like(layer.gates)
    gates[..., 2] = 1
    same = dataclasses.replace(layer, gates=gates)
    matrix, _ = values(metrics(aligned(same, same)))
    assert matrix[2, 2] == 5 and matrix.sum() == 5


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**16), num_experts=st.integers(2, 7))
def test_laws(seed: int, num_experts: int) -> None:
    pair = crops(seed=seed, num_experts=num_experts)
    matrix, numbers = values(metrics(pair))
    assert matrix.sum() == pytest.approx(num_experts, rel=1e-5)
    assert numbers["s_offdiagonal"] == pytest.approx(
        (1 - numbers["s_diagonal"]) / (num_experts - 1), rel=1e-4, abs=1e-6
    )
    # Which of the two is called the reference does not matter; which is view 1 does.
    assert pair.view_first is not None
    sides = (pair.view, pair.reference, pair.view_patch, pair.reference_patch)
    renamed = LayerPair(*sides, aligned=False, view_first=~pair.view_first)
    np.testing.assert_allclose(values(metrics(renamed))[0], matrix, rtol=1e-5)
    exchanged = dataclasses.replace(pair, view_first=~pair.view_first)
    np.testing.assert_allclose(values(metrics(exchanged))[0], matrix.T, rtol=1e-5)


def test_no_pair_is_no_number() -> None:
    pair = crops()
    none = torch.full_like(pair.view_patch, -1)
    found = metrics(dataclasses.replace(pair, reference_patch=none, view_patch=none))
    assert np.isnan(values(found)[0]).all()


def test_resamples_by_a_loop() -> None:
    pair = crops(25)
    columns = {k: v.numpy().astype(float) for k, v in SMatrixAnalysis().sums(pair)["patch"].items()}
    bootstrap = Bootstrap(25, seed=3, num_resamples=40)
    found = SMatrixAnalysis().estimators(columns, aligned=False)
    replicates = bootstrap.replicate([(metric.statistic, metric.trials) for metric in found])
    weights = image_weights(25, 3, range(40))
    for resample in range(40):
        total, count = np.zeros(16), 0.0
        for image in range(25):
            total += weights[image, resample] * columns["gate_products"][image]
            count += weights[image, resample] * columns["pairs"][image]
        matrix = (4 * total / count).reshape(4, 4)
        for metric, replicate in zip(found, replicates, strict=True):
            if metric.name == "s":
                assert metric.expert is not None and metric.expert_b is not None
                expected = matrix[metric.expert, metric.expert_b]
            elif metric.name == "prc_diagonal":
                expected = np.mean((1 - np.diag(matrix)) ** 2)
            else:
                continue
            assert replicate.values[resample] == pytest.approx(expected, rel=1e-12)


def test_entries_of_unrelated_experts_are_not_subtracted() -> None:
    cell = Cell("blocks.1", "r", 1, "crops", tokens="patch")
    parts = []
    for name, seed in (("a", 0), ("b", 50)):
        accumulator = Accumulator()
        columns = {k: v.numpy() for k, v in SMatrixAnalysis().sums(crops(22, seed=seed))["patch"].items()}
        columns["gate_products"] = columns["gate_products"].astype(np.float64)
        accumulator.add(cell, [f"{image:02d}" for image in range(22)], columns)
        parts.append(image_table(accumulator, checkpoint=name))
    about = About("run", "digits", "test", 5, aligned=False, train_seeds={}, groups={})
    table, comparison = summarize(of_table(concatenate(parts)), analyses=(SMatrixAnalysis(),), run_info=about)
    assert comparison is not None and (table["metric"] == "s").sum() == 2 * 16
    # Expert 3 of one model is no relative of expert 3 of another: what is compared is of all experts.
    assert set(comparison["metric"]) == {"s_diagonal", "s_offdiagonal", "prc_diagonal", "prc_offdiagonal"}
    assert comparison["expert"].isna().all() and comparison["expert_b"].isna().all()
    wide = table[table["expert"].isna()].pivot(index="metric", columns="checkpoint", values="value")
    values = comparison.set_index("metric")["value"]
    np.testing.assert_allclose(values, (wide["b"] - wide["a"]).loc[values.index], atol=1e-12)
    assert values.abs().min() > 0


def test_where_it_does_not_apply() -> None:
    assert SMatrixAnalysis().applies(routing())
    assert not SMatrixAnalysis().applies(routing(gates_sum_to_one=False))
    assert not SMatrixAnalysis().applies(routing(num_experts=1, top_k=1))
