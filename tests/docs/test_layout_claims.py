"""What docs/results/layouts.md says in words follows from the committed numbers."""

import pandas as pd
import pytest

from tests.docs.pages import ROOT, text
from tests.docs.sweeps import above, below, differences_of, excluding_zero

LARGER = ("digits-patch4", "digits-deep")
PLANS = ("sinkhorn_token_choice", "softmax_expert_choice", "sinkhorn_expert_choice", "sparse_expert_choice")


@pytest.fixture(scope="module")
def of() -> dict[str, pd.DataFrame]:
    """The differences from V-MoE's router, of each layout."""
    return {name: differences_of(ROOT / "reports/routers" / name) for name in ("digits", *LARGER)}


def at(table: pd.DataFrame, budget: int) -> pd.DataFrame:
    """Return the rows of k or c."""
    return table[table["group"].str.endswith((f"-k{budget}", f"-c{budget}"))]


def outside(rows: pd.DataFrame) -> tuple[int, int, int]:
    """Return how many intervals there are, and how many of them are above and below zero."""
    return len(rows), above(rows), below(rows)


def pooled(table: pd.DataFrame, routers: tuple[str, ...]) -> pd.DataFrame:
    return table[table["router"].isin(routers) & table["number"].str.startswith("κ, ")]


def within(table: pd.DataFrame, routers: tuple[str, ...]) -> pd.DataFrame:
    return table[table["router"].isin(routers) & table["number"].str.startswith("κ within")]


def test_accuracy_does_not_separate_the_routers(of: dict[str, pd.DataFrame]) -> None:
    for number, expected in (
        ("accuracy", [(30, 2, 0), (10, 0, 0)]),
        ("10-shot accuracy", [(30, 0, 5), (10, 0, 0)]),
    ):
        assert [outside(of[name][of[name]["number"] == number]) for name in LARGER] == expected
    folders = [ROOT / "reports/routers" / name / "contrasts.csv" for name in LARGER]
    contrasts = [rows[rows["source"] == "seed"] for rows in map(pd.read_csv, folders)]
    assert [(len(rows), excluding_zero(rows)) for rows in contrasts] == [(60, 4), (20, 0)]
    half = pd.concat([(rows["ci_high"] - rows["ci_low"]) / 2 for rows in contrasts])
    assert (round(half.min(), 3), round(half.max(), 3)) == (0.010, 0.026)
    paper = pd.read_csv(folders[1])
    paper = paper[paper["source"] == "paper"]
    assert (paper["value"].abs() < half.min()).mean() > 0.5
    largest = paper[
        (paper["contrast"] == "expert choice − token choice")
        & (paper["budget"] == 1)
        & (paper["measure"] == "accuracy")
    ]["value"]
    assert (round(largest.min(), 3), round(largest.max(), 3)) == (0.015, 0.022)
    own = contrasts[1][
        (contrasts[1]["contrast"] == "expert choice − token choice")
        & (contrasts[1]["budget"] == 1)
        & (contrasts[1]["measure"] == "accuracy")
    ]
    assert own["ci_high"].item() < largest.min()


def test_plans_and_expert_choice_are_less_steady_at_two_experts_and_not_always_at_one(
    of: dict[str, pd.DataFrame],
) -> None:
    larger = pd.concat([pooled(of[name], PLANS) for name in LARGER])
    assert outside(at(larger, 2)) == (96, 0, 96)
    assert outside(at(larger, 1)) == (96, 25, 50)
    inside = pd.concat([within(of[name], PLANS) for name in LARGER])
    assert outside(at(inside, 2)) == (96, 2, 83)
    first = at(pooled(of["digits"], PLANS), 2)
    by_layer = {layer: outside(rows) for layer, rows in first.groupby("layer")}
    assert by_layer["blocks.3"] == (36, 0, 36) and by_layer["blocks.1"][2] < 36


def test_expert_choice_by_sets_of_experts(of: dict[str, pd.DataFrame]) -> None:
    """The table has values of these; every one is below that of V-MoE's router with the same k or c and seed."""
    lower, unweighted = {1: 0, 2: 0}, []
    for name in LARGER:
        table = pd.read_csv(ROOT / "reports/routers" / name / "table.csv.gz", low_memory=False)
        table = table[table["draw"].isna() & (table["tokens"] == "patch")]
        table = table[
            table["view"].isin(("random_crop", "prc_crops"))
            | (table["view"].eq("gaussian_noise") & table["severity"].eq(0.2))
        ].assign(budget=table["top_k"].fillna(table["capacity_factor"]))
        sets = table[(table["metric"] == "set_jaccard_kappa") & (table["null"] == "pooled")]
        keys = ["budget", "layer", "view", "train_seed"]
        reference = sets[sets["router"] == "softmax_token_choice"].set_index(keys)["value"]
        for router in PLANS:
            own = sets[sets["router"] == router].set_index(keys)["value"]
            negative = (own - reference.reindex(own.index) < 0).groupby("budget").sum()
            lower[2] += negative[2]
            lower[1] += negative[1] if router != "sinkhorn_token_choice" else 0
        here = table[(table["metric"] == "unweighted") & (table["budget"] == 1)]
        assert (here.loc[here["router"] == "softmax_token_choice", "value"] == 0).all()
        unweighted += here.loc[here["router"].str.endswith("expert_choice"), "value"].tolist()
    assert lower == {1: 72, 2: 96} and len(unweighted) == 72
    assert 0.19 < min(unweighted) < 0.2 and 0.59 < max(unweighted) < 0.6


def test_soft_moe_is_steadier_pooled_and_less_steady_within_the_image_at_the_end(
    of: dict[str, pd.DataFrame],
) -> None:
    soft = pd.concat([pooled(of[name], ("soft_moe",)).assign(layout=name) for name in LARGER])
    assert outside(soft) == (48, 46, 1)
    lower = soft[soft["ci_high"] < 0]
    assert lower[["layout", "layer", "number"]].values.tolist() == [
        ["digits-patch4", "blocks.3", "κ, noise σ 0.2"]
    ]
    for name, table in of.items():
        last = "blocks.5" if name == "digits-deep" else "blocks.3"
        rows = at(within(table, ("soft_moe",)), 2)
        rows = rows[rows["layer"] == last]
        assert len(rows) == below(rows) == (3 if name == "digits-deep" else 9), name


def test_the_gap_under_noise_is_of_one_training(of: dict[str, pd.DataFrame]) -> None:
    noisy = {name: of[name][of[name]["number"] == "accuracy, σ 0.2"] for name in LARGER}
    gap = at(noisy["digits-deep"], 2)
    assert outside(gap) == (5, 0, 5)
    left = {}
    for name in ("digits", *LARGER):
        table = pd.read_csv(ROOT / "reports/routers" / name / "table.csv.gz", low_memory=False)
        here = table[(table["metric"] == "accuracy") & table["severity"].eq(0.2) & table["draw"].isna()]
        left[name] = here.assign(group=here["checkpoint"].str.removesuffix("-seed0"))
    values = at(left["digits-deep"], 2).set_index("router")["value"].round(3)
    others = values.drop("softmax_token_choice")
    assert (values["softmax_token_choice"], others.min(), others.max()) == (0.497, 0.372, 0.419)
    larger = pd.concat([left[name]["value"] for name in LARGER])
    assert (round(larger.min(), 2), round(larger.max(), 2)) == (0.33, 0.5)
    assert (round(left["digits"]["value"].min(), 2), round(left["digits"]["value"].max(), 2)) == (0.79, 0.88)
    assert outside(at(noisy["digits-deep"], 1))[2] == 0
    assert outside(at(noisy["digits-patch4"], 2)) == (15, 0, 1)
    assert outside(at(noisy["digits-patch4"], 1))[2] == 0


def test_the_plan_costs_less_of_a_larger_model() -> None:
    found: dict[bool, list[float]] = {}
    for name in ("digits", *LARGER):
        table = pd.read_csv(ROOT / "reports/router-times" / name / "table.csv")
        steps = table[(table["race"] == "training step") & table["ratio"].notna()]
        of_paper = steps[~steps["contestant"].str.contains("priority|hash|random|sparse_token")]
        for budget in (1, 2):
            here = at(of_paper.assign(group=of_paper["contestant"]), budget).set_index("contestant")["ratio"]
            assert here.idxmax() == f"sparse_expert_choice-c{budget}", name
            found.setdefault(name == "digits-deep", []).append(round(here.max(), 2))
    assert (min(found[True]), max(found[True])) == (1.06, 1.07)
    assert (min(found[False]), max(found[False])) == (1.25, 1.33)


def test_the_table_of_layouts_is_that_of_the_sweeps() -> None:
    from moeprobe.models import grid
    from moeprobe.models.nn.build import build_model
    from moeprobe.models.nn.capture import moe_layers

    page = text("results/layouts.md")
    for name in ("digits", *LARGER):
        sweep = grid.load(f"routers-{name}")
        built = build_model(sweep.cells[0].model.model_copy(update={"num_classes": 10}))
        tokens = built.patch_embed.num_patches + built.num_prefix_tokens
        layers = ", ".join(f"`{layer}`" for layer in moe_layers(built))
        size = sum(one.numel() for one in built.parameters()) / 1e6
        seeds = len({cell.seed for cell in sweep.cells})
        row = f"| {tokens} | {built.embed_dim}, {len(built.blocks)} | {layers} | {size:.1f} | "
        row += f"{sweep.cells[0].epochs:g} | {seeds} |"
        assert row in page, row
