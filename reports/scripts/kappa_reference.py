"""Collect reference values of κ from the committed tables: a markdown table and a dot plot.

    python -m reports.scripts.kappa_reference

Writes ``docs/img/good-kappa.png``; ``reports.scripts.pages`` puts the table into docs/concepts/good-kappa.md.
"""

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.results.figures import STYLE, save
from moeprobe.results.palette import COLORS
from moeprobe.studies.paper.tables import cell
from reports.scripts.objectives import MODELS

ROOT = Path(__file__).parents[2]
FIGURE = ROOT / "docs" / "img" / "good-kappa"
LAYER, NOISE = "blocks.1", 0.2
# Lower ends of the bands that the page names.
BANDS = {"unstable": 0.0, "moderately stable": 0.5, "stable": 0.8}
NULLS = {"pooled": "κ", "image": "κ within image"}
PAIR = {f"digits-{kind}-k2-seed0": model for kind, model in MODELS.items()}
UNLEARNED = {"hash": "hash router", "random_fixed": "random gate, never trained"}


def main() -> None:
    """Draw the dot plot."""
    save(figure(rows(ROOT / "reports")), FIGURE)


def rows(reports: Path) -> pd.DataFrame:
    """Return κ of the sets of experts in the first MoE layer: a row per perturbation, model and chance level."""
    crops = pd.concat(_parts(reports, "random_crop", None, "match-ratio")).assign(view="random crops")
    noise = pd.concat(_parts(reports, "gaussian_noise", NOISE, "noise-sweep")).assign(
        view=f"noise, σ = {NOISE:g}"
    )
    columns = ["view", "model", "null", "value", "ci_low", "ci_high"]
    return pd.concat([crops, noise])[columns].assign(kind="value").reset_index(drop=True)


def _parts(reports: Path, view: str, severity: float | None, run: str) -> Iterator[pd.DataFrame]:
    """Yield κ under a view: of routers that learned nothing, then of the pair of models."""
    routers = pd.read_csv(reports / "routers" / "digits" / "table.csv.gz", low_memory=False)
    routers = routers[(routers["train_seed"] == 0) & (routers["top_k"] == 2) & (routers["view"] == view)]
    yield _kappa(routers, severity, "router", UNLEARNED)
    yield _kappa(pd.read_csv(reports / "digits" / run / "table.csv"), severity, "checkpoint", PAIR)


def _kappa(table: pd.DataFrame, severity: float | None, column: str, names: dict[str, str]) -> pd.DataFrame:
    chosen = (table["metric"] == "top2_set_match_kappa") & (table["layer"] == LAYER) & table["draw"].isna()
    chosen &= (table["tokens"] == "patch") & table["null"].isin(list(NULLS)) & table[column].isin(list(names))
    chosen &= table["severity"].isna() if severity is None else table["severity"] == severity
    found = table[chosen].assign(model=table[column].map(names))
    return found.sort_values(
        "model", key=lambda models: models.map(list(names.values()).index), kind="stable"
    )


def lines(reports: Path) -> list[str]:
    """Return the reference values as a markdown table."""
    written = ["| perturbation | router | κ | κ within image |", "|---|---|---|---|"]
    table = rows(reports)
    for (view, model), of_model in table.groupby(["view", "model"], sort=False):
        by_null = {row["null"]: cell(row) for _, row in of_model.iterrows()}
        written.append(f"| {view} | {model} | {by_null['pooled']} | {by_null.get('image', '–')} |")
    return written


def figure(table: pd.DataFrame) -> Figure:
    """Return a dot plot of the reference values, a panel per perturbation, over the bands."""
    views = list(dict.fromkeys(table["view"]))
    models = {view: list(dict.fromkeys(table.loc[table["view"] == view, "model"])) for view in views}
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        drawn = Figure(figsize=(8.2, 4.6), layout="constrained")
        heights = [len(models[view]) for view in views]
        panels = drawn.subplots(len(views), 1, sharex=True, height_ratios=heights)
        for ax, view in zip(panels, views, strict=True):
            _shade(ax)
            for place, model in enumerate(models[view]):
                for null, color in zip(NULLS, COLORS, strict=False):
                    here = table[
                        (table["view"] == view) & (table["model"] == model) & (table["null"] == null)
                    ]
                    shift = 0.16 if null == "image" else -0.16
                    for _, row in here.iterrows():
                        ax.plot(
                            [row["ci_low"], row["ci_high"]], [place + shift] * 2, color=color, linewidth=2
                        )
                        ax.plot(row["value"], place + shift, "o", color=color, markersize=5)
            ax.set(xlim=(0, 1.01), ylim=(len(models[view]) - 0.5, -0.5))
            ax.set_yticks(range(len(models[view])), models[view])
            ax.set_title(view, loc="left")
        for name, low in BANDS.items():
            high = min([edge for edge in BANDS.values() if edge > low], default=1.0)
            panels[0].text(
                (low + high) / 2, 1.02, name, ha="center", va="bottom", color="#606060",
                transform=panels[0].get_xaxis_transform(), fontsize=9,
            )  # fmt: skip
        marks = [
            mpl.lines.Line2D([], [], color=color, marker="o", label=label)
            for label, color in zip(NULLS.values(), COLORS, strict=False)
        ]
        drawn.legend(handles=marks, loc="outside lower center", ncols=2)
        panels[-1].set_xlabel("κ of sets of two experts, first MoE layer: 0 = chance, 1 = no set changes")
    return drawn


def _shade(ax: mpl.axes.Axes) -> None:
    for low, color in zip(BANDS.values(), ("#f4e3dc", "#f6f1df", "#e0efe6"), strict=True):
        high = min([edge for edge in BANDS.values() if edge > low], default=1.01)
        ax.axvspan(low, high, color=color, zorder=0)


if __name__ == "__main__":
    main()
