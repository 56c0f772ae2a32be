"""What the pages on κ and on the PRC paper say in words follows from the committed numbers."""

import pandas as pd
import pytest

from reports.scripts import kappa_reference
from tests.docs.pages import ROOT, text

REPORTS = ROOT / "reports"
GOOD_KAPPA = " ".join(text("concepts/good-kappa.md").split())
PAPER = " ".join(text("guide/prc-paper.md").split())


def router(name: str, layer: str, view: str, null: str) -> float:
    table = pd.read_csv(REPORTS / "routers/digits/table.csv.gz", low_memory=False)
    rows = table[(table["router"] == name) & (table["train_seed"] == 0) & (table["top_k"] == 2)]
    rows = rows[
        (rows["layer"] == layer) & (rows["view"] == view) & (rows["null"] == null) & rows["draw"].isna()
    ]
    rows = rows[(rows["metric"] == "top1_match_kappa") & (rows["tokens"] == "patch")]
    rows = rows[rows["severity"].isna() | (rows["severity"] == kappa_reference.NOISE)]
    [value] = rows["value"]
    return float(value)


def test_the_worked_example_is_right() -> None:
    for match, shares, kappa in ((0.60, (0.4, 0.3, 0.2, 0.1), 0.43), (0.85, (0.9, 0.1), 0.17)):
        chance = sum(share**2 for share in shares)
        assert (match - chance) / (1 - chance) == pytest.approx(kappa, abs=0.005)
        assert f"**{kappa}**" in GOOD_KAPPA


def test_the_random_gate_reaches_the_trained_one_under_crops_and_routes_whole_images() -> None:
    table = kappa_reference.rows(REPORTS)
    crops = table[(table["view"] == "random crops") & (table["null"] == "pooled")].set_index("model")
    gate, trained = crops.loc["random gate, never trained"], crops.loc["V-MoE"]
    assert gate["ci_high"] > trained["ci_low"]
    last = [router("random_fixed", "blocks.3", "random_crop", null) for null in ("pooled", "image")]
    assert [round(value, 2) for value in last] == [0.45, 0.17]
    assert "κ 0.45, but 0.17 within the image" in GOOD_KAPPA
    ours = [
        router("softmax_token_choice", "blocks.1", view, "pooled")
        for view in ("random_crop", "gaussian_noise")
    ]
    assert [round(value, 2) for value in ours] == [0.36, 0.65]
    assert "κ 0.36 under crops and 0.65 under noise" in GOOD_KAPPA


def test_a_kappa_above_a_band_need_not_be_shown_to_be_in_it() -> None:
    table = kappa_reference.rows(REPORTS)
    noise = table[table["view"].str.startswith("noise") & (table["null"] == "pooled")].set_index("model")
    row = noise.loc["V-MoE with PRC"]
    assert row["ci_low"] < kappa_reference.BANDS["stable"] < row["value"]
    assert f"{row['value']:.3f} [{row['ci_low']:.3f}, {row['ci_high']:.3f}]" in GOOD_KAPPA


def test_kappa_of_other_models() -> None:
    fashion = pd.read_csv(REPORTS / "fashion/seed0/match-ratio/table.csv")
    fashion = fashion[(fashion["metric"] == "top1_match_kappa") & (fashion["null"] == "pooled")]
    fashion = fashion[(fashion["layer"] == "blocks.1") & (fashion["tokens"] == "patch")]
    assert fashion["value"].round(2).tolist() == [0.21, 0.50]
    olmoe = pd.read_csv(REPORTS / "precision/olmoe.csv")
    olmoe = olmoe[(olmoe["part"] == "whole") & (olmoe["format"] == "bf16")]
    assert olmoe.loc[olmoe["metric"] == "top1_match_kappa", "value"].round(3).tolist() == [0.996, 0.990]
    assert "V-MoE 0.21 and V-MoE with PRC 0.50" in GOOD_KAPPA and "κ 0.996 and 0.990" in GOOD_KAPPA


def accuracy_gains() -> list[tuple[float, float]]:
    """Intervals of the accuracy of PRC minus the baseline's, of all 18 pairs."""
    found = []
    for data in ("digits", "shapes"):
        table = pd.read_csv(REPORTS / data / "seeds.csv")
        rows = table[(table["number"] == "accuracy") & (table["kind"] == "difference")]
        found += list(zip(rows["ci_low"], rows["ci_high"], strict=True))
    for seed in range(3):
        gaps = pd.read_csv(REPORTS / f"fashion/seed{seed}/gaps.csv").set_index("contrast")
        for k in (2, 1):
            row = gaps.loc[f"V-MoE with PRC, k = {k}, less V-MoE, k = {k}"]
            found.append((row["ci_low"], row["ci_high"]))
    return found


def test_what_reproduces_of_the_paper() -> None:
    gains = accuracy_gains()
    higher, lower = sum(low > 0 for low, _ in gains), sum(high < 0 for _, high in gains)
    assert (len(gains), higher, lower) == (18, 1, 8)
    assert "no significant difference in 9 of 18 pairs, 1 higher, 8 lower (6 of them on shapes)" in PAPER
    crops = []
    for data in ("digits", "shapes"):
        table = pd.read_csv(REPORTS / data / "seeds.csv")
        rows = table[(table["kind"] == "difference") & (table["layer"] == "blocks.1")]
        crops.append(rows[rows["number"].isin(["random_crop: κ", "prc_crops: κ"])])
    for seed in range(3):
        table = pd.read_csv(REPORTS / f"fashion/seed{seed}/match-ratio/comparison.csv")
        rows = table[(table["metric"] == "top1_match_kappa") & (table["null"] == "pooled")]
        crops.append(rows[(rows["layer"] == "blocks.1") & (rows["tokens"] == "patch")])
    all_crops = pd.concat(crops)
    assert (all_crops["ci_low"] > 0).all()
    assert f"+{all_crops['value'].min():.2f} to +{all_crops['value'].max():.2f}" in PAPER
