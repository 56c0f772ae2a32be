"""The worst of L layers: its interval holds for all layers at once, and layers not separated from it are named."""

import numpy as np
import pandas as pd
import pytest

from moeprobe.judging.properties import widen_intervals, worst_row
from moeprobe.judging.scales import SCALES
from moeprobe.metrics.stats.proportions import critical

IMAGES, EXPERIMENTS = 200, 400


def layers_of(
    rng: np.random.Generator, layers: int, *, images: int = IMAGES, truth: float = 0.6
) -> pd.DataFrame:
    """Rows of layers that are all the same in truth; images are easy or hard for all of them alike."""
    shared = rng.normal(0, 0.1, (images, 1))
    values = truth + shared + rng.normal(0, 0.3, (images, layers))
    mean, reach = values.mean(0), critical(images) * values.std(0, ddof=1) / np.sqrt(images)
    return pd.DataFrame(
        {
            "layer": [f"blocks.{layer}" for layer in range(layers)], "view": "noise", "flag": "", "images": images,
            "metric": "top1_match_kappa", "value": mean, "ci_low": mean - reach, "ci_high": mean + reach,
        }
    )  # fmt: skip


def coverage(layers: int, *, simultaneous: bool) -> float:
    rng = np.random.default_rng(layers)
    holds = 0
    for _ in range(EXPERIMENTS):
        rows = layers_of(rng, layers)
        worst = worst_row(widen_intervals(rows) if simultaneous else rows, SCALES["agreement"])
        holds += worst["ci_low"] <= 0.6 <= worst["ci_high"]
    return holds / EXPERIMENTS


@pytest.mark.parametrize("layers", [8, 24, 48])
def test_the_interval_of_the_worst_layer_holds_its_truth(layers: int) -> None:
    error = np.sqrt(0.05 * 0.95 / EXPERIMENTS)
    assert coverage(layers, simultaneous=True) >= 0.95 - 2 * error
    assert coverage(layers, simultaneous=False) < 0.9, "the layer's own interval does not: it was picked"


def test_a_single_layer_keeps_its_interval_and_no_end_leaves_the_range() -> None:
    rows = layers_of(np.random.default_rng(0), 1)
    pd.testing.assert_frame_equal(widen_intervals(rows), rows)
    high = layers_of(np.random.default_rng(0), 12, truth=0.98)
    assert widen_intervals(high)["ci_high"].max() == 1.0
    without = high.assign(ci_low=np.nan, ci_high=np.nan)
    assert widen_intervals(without)["ci_low"].isna().all()
