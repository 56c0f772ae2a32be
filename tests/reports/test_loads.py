"""Committed reports have the load of all K choices beside that of first choices."""

from pathlib import Path

import pandas as pd
import pytest

REPORTS = Path(__file__).parents[2] / "reports"
KEYS = ["checkpoint", "layer", "view", "severity", "tokens"]
TABLES = [
    "digits/noise-sweep/table.csv", "digits/s-matrix/table.csv", "digits/compare/comparison.csv",
    "shapes/noise-sweep/table.csv", "shapes/s-matrix/table.csv",
]  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("metric", ["load_entropy", "dead_experts"])
def test_all_choices_stand_beside_the_first(name: str, metric: str) -> None:
    table = pd.read_csv(REPORTS / name, dtype=str, keep_default_na=False)
    first, every = (table.loc[table["metric"] == one, KEYS] for one in (f"{metric}_first", metric))
    assert len(every) > 0 and every.values.tolist() == first.values.tolist()
