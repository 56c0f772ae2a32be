"""What docs/results/prc-ablation.md says in words follows from the committed numbers."""

import pandas as pd
import pytest

from moeprobe.results.packed import read_pack
from tests.docs.pages import ROOT, text
from tests.docs.sweeps import changed, differences_of, table_of

FOLDER = ROOT / "reports/sweeps/prc-ablation"
FIRST, LAST = "blocks.1", "blocks.3"
NONE, BALANCED = "balanced-importance_weight-0-load_weight-0", "balanced"
PRC = "prc-diagonal_weight-{}-offdiagonal_weight-{}"
BOTH, DIAGONAL, OFF, PAPER = (
    PRC.format(0.05, 0.5),
    PRC.format(0.05, 0),
    PRC.format(0, 0.5),
    PRC.format(0.005, 0.05),
)
DOSES = [PAPER, BOTH, PRC.format(0.2, 2), PRC.format(0.5, 5)]


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return table_of(FOLDER)


@pytest.fixture(scope="module")
def differences() -> pd.DataFrame:
    return differences_of(FOLDER)


def seeds(table: pd.DataFrame, group: str, metric: str, layer: str = FIRST) -> pd.Series:
    """Return a number of clean patches, by training seed."""
    here = table[(table["group"] == group) & (table["metric"] == metric) & (table["layer"] == layer)]
    here = here[(here["view"] == "clean") & (here["tokens"] == "patch") & here["draw"].isna()]
    found = here.drop_duplicates("checkpoint").set_index("train_seed")["value"]
    assert list(found.index) == [0, 1, 2]
    return found


def less_balanced(differences: pd.DataFrame, group: str, number: str, layer: str = FIRST) -> pd.DataFrame:
    return changed(differences, number, group, layer=layer)


def test_neither_prediction_holds(table: pd.DataFrame) -> None:
    assert seeds(table, OFF, "dead_experts_first").sum() <= seeds(table, NONE, "dead_experts_first").sum()
    assert set(seeds(table, DIAGONAL, "dead_experts_first")) == {2, 3}
    assert set(seeds(table, BOTH, "dead_experts_first")) == {1, 2}
    every = {group: seeds(table, group, "dead_experts_first").sum() for group in table["group"].unique()}
    assert max(every, key=lambda group: every[group]) == DIAGONAL


def test_what_the_page_on_digits_says_of_dead_experts_at_other_weights(table: pd.DataFrame) -> None:
    assert set(seeds(table, PAPER, "dead_experts_first")) == {0, 1}
    assert set(seeds(table, BOTH, "dead_experts_first")) == {1, 2}
    assert set(seeds(table, f"{BOTH}-noisy-True", "dead_experts_first")) == {1, 2}
    page = " ".join(text("results/prc-digits-shapes.md").split())
    assert (
        "no or one expert of `blocks.1` is dead as first choice at the paper's λ, and one or two at ten times it"
        in page
    )


def test_noise_in_s_moves_the_gains_of_kappa_by_little(differences: pd.DataFrame) -> None:
    kappas = [number for number in differences["number"].unique() if number.startswith("κ")]
    keys = ["number", "layer", "train_seed"]
    with_noise, without = (
        differences[(differences["group"] == group) & differences["number"].isin(kappas)].set_index(keys)[
            "value"
        ]
        for group in (f"{BOTH}-noisy-True", BOTH)
    )
    change = with_noise - without
    assert len(change.dropna()) == 24
    assert (round(change.min(), 2), round(change.max(), 2)) == (-0.04, 0.01)
    assert "are .04 lower to .01 higher than without, seed by seed" in " ".join(
        text("results/prc-ablation.md").split()
    )


def test_no_loss_kills_one_expert_per_layer_and_is_less_even(table: pd.DataFrame) -> None:
    for layer in (FIRST, LAST):
        assert sorted(seeds(table, NONE, "dead_experts_first", layer)) == [0, 0, 1]
    assert (seeds(table, NONE, "load_entropy_first") < seeds(table, BALANCED, "load_entropy_first")).all()


def test_the_diagonal_alone_is_as_steady_and_less_even(
    table: pd.DataFrame, differences: pd.DataFrame
) -> None:
    for within in ("", " within the image"):
        alone, both = (
            less_balanced(differences, group, f"κ{within}, prc_crops").set_index("train_seed")
            for group in (DIAGONAL, BOTH)
        )
        assert (alone["value"] > both["ci_low"]).all()
    assert (seeds(table, BOTH, "load_entropy_first") > seeds(table, DIAGONAL, "load_entropy_first")).all()


def test_more_weight_is_more_kappa_and_more_peaked_gates(
    table: pd.DataFrame, differences: pd.DataFrame
) -> None:
    kappas = [less_balanced(differences, group, "κ, prc_crops")["value"].mean() for group in DOSES]
    gates = [seeds(table, group, "gate_highest").mean() for group in DOSES]
    assert kappas == sorted(kappas) and gates == sorted(gates)
    for group in DOSES[2:]:
        assert set(seeds(table, group, "dead_experts_first")) == {1}
    within = less_balanced(differences, PAPER, "κ within the image, noise σ 0.2", LAST)
    assert (within["ci_high"] < 0).all()


def test_uniform_gates_agree_less_in_their_first_expert(
    table: pd.DataFrame, differences: pd.DataFrame
) -> None:
    assert seeds(table, BALANCED, "gate_entropy").mean() == pytest.approx(0.7, abs=0.03)
    assert seeds(table, "jsd-weight-0.05", "gate_entropy").mean() == pytest.approx(0.89, abs=0.01)
    assert seeds(table, "jsd-weight-0.5", "gate_entropy").mean() == pytest.approx(0.99, abs=0.005)
    for group in ("jsd-weight-0.05", "jsd-weight-0.5", "jsd-weight-5"):
        assert (less_balanced(differences, group, "κ, noise σ 0.2")["ci_high"] < 0).all()


def test_without_a_loss_the_sign_depends_on_chance(differences: pd.DataFrame) -> None:
    pooled, within = (
        less_balanced(differences, NONE, f"κ{word}, prc_crops", LAST) for word in ("", " within the image")
    )
    assert (pooled["ci_low"] > 0).all() and (within["ci_high"] < 0).all()


def test_accuracy_tells_none_apart(differences: pd.DataFrame) -> None:
    here = differences[differences["number"] == "accuracy"]
    assert len(here) == 36
    assert (here["ci_low"] > 0).sum() == 1 and not (here["ci_high"] < 0).any()


def test_more_than_twice_as_many_tokens_find_no_room() -> None:
    cells = read_pack(ROOT / "reports/sweeps/drops-digits")
    last = {name: dict(zip(*lines(cell.metrics or ""), strict=True)) for name, cell in cells.items()}
    dropped = {name: float(row["train_dropped"]) for name, row in last.items()}
    for seed in range(3):
        without, balanced = dropped[f"{NONE}-seed{seed}"], dropped[f"{BALANCED}-seed{seed}"]
        assert 2 * balanced < without < 0.5


def lines(metrics: str) -> tuple[list[str], list[str]]:
    first, *_, last = metrics.strip().splitlines()
    return first.split(","), last.split(",")


def test_the_page_says_what_is_tested() -> None:
    page = " ".join(text("results/prc-ablation.md").split())
    for words in ("Neither holds here", "2 or 3 of 8", "of 36 differences one", "more than twice as many"):
        assert words in page
