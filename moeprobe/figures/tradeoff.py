"""Trainings beside one another: accuracy against what it costs, robustness against accuracy; and the paper's values.

A point is one training with its interval over images; training seeds are points of their own. Colour is the router,
the mark is k (where tokens choose) or c (where experts do).
"""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from moeprobe.figures import _parts
from moeprobe.palette import COLOURS
from moeprobe.wording import full_label

_MARKS = "osD^vP*X"
_COSTS = (
    ("training_time", "time of the training steps, s\n(median step × steps)", 1.0),
    ("flops_per_image", "MFLOPs per image", 1e-6),
    ("active_parameters", "active parameters, millions", 1e-6),
)
_COLUMNS = 3
# Points at one place stand side by side, so many points (1/72 inch) apart at most, and in a band no wider than this.
_APART, _BAND = 5.0, 90.0
# The paper's own order of routers, so that theirs and ours have the same colours.
_PAPER_ORDER = (
    "softmax_token_choice", "sinkhorn_token_choice", "softmax_expert_choice", "sinkhorn_expert_choice",
    "sparse_expert_choice", "soft_moe",
)  # fmt: skip
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
        ["router", "top_k", "capacity_factor"]
    ]
    numbers = numbers_of(table)
    accuracy = numbers["accuracy"]
    costs = [(name, title, numbers[name]["value"] * unit) for name, title, unit in _COSTS if name in numbers]
    apart = ["accuracy", *[name for name, _, _ in _COSTS]]
    others = [(name, rows) for name, rows in numbers.items() if name not in apart]
    rows = 1 + -(-len(others) // _COLUMNS)
    figure, axes = _parts.panels(rows, _COLUMNS, height=3.1, sharey=False)
    style = _styles(cells)
    for column, panel in enumerate(axes[0]):
        if column < len(costs):
            name, title, x = costs[column]
            _scatter(panel, x, accuracy, style, apart=name != "training_time")
            panel.set(xlabel=title, ylabel="accuracy" if column == 0 else "")
        else:
            panel.set_axis_off()
    for panel, (name, found) in zip(axes[1:].flat, others, strict=False):
        _scatter(panel, accuracy["value"], found, style, x_rows=accuracy)
        panel.set(xlabel="accuracy", ylabel=name)
        without = [router for router in dict.fromkeys(cells["router"]) if not _has(found, cells, router)]
        if without:
            panel.set_title(
                _parts.wrapped(f"does not exist for {', '.join(without)}", 3.6, size=8), fontsize=8
            )
    for panel in axes[1:].flat[len(others) :]:
        panel.set_axis_off()
    _legend(axes[0, 0], style)
    kappa = shared_kappa(table)
    said = (
        ""
        if kappa is None
        else f"{full_label(kappa, 'pooled')} and load entropy (1 = even) of the last MoE layer; "
    )
    title = (
        "Accuracy, robustness and cost of trainings: every seed is a point\n"
        f"{said}points of one cost stand side by side"
    )
    return _parts.finish(figure, table[table["metric"] == "accuracy"], title=title)


def numbers_of(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return what is read first: name -> a row per cell that has it, indexed by cell; last MoE layer, patches."""
    last = table.groupby("checkpoint")["layer"].transform(_last)
    table = table[(table["layer"] == "") | (table["layer"] == last)]
    found: dict[str, pd.DataFrame] = {}

    def take(name: str, rows: pd.DataFrame) -> None:
        if len(rows):
            found[name] = rows.drop_duplicates("checkpoint").set_index("checkpoint")

    clean = table[table["view"].isin(["clean", ""])]
    take("accuracy", _parts.select(clean, metric="accuracy"))
    steps = _parts.select(table, metric="training_steps").set_index("checkpoint")["value"]
    seconds = _parts.select(table, metric="step_seconds")
    take("training_time", seconds.assign(value=seconds["value"] * seconds["checkpoint"].map(steps)))
    for name in ("flops_per_image", "active_parameters"):
        take(name, _parts.select(table, metric=name))
    kappa = shared_kappa(table)
    for view in dict.fromkeys(table["view"]):
        here = table[(table["view"] == view) & ~table["view"].isin(["clean", ""])]
        strongest = here[here["severity"].isna() | (here["severity"] == here["severity"].max())]
        at = "" if strongest["severity"].isna().all() else f" {strongest['severity'].max():g}"
        if kappa is not None:
            take(
                f"κ, {view}{at}",
                _parts.select(strongest, metric=kappa, null="pooled"),
            )
        take(f"accuracy, {view}{at}", _parts.select(strongest, metric="accuracy"))
    take("load entropy", _parts.select(clean, metric="load_entropy"))
    few = table[(table["metric"] == "fewshot_accuracy") & table["draw"].isna()]
    for shots, rows in few.groupby("severity"):
        take(f"{shots:g}-shot accuracy", rows)
    for kind in ("batch", "token", "attention"):
        take(f"{kind} contagion", _parts.select(table, metric=f"{kind}_contagion"))
    return found


def _last(layers: pd.Series) -> str:
    """Return the last MoE layer among the layers of a cell's rows."""
    there = [layer for layer in dict.fromkeys(layers) if layer]
    return there[-1] if there else ""


def shared_kappa(table: pd.DataFrame) -> str | None:
    """Return the match beyond chance that most of the cells have, the first of several; None without any."""
    rows = table[table["metric"].str.endswith("_kappa") & (table["null"] == "pooled")]
    count = rows.groupby("metric", sort=False)["checkpoint"].nunique()
    return None if count.empty else str(count.index[int(np.argmax(count.to_numpy()))])


def _has(found: pd.DataFrame, cells: pd.DataFrame, router: str) -> bool:
    return bool(set(cells.index[cells["router"] == router]) & set(found.index))


_Styles = dict[str, tuple[str, str, str, bool]]


def setting(row: pd.Series) -> str:
    """Return ``k = 2`` where tokens choose, ``c = 1`` where experts do."""
    for name, letter in (("top_k", "k"), ("capacity_factor", "c")):
        if not pd.isna(row[name]):
            return f"{letter} = {row[name]:g}"
    return "no k or c"


def _styles(cells: pd.DataFrame) -> _Styles:
    """Return per cell (router, setting, colour and mark in one string, filled): the same router, the same colour."""
    order = list(dict.fromkeys([*_PAPER_ORDER, *cells["router"]]))
    colours = COLOURS[:-1]  # yellow is too light for points
    sizes = sorted({_size(row) for _, row in cells.iterrows()})
    found = {}
    for name, row in cells.iterrows():
        number = order.index(row["router"])
        mark = _MARKS[sizes.index(_size(row)) % len(_MARKS)]
        look = colours[number % len(colours)] + mark
        found[str(name)] = (str(row["router"]), setting(row), look, number < len(colours))
    return found


def _in_order(routers: Iterable[str]) -> list[str]:
    """Return routers in the order of the paper, then as they come."""
    return sorted(
        routers, key=lambda name: _PAPER_ORDER.index(name) if name in _PAPER_ORDER else len(_PAPER_ORDER)
    )


def _size(row: pd.Series) -> float:
    """Return k or c: what both say is how much is computed, so that equal ones have the same mark."""
    return float(row["capacity_factor"] if pd.isna(row["top_k"]) else row["top_k"])


def _scatter(
    axes: Axes,
    x: pd.Series,
    rows: pd.DataFrame,
    style: _Styles,
    *,
    x_rows: pd.DataFrame | None = None,
    apart: bool = False,
) -> None:
    """Draw a point with its intervals per cell that has both numbers; ``apart`` sets those of one x side by side."""
    names = [name for name in style if name in rows.index and name in x.index]
    names = [name for name in names if not pd.isna(rows["value"][name]) and not pd.isna(x[name])]
    shifts = _side_by_side([float(x[name]) for name in names]) if apart else [0.0] * len(names)
    for name, shift in zip(names, shifts, strict=True):
        _, _, look, filled = style[name]
        colour, mark = look[:-1], look[-1]
        move = ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
        y_reach = _reach(rows.loc[name])
        x_reach = _reach(x_rows.loc[name]) if x_rows is not None else None
        at = np.array([[float(x[name])], [float(rows["value"][name])]])
        axes.errorbar(
            at[0],
            at[1],
            xerr=x_reach,
            yerr=y_reach,
            fmt=mark,
            color=colour,
            markerfacecolor=colour if filled else "white",
            markersize=5,
            elinewidth=0.8,
            alpha=0.85,
            transform=axes.transData + move,
        )
        # What is moved aside does not count for the axes by itself.
        below = [0.0 if reach is None else reach[0, 0] for reach in (x_reach, y_reach)]
        above = [0.0 if reach is None else reach[1, 0] for reach in (x_reach, y_reach)]
        axes.update_datalim([at[:, 0] - below, at[:, 0] + above])
    axes.margins(x=0.15, y=0.08)
    axes.autoscale_view()


def _reach(row: pd.Series) -> np.ndarray | None:
    """Return how far the interval reaches below and above the value; None without one."""
    if pd.isna(row["ci_low"]):
        return None
    ends = [[row["value"] - row["ci_low"]], [row["ci_high"] - row["value"]]]
    return np.clip(np.array(ends, dtype=float), 0, None)


def _side_by_side(x: Sequence[float]) -> list[float]:
    """Return shifts in points: those within 2 % of the range of one another are set apart."""
    span = (max(x) - min(x)) * 0.02 if x else 0.0
    shifts = [0.0] * len(x)
    group: list[int] = []
    for number in [*np.argsort(x, kind="stable").tolist(), None]:
        if group and (number is None or x[number] - x[group[0]] > span):
            apart = min(_APART, _BAND / len(group))
            for place, member in enumerate(sorted(group)):
                shifts[member] = apart * (place - (len(group) - 1) / 2)
            group = []
        if number is not None:
            group.append(number)
    return shifts


def _legend(axes: Axes, style: _Styles) -> None:
    """Name every router's colour and every mark; ``_parts.finish`` gathers them below."""
    routers = {router: (look[:-1], filled) for router, _, look, filled in style.values()}
    for router in _in_order(routers):
        colour, filled = routers[router]
        axes.plot([], [], "-", color=colour, linewidth=6 if filled else 2, label=router)
    marks: dict[str, set[str]] = {}
    for _, said, look, _ in style.values():
        marks.setdefault(look[-1], set()).add(said)
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
    figure, axes = _parts.panels(len(_TASKS), len(architectures), sharey=False)
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
    figure.suptitle(
        "The paper's values, not ours: Routers in Vision MoE (Liu et al.), Tables 1–4, 6, 8.\n"
        "Pretraining on JFT-300M, 32 experts, every second block; no intervals are published"
    )
    return _parts.legend_below(figure)
