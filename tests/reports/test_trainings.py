"""Committed claims about trainings, against the committed differences of single seeds and the formulas by scipy."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from moeprobe.judging.trainings import compare_trainings
from moeprobe.metrics.analyses.output import Output
from moeprobe.metrics.stats.two_way import TwoWay
from moeprobe.probes.corruptions.measure import Mean
from moeprobe.results.stored import of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from reports.scripts import regenerate_trainings
from tests.judging.test_differences import ABOUT, answered

REPORTS = Path(__file__).parents[2] / "reports"
WORDS = ("layer", "null", "view", "number", "reference")
# What the table of seeds calls the numbers of a view: metric of the claim (of the set for k experts), null.
NUMBERS = {
    "κ": ("{match}_kappa", "pooled"),
    "κ within image": ("{match}_kappa", "image"),
    "κ₁": ("top1_match_kappa", "pooled"),
}


def read(name: str) -> pd.DataFrame:
    return pd.read_csv(REPORTS / name, dtype=dict.fromkeys(WORDS, str)).fillna(
        dict.fromkeys(("layer", "null", "view"), "")
    )


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


def test_claims_of_corruptions_are_the_means_of_the_seeds() -> None:
    claims, seeds = read("trainings/corruptions.csv"), read("corruptions/digits.csv")
    seeds = seeds[seeds["model"] == "difference"]
    means = seeds.groupby(["view", "metric", "layer"])["value"].mean()
    assert len(claims) == 72
    for row in claims.to_dict("records"):
        expected = means[row["view"], row["metric"], row["layer"]]
        assert row["value"] == pytest.approx(expected, abs=1e-6), row


def test_claims_of_attacks_are_the_means_of_the_seeds() -> None:
    claims, seeds = read("trainings/attack.csv"), read("attack/attack.csv")
    seeds = seeds[seeds["reference"].notna() & (seeds["norm"] == "linf") & (seeds["restarts"] == 0)]
    means = seeds.groupby(["view", "severity", "metric", "layer", "null"])["value"].mean()
    compared = 0
    for row in claims.to_dict("records"):
        place = row["view"], row["severity"], row["metric"], row["layer"], ""
        # At the smaller ε not every number of a seed is committed.
        if place in means:
            assert row["value"] == pytest.approx(means[place], abs=1e-4), row
            compared += 1
    assert compared >= 30


def test_claims_of_fashion_mnist_are_the_means_of_the_seeds() -> None:
    claims = read("trainings/fashion.csv")
    folders = {("prc_crops", 2): "match-ratio", ("prc_crops", 1): "match-ratio-k1"}
    for row in claims.to_dict("records"):
        of_output = "eval" if row["metric"] == "accuracy" else "routes"
        folder, values = folders.get((row["view"], row["top_k"]), of_output), []
        for seed in range(3):
            table = read(f"fashion/seed{seed}/{folder}/comparison.csv")
            rows = table[(table["metric"] == row["metric"]) & (table["layer"] == row["layer"])]
            rows = rows[(rows["null"] == row["null"]) & rows["tokens"].isin(["patch", np.nan])]
            rows = rows[rows["checkpoint"] == f"fashion-prc-k{row['top_k']}-seed{seed}"]
            values += rows["value"].tolist()
        # The run of outputs compares k = 1 with V-MoE at k = 2.
        if (row["metric"], row["top_k"]) != ("accuracy", 1):
            assert len(values) == 3 and row["value"] == pytest.approx(np.mean(values), abs=1e-5), row
    assert len(claims) == 26


@pytest.mark.parametrize("data", list(regenerate_trainings.REPORTS))
def test_intervals_follow_from_the_components(data: str) -> None:
    """Variances of both samples, Satterthwaite's degrees of freedom, t, and Šidák's rule over the layers."""
    for row in read(f"trainings/{data}.csv").to_dict("records"):
        pairs, images = row["trainings"], row["images"]
        rest = row["residual_spread"] ** 2 / (pairs * images)
        of_pairs, of_images = row["spread"] ** 2 / pairs + rest, row["image_spread"] ** 2 / images + rest
        # A component below 0 is 0, and then the larger variance stands.
        variance = max(of_pairs + of_images - rest, of_pairs, of_images)
        assert row["error"] >= np.sqrt(variance) * (1 - 1e-3) or row["spread"] * row["image_spread"] == 0
        if row["spread"] > 0 and row["image_spread"] > 0:
            assert row["error"] == pytest.approx(np.sqrt(variance), rel=1e-3)
            freedom = variance**2 / (of_pairs**2 / (pairs - 1) + of_images**2 / (images - 1))
            assert row["freedom"] == pytest.approx(freedom, rel=3e-3)
        layers = 1 if row["metric"] == "accuracy" else 2
        reach = stats.t.isf((1 - 0.95 ** (1 / layers)) / 2, row["freedom"]) * row["error"]
        ends = row["value"] - reach, row["value"] + reach
        assert (row["sim_low"], row["sim_high"]) == pytest.approx(ends, rel=1e-3, abs=1e-5)


@pytest.mark.slow
def test_they_are_made_from_the_checkpoints() -> None:
    claims = pd.concat(regenerate_trainings.of_crops("digits", top_ks=(1,), limit=24))
    committed = read("trainings/digits.csv").query("top_k == 1")
    keys = ["layer", "view", "metric", "null"]
    assert set(map(tuple, claims[keys].values)) == set(map(tuple, committed[keys].values))


def test_a_mean_over_corruptions_has_the_influence_of_each_image_on_all_of_them() -> None:
    """A mean of accuracies is linear, so that an image's difference is the mean of those under each corruption."""
    rng = np.random.default_rng(0)
    names = [f"{kind}{seed}" for kind in "ab" for seed in range(3)]
    answers = {name: rng.random((2, 40)) < rng.uniform(0.3, 0.9) for name in names}
    parts = []
    for name, of_views in answers.items():
        sums = Accumulator()
        for view, right in zip(("fog", "snow"), of_views, strict=True):
            cell = Cell("", "", 0, view, 1.0, 0, "")
            columns = answered(0, 0.5, 40) | {"accuracy": right.astype(np.int64)}
            sums.add(cell, [f"{image:02d}" for image in range(40)], columns)
        parts.append(image_table(sums, checkpoint=name))
    mean = Mean("mean", float("nan"), (("fog", 1.0), ("snow", 1.0)))
    pairs = [(f"b{seed}", f"a{seed}") for seed in range(3)]
    table = compare_trainings(
        of_table(concatenate(parts)),
        analyses=(Output(),),
        run_info=ABOUT,
        pairs={("b", "a"): pairs},
        combine=partial(regenerate_trainings._means, means=[mean]),
    )
    table = table[table["metric"] == "accuracy"]
    assert list(table["view"]) == ["fog", "snow", "mean"]
    row = table.iloc[-1]
    expected = TwoWay.of(np.array([answers[one].mean(0) - answers[other].mean(0) for one, other in pairs]))
    found = row["value"], row["error"], row["freedom"]
    assert found == pytest.approx((expected.value, expected.error, expected.freedom), rel=1e-6)
    # A mean is a family of its own, so its simultaneous interval is its own; the two views share one.
    assert (row["sim_low"], row["sim_high"]) == pytest.approx((row["ci_low"], row["ci_high"]))
    assert table.iloc[0]["sim_high"] > table.iloc[0]["ci_high"]
