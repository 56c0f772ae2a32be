"""The tables of attacks, for their page: V-MoE and PRC, seed by seed, and their paired difference."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from reports.scripts.seeds import spread

# Attacks at the largest epsilon, by what tables call the perturbed images; images crafted on the other checkpoint are
# named after it.
_CRAFTED = "attack_from_"
OBJECTIVES = {
    "clean": "nothing",
    "random_signs": "random changes",
    "attack": "answer",
    _CRAFTED: "answer, crafted on the other model",
    "attack_joint": "answer and routes",
    "attack_routes": "routes",
    "attack_routes_keeping_answer": "routes, keeping the answer",
    "attack_one_expert": "load: to one expert",
    "attack_overload": "load: to the busiest expert",
}
_DIRECTIONS = {
    "linf": {"attack": "answer", "random_signs": "random"},
    "l2": {"attack": "answer", "attack_routes": "routes", "random_direction": "random"},
}
_LOADS = ("clean", "random_signs", "attack", "attack_one_expert", "attack_overload")
_LAYERS = ("blocks.1", "blocks.3")
_MODELS = {"V-MoE": "baseline", "PRC": "prc"}
_STRONGEST = 8

# Of a column of a table: what it is called, metric, layer, and chance level.
_Column = tuple[str, str, str, str]


def lines(folder: Path, *, norm: str = "linf") -> list[str]:
    """Return a line per direction and epsilon: the seeds' lowest and highest values, then those of the differences."""
    table = _single_ascents(read(folder))
    table = table[(table["norm"] == norm) & ~table["view"].str.startswith(_CRAFTED)]
    columns: list[_Column] = [
        ("accuracy", "accuracy", "", ""),
        *((f"top-1 match, `{layer}`", "top1_match", layer, "") for layer in _LAYERS),
    ]
    named = []
    for view, direction in _DIRECTIONS[norm].items():
        of_view = table[table["view"] == view]
        for severity in sorted(of_view["severity"].unique()):
            named.append((f"{direction} | {severity:g}", of_view[of_view["severity"] == severity]))
    return _table("attack on | ε", named, columns)


def answers(folder: Path) -> list[str]:
    """Return a line per objective at the largest epsilon: answers, and those with clean routing replayed."""
    columns = [
        ("accuracy", "accuracy", "", ""),
        ("with clean routing replayed", "accuracy_perturbed_clean", "", ""),
    ]
    return _table("attack on", _of_objectives(read(folder), OBJECTIVES), columns)


def sets(folder: Path) -> list[str]:
    """Return a line per layer and objective: sets of two that stay, and this corrected for chance within the image."""
    attacks = [view for view in OBJECTIVES if view != "clean"]
    tables = []
    for layer in _LAYERS:
        columns = [
            ("sets that stay", "top2_set_match", layer, ""),
            ("κ within image", "top2_set_match_kappa", layer, "image"),
        ]
        named = [(f"`{layer}` | {name}", rows) for name, rows in _of_objectives(read(folder), attacks)]
        tables.append(_table("MoE layer | attack on", named, columns))
    return [*tables[0], *tables[1][2:]]


def loads(folder: Path) -> list[str]:
    """Return a line per attack on the load: patches of an image's busiest expert, and those of expert 0."""
    columns = [(f"busiest expert, `{layer}`", "busiest_expert", layer, "") for layer in _LAYERS]
    shares = [(f"expert 0, `{layer}`", "expert_share", layer, "") for layer in _LAYERS]
    return _table("attack on", _of_objectives(read(folder), _LOADS), columns, without_differences=shares)


def restarts(folder: Path) -> list[str]:
    """Return a line per number of ascents on the answer, at the epsilon where there were several."""
    table = read(folder)
    several = table["restarts"].max()
    severity = table.loc[table["restarts"] == several, "severity"].iloc[0]
    table = table[(table["view"] == "attack") & (table["norm"] == "linf") & (table["severity"] == severity)]
    named = [(f"{1 + number}", rows) for number, rows in table.groupby("restarts")]
    return _table("ascents", named, [("accuracy", "accuracy", "", "")])


def read(folder: Path) -> pd.DataFrame:
    """Return the committed numbers."""
    words = dict.fromkeys(("layer", "null", "reference", "view", "checkpoint", "norm"), str)
    return pd.read_csv(folder / "attack.csv", dtype=words, keep_default_na=False, na_values={
        name: [""] for name in ("value", "ci_low", "ci_high")
    })  # fmt: skip


def at_strongest(table: pd.DataFrame, metric: str, layer: str, *, view: str, null: str = "") -> pd.DataFrame:
    """Return the rows of one number and attack at the largest epsilon, or of images as they are."""
    return _rows(_of_view(table, view), metric, layer, null)


def _of_objectives(
    table: pd.DataFrame, views: Sequence[str] | dict[str, str]
) -> list[tuple[str, pd.DataFrame]]:
    return [(OBJECTIVES[view], _of_view(table, view)) for view in views]


def _of_view(table: pd.DataFrame, view: str) -> pd.DataFrame:
    """Return the rows of one attack at the largest epsilon, or of images as they are."""
    table = _single_ascents(table)
    is_view = table["view"].str.startswith(view) if view == _CRAFTED else table["view"] == view
    is_strongest = (table["norm"] == "linf") & (table["severity"] == _STRONGEST)
    return table[is_view & (is_strongest | (table["view"] == "clean"))]


def _single_ascents(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["restarts"] == 0]


def _rows(table: pd.DataFrame, metric: str, layer: str, null: str) -> pd.DataFrame:
    return table[(table["metric"] == metric) & (table["null"] == null) & (table["layer"] == layer)]


def _table(
    first: str,
    named: Sequence[tuple[str, pd.DataFrame]],
    columns: Sequence[_Column],
    *,
    without_differences: Sequence[_Column] = (),
) -> list[str]:
    """Return a table with a line per name and its rows; each column is one per model and one of their difference."""
    heads = [f"{column[0]}: {what}" for column in columns for what in (*_MODELS, "Δ")]
    heads += [f"{column[0]}: {what}" for column in without_differences for what in _MODELS]
    written = [f"| {first} | {' | '.join(heads)} |"]
    written.append(f"|{'---|' * (written[0].count(' | ') + 1)}")
    for name, rows in named:
        cells = []
        for _, metric, layer, null in columns:
            of_metric = _rows(rows, metric, layer, null)
            cells += [_range(of_metric, model) for model in _MODELS.values()]
            cells.append(spread(of_metric[of_metric["reference"] != ""]))
        for _, metric, layer, null in without_differences:
            cells += [_range(_rows(rows, metric, layer, null), model) for model in _MODELS.values()]
        written.append(f"| {name} | {' | '.join(cells)} |")
    return written


def _range(rows: pd.DataFrame, name: str) -> str:
    """Return the lowest and the highest seed of a model; a dash where it was not measured."""
    values = rows.loc[(rows["reference"] == "") & rows["checkpoint"].str.contains(f"-{name}-"), "value"]
    return f"{values.min():.3f} to {values.max():.3f}" if len(values) else "–"
