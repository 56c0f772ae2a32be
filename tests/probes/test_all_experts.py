"""All banned experts together, from made-up prices whose truth is known: many experts hide no difference."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from moeprobe.metrics.analyses.experts import BANNED, INTERVENTIONS, MISSED_RATE, PRICE_AMONG, PRICES_DIFFER
from moeprobe.metrics.stats.many import false_discovery
from moeprobe.probes.experts.all_together import sentences
from moeprobe.probes.experts.redundancy import redundancy_rows
from moeprobe.results.stored import SumsStore, of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import frame, image_table

INPUTS, EXPERTS = 100, 128
ABOUT = About("run", "made up", "test", 5, aligned=True, train_seeds={}, groups={})


def sums(*truths: np.ndarray, seed: int = 0) -> SumsStore:
    """A layer for each array of true prices; they are skewed, and some inputs are dear for all experts."""
    rng, accumulator = np.random.default_rng(seed), Accumulator()
    names = [f"i{number:03d}" for number in range(INPUTS)]
    for layer, of_layer in enumerate(truths):
        prices = (
            of_layer + rng.exponential(size=(INPUTS, len(of_layer))) - 1 + 0.3 * rng.normal(size=(INPUTS, 1))
        )
        columns: dict[str, np.ndarray] = {"label": np.zeros(INPUTS, dtype=np.int64)}
        for intervention in INTERVENTIONS:
            columns |= {
                f"experts_price_{intervention}": prices,
                f"experts_trials_{intervention}": np.ones(INPUTS, dtype=np.int64),
                f"experts_inputs_{intervention}": np.ones(INPUTS, dtype=np.int64),
            }
        accumulator.add(Cell(layer=f"blocks.{layer}", router="r", top_k=2), names, columns)
    return of_table(image_table(accumulator, checkpoint="a"))


def table(store: SumsStore) -> pd.DataFrame:
    return frame(redundancy_rows(store, ABOUT, loss=None))


def test_a_difference_of_many_experts_is_seen_though_no_interval_excludes_0() -> None:
    """Prices that vary by as much as their noise: Bonferroni names hardly one of 256, the test of all sees them."""
    rng = np.random.default_rng(1)
    found = table(sums(*(0.08 * rng.normal(size=(2, EXPERTS)))))
    band = found[found["metric"] == "experts_price_band"]
    assert len(band) == 2 * EXPERTS
    # At most a few excluded 0 by their intervals for all at once.
    assert (band["ci_low"] > 0).sum() <= 2
    p_values = found[found["metric"] == PRICES_DIFFER.name].set_index("layer")["value"]
    assert p_values["all"] < 0.01
    assert set(p_values.index) == {"blocks.0", "blocks.1", "all"}
    (said,) = sentences(found)
    assert said.startswith("a: the prices of 256 experts differ from one another within their layers (p = ")
    assert said.endswith("are missed, at a false discovery rate of 5%.")


def test_equal_experts_show_no_difference() -> None:
    (said,) = sentences(table(sums(np.zeros(EXPERTS), seed=3)))
    assert said.startswith("a: the prices of 128 experts of blocks.0 show no significant difference (p = ")
    assert "0 of 128 are missed" in said


def test_a_planted_expert_is_missed_and_values_among_all_are_nearer() -> None:
    truths = np.zeros(EXPERTS)
    truths[[5, 17, 90]] = 1.0
    found = table(sums(truths, seed=4))
    rates = found[found["metric"] == MISSED_RATE.name].set_index("expert")["value"].astype(float)
    assert {5, 17, 90} <= set(rates.index[rates <= 0.05])
    assert (rates <= 0.05).sum() <= 5
    raw, among = (
        found[found["metric"] == name].set_index("expert")["value"].astype(float).sort_index()
        for name in ("experts_price_band", PRICE_AMONG.name)
    )
    assert np.square(among - truths).mean() < 0.8 * np.square(raw - truths).mean()
    # The rates are those of t tests of single experts, from the prices themselves.
    prices = next(iter(sums(truths, seed=4))).load_all()[1][f"experts_price_{BANNED}"]
    p_values = stats.ttest_1samp(prices, 0, alternative="greater").pvalue
    assert rates.sort_index().to_numpy() == pytest.approx(false_discovery(p_values))
