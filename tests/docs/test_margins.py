"""The reports on margins and on shots of other data: their numbers are those of the runs, and bear the page out."""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api

ROOT = Path(__file__).parents[2]
MARGINS = pd.read_csv(ROOT / "reports/margins/digits.csv")
KEYS = ["layer", "top_k", "seed", "severity"]


@pytest.fixture
def importing(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    monkeypatch.syspath_prepend(str(ROOT / "reports"))
    monkeypatch.chdir(ROOT)
    return importlib.import_module


def test_deciles_are_of_the_margin(importing: Callable[[str], Any]) -> None:
    script = importing("regenerate_margins")
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


def test_flips_are_what_the_sweep_does_not_match(
    importing: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = importing("regenerate_margins")
    monkeypatch.setattr(script, "SEEDS", (1,))
    monkeypatch.setattr(script, "TOP_KS", (2,))
    monkeypatch.setattr(script, "MODELS", {"prc": "V-MoE with PRC"})
    found = script.flips("digits")
    found = found[(found["decile"] == 0) & (found["severity"] == 0.2)].set_index("layer")["value"]
    table = api.noise_sweep(ROOT / "checkpoints/reference/digits-prc-k2-seed1", sigmas=[0.0, 0.2]).table
    table = table[(table["metric"] == "top1_match") & (table["null"] == "") & (table["severity"] == 0.2)]
    table = table[table["tokens"] == "patch"].drop_duplicates("layer").set_index("layer")["value"]
    for layer, match in table.items():
        assert found[layer] == pytest.approx(1 - match, abs=1e-6)


def test_peaked_patches_flip_less_and_margins_of_models_are_not_alike() -> None:
    for (layer, *_), rows in MARGINS.groupby(KEYS):
        by = rows.pivot_table(index="decile", columns="model", values="value")
        margin = rows.pivot_table(index="decile", columns="model", values="margin")
        assert (by["V-MoE with PRC"] <= by["V-MoE"]).all()
        assert (by.loc[1] > 3 * by.loc[10]).all()
        if rows["severity"].iloc[0] == 0.2:
            assert (by["V-MoE with PRC"] < by["V-MoE"]).all()
            assert by.loc[1].between(0.45, 0.65).all() and (by.loc[10] < 0.11).all()
            peaked, plain = by.loc[5, "V-MoE with PRC"], by.loc[10, "V-MoE"]
            assert peaked > (4 if layer == "blocks.1" else 1) * plain
            apart = margin.loc[5, "V-MoE with PRC"] - margin.loc[10, "V-MoE"]
            assert abs(apart) < 0.1 if layer == "blocks.1" else apart > 0.1


def test_features_of_shapes_are_good_for_digits_and_not_the_reverse() -> None:
    for data, least, most in (("digits", 0.5, 0.7), ("shapes", 0.08, 0.16)):
        table = pd.read_csv(ROOT / f"reports/transfer/{data}.csv")
        values = table[(table["kind"] == "value") & (table["number"] == "accuracy")]
        assert len(values) == 12 and values["value"].between(least, most).all()
        if data == "digits":
            apart = table[(table["kind"] == "difference") & (table["number"] == "accuracy")]
            assert (apart["value"] < 0).all()
