"""Accuracy against training time, as Figures 1 and 2 of "Routers in Vision MoE" (Liu et al.): ours, and the paper's."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.results.figures import panels
from moeprobe.results.figures.direct import Named, beside
from moeprobe.results.figures.tradeoff.rows import MARKS, Group, groups, spread
from moeprobe.results.palette import COLORS

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
            labels[group.label] = Named(x.mean, y.mean, group.label, _colors(members)[group.label])
    beside(axes, list(labels.values()), height=_HEIGHT - 0.6)
