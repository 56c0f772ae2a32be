"""Differences between the tables of two devices are found, each of its kind."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.devices import differences

TABLE = {
    "run": "a",
    "metric": ["top1_match", "load"],
    "value": [0.5, np.nan],
    "ci_low": [0.4, 0.1],
    "ci_high": [0.6, 0.3],
}


@pytest.mark.parametrize(
    ("changed", "unequal", "largest"),
    [
        ({"run": "b"}, 0.0, 0.0),
        ({"metric": ["top1_match", "top2_match"]}, 1 / 8, 0.0),
        ({"value": [0.55, np.nan]}, 0.0, 0.05),
        ({"value": [0.5, 0.2]}, 1 / 8, 0.0),
    ],
)
def test_numbers_words_and_missing_values(
    tmp_path: Path, changed: dict[str, object], unequal: float, largest: float
) -> None:
    paths = [tmp_path / "cpu.csv", tmp_path / "cuda.csv"]
    for path, table in zip(paths, (TABLE, {**TABLE, **changed}), strict=True):
        pd.DataFrame(table).to_csv(path, index=False)
    found = differences(*paths)
    assert found["unequal"] == unequal
    assert found["largest_difference"] == pytest.approx(largest)
    assert found["in_widths_of_intervals"] == pytest.approx(largest / 0.2)


def test_experts_of_a_trace_count_one_by_one(tmp_path: Path) -> None:
    paths = [tmp_path / "cpu.parquet", tmp_path / "cuda.parquet"]
    for path, last in zip(paths, (3, 4), strict=True):
        pd.DataFrame(
            {"experts": [np.arange(3), np.array([last])], "gates": [np.ones(2), np.full(2, last)]}
        ).to_parquet(path)
    assert differences(*paths) == {"rows": 2, "unequal": 1 / 8, "largest_difference": 1.0}
