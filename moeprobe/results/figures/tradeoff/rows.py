"""Numbers of many trainings, a panel per number and a line per router: means over seeds with their range.

What one panel says stands above it: how far the means are apart, and how far the seeds of one of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator, StrMethodFormatter

from moeprobe.metrics.analyses.attention_contagion import AttentionContagion
from moeprobe.metrics.analyses.batch_contagion import BatchContagion
from moeprobe.metrics.analyses.fewshot import FEWSHOT_ACCURACY
from moeprobe.metrics.analyses.load import LOAD_ENTROPY
from moeprobe.metrics.analyses.output import ACCURACY
from moeprobe.metrics.analyses.token_contagion import TokenContagion
from moeprobe.metrics.costs import (
    ACTIVE_PARAMETERS,
    FLOPS_PER_IMAGE,
    STEP_SECONDS,
    STEP_SECONDS_IN_TURN,
    TRAINING_STEPS,
)
from moeprobe.metrics.registry import find
from moeprobe.results.figures import panels
from moeprobe.results.palette import COLORS

# Trainings that differ in their seed alone: what a figure calls them, and what is drawn of them.

_ABOUT = ["group", "router", "top_k", "capacity_factor", "num_experts"]


@dataclass(frozen=True)
class Group:
    """Cells that differ in their seed alone.

    Attributes:
        label: its line in a figure; groups of one label differ in their budget.
        setting: its budget, in words.
        size: its budget, k or c: equal ones compute equally much.
        cells: their names.
        router: its router.
        experts: how many an MoE layer has; NaN where there is none, or it is not known.
    """

    label: str
    setting: str
    size: float
    cells: tuple[str, ...]
    router: str
    experts: float


@dataclass(frozen=True)
class Spread:
    """A number of a group: the mean over its seeds and what the bar reaches from and to.

    The bar is the range of the seeds, and of a single one its interval over images, where there is one.
    """

    mean: float
    low: float
    high: float
    seeds: int


def groups(table: pd.DataFrame) -> list[Group]:
    """Return the groups of a table in their order."""
    # Tables from before had no number of experts.
    cells = table.drop_duplicates("checkpoint").set_index("checkpoint").reindex(columns=_ABOUT)
    cells = cells.assign(group=[row["group"] or name for name, row in cells.iterrows()])
    kinds = cells.drop_duplicates("group")
    names: tuple[Callable[[pd.Series], str], ...] = (
        lambda row: str(row["router"]),
        lambda row: f"{row['router']}, E = {row['num_experts']}",
        lambda row: str(row["group"]),
    )
    label = next(name for name in names if name is names[-1] or _distinct(kinds, name))
    return [
        Group(
            label=label(row),
            setting=setting(row),
            size=_size(row),
            cells=tuple(map(str, cells.index[cells["group"] == row["group"]])),
            router=str(row["router"]),
            experts=float("nan") if pd.isna(row["num_experts"]) else float(row["num_experts"]),
        )
        for _, row in kinds.iterrows()
    ]


def setting(row: pd.Series) -> str:
    """Return ``k = 2`` where tokens choose, ``c = 1`` where experts do."""
    for name, letter in (("top_k", "k"), ("capacity_factor", "c")):
        if not pd.isna(row[name]):
            return f"{letter} = {row[name]:.3g}"
    return "no k or c"


def spread(group: Group, rows: pd.DataFrame) -> Spread | None:
    """Return a number of a group from its rows, indexed by cell; None where no cell has it."""
    cell_rows = rows.loc[[name for name in group.cells if name in rows.index]]
    cell_rows = cell_rows[cell_rows["value"].notna()]
    if cell_rows.empty:
        return None
    ends = cell_rows["value"], cell_rows["value"]
    if len(cell_rows) == 1:
        ends = cell_rows["ci_low"].fillna(cell_rows["value"]), cell_rows["ci_high"].fillna(cell_rows["value"])
    return Spread(
        float(cell_rows["value"].mean()), float(ends[0].min()), float(ends[1].max()), len(cell_rows)
    )


def deviations(all_groups: list[Group], rows: pd.DataFrame) -> tuple[float, float] | None:
    """Return the standard deviation of the groups' means, and of seeds within a group, pooled.

    None where there are not at least two groups and two seeds of one, and where seeds make no difference.
    """
    values = [rows["value"].reindex(list(group.cells)).dropna().to_numpy(float) for group in all_groups]
    values = [cells for cells in values if len(cells)]
    within = [cells for cells in values if len(cells) > 1]
    if len(values) < 2 or all(np.ptp(cells) == 0 for cells in within):
        return None
    squares = sum(((cells - cells.mean()) ** 2).sum() for cells in within)
    pooled = squares / sum(len(cells) - 1 for cells in within)
    return float(np.std([cells.mean() for cells in values], ddof=1)), float(np.sqrt(pooled))


def _distinct(kinds: pd.DataFrame, label: Callable[[pd.Series], str]) -> bool:
    """Whether a label and the budget together tell all groups apart."""
    return len({(label(row), setting(row)) for _, row in kinds.iterrows()}) == len(kinds)


def _size(row: pd.Series) -> float:
    budget = row["capacity_factor"] if pd.isna(row["top_k"]) else row["top_k"]
    return float("nan") if pd.isna(budget) else float(budget)


MARKS = "osD^vP*X"
_GRAY = "#606060"
# The height of a line, in inches, and what a panel needs besides.
_LINE, _REST = 0.24, 1.0
_APART = 0.34
# Labels of more letters than this make a figure wider, by inches for each.
_LETTERS, _LETTER = 40, 0.12


def draw_rows(
    numbers: dict[str, pd.DataFrame],
    groups: Sequence[Group],
    *,
    lacking: Mapping[str, str] = MappingProxyType({}),
) -> Figure:
    """Return a figure of numbers by their titles, a row per cell each; title, caption and legend come later.

    ``lacking`` says of cells why they have no numbers: "diverged".
    """
    labels = list(dict.fromkeys(group.label for group in groups))
    # No panel alone in the last row.
    columns = min(4 if len(numbers) % 3 == 1 else 3, len(numbers))
    rows = -(-len(numbers) // columns)
    # The first panel shares its width with the labels.
    width = 3.6 + _LETTER / columns * max(0, max(map(len, labels)) - _LETTERS)
    figure, axes = panels.panels(rows, columns, width=width, height=_LINE * (len(labels) + 1) + _REST)
    for panel, (title, number_rows) in zip(axes.flat, numbers.items(), strict=False):
        _panel(panel, number_rows, groups, labels, title=title, lacking=lacking)
    for panel in axes.flat[len(numbers) :]:
        panel.set_axis_off()
    for row in axes:
        row[0].set_yticks(range(len(labels) + 1), [*labels, "95 % over images"])
        row[0].set_ylim(len(labels) + 0.5, -0.7)
    for size, look in looks(groups).items():
        names = dict.fromkeys(group.setting for group in groups if group.size == size or np.isnan(size))
        axes[0, 0].plot([], [], look["fmt"], color=look["color"], label=", ".join(names))
    return figure


def looks(groups: Sequence[Group]) -> dict[float, dict[str, str]]:
    """Return mark and color of each budget."""
    sizes = sorted({group.size for group in groups if not np.isnan(group.size)}) or [float("nan")]
    return {
        size: {"fmt": MARKS[number % len(MARKS)], "color": COLORS[number % len(COLORS)]}
        for number, size in enumerate(sizes)
    }


def _panel(
    axes: Axes,
    rows: pd.DataFrame,
    groups: Sequence[Group],
    labels: Sequence[str],
    *,
    title: str,
    lacking: Mapping[str, str],
) -> None:
    styles = looks(groups)
    sizes = list(styles)
    low, high = np.inf, -np.inf
    absent = partial(axes.text, 0.02, fontsize=7, fontstyle="italic", color=_GRAY, va="center",
                     transform=axes.get_yaxis_transform())  # fmt: skip
    for label in labels:
        members = [group for group in groups if group.label == label]
        bars = [(group, bar) for group in members if (bar := spread(group, rows)) is not None]
        y = labels.index(label)
        budgets = sorted({group.size for group, _ in bars if group.size in sizes}) or [sizes[0]]
        for group, bar in bars:
            number = budgets.index(group.size) if group.size in budgets else 0
            bar_height = y + _APART * (number - (len(budgets) - 1) / 2)
            _mark(axes, bar, bar_height, **styles[budgets[number]])
            low, high = min(low, bar.low), max(high, bar.high)
        missing = [
            lacking[name]
            for group in members
            for name in group.cells
            if name in lacking and name not in rows.index
        ]
        if missing:
            absent(y + (0.42 if bars else 0), ", ".join(dict.fromkeys(missing)) + f" ({len(missing)})")
        elif not bars:
            absent(y, "does not exist")
    _scale_bar(axes, rows, len(labels), middle=(low + high) / 2)
    better = find(rows["metric"].iloc[0]).direction
    sds = deviations(list(groups), rows)
    subtitle = "" if sds is None else f"\nsd of the means {sds[0]:.2g}, of seeds {sds[1]:.2g}"
    axes.set_title(f"{title}{subtitle}", fontsize=9, loc="left")
    axes.set_xlabel({1: "better →", -1: "← better", 0: ""}[better], fontsize=8)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.tick_params(labelsize=8)
    axes.margins(x=0.08)
    axes.axhline(len(labels) - 0.5, color="#b0b0b0", linewidth=0.6)


def _mark(axes: Axes, bar: Spread, y: float, *, fmt: str, color: str) -> None:
    axes.plot([bar.low, bar.high], [y, y], "-", color=color, linewidth=2, alpha=0.45, solid_capstyle="butt")
    axes.plot([bar.mean], [y], fmt, color=color, markersize=5)


def _scale_bar(axes: Axes, rows: pd.DataFrame, y: float, *, middle: float) -> None:
    """Draw how wide the interval over images of one training is, as the median of them; nothing without any."""
    width = (rows["ci_high"] - rows["ci_low"]).median()
    if not pd.isna(width):
        ends = [middle - width / 2, middle + width / 2]
        axes.plot(ends, [y, y], "|-", color=_GRAY, linewidth=1.2, markersize=6)


# Which numbers of a trade-off are read first: of the output, of the costs, and of the first MoE layer.
#
# The first layer, since where the head reads the class token alone, what the last one does to patches reaches nothing.

TRAINING_TIME = "training_time"


def numbers_of(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the leading metrics: name -> a row per cell that has it, indexed by cell; first MoE layer, patches."""
    first = table.groupby("checkpoint")["layer"].transform(_first)
    table = table[(table["layer"] == "") | (table["layer"] == first)]
    numbers: dict[str, pd.DataFrame] = {}

    def take(name: str, rows: pd.DataFrame) -> None:
        if len(rows):
            numbers[name] = rows.drop_duplicates("checkpoint").set_index("checkpoint")

    clean = table[table["view"].isin(["clean", ""])]
    take("accuracy", panels.select(clean, metric=ACCURACY.name))
    steps = panels.select(table, metric=TRAINING_STEPS.name).set_index("checkpoint")["value"]
    seconds = panels.select(table, metric=STEP_SECONDS_IN_TURN.name)
    seconds = seconds if len(seconds) else panels.select(table, metric=STEP_SECONDS.name)
    if len(seconds):
        take(TRAINING_TIME, seconds.assign(value=seconds["value"] * seconds["checkpoint"].map(steps)))
    for name in (FLOPS_PER_IMAGE.name, ACTIVE_PARAMETERS.name):
        take(name, panels.select(table, metric=name))
    kappa = shared_kappa(table)
    for view in dict.fromkeys(table["view"]):
        perturbed = table[(table["view"] == view) & ~table["view"].isin(["clean", ""])]
        strongest = perturbed[
            perturbed["severity"].isna() | (perturbed["severity"] == perturbed["severity"].max())
        ]
        at = "" if strongest["severity"].isna().all() else f" {strongest['severity'].max():g}"
        if kappa is not None:
            take(f"κ, {view}{at}", panels.select(strongest, metric=kappa, null="pooled"))
        take(f"accuracy, {view}{at}", panels.select(strongest, metric=ACCURACY.name))
    take(LOAD_ENTROPY.noun, panels.select(clean, metric=LOAD_ENTROPY.name))
    few = table[(table["metric"] == FEWSHOT_ACCURACY.name) & table["draw"].isna()]
    for shots, rows in few.groupby("severity"):
        take(f"{shots:g}-shot accuracy", rows)
    for kind in (BatchContagion, TokenContagion, AttentionContagion):
        share, *_ = kind.measures
        take(share.label, panels.select(table, metric=share.name))
    return numbers


def shared_kappa(table: pd.DataFrame) -> str | None:
    """Return the κ of routing that most of the cells have, the first of several; None without any."""
    # The few-shot accuracy has a κ too, of the output, and in every cell.
    is_kappa = table["metric"].map(lambda name: find(name).kind == "kappa")
    rows = table[(table["layer"] != "") & (table["null"] == "pooled") & is_kappa]
    count = rows.groupby("metric", sort=False)["checkpoint"].nunique()
    return None if count.empty else str(count.index[int(np.argmax(count.to_numpy()))])


def _first(layers: pd.Series) -> str:
    """Return the first MoE layer among the layers of a cell's rows."""
    return next((layer for layer in layers if layer), "")


# Accuracy and steadiness against the number of experts: a line per router and budget.

_HEIGHT = 3.2


def draw_experts(numbers: dict[str, pd.DataFrame], groups: Sequence[Group]) -> Figure:
    """Return a panel per number: means of the groups over E, a line per router and budget."""
    lines: dict[str, list[Group]] = {}
    for group in groups:
        if not np.isnan(group.experts):
            lines.setdefault(f"{group.router}, {group.setting}", []).append(group)
    expert_counts = sorted({group.experts for line in lines.values() for group in line})
    figure, axes = panels.panels(1, len(numbers), width=5.0, height=_HEIGHT, sharey=False)
    for panel, (title, rows) in zip(axes[0], numbers.items(), strict=True):
        ends = [
            end
            for number, (name, members) in enumerate(lines.items())
            if (end := _line(panel, name, members, rows, color=COLORS[number % (len(COLORS) - 1)]))
            is not None
        ]
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_locator(FixedLocator(expert_counts))
        panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        panel.xaxis.set_minor_locator(NullLocator())
        panel.set(xlabel="experts", ylabel=title)
        panel.margins(x=0.05, y=0.08)
        panels.write_beside(panel, ends, height=_HEIGHT - 0.6)
    return figure


def _line(
    axes: Axes, name: str, groups: Sequence[Group], rows: pd.DataFrame, *, color: str
) -> panels.Named | None:
    """Draw the means with the ranges of the seeds; returns where the line ends, None where there is no point."""
    points = []
    for group in sorted(groups, key=lambda one: one.experts):
        bar = spread(group, rows)
        if bar is not None:
            axes.plot([group.experts] * 2, [bar.low, bar.high], "-", color=color, linewidth=2, alpha=0.4)
            points.append((group.experts, bar.mean))
    if not points:
        return None
    axes.plot(*np.transpose(points), "o-", color=color, markersize=5, linewidth=1.2)
    return panels.Named(*points[-1], name, color)
