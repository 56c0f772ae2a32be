"""Trainings side by side: accuracy against cost and time, and stability of the routing."""

import math

import pandas as pd
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.fewshot import FEWSHOT_ACCURACY
from moeprobe.metrics.analyses.output import ACCURACY
from moeprobe.metrics.costs import (
    ACTIVE_PARAMETERS,
    FLOPS_PER_IMAGE,
    STEP_SECONDS,
    STEP_SECONDS_IN_TURN,
    TRAINING_DIVERGED,
)
from moeprobe.metrics.registry import find
from moeprobe.results.figures import panels
from moeprobe.results.figures.tradeoff.rows import (
    TRAINING_TIME,
    draw_experts,
    draw_rows,
    groups,
    numbers_of,
    setting,
    shared_kappa,
)
from moeprobe.results.figures.tradeoff.times import draw_published, draw_times

__all__ = ["draw", "draw_published", "numbers_of", "setting", "shared_kappa"]

_OF_OUTPUT = (ACCURACY.name, FEWSHOT_ACCURACY.name)
_COSTS = {
    STEP_SECONDS.name: ("ms per training step", 1e3),
    STEP_SECONDS_IN_TURN.name: ("ms per step, in turn", 1e3),
    FLOPS_PER_IMAGE.name: ("MFLOPs per image", 1e-6),
    ACTIVE_PARAMETERS.name: ("active parameters, millions", 1e-6),
}
_LOADED = (
    "Time: median step × steps, as each training took it; compare what one machine did under the same load"
)
_IN_TURN = (
    "Time: median of forward and backward passes × steps, all routers timed in turn (benchmarks.speed models), without "
    "updates"
)
_BARS = "Marks: mean over training seeds; bars: lowest to highest of them"
# Of one training: what the figure's own bars are to be held against.
_WIDTH = "gray bars, as wide as one training's (median)"


def draw(table: pd.DataFrame) -> dict[str, Figure]:
    """Return the figures of a table of trainings, by name; of several data sets each has its own.

    ``tradeoff``: accuracies and costs; ``steadiness``: the routing, first MoE layer; ``time``: accuracies against the
    time of training; ``experts``: accuracy and κ against the number of experts, where that varies. A figure without any
    number is left out.
    """
    figures: dict[str, Figure] = {}
    datasets = list(dict.fromkeys(table["dataset"]))
    for dataset in datasets:
        end = "" if len(datasets) == 1 else f"-{dataset.replace(':', '-').replace('/', '-')}"
        of_dataset = _figures(table[table["dataset"] == dataset])
        figures |= {f"{name}{end}": figure for name, figure in of_dataset.items()}
    return figures


def _figures(table: pd.DataFrame) -> dict[str, Figure]:
    numbers, all_groups = numbers_of(table), groups(table)
    kinds = {name: rows["metric"].iloc[0] for name, rows in numbers.items()}
    reached = {name: rows for name, rows in numbers.items() if kinds[name] in _OF_OUTPUT}
    routing = {name: rows for name, rows in numbers.items() if kinds[name] not in (*_OF_OUTPUT, *_COSTS)}
    accuracies = panels.select(table, metric=ACCURACY.name)
    shown_rows = accuracies if len(accuracies) else table
    lacking = dict.fromkeys(panels.select(table, metric=TRAINING_DIVERGED.name)["checkpoint"], "diverged")
    several = any(len(group.cells) > 1 for group in all_groups)
    bars = _BARS if several else "Bars: 95 % over images"
    if not numbers:  # all of them diverged
        return {}
    figure = draw_rows(reached | _costs(table), all_groups, lacking=lacking)
    figures = {
        "tradeoff": panels.finish(
            figure, shown_rows, title="What is reached, and what it costs", notes=[bars], mark=_WIDTH
        )
    }
    if routing:
        kappa = shared_kappa(table)
        notes = [] if kappa is None else [f"κ of {find(kappa).metric.label}, against pooled chance"]
        figures["steadiness"] = panels.finish(
            draw_rows(routing, all_groups, lacking=lacking), shown_rows,
            title="How stable and how even the routing is: first MoE layer",
            notes=[*notes, bars], mark=_WIDTH,
        )  # fmt: skip
    if len({group.experts for group in all_groups if not math.isnan(group.experts)}) > 1:
        steady = {name: rows for name, rows in routing.items() if name.startswith("κ")}
        numbers_drawn = [*list(reached.items())[:1], *list(steady.items())[:1]]
        figures["experts"] = panels.finish(
            draw_experts(dict(numbers_drawn), all_groups),
            shown_rows,
            title="How many experts",
            notes=[bars],
            mark=None,
        )
    if TRAINING_TIME in numbers:
        against = {name: rows for name, rows in reached.items() if name == "accuracy" or "-shot" in name}
        figures["time"] = panels.finish(
            draw_times(against, numbers[TRAINING_TIME], all_groups), shown_rows, title="Accuracy against training time",
            notes=[_IN_TURN if kinds[TRAINING_TIME] == STEP_SECONDS_IN_TURN.name else _LOADED, bars], mark=None,
        )  # fmt: skip
    return figures


def _costs(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what trainings cost, in the units of the figure, by the titles of its panels."""
    costs = {}
    in_turn = STEP_SECONDS_IN_TURN.name in set(table["metric"])
    for name, (title, unit) in _COSTS.items():
        if name == (STEP_SECONDS.name if in_turn else STEP_SECONDS_IN_TURN.name):
            continue
        rows = panels.select(table, metric=name).set_index("checkpoint")
        if len(rows):
            costs[title] = rows.assign(value=rows["value"] * unit)
    return costs
