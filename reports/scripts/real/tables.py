"""What the page on real photographs says, in Markdown, from ``reports/real``."""

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import pandas as pd

from reports.scripts.claims import said
from reports.scripts.more_tables import span
from reports.scripts.objectives import MODELS

# A corruption of each family but noise, and two of weather, at the middle severity.
CORRUPTIONS, SEVERITY = ("motion_blur", "snow", "fog", "contrast", "jpeg_compression"), 3.0
# Of the run of margins: metrics, with what their rows are called, and the noise of those that have one.
WEAKEST = 0.05
MARGINS = {
    "critical_sigma_median": "σ at which half of the sets have changed",
    "flip_auroc": f"AUC of predicted flips, σ {WEAKEST:g}",
}
# Of how many held-out photographs a table is; and what its rows are called.
_CLAIMS: dict[tuple[str, str, float | None, str], str] = {
    ("crops", "random_crop", None, "patch"): "two random crops",
    ("noise", "gaussian_noise", 0.05, "patch"): "noise, σ 0.05",
    ("noise", "gaussian_noise", 0.1, "patch"): "noise, σ 0.1",
    ("noise", "gaussian_noise", 0.2, "patch"): "noise, σ 0.2",
    ("blur", "gaussian_blur", 0.5, "patch"): "blur, σ 0.5 pixels",
    ("blur", "gaussian_blur", 1.0, "patch"): "blur, σ 1 pixel",
    ("blur", "gaussian_blur", 2.0, "patch"): "blur, σ 2 pixels",
    **{("corruptions", name, SEVERITY, "patch"): f"`{name}`, severity {SEVERITY:g}" for name in CORRUPTIONS},
    ("ground", "ground", 1.0, "patch"): "another ground: all patches",
    ("ground", "ground", 1.0, "foreground"): "another ground: patches of the object",
    ("ground", "ground", 1.0, "background"): "another ground: patches of the ground",
}
_KAPPA, _SET_MATCH = "top2_set_match_kappa", "top2_set_match"


def quality(folder: Path) -> list[str]:
    """Return how near the models are to the dense one: a line for it, and one for the three seeds of each model."""
    features = pd.read_csv(folder / "features.csv")
    table = pd.read_csv(folder / "table.csv", keep_default_na=False, na_values={"value": [""]})
    accuracy = table[(table["run"] == "eval") & (table["metric"] == "accuracy")]
    lines = [
        "| | cosine with the dense model's tokens | nearest other photograph of the class | accuracy of the head |",
        "|---|---|---|---|",
    ]
    dense = features[features["checkpoint"] == "dense"].iloc[0]
    lines.append(f"| dense ViT-S/14, as published | 1 | {dense['nearest_neighbor']:.3f} | – |")
    for model, label in MODELS.items():
        rows, hits = _of_model(features, model), _of_model(accuracy, model)
        cells = (
            span(column.astype(float)) for column in (rows["cosine"], rows["nearest_neighbor"], hits["value"])
        )
        lines.append(f"| {label}, two sparse blocks | {' | '.join(cells)} |")
    return lines


def claims(folder: Path) -> list[str]:
    """Return κ of both models and its difference over trainings and photographs: a line per perturbation and layer."""
    trainings = _read(folder / "trainings.csv")
    table = _read(folder / "table.csv")
    lines = [
        f"| | MoE layer | κ, {' | κ, '.join(MODELS.values())} | difference [simultaneous 95 %] | |",
        "|---|---|---|---|---|---|",
    ]
    for (run, view, severity, tokens), label in _CLAIMS.items():
        rows = _cell(trainings, run, view, severity, tokens, _KAPPA)
        for row in rows.to_dict("records"):
            values = _cell(table, run, view, severity, tokens, _KAPPA)
            lines.append(_difference(label, row, values))
    return lines


def margins(folder: Path) -> list[str]:
    """Return at which noise sets change, and how well margins tell which: a line per number and layer."""
    trainings, table = _read(folder / "trainings.csv"), _read(folder / "table.csv")
    lines = [
        f"| | MoE layer | {' | '.join(MODELS.values())} | difference [simultaneous 95 %] | |",
        "|---|---|---|---|---|---|",
    ]
    for metric, label in MARGINS.items():
        values = table[(table["run"] == "margins") & (table["metric"] == metric)]
        rows = trainings[(trainings["run"] == "margins") & (trainings["metric"] == metric)]
        lines += [_difference(label, row, values) for row in rows.to_dict("records")]
    return lines


def _difference(label: str, row: dict[Hashable, Any], values: pd.DataFrame) -> str:
    """Return a line: values of both models in a layer, and their difference over trainings and photographs."""
    cells = _spans(values[values["layer"] == row["layer"]])
    word = row["judgement"] or row["verdict"]
    return f"| {label} | `{row['layer']}` | {' | '.join(cells)} | {said(row)} | {word} |"


def pairs(folder: Path) -> list[str]:
    """Return how often patches keep their set in two pictures that were taken, in warps alike, and in random crops."""
    table = _read(folder / "table.csv")
    lines = [f"| | MoE layer | {' | '.join(MODELS.values())} |", "|---|---|---|---|"]
    runs = {
        "pairs": "three pairs that were taken",
        "warps": "warps by the same displacement",
        "crops": "two random crops",
    }
    for run, label in runs.items():
        rows = table[(table["run"] == run) & (table["tokens"] == "patch") & (table["null"] == "")]
        rows = rows[rows["metric"] == _SET_MATCH]
        for layer, of_layer in rows.groupby("layer", sort=False):
            lines.append(f"| {label} | `{layer}` | {' | '.join(_spans(of_layer))} |")
    return lines


def flips(folder: Path) -> list[str]:
    """Return how often a patch's set flips along the real video and a shift: a line per comparison and layer."""
    table = _read(folder / "table.csv")
    rows = table[table["run"].isin(["frames", "shifts"]) & (table["metric"] == _SET_MATCH)]
    rows = rows[(rows["null"] == "") & (rows["tokens"] == "patch")]
    lines = [f"| flips against | MoE layer | {' | '.join(MODELS.values())} |", "|---|---|---|---|"]
    for (run, view, layer), of_view in rows.groupby(["run", "view", "layer"], sort=False):
        cells = _spans(of_view.assign(value=1 - of_view["value"]))
        label = view if run == "frames" else f"{view}, shifted instead"
        lines.append(f"| {label} | `{layer}` | {' | '.join(cells)} |")
    return lines


def _of_model(rows: pd.DataFrame, model: str) -> pd.DataFrame:
    """Return the rows of the three seeds of a model."""
    return rows[rows["checkpoint"].str.startswith(f"photographs-{model}-")]


def _spans(rows: pd.DataFrame) -> list[str]:
    """Return the lowest and the highest value of each model's seeds."""
    return [span(_of_model(rows, model)["value"]) for model in MODELS]


def _read(path: Path) -> pd.DataFrame:
    words = dict.fromkeys(("layer", "view", "tokens", "null", "judgement", "verdict"), str)
    table = pd.read_csv(path, dtype=words)
    return table.fillna({name: "" for name in words if name in table})


def _cell(
    table: pd.DataFrame, run: str, view: str, severity: float | None, tokens: str, metric: str
) -> pd.DataFrame:
    rows = table[(table["run"] == run) & (table["view"] == view) & (table["tokens"] == tokens)]
    rows = rows[(rows["metric"] == metric) & (rows["null"] == "pooled")]
    return rows if severity is None else rows[rows["severity"] == severity]
