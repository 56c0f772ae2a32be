"""The report on natural deformations: its numbers are those of the runs, its tables ranges of seeds."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from reports.scripts import regenerate_deformations

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def in_the_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.slow
@pytest.mark.promise
def test_each_number_is_that_of_the_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regenerate_deformations, "SEEDS", (1,))
    monkeypatch.setattr(regenerate_deformations, "TOP_KS", (2,))
    monkeypatch.setattr(regenerate_deformations, "PATHS", ())
    (row,) = regenerate_deformations.deformed("digits", limit=24, views={"brightness": 0.2}).to_dict(
        "records"
    )
    pair = [ROOT / f"checkpoints/reference/digits-{one}-k2-seed1" for one in ("baseline", "prc")]
    table = api.sweep(pair, view="brightness", severities=[0.0, 0.2], limit=24).table
    table = table[(table["metric"] == "top1_match_kappa") & (table["null"] == "pooled")]
    table = table[(table["layer"] == "blocks.1") & (table["tokens"] == "patch") & (table["severity"] == 0.2)]
    np.testing.assert_allclose([row["baseline"], row["prc"]], table["value"])
    assert row["difference"] == pytest.approx(row["prc"] - row["baseline"]) and row["images"] == 24
    assert row["difference_low"] < row["difference"] < row["difference_high"]


def test_tables_say_ranges_of_seeds_and_count_intervals() -> None:
    rows = [
        {
            "top_k": 2, "train_seed": seed, "view": view, "severity": severity, "metric": "top1_match_kappa",
            "baseline": 0.4 + seed / 100, "prc": 0.5 + seed / 100, "difference": 0.1 * (seed - 1), "images": 360,
            "difference_low": 0.1 * (seed - 1) - 0.05, "difference_high": 0.1 * (seed - 1) + 0.05,
        }
        for seed in range(3)
        for view, severity in (("rotation", 20.0), ("randaugment", np.nan))
    ]  # fmt: skip
    text = regenerate_deformations.tables({"digits": pd.DataFrame(rows)})
    assert "## digits, k = 2: κ, 360 images" in text
    assert "| rotation | 20 | 0.400 to 0.420 | 0.500 to 0.520 | -0.100 to +0.100 (1+, 1−) |" in text
    assert "| randaugment |  | 0.400" in text
