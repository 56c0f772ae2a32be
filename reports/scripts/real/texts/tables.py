"""What the page on real texts says, in Markdown, from ``reports/real-texts``."""

import itertools
from pathlib import Path

import pandas as pd

from reports.scripts.claims import said
from reports.scripts.more_tables import span
from reports.scripts.real.texts.names import INT8, MODELS

# What a line is called, by its run, severity and view.
PERTURBATIONS = {
    ("typos", 0.1): "typos in a tenth of the words",
    ("typos", 0.3): "typos in three tenths",
    ("synonyms", 0.5): "synonyms for half of the words that have one",
    ("synonyms", 1.0): "synonyms for all of them",
}
# Parts whose weights are rounded; the last is all of them.
PARTS = ("router", "experts", "attention", "rest", "whole")


def quality(folder: Path) -> list[str]:
    """Return how near embeddings are to the dense model's: a line for it, its int8 form and each sparse model."""
    table = pd.read_csv(folder / "models.csv")
    lines = [
        "| | cosine with the dense model, mean | the same, lowest of all sentences | the same, mean with typos | "
        "nearest neighbors of the same collection |",
        "|---|---|---|---|---|",
    ]
    columns = ["cosine", "cosine_least", "cosine_with_typos", "nearest_neighbor"]
    for name, label in {"dense": "dense MiniLM", f"dense-{INT8}": "its int8 form"}.items():
        row = table[table["checkpoint"] == name].iloc[0]
        lines.append(f"| {label} | {' | '.join(f'{row[column]:.3f}' for column in columns)} |")
    for kind in MODELS:
        rows = table[table["checkpoint"].str.startswith(f"minilm-{kind}-")]
        lines.append(f"| {MODELS[kind]} | {' | '.join(span(rows[column]) for column in columns)} |")
    return lines


def claims(folder: Path) -> list[str]:
    """Return κ of both models and its difference over trainings and texts: a line per perturbation and layer."""
    trainings, table = pd.read_csv(folder / "trainings.csv"), pd.read_csv(folder / "table.csv")
    lines = [
        f"| | MoE layer | κ, {' | κ, '.join(MODELS.values())} | difference [simultaneous 95 %] | |",
        "|---|---|---|---|---|---|",
    ]
    for (run, severity), label in PERTURBATIONS.items():
        rows = trainings[(trainings["run"] == run) & (trainings["severity"] == severity)]
        for row in rows.to_dict("records"):
            lines.append(f"| {label} | {_line(table, row, severity=severity)} |")
    return lines


def domains(folder: Path) -> list[str]:
    """Return what a token's first expert says about the domain of its text, as a share: a line per layer."""
    trainings, table = pd.read_csv(folder / "trainings.csv"), pd.read_csv(folder / "table.csv")
    lines = [
        f"| MoE layer | {' | '.join(MODELS.values())} | difference [simultaneous 95 %] | |",
        "|---|---|---|---|---|",
    ]
    for row in trainings[trainings["run"] == "domains"].to_dict("records"):
        lines.append(f"| {_line(table, row)} |")
    return lines


def _line(table: pd.DataFrame, claim: dict[str, object], *, severity: float | None = None) -> str:
    """Return the cells of a claim: its layer, both models, the difference, and its word."""
    rows = table[(table["run"] == claim["run"]) & (table["layer"] == claim["layer"])]
    rows = rows if severity is None else rows[rows["severity"] == severity]
    cells = [_span(rows, kind) for kind in MODELS]
    judgement = claim["judgement"]
    word = judgement if isinstance(judgement, str) else claim["verdict"]
    return f"`{claim['layer']}` | {' | '.join(cells)} | {said(claim)} | {word}"


def forms(folder: Path) -> list[str]:
    """Return κ between a model and its form with the published int8 weights: a line per layer, a cell per model."""
    table = pd.read_csv(folder / "table.csv")
    rows = table[table["run"] == INT8]
    lines = [f"| MoE layer | κ, {' | κ, '.join(MODELS.values())} |", "|---|---|---|"]
    for layer, of_layer in rows.groupby("layer", sort=False):
        lines.append(f"| `{layer}` | {' | '.join(_span(of_layer, kind) for kind in MODELS)} |")
    return lines


def precision(folder: Path) -> list[str]:
    """Return the share of tokens whose set changes: a line per format and model, a cell per part that is rounded."""
    table = pd.read_csv(folder / "precision.csv")
    lines = [f"| format | | {' | '.join(PARTS)} |", f"|{'---|' * (2 + len(PARTS))}"]
    for form, kind in itertools.product(dict.fromkeys(table["format"]), MODELS):
        rows = table[(table["format"] == form) & (table["model"] == kind)]
        cells = [f"{span(100 * rows.loc[rows['part'] == part, 'flips'], 2)} %" for part in PARTS]
        lines.append(f"| {form} | {MODELS[kind]} | {' | '.join(cells)} |")
    return lines


def _span(rows: pd.DataFrame, kind: str) -> str:
    """Return the lowest and the highest value of the cells of a model."""
    own = rows[rows["model"] == kind]
    return span(pd.concat([own["low"], own["high"]]))
