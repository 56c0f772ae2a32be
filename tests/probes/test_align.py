"""Alignment of experts: planted copies and independent routing, against permutations that are all tried, by hand."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.cli.front.screen import _over_trainings
from moeprobe.errors import UserError
from moeprobe.inputs.modality import IMAGE
from moeprobe.metrics.stats.alignment import JointCounts, ReorderedInputs, joint_counts, permuted_orders
from moeprobe.metrics.stats.training_pairs import Quantity, SetShare
from moeprobe.probes.align.figure import draw
from moeprobe.probes.align.fit import Halves, with_numbers
from moeprobe.probes.align.measure import pair_label
from moeprobe.probes.align.sentences import sentences
from moeprobe.results.layouts.agreement import aligned_tables
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.seeds import generator
from tests.commands import refused, run
from tests.routing.routings import Softened, aligned, checkpoint, routing, with_numpy_weights

# Intervals are asserted.
pytestmark = pytest.mark.resamples


LAYERS = ["blocks.1", "blocks.3"]


class Scripted(Vmoe):
    """A model whose tokens choose at random, most of an image the same few experts; or by their position alone."""

    seed = 0
    by_position = False

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        scores, trace = super().trace(images, layers=layers, logits=logits)
        return scores, RoutingTrace(
            {name: self._scripted(images, layer) for name, layer in trace.layers.items()}
        )

    def _scripted(self, images: Tensor, layer: LayerRouting) -> LayerRouting:
        num_experts, gates = layer.num_experts, torch.zeros_like(layer.gates)
        for row, image in enumerate(images):
            rng = generator(self.seed, "scripted", "" if self.by_position else image.numpy().tobytes().hex())
            liked = rng.dirichlet(np.full(num_experts, 0.3))
            chosen = rng.choice(num_experts, size=gates.shape[1], p=liked)
            gates[row, torch.arange(gates.shape[1]), torch.from_numpy(chosen)] = 1.0
        selected = gates.argmax(-1, keepdim=True).to(torch.int16)
        return dataclasses.replace(layer, gates=gates, selected=selected, processed=selected >= 0)


def scripted(name: str, seed: int, *, by_position: bool = False, group: str = "") -> Checkpoint:
    made = checkpoint(name, adapter=Scripted, top_k=1)
    assert isinstance(made.model, Scripted)
    made.model.seed, made.model.by_position = seed, by_position
    return dataclasses.replace(made, group=group)


def permuted_copy(model: Checkpoint, order: Tensor) -> Checkpoint:
    """The same model, whose experts of every layer have other numbers: new expert i is old expert order[i]."""
    copy = checkpoint("copy", top_k=1)
    state = model.model.model.state_dict()  # type: ignore[attr-defined]
    for name, value in state.items():
        if ".router." in name or ".experts." in name:
            state[name] = value[order]
    copy.model.model.load_state_dict(state)  # type: ignore[attr-defined]
    return copy


def align(models: Sequence[Checkpoint], **options: Any) -> pd.DataFrame:
    """The table of a few random orders of digits: enough where the null does not matter.

    On the CPU, where a sum does not depend on the order of experts: choices are compared exactly.
    """
    return api.align(models, data="digits", permutations=40, figures=False, device="cpu", **options).table


def values(table: pd.DataFrame, metric: str, null: str = "", **wanted: Any) -> pd.DataFrame:
    """The rows of a metric of patches, a layer each."""
    rows = table[(table["metric"] == metric) & (table["null"] == null) & (table["tokens"] == "patch")]
    for column, value in wanted.items():
        rows = rows[rows[column] == value]
    return rows


@pytest.mark.parametrize("shape", [(4, 4), (4, 6), (6, 4)])
def test_the_alignment_is_the_best_of_all(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    tokens = 300
    members = [np.eye(size, dtype=np.int32)[rng.integers(size, size=tokens)] for size in shape]
    is_token = [np.ones((tokens, 1), np.int32), (rng.random((tokens, 1)) < 0.9).astype(np.int32)]
    members[1] *= is_token[1]
    counts = joint_counts(
        *(sparse.csr_array(np.hstack(side)) for side in zip(members, is_token, strict=True))
    )
    present = is_token[1][:, 0] > 0
    both = np.zeros(shape, int)
    for first, second in zip(members[0][present], members[1][present], strict=True):
        both[first.argmax(), second.argmax()] += 1
    assert (counts.common == both).all() and counts.tokens == present.sum()
    numbers = counts.align()
    assert (
        sorted(numbers) == list(range(max(shape))) if shape[1] >= shape[0] else len(set(numbers)) == shape[1]
    )
    tried = [
        sum(both[row, column] for row, column in zip(rows, columns, strict=True))
        for rows in itertools.combinations(range(shape[0]), min(shape))
        for columns in itertools.permutations(range(shape[1]), min(shape))
    ]
    kept = [(new, old) for old, new in enumerate(numbers) if new < shape[0]]
    assert sum(both[pair] for pair in kept) == max(tried)
    match = np.mean([both[pair] for pair in kept]) * len(kept) / counts.tokens
    chance = sum(both.sum(1)[new] * both.sum(0)[old] for new, old in kept) / counts.tokens**2
    assert counts.kappa(numbers) == pytest.approx((match - chance) / (1 - chance))


@pytest.mark.parametrize(("num_experts", "most"), [((4, 4), 1), ((5, 3), 3), ((16, 12), 12)])
def test_counts_in_another_order_are_those_of_reordered_rows(num_experts: tuple[int, int], most: int) -> None:
    """Tokens that a model lacks, or that no expert takes; sets of one size, and ragged ones."""
    rng, inputs, places = np.random.default_rng(most), 6, 5
    sides = []
    for size in num_experts:
        held = rng.integers(0, min(most, size) + 1, size=inputs * places) if most > 3 else most
        ranks = rng.random((inputs * places, size)).argsort(1).argsort(1)
        member = (ranks < np.reshape(held, (-1, 1))).astype(np.int32)
        is_token = (rng.random((inputs * places, 1)) < 0.8).astype(np.int32)
        member[rng.random(inputs * places) < 0.2] = 0
        sides.append(np.hstack([member * is_token, is_token]))
    first, second = map(sparse.csr_array, sides)
    reordered = ReorderedInputs(first, second, inputs=inputs)
    for order in (np.arange(inputs), rng.permutation(inputs)):
        rows = np.arange(inputs * places).reshape(inputs, places)[order].ravel()
        expected, got = sides[0].T @ sides[1][rows], reordered.joint_counts(order)
        assert (got.common == expected[:-1, :-1]).all() and got.tokens == expected[-1, -1]
        assert (got.first == expected[:-1, -1]).all() and (got.second == expected[-1, :-1]).all()


def test_chance_of_one_has_no_kappa() -> None:
    all_of_one = np.array([[5, 0], [0, 0]])
    collapsed = JointCounts(all_of_one, all_of_one.sum(1), all_of_one.sum(0), 5)
    assert np.isnan(collapsed.kappa(np.arange(2)))


def test_orders_keep_clusters_together() -> None:
    clusters = np.array([0, 0, 0, 1, 2, 2])
    orders = list(permuted_orders(clusters, generator(0, "test"), 20))
    assert len({tuple(order) for order in orders}) > 3
    for order in orders:
        assert sorted(order) == list(range(6))
        assert (np.diff(clusters[order]) != 0).sum() == 2


def test_halves_part_no_cluster_and_belong_to_the_names() -> None:
    names = [f"r{number}" for number in range(11)]
    clusters = {"r1": "r0", "r2": "r0"}
    halves = Halves.of(names, clusters, seed=0)
    in_second = dict(zip(halves.ids, halves.second.tolist(), strict=True))
    assert in_second["r0"] == in_second["r1"] == in_second["r2"]
    assert Halves.of(names[::-1], clusters, seed=0).ids == halves.ids
    assert 0 < halves.second.sum() < len(names)
    with pytest.raises(UserError, match="two at least"):
        Halves.of(["r0", "r1"], clusters, seed=0)


def test_experts_have_their_new_numbers_in_every_token() -> None:
    view = routing(num_experts=5, top_k=2, absent=0.3)
    pair = aligned(routing(num_experts=4, top_k=2, seed=1), view)
    numbers = torch.tensor([[3, 1, 4, 0, 2], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
    renumbered = with_numbers(pair, numbers)
    assert renumbered.reference.num_experts == renumbered.view.num_experts == 5
    for image, token in itertools.product(range(3), range(view.valid.shape[1])):
        old = [int(expert) for expert in view.selected[image, token]]
        new = [int(numbers[image, expert]) if expert >= 0 else -1 for expert in old]
        assert renumbered.view.selected[image, token].tolist() == new
        unordered = with_numbers(aligned(pair.reference, dataclasses.replace(view, ordered=False)), numbers)
        present = sorted(expert for expert in new if expert >= 0)
        assert unordered.view.selected[image, token].tolist()[: len(present)] == present


@pytest.fixture(scope="module")
def independent() -> pd.DataFrame:
    return api.align([scripted("a", 1), scripted("b", 2)], data="digits", limit=60, figures=False).table


def test_a_permuted_copy_is_aligned_exactly() -> None:
    model, order = with_numpy_weights(checkpoint("a", top_k=1)), torch.tensor([3, 0, 7, 1, 6, 2, 5, 4])
    table = align([model, permuted_copy(model, order)], limit=30)
    for metric, null in (("expert_overlap", ""), ("expert_overlap_kappa", "pooled"), ("fitted", "")):
        found = values(table, metric, null)["value"].dropna()
        assert len(found) >= len(LAYERS) and (found == 1).all()
    joint = values(table, "joint_routing")
    for layer in LAYERS:
        matrix = joint[joint["layer"] == layer].pivot_table(
            index="expert", columns="expert_b", values="value"
        )
        loaded = matrix.to_numpy().any(1)
        by_expert = joint[joint["layer"] == layer].groupby("expert")["trials"]
        assert (by_expert.nunique() == 1).all() and by_expert.first().sum() == 30 * 16, (
            "tokens of each expert"
        )
        assert loaded.sum() > 2
        for expert in np.flatnonzero(loaded):
            assert matrix.loc[expert].idxmax() == order.tolist().index(expert)
            assert matrix.loc[expert].max() == 1
    assert (values(table, "same_numbers")["value"] < 0.9).all()


def test_independent_routing_agrees_by_chance_where_it_was_not_fitted(independent: pd.DataFrame) -> None:
    held_out, fitted = values(independent, "expert_overlap_kappa", "pooled"), values(independent, "fitted")
    unrelated, p = values(independent, "fitted_unrelated"), values(independent, "fitted_p")
    for layer in LAYERS:
        kappa = held_out[held_out["layer"] == layer].iloc[0]
        assert kappa["ci_low"] < 0 < kappa["ci_high"]
        in_sample = fitted[fitted["layer"] == layer]["value"].iloc[0]
        assert in_sample > kappa["ci_high"], "the best of many alignments agrees where it was chosen"
        of_orders = unrelated[unrelated["layer"] == layer].iloc[0]
        assert of_orders["ci_low"] < in_sample < of_orders["ci_high"]
        assert p[p["layer"] == layer]["value"].iloc[0] > 0.05


def test_what_independent_routing_is_said_to_be(independent: pd.DataFrame) -> None:
    said = sentences(independent)
    assert len(said) == len(LAYERS) and all("no better than of unrelated inputs" in line for line in said)


def test_a_matrix_is_in_the_order_of_the_alignment(independent: pd.DataFrame) -> None:
    # With most common tokens expert 0 is expert 0 (60 + 1 > 40 + 9); shares alone would cross (.4 + .9 > .6 + .1).
    joint = independent["metric"] == "joint_routing"
    few = joint & (independent["expert"] < 2) & (independent["expert_b"] < 2)
    table = independent[~joint | few & (independent["layer"] == "blocks.1")].copy()
    table.loc[table["metric"] == "joint_routing", "value"] = [0.6, 0.4, 0.9, 0.1]
    table.loc[table["metric"] == "joint_routing", "trials"] = [100, 100, 10, 10]
    figures = draw(table, colors={"a with b": "#000000"})
    panel = figures["align"].axes[0]
    assert [tick.get_text() for tick in panel.get_xticklabels()] == ["0", "1"]
    assert [text.get_text() for text in panel.texts] == [".60", ".40", ".90", ".10"]
    assert len(figures["align-kappa"].axes[0].containers) == 2, "κ and the unrelated one"


def test_the_table_has_a_line_per_layer_and_pair(independent: pd.DataFrame) -> None:
    (pairs,) = aligned_tables(independent, caption="What was measured")
    assert [[row[0].text, row[1].text] for row in pairs.rows] == [[layer, "a with b"] for layer in LAYERS]
    kappa = values(independent, "expert_overlap_kappa", "pooled", layer="blocks.1")["value"].item()
    assert pairs.rows[0][list(pairs.columns).index("κ")].text.startswith(f"{kappa:.3f}")


def test_position_alone_determines_what_goes_by_position() -> None:
    models = [scripted(name, seed, by_position=True, group="g") for seed, name in enumerate("abc")]
    table = align(models, limit=30)
    shares = {
        name: values(table, f"share_{name}", checkpoint="g")["value"].to_numpy()
        for name in ("data", "position", "content", "seed")
    }
    assert (shares["data"] > 0.1).all(), "the same positions are aligned"
    assert shares["position"] == pytest.approx(shares["data"], abs=1e-9)
    assert shares["content"] == pytest.approx([0, 0], abs=1e-9)
    assert shares["data"] + shares["seed"] == pytest.approx([1, 1])


def test_a_share_by_hand() -> None:
    rng = np.random.default_rng(0)
    pairs = list(itertools.combinations(range(4), 2))
    made = {pair: Quantity(float(rng.random()), rng.normal(size=50) / 50) for pair in pairs}
    share = SetShare.over_pairs(made)
    assert share.value == pytest.approx(np.mean([made[pair].value for pair in pairs]))
    pseudo = []
    for training in range(4):
        without = np.mean([made[pair].value for pair in pairs if training not in pair])
        pseudo.append(4 * share.value - 3 * without)
    assert share.variance == pytest.approx(np.var(pseudo, ddof=1) / 4)
    influence = np.mean([made[pair].influence for pair in pairs], axis=0)
    error = np.sqrt(50 / 49 * (influence**2).sum() + share.variance)
    low, high = share.ends(50)
    assert (high - low) / 2 == pytest.approx(3.1824 * error, rel=1e-4)
    change = share.minus(share)
    assert change.value == 0 and change.variance == pytest.approx(2 * share.variance)
    assert np.isnan(share.ends(19)).all()


@pytest.mark.parametrize(("trainings", "of_pairs"), [(3, 0.0), (5, 0.0), (5, 1.0)])
def test_intervals_over_trainings_hold_their_level(trainings: int, of_pairs: float) -> None:
    rng, runs = np.random.default_rng(0), 600
    pairs = list(itertools.combinations(range(trainings), 2))

    def share() -> SetShare:
        own, noise = rng.normal(size=trainings), of_pairs * rng.normal(size=len(pairs))
        agreements = [own[first] + own[second] for first, second in pairs] + noise
        influence = np.zeros(20)
        return SetShare.over_pairs(
            {pair: Quantity(float(value), influence) for pair, value in zip(pairs, agreements, strict=True)}
        )

    def coverage(make: Callable[[], SetShare]) -> float:
        ends = np.array([make().ends(20) for _ in range(runs)])
        return float(((ends[:, 0] <= 0) & (ends[:, 1] >= 0)).mean())

    # 0.95 minus two and a half standard errors; differences have too few degrees of freedom, which is safe.
    assert coverage(share) >= 0.928
    assert coverage(lambda: share().minus(share())) >= 0.928


def test_sets_of_trainings_and_their_difference() -> None:
    models = [
        scripted(f"{group}-{seed}", seed + 10 * (group == "y"), group=group)
        for group in "xy"
        for seed in range(3)
    ]
    table = align(models, limit=30, layers="blocks.1")
    pairs = values(table, "fitted")["checkpoint"].tolist()
    assert pairs == ["x-0 with 1", "x-0 with 2", "x-1 with 2", "y-0 with 1", "y-0 with 2", "y-1 with 2"]
    data = values(table, "share_data").set_index("checkpoint")
    kappas = values(table, "expert_overlap_kappa", "pooled").set_index("checkpoint")["value"]
    assert data.loc["x", "value"] == pytest.approx(kappas[pairs[:3]].mean())
    change = data.loc["y − x"]
    assert change["value"] == pytest.approx(data.loc["y", "value"] - data.loc["x", "value"])
    assert change["ci_low"] < 0 < change["ci_high"]
    assert _over_trainings(table, IMAGE) == ["of sets of trainings over images and trainings"]
    assert not _over_trainings(table[table["checkpoint"].isin(pairs)], IMAGE)
    alone = align(models[2:], limit=20, layers="blocks.1")
    assert "x-2 with y-0" in set(alone["checkpoint"]), "one of a group has no partner there"
    assert values(alone, "share_data")["checkpoint"].tolist() == ["y"], (
        "x differs from y in more than its seed"
    )


def test_what_trainings_of_no_known_group_share_is_not_said_to_be_by_the_seed() -> None:
    table = align([scripted(name, seed) for seed, name in enumerate("abc")], limit=20, layers="blocks.1")
    (said,) = (line for line in sentences(table) if line.startswith("all trainings"))
    assert said.endswith("the rest goes with the seed, if they differ in nothing else.")


@pytest.mark.parametrize(
    ("first", "second", "label"),
    [
        ("run-seed0", "run-seed1", "run-seed0 with seed1"),
        ("a", "b", "a with b"),
        ("run", "run-2", "run with run-2"),
    ],
)
def test_what_a_pair_is_called(first: str, second: str, label: str) -> None:
    assert pair_label(first, second) == label


def test_other_numbers_of_experts() -> None:
    models = [checkpoint("a", top_k=2), checkpoint("b", seed=1, top_k=2, num_experts=4)]
    table = align(models, limit=20)
    joint = values(table, "joint_routing", layer="blocks.1")
    assert (joint["expert"].max(), joint["expert_b"].max()) == (7, 3)
    assert not len(values(table, "same_numbers"))
    assert values(table, "expert_overlap_kappa", "pooled")["value"].notna().all()


def test_what_cannot_be_aligned_is_refused() -> None:
    with pytest.raises(UserError, match="at least two models"):
        api.align([checkpoint("a")], data="digits")
    with pytest.raises(UserError, match="every expert gets a share of every token"):
        api.align([checkpoint("a"), checkpoint("b", adapter=Softened)], data="digits")
    with pytest.raises(UserError, match="top_k is 1 in the first"):
        api.align([checkpoint("a", top_k=1), checkpoint("b", top_k=2)], data="digits", limit=20)


@pytest.mark.pictures
def test_recordings_are_aligned_as_their_models_are(tmp_path: Path) -> None:
    """The same numbers without the models, which record the same routing; a renumbered copy is found."""
    model = with_numpy_weights(checkpoint("a", top_k=1))
    models = [model, permuted_copy(model, torch.arange(8).roll(3))]
    traces: list[Path] = []
    for one in models:
        api.record(one, data="digits", limit=24, out=tmp_path / one.name, device="cpu")
        traces += (tmp_path / one.name).rglob("clean.parquet")
    of_files = api.align_traces(traces, permutations=40, figures=False)
    of_models = align(models, limit=24)
    columns = [
        "checkpoint",
        "layer",
        "tokens",
        "metric",
        "null",
        "expert",
        "expert_b",
        "value",
        "ci_low",
        "ci_high",
    ]
    pd.testing.assert_frame_equal(of_files.table[columns], of_models[columns])
    assert (values(of_files.table, "expert_overlap_kappa", "pooled")["value"] == 1).all()
    # Two views of one model have one name, so the view stands with it.
    api.record(
        model, data="digits", limit=24, view="gaussian_noise", severities=(0.4,), out=tmp_path / "noisy"
    )
    [noisy] = (tmp_path / "noisy").rglob("gaussian_noise-0.4.parquet")
    out = tmp_path / "out"
    arguments = (
        "trace",
        "align",
        traces[0],
        noisy,
        "--permutations",
        "40",
        "--layers",
        "blocks.1",
        "--out",
        out,
    )
    done = run(*arguments)
    assert done.exit_code == 0
    text = " ".join(done.output.split())
    assert "a clean with gaussian_noise 0.4, blocks.1: aligned experts agree with κ" in text
    assert (out / "figures" / "align-kappa.png").is_file()
    assert "at least two traces" in refused("trace", "align", traces[0])
