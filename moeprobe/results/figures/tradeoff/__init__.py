"""Trainings side by side: accuracy against cost and time, and stability of the routing; and the values of a paper."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
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
    MARKS,
    TRAINING_TIME,
    Group,
    draw_experts,
    draw_rows,
    groups,
    numbers_of,
    shared_kappa,
    spread,
)
from moeprobe.results.palette import COLORS

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
# The bars of one training, to compare the figure's own bars with.
_MARK_WIDTH = "gray bars, as wide as one training's (median)"


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
            figure, shown_rows, title="What is reached, and what it costs", notes=[bars], mark=_MARK_WIDTH
        )
    }
    if routing:
        kappa = shared_kappa(table)
        notes = [] if kappa is None else [f"κ of {find(kappa).metric.label}, against pooled chance"]
        figures["steadiness"] = panels.finish(
            draw_rows(routing, all_groups, lacking=lacking), shown_rows,
            title="How stable and how even the routing is: first MoE layer",
            notes=[*notes, bars], mark=_MARK_WIDTH,
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


# Accuracy against training time, as Figures 1 and 2 of "Routers in Vision MoE" (Liu et al.): ours, and the paper's.

_WIDTH, _HEIGHT = 4.6, 3.0
# Names beside a panel of more letters than this make it wider, by inches for each.
_LETTERS, _LETTER = 24, 0.09
_TASKS = {"jft": "JFT-300M, top-1", "imagenet_10shot": "ImageNet-1k, 10-shot"}
# Yellow is too light for points and names.
_COLORS = COLORS[:-1]


def draw_times(numbers: dict[str, pd.DataFrame], time: pd.DataFrame, all_groups: Sequence[Group]) -> Figure:
    """Return accuracies (rows of panels) against the time of training, a column per budget."""
    # What has no budget, a dense model say, is held against those of every budget.
    sizes = list(dict.fromkeys(group.size for group in all_groups if not np.isnan(group.size))) or [0.0]
    settings = {
        size: [group for group in all_groups if group.size == size or np.isnan(group.size)] for size in sizes
    }
    longest = max((len(group.label) for group in all_groups), default=0)
    width = _WIDTH + _LETTER * max(0, longest - _LETTERS)
    figure, axes = panels.panels(len(numbers), len(settings), width=width, height=_HEIGHT, sharey=False)
    for row, (name, rows) in enumerate(numbers.items()):
        for column, members in enumerate(settings.values()):
            panel = axes[row, column]
            _points(panel, members, time, rows)
            names = dict.fromkeys(group.setting for group in members if not np.isnan(group.size))
            panel.set_title(", ".join(names) if row == 0 else "")
            panel.set(ylabel=name if column == 0 else "", xlabel="time of the training steps, s")
        ends = np.array([panel.get_ylim() for panel in axes[row]])
        for panel in axes[row]:
            panel.set_ylim(ends[:, 0].min(), ends[:, 1].max())
        for column, members in enumerate(settings.values()):
            _name(axes[row, column], members, time, rows)
    return figure


def draw_published(paper: pd.DataFrame) -> Figure:
    """Return the figure of the paper's values: a column per architecture, pretraining above, few-shot below."""
    architectures = list(dict.fromkeys(paper["architecture"]))
    paper = paper.assign(checkpoint=[f"cell {number}" for number in range(len(paper))], group="")
    paper = paper.assign(ci_low=np.nan, ci_high=np.nan, value=paper["accuracy"])
    key = ["architecture", "router", "top_k", "capacity_factor"]
    days = paper[paper["task"] == "jft"].drop_duplicates(key)[[*key, "tpuv3_days"]]
    figure, axes = panels.panels(len(_TASKS), len(architectures), width=_WIDTH, height=_HEIGHT, sharey=False)
    for row, (task, title) in enumerate(_TASKS.items()):
        for column, architecture in enumerate(architectures):
            values = paper[(paper["task"] == task) & (paper["architecture"] == architecture)]
            time = values[[*key, "checkpoint"]].merge(days, on=key, how="left").set_index("checkpoint")
            time = time.assign(value=time["tpuv3_days"], ci_low=np.nan, ci_high=np.nan)
            panel, rows = axes[row, column], values.set_index("checkpoint")
            all_groups = groups(values)
            _points(panel, all_groups, time, rows)
            _name(panel, all_groups, time, rows)
            panel.set_title(architecture if row == 0 else "")
            panel.set(ylabel=f"accuracy, {title}" if column == 0 else "", xlabel="TPUv3-days of pretraining")
    for number, size in enumerate(dict.fromkeys(group.size for group in all_groups)):
        names = dict.fromkeys(group.setting for group in all_groups if group.size == size)
        axes[0, 0].plot([], [], MARKS[number], color="#606060", label=", ".join(names))
    figure.suptitle("The paper's values, not ours: Routers in Vision MoE (Liu et al.)")
    return panels.add_caption(
        figure,
        "Tables 1–4, 6, 8. Pretraining on JFT-300M, 32 experts, every second block; no intervals are published. Lines "
        "join the two budgets of a router; L/16 has one of sparse_expert_choice and of soft_moe.",
    )


def _colors(members: Sequence[Group]) -> dict[str, str]:
    labels = dict.fromkeys(group.label for group in members)
    return {label: _COLORS[number % len(_COLORS)] for number, label in enumerate(labels)}


def _points(axes: Axes, members: Sequence[Group], time: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Draw the mean of each group with the ranges of its seeds, and a line through the budgets of one router."""
    sizes = list(dict.fromkeys(group.size for group in members))
    for label, color in _colors(members).items():
        through = []
        for group in [group for group in members if group.label == label]:
            x, y = spread(group, time), spread(group, rows)
            if x is None or y is None:
                continue
            axes.plot([x.low, x.high], [y.mean, y.mean], "-", color=color, linewidth=1, alpha=0.5)
            axes.plot([x.mean, x.mean], [y.low, y.high], "-", color=color, linewidth=1, alpha=0.5)
            axes.plot([x.mean], [y.mean], MARKS[sizes.index(group.size)], color=color, markersize=6, zorder=3)
            through.append((x.mean, y.mean))
        if len(through) > 1:
            axes.plot(*np.transpose(through), "-", color=color, linewidth=0.8)
    axes.margins(x=0.08, y=0.08)


def _name(axes: Axes, members: Sequence[Group], time: pd.DataFrame, rows: pd.DataFrame) -> None:
    """Write the name of each router beside the last of its points."""
    labels = {}
    for group in members:
        x, y = spread(group, time), spread(group, rows)
        if x is not None and y is not None:
            labels[group.label] = panels.Named(x.mean, y.mean, group.label, _colors(members)[group.label])
    panels.write_beside(axes, list(labels.values()), height=_HEIGHT - 0.6)
