"""The report on the cost of flips: which rows of a run its tables keep, and how they read."""

from pathlib import Path

import pandas as pd
import pytest

from moeprobe.metrics.analyses.flips import FORCED
from moeprobe.results.folder import Result
from reports.scripts import flips_tables, regenerate_flips

KINDS = (*flips_tables._KINDS, *(("blocks.1", f"margin {number}/10") for number in range(1, 11)))


def rows(checkpoint: str, size: float) -> list[dict[str, object]]:
    shared = {"checkpoint": checkpoint, "images": 360, "carriers": None}
    shared |= {"layer": "", "tokens": "", "view": "gaussian_noise"}
    single = [
        shared
        | {"layer": layer, "tokens": tokens, "severity": 0.4}
        | {"metric": f"flip_{measured}_{forced}", "value": value}
        for layer, tokens in KINDS
        for forced in FORCED
        for measured, value in (("size", size), ("price", size / 2), ("answer", 0.25), ("output", 9.0))
    ]
    together = [
        shared
        | {
            "view": view,
            "severity": severity,
            "metric": metric.name,
            "value": severity * size,
        }
        for view in ("corruption,kind=snow", "gaussian_blur")
        for severity in (1.0, 5.0)
        for metric in flips_tables._COSTS
    ]
    fits = [
        shared | {"view": "held out", "severity": float("nan"), "metric": metric.name, "value": 1000 * size}
        for metric in flips_tables._FITS
    ]
    return [row | interval(row) for row in single + together + fits]


def interval(row: dict[str, object]) -> dict[str, object]:
    """An interval without a width; few images carry a price."""
    if str(row["metric"]).startswith("flip_price"):
        return {"ci_low": float("nan"), "ci_high": float("nan"), "carriers": 4}
    return {"ci_low": row["value"], "ci_high": row["value"]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    baseline, prc = (f"digits-{name}-k2-seed0" for name in regenerate_flips.MODELS)
    run = Result.__new__(Result)
    object.__setattr__(run, "table", pd.DataFrame(rows(baseline, 0.002) + rows(prc, 0.004)))
    object.__setattr__(run, "comparison", pd.DataFrame(rows(prc, 0.002)))
    regenerate_flips.write([regenerate_flips.rows_of(run, 0)], tmp_path)
    return tmp_path


def test_prices_are_in_thousandths(folder: Path) -> None:
    _, _, first, *others = flips_tables.prices(folder)
    assert first == (
        "| `blocks.1` | patches | `runner_up` | 2.0 | 4.0 | +2.0 to +2.0 (1+) "
        "| 1.0 | 2.0 | +1.0 to +1.0 (no interval) | 0.250 |"
    )
    assert len(others) == len(FORCED) * len(flips_tables._KINDS) - 1


def test_deciles_are_of_each_model(folder: Path) -> None:
    _, _, first, second, *_ = flips_tables.deciles(folder)
    assert first == f"| `runner_up` | V-MoE |{' 2.0 |' * 5}" and second.startswith(
        "| `runner_up` | V-MoE with PRC | 4.0"
    )


def test_costs_are_those_of_the_strongest(folder: Path) -> None:
    _, _, *lines = flips_tables.costs(folder)
    assert lines == [f"| `{view}` |{' 0.010 | 0.020 |' * 4}" for view in ("snow", "gaussian_blur")]


def test_fits_have_differences(folder: Path) -> None:
    lines = flips_tables.fits(folder)[2:]
    assert lines[0] == "| slope, cost of flips | 2.00 | 4.00 | +2.00 to +2.00 (1+) |" and len(lines) == 5
    assert lines[4] == "| the same slope, 95 % over the eight views, by seed | [1.0, 1.0] | [1.0, 1.0] | – |"
