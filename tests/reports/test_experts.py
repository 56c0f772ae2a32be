"""The report on redundant experts: its numbers against other ways to compute them, and how its tables read."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from moeprobe.metrics.stats.bootstrap import Bootstrap
from reports.scripts import experts_numbers as numbers
from reports.scripts import experts_tables
from tests.docs.pages import ROOT

FOLDER = ROOT / "reports/experts"
MODEL = ["k", "train_seed", "model", "layer"]
IMAGES, EXPERTS = 40, 5


def made_up() -> dict[str, np.ndarray]:
    """Sums of images in which saliency ranks experts by size, and no image is like another."""
    random = np.random.default_rng(0)
    processed = random.integers(1, 5, (IMAGES, EXPERTS))
    sign = random.choice([-1.0, 1.0], (IMAGES, EXPERTS))
    return {
        "experts_price_without": sign * np.arange(EXPERTS),
        "expert_processed": processed,
        "expert_saliencies": processed * (1.0 + np.arange(EXPERTS)),
    }


def test_a_criterion_that_ranks_exactly_has_a_correlation_of_1() -> None:
    bootstrap = Bootstrap(IMAGES, seed=0, num_resamples=50)
    exact = numbers.ranks([made_up()] * 2, numbers.SALIENCY, numbers.SIZE, bootstrap).interval()
    assert (exact.value, exact.low, exact.high) == (1, 1, 1)
    assert numbers.halves(made_up(), numbers.SIZE) == 1 and numbers.halves(made_up(), numbers.PRICE) < 0.9


def test_an_expert_that_processes_nothing_has_the_least_saliency() -> None:
    sums = made_up()
    for name in ("expert_processed", "expert_saliencies"):
        sums[name][:, 4] = 0
    bootstrap = Bootstrap(IMAGES, seed=0, num_resamples=50)
    value = numbers.ranks([sums], numbers.SALIENCY, numbers.SIZE, bootstrap).point
    assert value == pytest.approx(stats.spearmanr([1, 2, 3, 4, 0], range(5)).statistic)


def test_what_an_image_says_of_likeness_has_its_mean_and_its_error() -> None:
    """Against the bootstrap, of sums of which each image has its own."""
    random = np.random.default_rng(1)
    pairs, patches = EXPERTS * (EXPERTS - 1) // 2, random.integers(5, 15, (400, 1))
    sums = {
        "expert_norms": patches * random.uniform(1, 2, (400, EXPERTS)),
        "expert_products": patches * random.uniform(0.1, 0.8, (400, pairs)),
        "expert_products_permuted": patches * random.uniform(0.0, 0.2, (400, pairs)),
        "expert_alignments": patches * random.uniform(0.2, 0.6, (400, pairs)),
        "expert_self_alignments": patches * random.uniform(0.8, 1.2, (400, EXPERTS)),
    }
    whole, images = numbers.likeness(sums, Bootstrap(400, seed=0)), numbers.of_images(sums)
    assert set(whole) == set(images) == {numbers.DISTANCE, numbers.CKA}
    for name, own in images.items():
        estimate = whole[name].interval()
        assert own.mean() == pytest.approx(estimate.value, abs=1e-4)
        half = (estimate.high - estimate.low) / 2
        assert stats.norm.isf(0.025) * stats.sem(own) == pytest.approx(half, rel=0.1)


def test_a_difference_over_trainings_is_the_mean_of_the_seeds() -> None:
    table = pd.read_csv(FOLDER / "likeness.csv")
    seeds = table[table["kind"] == "difference"].groupby(["k", "layer", "metric"])["value"]
    together = table[table["kind"] == "trainings"].set_index(["k", "layer", "metric"])
    assert len(together) == 8
    pd.testing.assert_series_equal(together["value"].sort_index(), seeds.mean(), atol=1e-4)
    reach = (together["ci_high"] - together["ci_low"]).sort_index() / 2
    assert (reach >= stats.norm.isf(0.025) * seeds.sem() - 1e-6).all()


def test_ranks_are_those_of_the_prices_and_saliencies_beside_them() -> None:
    prices, ranked = pd.read_csv(FOLDER / "prices.csv"), pd.read_csv(FOLDER / "ranks.csv")
    ranked = ranked[(ranked["criterion"] == "saliency") & (ranked["target"] == "price")].set_index(MODEL)
    wide = prices[prices["expert"].notna()].pivot_table(
        index=[*MODEL, "expert"], columns="metric", values="value"
    )
    wide = wide.fillna({"expert_saliency": 0})
    assert len(ranked) == 24 + 2
    for key, rows in wide.groupby(level=MODEL):
        expected = stats.spearmanr(rows["expert_saliency"], rows["experts_price_without"]).statistic
        assert ranked.loc[key, "value"] == pytest.approx(expected, abs=1e-4)


def test_means_over_pairs_are_those_of_the_pairs() -> None:
    pairs, means = pd.read_csv(FOLDER / "pairs.csv"), pd.read_csv(FOLDER / "likeness.csv")
    pairs = pairs.assign(distance=pairs["expert_distance"] / pairs["expert_distance_permuted"])
    of_pairs = pairs.rename(columns={"expert_cka": "cka"}).groupby(MODEL)[["distance", "cka"]].mean()
    means = means[means["kind"] == "value"].astype({"train_seed": int})
    means = means.pivot_table(index=MODEL, columns="metric", values="value")
    assert len(means) == 24
    pd.testing.assert_frame_equal(means[["distance", "cka"]], of_pairs, atol=1e-4, check_names=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Prices of two experts of one layer, of three seeds and both models; one price has no interval with PRC."""
    rows = [
        {"k": 1, "train_seed": seed, "model": model, "kind": kind, "layer": "blocks.1"}
        | {
            "metric": metric,
            "expert": expert,
            "value": value,
            "ci_low": None if few else value - 0.001,
            "ci_high": None if few else value + 0.001,
        }
        for seed in range(3)
        for model, kind, size in (
            ("V-MoE", "value", 0.002),
            ("V-MoE with PRC", "value", 0.004),
            ("V-MoE with PRC", "difference", 0.002),
        )
        for metric, expert, value, few in (
            ("experts_price_without", None, size, False),
            ("experts_price_band", 0, size - 0.002, False),
            ("experts_price_band", 1, size, size == 0.004),
            ("experts_price_beyond", 0, 0.0, False),
            ("experts_price_beyond", 1, 10 * size, False),
            ("experts_price_random", None, 2 * size, False),
        )
    ]
    pd.DataFrame(rows).to_csv(tmp_path / "prices.csv", index=False)
    return tmp_path


def test_bans_are_in_thousandths_and_experts_are_counted(folder: Path) -> None:
    [line] = experts_tables.bans(folder)[2:]
    assert line == (
        "| 1 | `blocks.1` | 2.0 | 4.0 | +2.0 to +2.0 (3+) | 2.0 | 4.0 | 6 of 6 | 3 of 6 | 0.0 to 2.0 % | 0.0 to 4.0 % |"
    )


def test_other_interventions_have_a_line_each(folder: Path) -> None:
    lines = experts_tables.interventions(folder)[2:]
    assert "| 1 | `blocks.1` | random sets | 4.0 | 8.0 | +4.0 to +4.0 (3+) |" in lines
