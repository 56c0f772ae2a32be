"""The tables of attacks, for their page: V-MoE and PRC, seed by seed, and their paired difference."""

from pathlib import Path

import pandas as pd

from reports.scripts.seeds import spread

_DIRECTIONS = {"attack": "attack", "random_signs": "random"}
_STRONGEST = 8
_OBJECTIVES = {
    "attack": "answer",
    "attack_from_": "answer, crafted on the other model",
    "attack_routes": "routes",
    "random_signs": "random",
}
_NUMBERS = {
    "accuracy": ("accuracy", ""),
    "accuracy with clean routing replayed": ("accuracy_perturbed_clean", ""),
    "top-2 set match, `blocks.1`": ("top2_set_match", "blocks.1"),
    "top-2 set match, `blocks.3`": ("top2_set_match", "blocks.3"),
}


def objectives(folder: Path) -> list[str]:
    """Return a line per objective at the largest epsilon: the seeds' lowest and highest values of either model."""
    table = read(folder)
    heads = [f"{name}: {model}" for name in _NUMBERS for model in ("V-MoE", "PRC")]
    table_lines = [f"| attack on | {' | '.join(heads)} |", f"|{'---|' * (1 + len(heads))}"]
    table["view"] = table["view"].str.replace("_from_.*", "_from_", regex=True)
    for view, name in _OBJECTIVES.items():
        cells = []
        for metric, layer in _NUMBERS.values():
            of_metric = rows(table, metric, layer, view=view, severity=_STRONGEST)
            cells += [_range(of_metric, model) if len(of_metric) else "–" for model in ("baseline", "prc")]
        table_lines.append(f"| {name} | {' | '.join(cells)} |")
    return table_lines


def lines(folder: Path) -> list[str]:
    """Return a line per direction and epsilon: the seeds' lowest and highest values, then those of the differences."""
    table = read(folder)
    table = table[table["view"].isin(_DIRECTIONS)].sort_values(["view", "severity"], kind="stable")
    layers = sorted({layer for layer in table["layer"] if layer})
    columns = [("accuracy", ""), *(("top1_match", layer) for layer in layers)]
    heads = ["accuracy", *(f"top-1 match, `{layer}`" for layer in layers)]
    named = [f"{head}: {what}" for head in heads for what in ("V-MoE", "PRC", "Δ")]
    found = [f"| | ε | {' | '.join(named)} |", f"|{'---|' * (2 + len(named))}"]
    for view, severity in table[["view", "severity"]].drop_duplicates().itertuples(index=False):
        cells = []
        for metric, layer in columns:
            here = rows(table, metric, layer, view=view, severity=severity)
            cells += [_range(here, "baseline"), _range(here, "prc"), spread(here[here["reference"] != ""])]
        found.append(f"| {_DIRECTIONS[view]} | {severity:g} | {' | '.join(cells)} |")
    return found


def read(folder: Path) -> pd.DataFrame:
    """Return the committed numbers."""
    words = dict.fromkeys(("layer", "null", "reference", "view", "checkpoint"), str)
    return pd.read_csv(folder / "attack.csv", dtype=words, keep_default_na=False, na_values={
        name: [""] for name in ("value", "ci_low", "ci_high")
    })  # fmt: skip


def rows(table: pd.DataFrame, metric: str, layer: str, *, view: str, severity: float) -> pd.DataFrame:
    """Return the rows of one number, not corrected for chance, of all models and seeds."""
    same = (table["metric"] == metric) & (table["null"] == "") & (table["layer"] == layer)
    return table[same & (table["view"] == view) & (table["severity"] == severity)]


def _range(here: pd.DataFrame, name: str) -> str:
    values = here.loc[(here["reference"] == "") & here["checkpoint"].str.contains(f"-{name}-"), "value"]
    return f"{values.min():.3f} to {values.max():.3f}"
