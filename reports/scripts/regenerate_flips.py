"""What flips cost, one and all of a perturbation, of the committed digits checkpoints with k = 2.

    python -m reports.scripts.regenerate_flips

Runs ``moeprobe flips --predict`` on each pair of checkpoints with the same training seed; all patches are flipped.
Writes to ``reports/flips``: ``prices.csv``, of single flips by kind of token, of set and decile of the margin;
``costs.csv``, of all flips of each held-out perturbation, and how prices fit; both with values and differences, paired
by image. And the figure of the first seed. Ten minutes.
"""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from moeprobe import api
from moeprobe.metrics.analyses.flip_costs import FlipCostsAnalysis
from moeprobe.results.figures import save
from moeprobe.runtime.files import write_csv
from reports.scripts.objectives import MODELS
from reports.scripts.printed import shrink

OUT, CHECKPOINTS = Path("reports/flips"), Path("checkpoints/reference")
SEEDS, PATCHES = (0, 1, 2), 16
CORRUPTIONS = ("impulse_noise", "snow", "frost", "spatter", "contrast", "pixelate")
VIEWS = ("gaussian_blur", "brightness", *(f"corruption,kind={kind}" for kind in CORRUPTIONS))
KEYS = ["train_seed", "model", "kind", "layer", "tokens", "view", "severity", "metric"]
# Single flips: of all numbers those that the page has, deciles of the size alone.
PRICES = ("flip_size", "flip_price", "flip_beyond", "flip_answer")
COSTS = tuple(measured.name for measured in FlipCostsAnalysis.measures)
# More digits are noise of the machine.
_DIGITS = 7


def main() -> None:
    """Measure and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    runs = {seed: flips(seed) for seed in SEEDS}
    write([rows_of(run, seed) for seed, run in runs.items()], OUT)
    [path] = save(runs[SEEDS[0]].plot()["flip-costs"], OUT / "costs")
    shrink(path, path)


def flips(seed: int, *, limit: int | None = None) -> api.Result:
    """Return the run on both models of a training seed."""
    pair = [CHECKPOINTS / f"digits-{name}-k2-seed{seed}" for name in MODELS]
    names = list(MODELS.values())
    return api.flips(
        pair, data="digits", patches=PATCHES, predict=VIEWS, limit=limit, names=names, device="cpu"
    )


def rows_of(run: api.Result, seed: int) -> pd.DataFrame:
    """Return the rows of the values and of the differences, in a few columns."""
    assert run.comparison is not None
    kinds = [run.table.assign(kind="value"), run.comparison.assign(kind="difference")]
    rows = pd.concat(kinds, ignore_index=True)
    is_decile = rows["tokens"].str.startswith("margin ")
    is_price = rows["metric"].str.startswith(PRICES) & ~is_decile
    is_price |= rows["metric"].str.startswith(PRICES[0]) & is_decile
    rows = rows[is_price | rows["metric"].isin(COSTS)].assign(train_seed=seed)
    names = {f"digits-{name}-k2-seed{seed}": model for name, model in MODELS.items()}
    rows = rows.assign(
        model=rows["checkpoint"].map(names), view=rows["view"].str.replace("corruption,kind=", "")
    )
    return rows[[*KEYS, "value", "ci_low", "ci_high", "images", "carriers"]].round(_DIGITS)


def write(tables: Sequence[pd.DataFrame], folder: Path) -> None:
    """Write the rows of all runs into two tables."""
    rows = pd.concat(tables, ignore_index=True)
    is_cost = rows["metric"].isin(COSTS)
    write_csv(folder / "prices.csv", rows[~is_cost].drop(columns=["view", "severity"]))
    write_csv(folder / "costs.csv", rows[is_cost].drop(columns=["layer", "tokens"]))


if __name__ == "__main__":
    main()
