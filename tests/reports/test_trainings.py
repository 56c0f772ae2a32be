"""Committed claims about trainings, against the committed differences of single seeds and the formulas by scipy."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from reports.scripts import regenerate_trainings

REPORTS = Path(__file__).parents[2] / "reports"
WORDS = ("layer", "null", "view", "number")
# What the table of seeds calls the numbers of a view: metric of the claim (of the set for k experts), null.
NUMBERS = {
    "κ": ("{match}_kappa", "pooled"),
    "κ within image": ("{match}_kappa", "image"),
    "κ₁": ("top1_match_kappa", "pooled"),
}


def read(name: str) -> pd.DataFrame:
    return pd.read_csv(REPORTS / name, dtype=dict.fromkeys(WORDS, str)).fillna(dict.fromkeys(WORDS[:3], ""))


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_a_claim_is_the_mean_of_the_seeds(data: str) -> None:
    claims, seeds = read(f"trainings/{data}.csv"), read(f"{data}/seeds.csv")
    seeds = seeds[seeds["kind"] == "difference"]
    compared = 0
    for row in claims.to_dict("records"):
        match = "top1_match" if row["top_k"] == 1 else f"top{row['top_k']}_set_match"
        names = [
            f"{row['view']}: {name}"
            for name, (metric, null) in NUMBERS.items()
            if (metric.format(match=match), null) == (row["metric"], row["null"])
        ]
        for name in ["accuracy"] if row["metric"] == "accuracy" else names:
            of_seeds = seeds[(seeds["number"] == name) & (seeds["layer"] == row["layer"])]
            of_seeds = of_seeds[of_seeds["top_k"] == row["top_k"]]
            if len(of_seeds):
                assert len(of_seeds) == row["trainings"] == 3
                assert row["value"] == pytest.approx(of_seeds["value"].mean(), abs=1e-6), name
                compared += 1
    assert compared >= 18


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_intervals_follow_from_the_components(data: str) -> None:
    """Variances of both samples, Satterthwaite's degrees of freedom, t, and Šidák's rule over the layers."""
    for row in read(f"trainings/{data}.csv").to_dict("records"):
        pairs, images = row["trainings"], row["images"]
        rest = row["residual_spread"] ** 2 / (pairs * images)
        of_pairs, of_images = row["spread"] ** 2 / pairs + rest, row["image_spread"] ** 2 / images + rest
        # A component below 0 is 0, and then the larger variance stands.
        variance = max(of_pairs + of_images - rest, of_pairs, of_images)
        assert row["error"] >= np.sqrt(variance) * (1 - 1e-6) or row["spread"] * row["image_spread"] == 0
        if row["spread"] > 0 and row["image_spread"] > 0:
            assert row["error"] == pytest.approx(np.sqrt(variance), rel=1e-6)
            freedom = variance**2 / (of_pairs**2 / (pairs - 1) + of_images**2 / (images - 1))
            assert row["freedom"] == pytest.approx(freedom, rel=1e-6)
        layers = 1 if row["metric"] == "accuracy" else 2
        for low, confidence in (("ci_low", 0.95), ("sim_low", 0.95 ** (1 / layers))):
            reach = stats.t.isf((1 - confidence) / 2, row["freedom"]) * row["error"]
            assert row[low] == pytest.approx(row["value"] - reach, abs=1e-9)


@pytest.mark.slow
def test_they_are_made_from_the_checkpoints() -> None:
    claims = pd.concat(regenerate_trainings.claims_of("digits", 1, limit=24))
    committed = read("trainings/digits.csv").query("top_k == 1")
    keys = ["layer", "view", "metric", "null"]
    assert set(map(tuple, claims[keys].values)) == set(map(tuple, committed[keys].values))
