"""Measure whether routers choose better than at random on photographs; write it to reports/real.

    python -m reports.scripts.real.regret build/real

The loss is that of one linear probe for all models (``linear_probe``), as for prices. Writes ``regret.csv``, values,
and ``regret-trainings.csv``, differences over trainings and photographs.
"""

import sys
from pathlib import Path

import pandas as pd

from moeprobe import api
from moeprobe.runtime.files import write_csv
from reports.scripts.real.linear_probe import probed_models
from reports.scripts.real.study import OUT, Question, ask
from reports.scripts.regenerate_regret import PATCHES, TRIED, WEIGHTS, tables

QUESTIONS = {
    weights: Question(
        api.regret, {"patches": PATCHES, "tried": TRIED, "weights": weights}, models=probed_models
    )
    for weights in WEIGHTS
}


def measure(root: Path) -> None:
    """Run the probe and the comparisons, and write the tables."""
    found = []
    for weights, question in QUESTIONS.items():
        out, compared = ask(f"regret-{weights}", question, root)
        assert compared is not None
        found.append(tables(out, compared, data="photographs", top_k=2, weights=weights))
    for name, of_name in zip(("regret", "regret-trainings"), zip(*found, strict=True), strict=True):
        write_csv(OUT / f"{name}.csv", pd.concat(of_name, ignore_index=True))


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
