"""What the page on the cost of flips says, in Markdown."""

from pathlib import Path

import numpy as np
import pandas as pd

from moeprobe.metrics.analyses.flip_costs import (
    COST,
    COST_CLEAN,
    DAMAGE,
    PREDICTED,
    R2,
    R2_CLEAN,
    SLOPE,
    SLOPE_CLEAN,
)
from moeprobe.metrics.analyses.flips import FORCED, flip_metric
from moeprobe.metrics.stats.proportions import critical
from reports.scripts.more_tables import SIDES, signed, span
from reports.scripts.objectives import MODELS

DECILES = (1, 3, 5, 8, 10)
# Tokens whose flips can reach the answer.
_KINDS = (("blocks.1", "patch"), ("blocks.1", "prefix"), ("blocks.3", "prefix"))
_TOKENS = {"patch": "patches", "prefix": "class token"}
# Nats are shown in thousandths.
_SCALE = 1000
_COSTS = {PREDICTED: "predicted", COST: "cost", COST_CLEAN: "cost on clean pixels", DAMAGE: "damage"}
_FITS = (SLOPE, R2, SLOPE_CLEAN, R2_CLEAN)


def prices(folder: Path) -> list[str]:
    """Return what single flips cost, in thousandths of a nat: a line per layer, kind of token and set."""
    table = pd.read_csv(folder / "prices.csv")
    table = _scaled(table, ~table["metric"].str.startswith("flip_answer"))
    heads = [*(f"size: {side}" for side in SIDES), *(f"price: {side}" for side in SIDES), "other answer"]
    lines = [f"| MoE layer | | set | {' | '.join(heads)} |", f"|{'---|' * (3 + len(heads))}"]
    for layer, tokens in _KINDS:
        rows = table[(table["layer"] == layer) & (table["tokens"] == tokens)]
        for forced in FORCED:
            of_set = {
                measured: rows[rows["metric"] == flip_metric(measured, forced).name]
                for measured in ("size", "price", "answer")
            }
            answer = of_set["answer"].loc[of_set["answer"]["kind"] == "value", "value"]
            cells = [*_sides(of_set["size"], 1), *_sides(of_set["price"], 1), span(answer)]
            lines.append(f"| `{layer}` | {_TOKENS[tokens]} | `{forced}` | {' | '.join(cells)} |")
    return lines


def deciles(folder: Path) -> list[str]:
    """Return the size of patches' flips, in thousandths of a nat, by decile of the margin: a line per set and model."""
    table = pd.read_csv(folder / "prices.csv")
    table = _scaled(table, table["tokens"].str.startswith("margin"))
    table = table[(table["layer"] == _KINDS[0][0]) & (table["kind"] == "value")]
    lines = [f"| set | | {' | '.join(map(str, DECILES))} |", f"|{'---|' * (2 + len(DECILES))}"]
    for forced in FORCED:
        for model in MODELS.values():
            rows = table[(table["metric"] == flip_metric("size", forced).name) & (table["model"] == model)]
            cells = [span(rows.loc[rows["tokens"] == f"margin {one}/10", "value"], 1) for one in DECILES]
            lines.append(f"| `{forced}` | {model} | {' | '.join(cells)} |")
    return lines


def costs(folder: Path) -> list[str]:
    """Return the costs of all flips, in nats per image: a line per held-out view, at its strongest."""
    table = pd.read_csv(folder / "costs.csv")
    table = table[(table["kind"] == "value") & table["severity"].notna()]
    table = table[table["severity"] == table.groupby("view")["severity"].transform("max")]
    heads = [f"{name}: {side}" for name in _COSTS.values() for side in SIDES[:2]]
    lines = [f"| view | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    for view, rows in table.groupby("view", sort=False):
        cells = [
            span(rows.loc[(rows["metric"] == metric.name) & (rows["model"] == model), "value"])
            for metric in _COSTS
            for model in MODELS.values()
        ]
        lines.append(f"| `{view}` | {' | '.join(cells)} |")
    return lines


def fits(folder: Path) -> list[str]:
    """Return how predicted costs fit over all held-out perturbations: a line per number."""
    table = pd.read_csv(folder / "costs.csv")
    lines = [f"| | {' | '.join(SIDES)} |", "|---|---|---|---|"]
    for metric in _FITS:
        cells = _sides(table[table["metric"] == metric.name], 2)
        lines.append(f"| {metric.label} | {' | '.join(cells)} |")
    views = slopes_over_views(table)
    over_views = [
        "; ".join(
            f"[{row.ci_low:.1f}, {row.ci_high:.1f}]" for row in views[views["model"] == model].itertuples()
        )
        for model in MODELS.values()
    ]
    return [*lines, f"| the same slope, 95 % over the eight views, by seed | {' | '.join(over_views)} | – |"]


def slopes_over_views(table: pd.DataFrame, cost: str = COST.name) -> pd.DataFrame:
    """Return the slope of each model over held-out views, with t intervals over views: the jackknife leaves one out.

    Args:
        table: rows of ``costs.csv``.
        cost: the metric that is fitted.
    """
    table = table[(table["kind"] == "value") & table["severity"].notna()]
    rows = []
    for (model, seed), of_model in table.groupby(["model", "train_seed"]):
        wide = of_model.pivot(index=["view", "severity"], columns="metric", values="value")
        sides = pd.DataFrame({"over": wide[cost], "under": wide[PREDICTED.name]})
        products = sides.mul(wide[PREDICTED.name], axis=0)
        by_view = products.groupby("view").sum()
        left_out = by_view.sum() - by_view
        without, views = left_out["over"] / left_out["under"], len(by_view)
        error = np.sqrt((views - 1) / views * np.square(without - without.mean()).sum())
        value, reach = products["over"].sum() / products["under"].sum(), critical(views) * error
        rows.append(
            {
                "model": model,
                "train_seed": seed,
                "value": value,
                "ci_low": value - reach,
                "ci_high": value + reach,
            }
        )
    return pd.DataFrame(rows)


def _scaled(table: pd.DataFrame, rows: "pd.Series[bool]") -> pd.DataFrame:
    """Return a table with some rows in thousandths."""
    columns = ["value", "ci_low", "ci_high"]
    factor = rows.map({True: _SCALE, False: 1})
    return table.assign(**{column: table[column] * factor for column in columns})


def _sides(rows: pd.DataFrame, digits: int) -> list[str]:
    """Return the values of both models and their difference."""
    values = rows[rows["kind"] == "value"]
    sides = [span(values.loc[values["model"] == model, "value"], digits) for model in MODELS.values()]
    return [*sides, signed(rows[rows["kind"] == "difference"], digits, of_known=True)]
