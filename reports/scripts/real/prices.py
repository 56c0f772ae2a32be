"""Measure what flips of single tokens, and interventions on experts, cost on photographs; write it to reports/real.

    python -m reports.scripts.real.prices build/real

Costs are in nats of one linear probe for all models (``linear_probe``). Writes ``prices.csv``, values;
``prices-trainings.csv``, differences over trainings and photographs; ``experts.csv``, what each single expert costs.
"""

import sys
from pathlib import Path

import pandas as pd

from moeprobe import api
from moeprobe.metrics.analyses.experts import BANNED, intervention_metric
from moeprobe.runtime.files import write_csv
from reports.scripts.real.linear_probe import probed_models
from reports.scripts.real.price_tables import METRICS, SIGMA
from reports.scripts.real.study import OUT, Question, ask

# Of 81, in each layer for each kind of set; the class token beside them.
PATCHES = 4
QUESTIONS = {
    "flips": Question(api.flips, {"severities": (SIGMA,), "patches": PATCHES}, models=probed_models),
    "experts": Question(api.experts, models=probed_models),
}
_COLUMNS = [
    "run", "checkpoint", "train_seed", "layer", "tokens", "metric", "value", "ci_low", "ci_high", "images", "trials",
    "carriers",
]  # fmt: skip
# More digits are noise of the machine.
_DIGITS = 6


def measure(root: Path) -> None:
    """Run the probes and comparisons, and write the tables."""
    tables, trainings = [], []
    for name, question in QUESTIONS.items():
        out, compared = ask(name, question, root)
        assert compared is not None
        tables.append(pd.read_csv(out / "table.csv").assign(run=name))
        trainings.append(pd.read_csv(compared / "trainings.csv").assign(run=name))
    values = pd.concat(tables, ignore_index=True)
    OUT.mkdir(parents=True, exist_ok=True)
    write_csv(OUT / "prices.csv", kept(values)[_COLUMNS].round(_DIGITS))
    write_csv(OUT / "prices-trainings.csv", kept(pd.concat(trainings, ignore_index=True)).round(_DIGITS))
    write_csv(OUT / "experts.csv", of_experts(values).round(_DIGITS))


def kept(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the page is about: of all tokens of a kind and all experts of a layer together."""
    # Neither deciles of margins, nor objects and grounds; what is of the output has no tokens.
    is_kept = table["tokens"].isna() | table["tokens"].isin(["patch", "prefix"])
    if "expert" in table:
        is_kept &= table["expert"].isna()
    return table[is_kept & table["metric"].isin(METRICS)]


def of_experts(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each expert: the rise of the loss without it, and the share of answers that change."""
    keys = ["checkpoint", "train_seed", "layer", "expert"]
    numbers = {
        "price": intervention_metric("price", BANNED).name,
        "answer": intervention_metric("answer", BANNED).name,
    }
    ends = {"value": "{}", "ci_low": "{}_low", "ci_high": "{}_high", "carriers": "{}_carriers"}
    rows = table[table["expert"].notna()]
    parts = [
        rows[rows["metric"] == metric]
        .set_index(keys)[list(ends)]
        .rename(columns={column: name.format(number) for column, name in ends.items()})
        for number, metric in numbers.items()
    ]
    joined = parts[0].join(parts[1].drop(columns="answer_carriers"))
    return joined.reset_index().astype({"expert": int})


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
