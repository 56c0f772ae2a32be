"""What the page on real photographs says about what flips and experts cost, in Markdown, from ``reports/real``."""

from pathlib import Path

import pandas as pd

from moeprobe.metrics.analyses.expert_outputs import EXPERT_CKA, EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED
from moeprobe.metrics.analyses.experts import intervention_metric
from moeprobe.metrics.analyses.flips import flip_metric
from reports.scripts.more_tables import span
from reports.scripts.objectives import MODELS

# Of the noise whose flips have a price.
SIGMA = 0.1
SETS = {
    "runner_up": "the runner-up for the last expert",
    "random": "another set, drawn at random",
    "view": f"the set under noise of σ {SIGMA:g}",
}
INTERVENTIONS = {
    "without": "one expert banned, mean of eight",
    "random": "another set for each token, drawn at random",
    "permuted": "experts relabeled",
}
_LIKENESS = {EXPERT_DISTANCE.name: "distance", EXPERT_CKA.name: "CKA"}
METRICS = frozenset(
    (
        *(
            flip_metric(number, kind).name
            for number in ("size", "price", "answer", "output")
            for kind in SETS
        ),
        *(intervention_metric(number, kind).name for number in ("price", "answer") for kind in INTERVENTIONS),
        *_LIKENESS,
        EXPERT_DISTANCE_PERMUTED.name,
        # Of the probe itself.
        "accuracy",
        "loss",
    )
)
# Of patches of the last block nothing reaches the class token.
_FLIPPED = {
    ("blocks.9", "patch"): "a patch",
    ("blocks.9", "prefix"): "class",
    ("blocks.11", "prefix"): "class",
}
_THOUSANDTHS = 1000


def flips(folder: Path) -> list[str]:
    """Return what a flip of one token does: a line per MoE layer, kind of token and set."""
    values, trainings = _tables(folder)
    lines = [
        f"| MoE layer | token | its other set | {' | '.join(f'size, {model}' for model in MODELS.values())} | "
        f"{' | '.join(f'other answer, {model}' for model in MODELS.values())} | difference [simultaneous 95 %] | |",
        f"|{'---|' * 9}",
    ]
    for (layer, tokens), token in _FLIPPED.items():
        for kind, label in SETS.items():
            size, answer = (flip_metric(number, kind).name for number in ("size", "answer"))
            cells = _spans(_cell(values, layer, size, tokens), scale=_THOUSANDTHS, digits=1)
            cells += _spans(_cell(values, layer, answer, tokens))
            cells += _difference(_cell(trainings, layer, answer, tokens))
            lines.append(f"| `{layer}` | {token} | {label} | {' | '.join(cells)} |")
    return lines


def experts(folder: Path) -> list[str]:
    """Return what interventions on all tokens of a layer do to loss and answers: a line per layer and intervention."""
    values, trainings = _tables(folder)
    numbers = {"price": "rise of the loss", "answer": "other answers"}
    heads = [f"{label}, {model}" for label in numbers.values() for model in MODELS.values()]
    lines = [f"| MoE layer | | {' | '.join(heads)} | difference [simultaneous 95 %] | |", f"|{'---|' * 8}"]
    for layer in dict.fromkeys(layer for layer, _ in _FLIPPED):
        for kind, label in INTERVENTIONS.items():
            metrics = [intervention_metric(number, kind).name for number in numbers]
            cells = [cell for metric in metrics for cell in _spans(_cell(values, layer, metric, ""))]
            cells += _difference(_cell(trainings, layer, metrics[-1], ""))
            lines.append(f"| `{layer}` | {label} | {' | '.join(cells)} |")
    return lines


def likeness(folder: Path) -> list[str]:
    """Return how alike the outputs of two experts are, the mean over pairs: a line per layer and number."""
    values, trainings = _tables(folder)
    lines = [
        f"| MoE layer | | {' | '.join(MODELS.values())} | difference [simultaneous 95 %] | |",
        "|---|---|---|---|---|---|",
    ]
    for layer in dict.fromkeys(layer for layer, _ in _FLIPPED):
        for metric, label in _LIKENESS.items():
            cells = _spans(_cell(values, layer, metric, "patch"))
            cells += _difference(_cell(trainings, layer, metric, "patch"))
            lines.append(f"| `{layer}` | {label} | {' | '.join(cells)} |")
    return lines


def _tables(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the values and the differences over trainings and photographs."""
    words = dict.fromkeys(("layer", "tokens", "judgement", "verdict"), str)
    tables = [pd.read_csv(folder / f"{name}.csv", dtype=words) for name in ("prices", "prices-trainings")]
    first, second = (table.fillna({name: "" for name in words if name in table}) for table in tables)
    return first, second


def _cell(table: pd.DataFrame, layer: str, metric: str, tokens: str) -> pd.DataFrame:
    return table[(table["layer"] == layer) & (table["metric"] == metric) & (table["tokens"] == tokens)]


def _spans(rows: pd.DataFrame, *, scale: float = 1, digits: int = 3) -> list[str]:
    """Return the lowest and the highest value of each model's seeds."""
    names = rows["checkpoint"]
    return [
        span(scale * rows.loc[names.str.startswith(f"photographs-{model}-"), "value"], digits)
        for model in MODELS
    ]


def _difference(rows: pd.DataFrame) -> list[str]:
    """Return a difference with its interval, and its word; no interval where few photographs carry a mean."""
    if rows.empty:
        return ["–", "no interval"]
    (row,) = rows.to_dict("records")
    # Plus 0 of what is rounded: no −0.000.
    value, low, high = (f"{round(row[name], 3) + 0.0:+.3f}" for name in ("value", "sim_low", "sim_high"))
    return [f"{value} [{low}, {high}]", str(row["judgement"] or row["verdict"])]
