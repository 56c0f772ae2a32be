"""Sweep files: what they expand to, and what is wrong with them."""

from pathlib import Path

import pytest

import moeprobe.models.nn.vit  # noqa: F401  (registers the models)
from moeprobe.errors import UserError
from moeprobe.models import config, grid
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.runtime.catalog import ROUTERS
from moeprobe.studies.tradeoff.table import published_values
from tests.docs.facts import read

TWO = """
base: digits-baseline
fixed: {epochs: 3, model.num_experts: 4}
cells:
  - {model.router: softmax_token_choice, model.top_k: [1, 2], model.layers: [[1, 3]]}
  - model.router: {name: softmax_expert_choice}
    model.capacity_factor: [1, 1.5]
    fixed: {objective.load_weight: 0.0}
seeds: [0, 3]
measure: {limit: 30}
"""


def written(folder: Path, text: str = TWO) -> str:
    path = folder / "two.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def refused(source: str, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        grid.load(source, overrides)
    sentence = str(caught.value)
    assert "\n" not in sentence and sentence.endswith((".", "?"))
    return sentence


def test_every_grid_is_gone_through(tmp_path: Path) -> None:
    sweep = grid.load(written(tmp_path))
    assert sweep.name == "two" and sweep.measure.limit == 30 and sweep.measure.views == ["random_crop"]
    groups = ["softmax_token_choice-k1-layers-1-3", "softmax_token_choice-k2-layers-1-3"]
    groups += ["softmax_expert_choice-c1", "softmax_expert_choice-c1.5"]
    assert [cell.name for cell in sweep.cells] == [
        f"{group}-seed{seed}" for group in groups for seed in (0, 3)
    ]
    assert [cell.group for cell in sweep.cells] == [group for group in groups for _ in (0, 3)]
    assert [cell.seed for cell in sweep.cells] == [0, 3] * 4
    first, last = sweep.cells[0], sweep.cells[-1]
    assert (first.model.top_k, first.model.layers, first.model.num_experts, first.epochs) == (1, [1, 3], 4, 3)
    assert (last.model.router_name, last.model.capacity_factor) == ("softmax_expert_choice", 1.5)
    # What is fixed for some cells stays with them, and has no part in their names.
    assert first.objective.parameters == {} and last.objective.parameters == {"load_weight": 0.0}
    # All else is that of the base.
    base = config.load(
        "digits-baseline", ["epochs=3", "model.num_experts=4", "model.layers=[1,3]", "model.top_k=1"]
    )
    same = {"router": first.model.router}
    assert first == base.model_copy(
        update={"name": first.name, "group": first.group, "model": base.model.model_copy(update=same)}
    )


def test_overrides_of_the_sweep_and_of_its_configurations(tmp_path: Path) -> None:
    sweep = grid.load(written(tmp_path), ["seeds=[7]", "steps=5", "measure.sigmas=[]", "name=other"])
    assert sweep.name == "other" and sweep.measure.sigmas == []
    assert {(cell.seed, cell.steps, cell.epochs) for cell in sweep.cells} == {(7, 5, None)}


def test_a_base_beside_the_sweep(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("steps: 9", encoding="utf-8")
    text = "base: mine.yaml\ncells: [{model.top_k: 1}]"
    assert [(cell.name, cell.steps) for cell in grid.load(written(tmp_path, text)).cells] == [("k1-seed0", 9)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("base: digits-baseline", "cells: field required"),
        ("base: digits-baseline\ncells: []", "cells: list should have at least 1 item"),
        ("base: digits-baseline\ncels: [{model.top_k: 1}]", "no sweep key 'cels'. Did you mean 'cells'?"),
        (
            "base: digits-baseline\ncells: [{model.top_k: 1}]\nmeasure: {view: [a]}",
            "Did you mean 'measure.views'?",
        ),
        ("base: digits-bas\ncells: [{model.top_k: 1}]", "Did you mean 'digits-baseline'?"),
        (
            "base: digits-baseline\ncells: [{model.topk: 1}]",
            "In the cell topk-1 of the sweep 'two': There is no",
        ),
        (
            "base: digits-baseline\ncells: [{model.top_k: [1, x]}]",
            "model.top_k: input should be a valid integer",
        ),
        (
            "base: digits-baseline\ncells: [{model.top_k: [1, 1]}]",
            "2 cells of the sweep 'two' are called k1-seed0",
        ),
        ("base: digits-baseline\ncells: [{model.top_k: 1, seed: [1, 2]}]", "seed is in seeds"),
        ("base: digits-baseline\ncells: [{model.top_k: 1, fixed: 3}]", "is a mapping of keys; got 3"),
        (
            "base: digits-baseline\nfixed: {epochs: -1}\ncells: [{model.top_k: 1}]",
            "epochs: input should be greater",
        ),
    ],
)
def test_what_is_wrong_is_said(text: str, sentence: str, tmp_path: Path) -> None:
    assert sentence in refused(written(tmp_path, text))


def test_names_and_overrides_that_are_wrong(tmp_path: Path) -> None:
    assert "Did you mean 'routers-digits'?" in refused("routers-digit")
    assert "no sweep file" in refused(str(tmp_path / "none.yaml"))
    assert "seed is in seeds" in refused(written(tmp_path), "seed=3")
    assert "Did you mean 'measure.limit'?" in refused(written(tmp_path), "measure.limt=3")
    with pytest.raises(UserError, match="no sweep key 'epochs'"):
        grid.load_measure(["epochs=3"])


def test_the_ablation_of_prc_has_each_term_alone() -> None:
    """With three seeds each; 40 times the weights of the paper are among them."""
    objectives = [cell.objective for cell in grid.load("prc-ablation").cells]
    assert len(objectives) == 3 * len({str(objective) for objective in objectives}) == 39
    weights = [
        (one.parameters["diagonal_weight"], one.parameters["offdiagonal_weight"])
        for one in objectives
        if one.name == "prc" and not one.parameters.get("noisy")
    ]
    assert sorted(set(weights)) == [
        (0.0, 0.5),
        (0.005, 0.05),
        (0.05, 0.0),
        (0.05, 0.5),
        (0.2, 2.0),
        (0.5, 5.0),
    ]


@pytest.mark.parametrize("name", grid.names())
def test_a_sweep_says_what_it_is_and_how_it_is_run(name: str) -> None:
    """What it trains: a test of its own for each."""
    assert grid.load(name).name == name
    text = grid.path_of(name).read_text(encoding="utf-8")
    assert text.startswith("# ") and f"moeprobe tradeoff {name} --out reports/" in text


def test_outputs_are_combined_by_softmax_and_by_plan() -> None:
    """Wherever there is a plan, at both budgets; nothing else differs between the two."""
    sweep = grid.load("combine-digits")
    pairs: dict[tuple[object, ...], set[str]] = {}
    for cell in sweep.cells:
        assert cell.model.router is not None
        key = (cell.model.router_name, cell.model.top_k, cell.model.capacity_factor, cell.seed)
        pairs.setdefault(key, set()).add(cell.model.router.parameters["combine"])
    assert len(pairs) == 3 * 2 * 3 and all(found == {"softmax", "plan"} for found in pairs.values())
    assert {router for router, *_ in pairs} == {
        "sinkhorn_token_choice", "sinkhorn_expert_choice", "sparse_expert_choice",
    }  # fmt: skip


def test_compute_is_the_same_for_any_number_of_experts() -> None:
    """One expert per token where tokens or experts choose, 32 slots in all where slots are mixtures."""
    cells = grid.load("experts-digits").cells
    numbers: dict[str, set[int | None]] = {}
    for cell in cells:
        numbers.setdefault(cell.model.router_name, set()).add(cell.model.num_experts)
        if cell.seed == 0:
            built = build_model(cell.model.model_copy(update={"num_classes": 10}))
            router = moe_layers(built)["blocks.3"].router
            assert cell.model.router is not None and cell.model.num_experts is not None
            if slots := cell.model.router.parameters.get("slots"):
                assert slots * cell.model.num_experts == 32
            elif cell.model.num_experts <= 16:  # 32 experts have room for one of 17 tokens each
                assert router.experts_per_token(17) == pytest.approx(1, abs=1)
    all_of_them = {1, 2, 4, 8, 16, 32}
    assert len(cells) == 3 * 17 and numbers.pop("soft_moe") == all_of_them - {1}
    assert set(map(frozenset, numbers.values())) == {frozenset(all_of_them)}


def test_experts_choose_among_one_image_and_eight() -> None:
    sweep = grid.load("groups-digits")
    assert {cell.model.group_images for cell in sweep.cells} == {1, 8} and len(sweep.cells) == 18
    assert sweep.measure.group_images == 8
    # A batch of two views of each image is cut into whole groups.
    assert all(cell.batch_size * cell.views_per_image % 8 == 0 for cell in sweep.cells)


def test_balancing_is_left_out_at_the_same_limited_room() -> None:
    cells = grid.load("drops-digits").cells
    assert len(cells) == 6 and {cell.model.capacity_factor for cell in cells} == {1.05}
    weights = {tuple(sorted(cell.objective.parameters.items())) for cell in cells}
    assert weights == {(), (("importance_weight", 0.0), ("load_weight", 0.0))}


@pytest.mark.parametrize(("name", "seeds", "depth"), [("patch4", [0, 1, 2], 4), ("deep", [0], 6)])
def test_the_sweeps_of_layouts(name: str, seeds: list[int], depth: int) -> None:
    """The routers of "Routers in Vision MoE", at two budgets; only layout and length differ from routers-digits."""
    sweep, first = grid.load(f"routers-digits-{name}"), grid.load("routers-digits")
    of_paper = set(published_values()["router"])
    assert {cell.model.router_name for cell in sweep.cells} == of_paper
    assert len(sweep.cells) == 2 * len(of_paper) * len(seeds)
    assert sorted({cell.seed for cell in sweep.cells}) == seeds
    same = {(cell.group, cell.seed): cell for cell in first.cells}
    for cell in sweep.cells:
        other = same[cell.group, cell.seed]
        keys = {"patch_size": 8, "width": None, "depth": None, "num_heads": None}
        assert cell.model.model_copy(update=keys) == other.model.model_copy(update={"patch_size": 8})
        assert (cell.objective, cell.optimizer, cell.epochs) == (other.objective, other.optimizer, 20)
    built = build_model(sweep.cells[0].model.model_copy(update={"num_classes": 10}))
    assert (built.patch_embed.num_patches, len(built.blocks)) == (64, depth)
    assert list(moe_layers(built)) == [f"blocks.{depth - 3}", f"blocks.{depth - 1}"]


@pytest.mark.parametrize("name", ["routers-digits", "routers-shapes"])
def test_the_sweeps_of_routers(name: str) -> None:
    """The routers of its report, with three seeds, on digits at two budgets; what some do not need is left out."""
    sweep = grid.load(name)
    assert sweep.name == name and grid.path_of(name).read_text(encoding="utf-8").startswith("# ")
    budgets = {(cell.model.router_name, cell.model.top_k, cell.model.capacity_factor) for cell in sweep.cells}
    num_budgets = {"routers-digits": 2, "routers-shapes": 1}[name]
    routers = set(read(f"routers/{name.removeprefix('routers-')}/table.csv.gz")["router"].dropna())
    assert {router for router, *_ in budgets} == routers <= set(ROUTERS.names())
    assert len(sweep.cells) == 3 * len(budgets) == 3 * num_budgets * len(routers)
    balanced = {
        cell.model.router_name for cell in sweep.cells if "load_weight" not in cell.objective.parameters
    }
    assert balanced == {"softmax_token_choice", "priority"}
    spent: dict[str, set[float]] = {}
    for cell in sweep.cells:
        assert (cell.model.top_k is None) != (cell.model.capacity_factor is None)
        if cell.seed == 0:
            built = build_model(cell.model.model_copy(update={"num_classes": 10}))
            tokens = built.patch_embed.num_patches + built.num_prefix_tokens
            router = moe_layers(built)["blocks.3"].router
            spent.setdefault(cell.model.router_name, set()).add(router.experts_per_token(tokens))
    # Two budgets are two: a capacity that is raised to a multiple of four would be the same for both.
    assert all(len(different) == num_budgets for different in spent.values()), spent
