"""What the pages on margins, other data, deformations, corruptions, narrower formats and tests say, in Markdown."""

from pathlib import Path

import pandas as pd

from benchmarks.mutants import share
from moeprobe.inputs.corruptions import FAMILIES, NAMES
from reports.scripts.claims import cell_of, read
from reports.scripts.seeds import layers

SHOWN = (1, 3, 5, 7, 10)
_NAMES = {1: "least decile", 3: "third", 5: "fifth", 7: "seventh", 10: "largest"}
SIGMA = 0.2
CRITICAL = {
    "selection_margin_logit": "margin, logits",
    "margin_sensitivity": "sensitivity",
    "margin_over_sensitivity": "margin ÷ sensitivity",
    "critical_sigma_median": "median critical σ",
    "critical_sigma_mean": "mean critical σ",
}
PREDICTED = {
    "flip_rate": "flips",
    "flip_rate_predicted": "predicted",
    "flip_ece": "calibration error",
    "flip_ece_floor": "floor",
    "flip_auroc": "AUROC",
}
SIDES = ("V-MoE", "PRC", "Δ")
# Predicted probabilities at which patches are divided.
EDGES = (0.05, 0.2)


def margins(folder: Path) -> list[str]:
    """Return which share of patches flips: a line per MoE layer, k and model, of all and by decile of the margin."""
    head = ["MoE layer", "k", "", "all", *(_NAMES[one] for one in SHOWN)]
    head += [f"margin, {_NAMES[one]}" for one in (5, 10)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    table = pd.read_csv(folder / "digits.csv")
    table = table[table["severity"] == SIGMA]
    for (layer, top_k, model), rows in table.groupby(["layer", "top_k", "model"]):
        cells = [span(rows.loc[rows["decile"] == decile, "value"]) for decile in (0, *SHOWN)]
        cells += [span(rows.loc[rows["decile"] == decile, "margin"]) for decile in (5, 10)]
        lines.append(f"| `{layer}` | {top_k} | {model} | {' | '.join(cells)} |")
    return lines


def areas(folder: Path) -> list[str]:
    """Return how well margins say which patches change: a line per MoE layer, model and margin."""
    table = pd.read_csv(folder / "digits-auc.csv")
    columns = list(dict.fromkeys(zip(table["severity"], table["event"], strict=True)))
    head = ["MoE layer", "", "margin", *(f"{event}, σ {sigma:g}" for sigma, event in columns)]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for (layer, model, margin), rows in table.groupby(["layer", "model", "margin"], sort=False):
        cells = [
            span(rows.loc[(rows["severity"] == sigma) & (rows["event"] == event), "value"])
            for sigma, event in columns
        ]
        lines.append(f"| `{layer}` | {model} | {margin} | {' | '.join(cells)} |")
    return lines


def critical(folder: Path) -> list[str]:
    """Return margins, sensitivities and critical noise: a line per MoE layer and number."""
    table, claims = _of_patches(folder), read(folder.parent / "trainings" / "margins")
    lines = [f"| MoE layer |  | {' | '.join(SIDES)} |", "|---|---|---|---|---|"]
    for layer in dict.fromkeys(table["layer"]):
        for metric, name in CRITICAL.items():
            rows = table[(table["layer"] == layer) & (table["metric"] == metric)]
            change = cell_of(claims[(claims["layer"] == layer) & (claims["metric"] == metric)])
            lines.append(f"| `{layer}` | {name} | {' | '.join([*_sides(rows), change])} |")
    return lines


def predicted(folder: Path) -> list[str]:
    """Return flips and how well margins predict them: a line per MoE layer and perturbation."""
    table, claims = _of_patches(folder), read(folder.parent / "trainings" / "margins")
    sides = [(metric, side) for metric in PREDICTED for side in SIDES if side != "Δ" or metric == "flip_rate"]
    names = [f"{PREDICTED[metric]}: {side}" for metric, side in sides]
    lines = [f"| MoE layer |  | {' | '.join(names)} |", f"|{'---|' * (2 + len(names))}"]
    flips = table[table["metric"].isin(PREDICTED)].sort_values("layer", kind="stable")
    for (layer, view, severity), rows in flips.groupby(
        ["layer", "view", "severity"], sort=False, dropna=False
    ):
        perturbation = f"σ {severity:g}" if view == "gaussian_noise" else f"`{view}`"
        here = claims[(claims["layer"] == layer) & (claims["view"] == view)]
        # A blur has one level, and bfloat16 none.
        here = here[here["severity"].eq(severity) | (view != "gaussian_noise")]
        of_metric = {}
        for metric in PREDICTED:
            own = [*_sides(rows[rows["metric"] == metric]), cell_of(here[here["metric"] == metric])]
            of_metric[metric] = dict(zip(SIDES, own, strict=True))
        cells = [of_metric[metric][side] for metric, side in sides]
        lines.append(f"| `{layer}` | {perturbation} | {' | '.join(cells)} |")
    return lines


def by_prediction(folder: Path) -> list[str]:
    """Return which patches flip under the weakest noise: a line per MoE layer and model, by predicted probability."""
    table = pd.read_csv(folder / "digits-critical.csv")
    bins = table[table["tokens"].str.startswith("predicted")]
    bins = bins.assign(
        low=bins["tokens"].str.split().str[1].astype(float), flips=bins["value"] * bins["trials"]
    )
    bins = bins.assign(group=pd.cut(bins["low"], [0, *EDGES, 1], right=False, labels=False))
    names = ["below 0.05", "0.05 to 0.2", "above 0.2"]
    heads = [f"{name}: {number}" for name in names for number in ("patches", "flips")]
    lines = [f"| MoE layer |  | {' | '.join(heads)} |", f"|{'---|' * (2 + len(heads))}"]
    for (layer, model), rows in bins.groupby(["layer", "model"], sort=False):
        sums = rows.groupby(["train_seed", "group"])[["trials", "flips"]].sum()
        shares = sums / sums.groupby("train_seed").transform("sum")
        cells = [span(shares.xs(one, level="group")[column]) for one in range(3) for column in shares]
        lines.append(f"| `{layer}` | {model} | {' | '.join(cells)} |")
    return lines


def _of_patches(folder: Path) -> pd.DataFrame:
    table = pd.read_csv(folder / "digits-critical.csv")
    return table[table["tokens"] == "patch"]


def _sides(rows: pd.DataFrame) -> list[str]:
    """Return the values of both models; "–" where there are none."""
    if rows.empty:
        return ["–"] * 2
    values = rows[rows["kind"] == "value"]
    return [span(values.loc[values["model"] == model, "value"]) for model in ("V-MoE", "V-MoE with PRC")]


def deformations(folder: Path) -> list[str]:
    """Return κ and switches by view: a line per number, k and view."""
    head = ["", "k", "view", "severity", "V-MoE", "V-MoE with PRC", "difference"]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    table = pd.read_csv(folder / "digits.csv", keep_default_na=False)
    claims = read(folder.parent / "trainings" / "deformations")
    # κ of the first MoE layer; switches are of the whole model.
    claims = claims[claims["layer"].isin(["", layers(claims)[0]])]
    for (metric, top_k, view), rows in table.groupby(["metric", "top_k", "view"], sort=False):
        name, digits = ("switches", 1) if metric == "switches" else ("κ", 3)
        sides = [span(rows[side], digits) for side in ("baseline", "prc")]
        here = claims[(claims["metric"] == metric) & (claims["top_k"] == top_k) & (claims["view"] == view)]
        apart = cell_of(here, digits)
        severity = str(rows["severity"].iloc[0])
        lines.append(f"| {' | '.join([name, str(top_k), f'`{view}`', severity, *sides, apart])} |")
    return lines


def corruptions(folder: Path) -> list[str]:
    """Return accuracy and κ: a line for all corruptions, for each family, and for each corruption."""
    columns = {"accuracy": ("accuracy", ""), "κ": ("top2_set_match_kappa", "blocks.1")}
    head = ["", *(f"{name}, {side}" for name in columns for side in ("V-MoE", "PRC", "difference"))]
    head.append("κ in the last layer, difference")
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    table = pd.read_csv(folder / "digits.csv", keep_default_na=False)
    by_place = dict(iter(table.groupby(["view", "metric", "layer", "model"], sort=False)))
    for view in ("mean", *FAMILIES, *NAMES):
        cells = [corruption_name(view)]
        for metric, layer in columns.values():
            cells += [
                span(by_place[view, metric, layer, side]["value"]) for side in ("V-MoE", "V-MoE with PRC")
            ]
            cells.append(signed(by_place[view, metric, layer, "difference"]))
        cells.append(signed(by_place[view, "top2_set_match_kappa", "blocks.3", "difference"]))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def corruption_name(view: str) -> str:
    """Return a corruption, a family or the mean of all as tables show it."""
    return f"`{view}`" if view in NAMES else "**all**" if view == "mean" else f"*{view}*"


def precision(folder: Path, name: str) -> list[str]:
    """Return which share of tokens changes its set in the last MoE layer, of one of the tables in a folder."""
    return choices(pd.read_csv(folder / f"{name}.csv"))


def choices(table: pd.DataFrame) -> list[str]:
    """Return a line per format and model, a column per part that is rounded: shares in % of the last MoE layer."""
    rows = table[table["metric"] == "chooses_otherwise"]
    rows = rows[rows["layer"] == layers(rows)[-1]]
    columns = ["router", "experts", "attention", "rest", "whole"]
    lines = [f"| format | model | {' | '.join(columns)} |", f"|---|---|{'---|' * len(columns)}"]
    for (form, model), own in rows.groupby(["format", "checkpoint"], sort=False):
        parts = own.set_index("part")
        cells = (
            "{value:.2f} [{ci_low:.2f}, {ci_high:.2f}] %".format_map(
                100 * parts.loc[part, ["value", "ci_low", "ci_high"]]
            )
            for part in columns
        )
        lines.append(f"| {form} | `{model}` | {' | '.join(cells)} |")
    return lines


def transfer(folder: Path) -> list[str]:
    """Return the accuracy with ten shots of other data: a line per data set and k."""
    lines = ["| trained on | shots of | images | k | by chance | V-MoE | V-MoE with PRC | difference |"]
    lines.append(f"|{'---|' * 8}")
    claims = read(folder.parent / "trainings" / "transfer")
    for path in sorted(folder.glob("*.csv")):
        table = pd.read_csv(path)
        for top_k, rows in table.groupby("top_k", sort=False):
            values = rows[rows["kind"] == "value"]
            of = {
                (number, model): own["value"] for (number, model), own in values.groupby(["number", "model"])
            }
            chance = span(pd.concat([one for (number, _), one in of.items() if number == "by chance"]))
            sides = [span(of["accuracy", model]) for model in ("V-MoE", "V-MoE with PRC")]
            apart = cell_of(claims[(claims["group"] == path.stem) & (claims["top_k"] == top_k)])
            about = [rows["trained_on"].iloc[0], path.stem, f"{rows['images'].iloc[0]}", f"{top_k}"]
            lines.append(f"| {' | '.join([*about, chance, *sides, apart])} |")
    return lines


def span(values: pd.Series, digits: int = 3) -> str:
    """Return the lowest and the highest of the seeds."""
    ends = dict.fromkeys(f"{end:.{digits}f}" for end in (values.min(), values.max()))
    return " to ".join(ends)


def signed(rows: pd.DataFrame, digits: int = 3, *, of_known: bool = False) -> str:
    """Return the lowest and highest difference, and how many intervals lie on one side of zero.

    ``of_known`` adds of how many, where some differences have no interval.
    """
    counted = {"+": int((rows["ci_low"] > 0).sum()), "−": int((rows["ci_high"] < 0).sum())}
    said = ", ".join(f"{number}{sign}" for sign, number in counted.items() if number) or "0"
    intervals = int(rows["ci_low"].notna().sum())
    if of_known and intervals < len(rows):
        said = f"{said} of {intervals}" if intervals else "no interval"
    return f"{rows['value'].min():+.{digits}f} to {rows['value'].max():+.{digits}f} ({said})"


def mutants(folder: Path) -> list[str]:
    """Return which share of mutants tests kill, a line per folder and one of all, with what the survivors are."""
    table = pd.read_csv(folder / "table.csv")
    left = pd.read_csv(folder / "survivors.csv", keep_default_na=False)
    lines = [
        "| folder | mutants | drawn | killed | share of all [95 %] | equivalent | open |",
        f"|{'---|' * 7}",
    ]
    folders = table["file"].str.rpartition("/")[0]
    for name in (*dict.fromkeys(folders), "all"):
        rows = table if name == "all" else table[folders == name]
        value, low, high = share(rows)
        reasons = left.loc[left["file"].isin(rows["file"]), "reason"]
        equivalent = int(reasons.str.startswith("equivalent").sum())
        title = name if name == "all" else f"`{name}`"
        lines.append(
            f"| {title} | {rows['mutants'].sum():,} | {rows['drawn'].sum()} | {rows['killed'].sum()} "
            f"| {value:.1%} [{low:.1%}, {high:.1%}] | {equivalent} | {len(reasons) - equivalent} |"
        )
    return lines
