"""What routers cost in a whole model, timed in turn, with the ratios of "Routers in Vision MoE" beside."""

import json
from pathlib import Path

import pandas as pd

from benchmarks.speed.parts.models import FORWARD, STEP
from moeprobe.models import grid
from moeprobe.studies.tradeoff.table import published_values
from reports.scripts.sweep_list import VMOE

ARCHITECTURES = ("B/32", "B/16", "L/16")


def lines(folder: Path) -> list[str]:
    """Return a line per router and budget: a training step and a forward pass, ratios to softmax token choice."""
    table = pd.read_csv(folder / "table.csv", keep_default_na=False)
    races = {name: rows.set_index("contestant") for name, rows in table.groupby("race")}
    asked = json.loads((folder / "table.json").read_text(encoding="utf-8"))["request"]
    cells = {cell.group: cell for cell in grid.load(asked["sweep"], ["seeds=[0]"]).cells}
    head = ["router", "k or c", "step, ms", "ratio of steps", "ratio of forward passes"]
    head += [f"training, {name}, the paper" for name in ARCHITECTURES]
    out = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, row in races[STEP].iterrows():
        model = cells[str(name)].model
        size = float(model.top_k or model.capacity_factor or 0)
        budget = f"{'k' if model.top_k else 'c'} = {size:g}"
        shown = [f"`{model.router_name}`", budget, f"{row['median'] * 1e3:.0f}"]
        shown += [_ratio(races[race].loc[name]) for race in (STEP, FORWARD)]
        shown += [_paper(model.router_name, size, architecture) for architecture in ARCHITECTURES]
        out.append(f"| {' | '.join(shown)} |")
    return out


def _ratio(row: "pd.Series") -> str:
    if not row["against"]:
        return "1"
    low, middle, high = (float(row[key]) for key in ("ratio_quartile_low", "ratio", "ratio_quartile_high"))
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def _paper(router: str, budget: float, architecture: str) -> str:
    """Return the paper's days of pretraining over those of softmax token choice of the same budget."""
    table = published_values()
    here = table[(table["task"] == "jft") & (table["architecture"] == architecture)]
    here = here[here["top_k"].fillna(here["capacity_factor"]) == budget].set_index("router")["tpuv3_days"]
    if router not in here.index or pd.isna(here[router]):
        return ""
    return f"{here[router] / here[VMOE]:.2f}"
