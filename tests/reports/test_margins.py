"""The report on margins: its numbers are those of the runs."""

from pathlib import Path

import numpy as np
import pytest

from moeprobe import api
from moeprobe.metrics.stats.bootstrap import Replicates, with_observations
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.metrics.stats.statistic import Share
from reports.scripts import regenerate_critical, regenerate_margins

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def test_deciles_are_of_the_margin() -> None:
    script = regenerate_margins
    rng = np.random.default_rng(0)
    margin = rng.random((40, 16))
    rows = script.by_decile(margin, margin < 0.3)
    edges = np.quantile(margin, np.arange(11) / 10)
    assert [row["trials"] for row in rows] == [640] + [64] * 10
    for low, high, row in zip(edges[:-1], edges[1:], rows[1:], strict=True):
        assert low <= row["margin"] <= high
    assert rows[0]["value"] == pytest.approx((margin < 0.3).mean())
    assert [row["value"] for row in rows[1:3]] == [1, 1] and rows[10]["value"] == 0
    assert all(row["ci_low"] <= row["value"] <= row["ci_high"] for row in rows)
    assert rows[10]["ci_low"] == 0 and 0 < rows[10]["ci_high"] < 0.1, "no flip is seen, and some may be"


def test_the_design_effect_is_that_of_the_deciles(monkeypatch: pytest.MonkeyPatch) -> None:
    """All patches together, the first row, are no decile."""
    script = regenerate_margins
    effects: list[float] = []

    def observe(replicates: Replicates, effect: float) -> Replicates:
        effects.append(effect)
        return with_observations(replicates, effect)

    monkeypatch.setattr(script, "with_observations", observe)
    margin = np.random.default_rng(0).random((40, 16))
    # Whole images flip in the first decile.
    flipped = (margin < 0.1) & (np.arange(40) < 20)[:, None]
    rows = script.by_decile(margin, flipped)
    assert [row["value"] for row in rows[2:]] == [0] * 9
    place = np.argsort(np.argsort(margin, axis=None)).reshape(margin.shape) * 10 // margin.size
    count, hits = (place == 0).sum(1), ((place == 0) & flipped).sum(1)
    share = Share(hits.astype(float), count.astype(float))
    assert effects == pytest.approx([linearize_all(share, share.denominator).effect] * 9)


@pytest.mark.slow
def test_flips_are_what_the_sweep_does_not_match(monkeypatch: pytest.MonkeyPatch) -> None:
    script = regenerate_margins
    monkeypatch.setattr(script, "SEEDS", (1,))
    monkeypatch.setattr(script, "TOP_KS", (2,))
    monkeypatch.setattr(script, "MODELS", {"prc": "V-MoE with PRC"})
    found, _ = script.flips("digits")
    found = found[(found["decile"] == 0) & (found["severity"] == 0.2)].set_index("layer")["value"]
    table = api.noise_sweep(ROOT / "checkpoints/reference/digits-prc-k2-seed1", sigmas=[0.0, 0.2]).table
    table = table[(table["metric"] == "top1_match") & (table["null"] == "") & (table["severity"] == 0.2)]
    table = table[table["tokens"] == "patch"].drop_duplicates("layer").set_index("layer")["value"]
    for layer, match in table.items():
        assert found[layer] == pytest.approx(1 - match, abs=1e-6)


def test_the_area_is_the_share_of_pairs_in_order() -> None:
    rng = np.random.default_rng(0)
    margin = rng.integers(0, 5, (30, 4)).astype(float)
    changed = rng.random((30, 4)) < np.where(margin < 2, 0.7, 0.2)
    found = regenerate_margins.area(margin, changed)
    moving, staying = margin[changed][:, None], margin[~changed][None]
    expected = ((moving < staying) + (moving == staying) / 2).mean()
    assert found["value"] == pytest.approx(expected)
    assert found["ci_low"] < expected < found["ci_high"] and found["ci_low"] > 0.5
    assert (found["changed"], found["trials"], found["images"]) == (changed.sum(), 120, 30)


@pytest.mark.slow
@pytest.mark.promise
def test_critical_noise_is_of_both_models_and_their_difference() -> None:
    rows = regenerate_critical.critical(1, limit=24)
    keys = ["kind", "model", "metric", "layer", "view", "severity"]
    # Numbers of all levels together have no severity.
    patches = rows[rows["tokens"] == "patch"].fillna({"severity": -1.0}).set_index(keys).sort_index()
    values = patches.loc["value", "value"]
    change = patches.loc[("difference", "V-MoE with PRC"), "value"].dropna()
    expected = (values.loc["V-MoE with PRC"] - values.loc["V-MoE"]).reindex(change.index)
    assert len(change) and change.to_numpy() == pytest.approx(expected.to_numpy())
    assert set(rows["view"]) == {"gaussian_noise", "gaussian_blur", "bfloat16"}
    bins = rows[rows["tokens"] != "patch"].groupby(["model", "layer"])["trials"].sum()
    assert len(bins) == 4 and (bins == 24 * 16).all(), "each patch is in one bin"
