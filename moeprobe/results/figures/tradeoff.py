"""Trainings side by side: accuracy against cost, robustness against accuracy; and the paper's values.

A large point is the mean over training seeds, a pale one a single training with its interval over images. Color is the
router, the mark is k (where tokens choose) or c (where experts do).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.metrics.attention_contagion import AttentionContagion
from moeprobe.metrics.batch_contagion import BatchContagion
from moeprobe.metrics.costs import ACTIVE_PARAMETERS, FLOPS_PER_IMAGE, STEP_SECONDS, TRAINING_STEPS
from moeprobe.metrics.fewshot import FEWSHOT_ACCURACY
from moeprobe.metrics.load import LOAD_ENTROPY
from moeprobe.metrics.output import ACCURACY
from moeprobe.metrics.registry import find
from moeprobe.metrics.token_contagion import TokenContagion
from moeprobe.results.figures import panels
from moeprobe.results.palette import COLORS

_MARKS = "osD^vP*X"
_COSTS = (
    ("training_time", "time of the training steps, s\n(median step × steps)", 1.0),
    (FLOPS_PER_IMAGE.name, "MFLOPs per image", 1e-6),
    (ACTIVE_PARAMETERS.name, "active parameters, millions", 1e-6),
)
_COLUMNS = 3
_TASKS = {"jft": "JFT-300M, top-1", "imagenet_10shot": "ImageNet-1k, 10-shot"}


def draw(table: pd.DataFrame) -> dict[str, Figure]:
    """Return the figure of a table of trainings, one per data set."""
    figures = {}
    datasets = list(dict.fromkeys(table["dataset"]))
    for dataset in datasets:
        rows = table[table["dataset"] == dataset]
        name = "tradeoff" if len(datasets) == 1 else f"tradeoff-{dataset.replace(':', '-').replace('/', '-')}"
        figures[name] = _figure(rows)
    return figures


def _figure(table: pd.DataFrame) -> Figure:
    cells = table.drop_duplicates("checkpoint").set_index("checkpoint")[
        ["group", "router", "top_k", "capacity_factor"]
    ]
    numbers = numbers_of(table)
    accuracy = numbers["accuracy"]
    costs = [(name, title, numbers[name]["value"] * unit) for name, title, unit in _COSTS if name in numbers]
    apart = ["accuracy", *[name for name, _, _ in _COSTS]]
    others = [(name, rows) for name, rows in numbers.items() if name not in apart]
    rows = 1 + -(-len(others) // _COLUMNS)
    figure, axes = panels.panels(rows, _COLUMNS, height=3.1, sharey=False)
    style = _styles(cells)
    for column, panel in enumerate(axes[0]):
        if column < len(costs):
            _, title, x = costs[column]
            _scatter(panel, x, accuracy, style)
            panel.set(xlabel=title, ylabel="accuracy" if column == 0 else "")
        else:
            panel.set_axis_off()
    for panel, (name, found) in zip(axes[1:].flat, others, strict=False):
        _scatter(panel, accuracy["value"], found, style)
        panel.set(xlabel="accuracy", ylabel=name)
        without = [router for router in dict.fromkeys(cells["router"]) if not _has(found, cells, router)]
        if without:
            panel.set_title(
                panels.wrapped(f"does not exist for {', '.join(without)}", 3.6, size=8), fontsize=8
            )
    for panel in axes[1:].flat[len(others) :]:
        panel.set_axis_off()
    _legend(axes[0, 0], style)
    kappa = shared_kappa(table)
    notes = ["Large: mean over training seeds. Pale: each seed, with its interval over images"]
    if kappa is not None:
        notes.append(
            f"κ is that of {find(kappa).metric.label}, in the last MoE layer; load entropy: 1 = even"
        )
    title = "Accuracy, robustness and cost of trainings"
    return panels.finish(
        figure, table[table["metric"] == ACCURACY.name], title=title, notes=notes, mark="pale bars"
    )


def numbers_of(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what is read first: name -> a row per cell that has it, indexed by cell; last MoE layer, patches."""
    last = table.groupby("checkpoint")["layer"].transform(_last)
    table = table[(table["layer"] == "") | (table["layer"] == last)]
    found: dict[str, pd.DataFrame] = {}

    def take(name: str, rows: pd.DataFrame) -> None:
        if len(rows):
            found[name] = rows.drop_duplicates("checkpoint").set_index("checkpoint")

    clean = table[table["view"].isin(["clean", ""])]
    take("accuracy", panels.select(clean, metric=ACCURACY.name))
    steps = panels.select(table, metric=TRAINING_STEPS.name).set_index("checkpoint")["value"]
    seconds = panels.select(table, metric=STEP_SECONDS.name)
    if len(seconds):
        take("training_time", seconds.assign(value=seconds["value"] * seconds["checkpoint"].map(steps)))
    for name in (FLOPS_PER_IMAGE.name, ACTIVE_PARAMETERS.name):
        take(name, panels.select(table, metric=name))
    kappa = shared_kappa(table)
    for view in dict.fromkeys(table["view"]):
        here = table[(table["view"] == view) & ~table["view"].isin(["clean", ""])]
        strongest = here[here["severity"].isna() | (here["severity"] == here["severity"].max())]
        at = "" if strongest["severity"].isna().all() else f" {strongest['severity'].max():g}"
        if kappa is not None:
            take(
                f"κ, {view}{at}",
                panels.select(strongest, metric=kappa, null="pooled"),
            )
        take(f"accuracy, {view}{at}", panels.select(strongest, metric=ACCURACY.name))
    take(LOAD_ENTROPY.noun, panels.select(clean, metric=LOAD_ENTROPY.name))
    few = table[(table["metric"] == FEWSHOT_ACCURACY.name) & table["draw"].isna()]
    for shots, rows in few.groupby("severity"):
        take(f"{shots:g}-shot accuracy", rows)
    for kind in (BatchContagion, TokenContagion, AttentionContagion):
        share, *_ = kind.measures
        take(share.label, panels.select(table, metric=share.name))
    return found


def _last(layers: pd.Series) -> str:
    """Return the last MoE layer among the layers of a cell's rows."""
    there = [layer for layer in dict.fromkeys(layers) if layer]
    return there[-1] if there else ""


def shared_kappa(table: pd.DataFrame) -> str | None:
    """Return the match beyond chance that most of the cells have, the first of several; None without any."""
    rows = table[(table["null"] == "pooled") & table["metric"].map(lambda name: find(name).kind == "kappa")]
    count = rows.groupby("metric", sort=False)["checkpoint"].nunique()
    return None if count.empty else str(count.index[int(np.argmax(count.to_numpy()))])


def _has(found: pd.DataFrame, cells: pd.DataFrame, router: str) -> bool:
    return bool(set(cells.index[cells["router"] == router]) & set(found.index))


@dataclass(frozen=True)
class _Style:
    """How a cell is drawn, and with which others it differs in the training seed alone."""

    router: str
    setting: str
    color: str
    mark: str
    filled: bool
    group: str


def setting(row: pd.Series) -> str:
    """Return ``k = 2`` where tokens choose, ``c = 1`` where experts do."""
    for name, letter in (("top_k", "k"), ("capacity_factor", "c")):
        if not pd.isna(row[name]):
            return f"{letter} = {row[name]:g}"
    return "no k or c"


def _styles(cells: pd.DataFrame) -> dict[str, _Style]:
    """Return the style of each cell: colors by the order in which routers appear, marks by k or c."""
    order = list(dict.fromkeys(cells["router"]))
    colors = COLORS[:-1]  # yellow is too light for points
    sizes = sorted({_size(row) for _, row in cells.iterrows()})
    found = {}
    for name, row in cells.iterrows():
        number = order.index(row["router"])
        found[str(name)] = _Style(
            router=str(row["router"]),
            setting=setting(row),
            color=colors[number % len(colors)],
            mark=_MARKS[sizes.index(_size(row)) % len(_MARKS)],
            filled=number < len(colors),
            group=str(row.get("group") or name),
        )
    return found


def _size(row: pd.Series) -> float:
    """Return k or c: what both say is how much is computed, so that equal ones have the same mark."""
    return float(row["capacity_factor"] if pd.isna(row["top_k"]) else row["top_k"])


def _scatter(axes: Axes, x: pd.Series, rows: pd.DataFrame, style: dict[str, _Style]) -> None:
    """Draw the cells that have both numbers: each seed pale with its interval, the mean over seeds large."""
    groups: dict[str, list[str]] = {}
    for name, look in style.items():
        if (
            name in rows.index
            and name in x.index
            and not pd.isna(rows["value"][name])
            and not pd.isna(x[name])
        ):
            groups.setdefault(look.group, []).append(name)
    for names in groups.values():
        look = style[names[0]]
        face = look.color if look.filled else "white"
        places = np.array([[float(x[name]), float(rows["value"][name])] for name in names])
        reach = np.hstack([_reach(rows.loc[name]) for name in names])
        seeds = axes.errorbar(
            places[:, 0], places[:, 1], yerr=reach, fmt=look.mark, color=look.color, markerfacecolor=face
        )
        _, _, bars = seeds.lines
        seeds.lines[0].set(alpha=0.35, markersize=3)
        for bar in bars:
            bar.set(alpha=0.25, linewidth=0.8)
        axes.plot(*places.mean(0), look.mark, color=look.color, markerfacecolor=face, markersize=7, zorder=3)
    axes.margins(x=0.08, y=0.08)


def _reach(row: pd.Series) -> np.ndarray:
    """Return how far the interval reaches below and above the value ``(2, 1)``; 0 without one."""
    if pd.isna(row["ci_low"]):
        return np.zeros((2, 1))
    ends = [[row["value"] - row["ci_low"]], [row["ci_high"] - row["value"]]]
    return np.clip(np.array(ends, dtype=float), 0, None)


def _legend(axes: Axes, style: dict[str, _Style]) -> None:
    """Name every router's color and every mark; the legend below gathers them."""
    for router, look in {look.router: look for look in style.values()}.items():
        axes.plot([], [], "-", color=look.color, linewidth=6 if look.filled else 2, label=router)
    marks: dict[str, set[str]] = {}
    for look in style.values():
        marks.setdefault(look.mark, set()).add(look.setting)
    for mark, names in marks.items():
        axes.plot([], [], mark, color="#606060", markersize=5, label=", ".join(sorted(names, reverse=True)))


def draw_published(paper: pd.DataFrame) -> Figure:
    """Return the figure of the paper's values: a column per architecture, pretraining above, few-shot below."""
    architectures = list(dict.fromkeys(paper["architecture"]))
    paper = paper.assign(checkpoint=[f"cell {number}" for number in range(len(paper))]).set_index(
        "checkpoint"
    )
    style = _styles(paper)
    key = ["architecture", "router", "top_k", "capacity_factor"]
    days = paper[paper["task"] == "jft"].drop_duplicates(key)[[*key, "tpuv3_days"]]
    figure, axes = panels.panels(len(_TASKS), len(architectures), sharey=False)
    for row, (task, title) in enumerate(_TASKS.items()):
        for column, architecture in enumerate(architectures):
            here = paper[(paper["task"] == task) & (paper["architecture"] == architecture)]
            time = here[key].merge(days, on=key, how="left")["tpuv3_days"].set_axis(here.index)
            rows = here.rename(columns={"accuracy": "value"}).assign(ci_low=np.nan, ci_high=np.nan)
            panel = axes[row, column]
            _scatter(panel, time, rows, style)
            panel.set_title(architecture if row == 0 else "")
            panel.set(ylabel=f"accuracy, {title}" if column == 0 else "", xlabel="TPUv3-days of pretraining")
    _legend(axes[0, 0], style)
    figure.suptitle("The paper's values, not ours: Routers in Vision MoE (Liu et al.)")
    return panels.below(
        figure,
        "Tables 1–4, 6, 8. Pretraining on JFT-300M, 32 experts, every second block; no intervals are published.",
    )
