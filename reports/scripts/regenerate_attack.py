"""How far does the routing follow attacks on the answer, the routes or the load, and random changes of their norm?

    make reports-attack

Attacks the committed digits checkpoints with k = 2, the two of a training seed at a time, so that differences are
paired: the answer at every epsilon, in both norms and with restarts; at the largest also every other objective, images
crafted on the other checkpoint, and clean routing replayed. Writes ``reports/attack/attack.csv`` and the figures of
the first seed; about six minutes on one core.
"""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from moeprobe import api
from moeprobe.results.figures import save
from moeprobe.results.folder import Result
from moeprobe.runtime.files import write_csv
from reports.scripts import attack_figure
from reports.scripts.printed import shrink

OUT, CHECKPOINTS = Path("reports/attack"), Path("checkpoints/reference")
SEEDS = (0, 1, 2)
STRONGEST = {"linf": 8, "l2": 256}
# The ε at which an ascent from the image alone leaves some answers right, so that more ascents can show.
WITH_RESTARTS, RESTARTS = 4, 3
# All tokens to this one, which has no special place in any of the models.
EXPERT = 0
_AT_STRONGEST = {"epsilons": [0, STRONGEST["linf"]], "attribute": "recomputed"}
# Each run, the first with figures of its own: the answer at every epsilon, and more at the largest.
RUNS: dict[str, dict[str, Any]] = {
    "answer": {},
    "shown to the other": _AT_STRONGEST | {"transfer": True},
    "routes": _AT_STRONGEST | {"on": "routes"},
    "routes, keeping the answer": _AT_STRONGEST | {"on": "routes-keeping-answer"},
    "joint": _AT_STRONGEST | {"on": "joint"},
    "one expert": _AT_STRONGEST | {"on": "one-expert", "expert": EXPERT},
    "overload": _AT_STRONGEST | {"on": "overload"},
    "restarts": {"epsilons": [0, WITH_RESTARTS], "restarts": RESTARTS},
    "l2": {"norm": "l2", "epsilons": [0, 64, 128, STRONGEST["l2"]]},
    "l2, routes": {"norm": "l2", "epsilons": [0, STRONGEST["l2"]], "on": "routes"},
}
FIGURES = {"answer": ("gradient-routing", "gradient-output"), "shown to the other": ("transfer",)}
_METRICS = ("top1_match", "top1_match_kappa", "accuracy")
_METRICS_AT_STRONGEST = (
    "top2_set_match", "top2_set_match_kappa", "accuracy_perturbed_clean", "busiest_expert",
)  # fmt: skip
# Of images as they are.
_METRICS_CLEAN = ("accuracy", "busiest_expert")
_COLUMNS = [
    "train_seed", "checkpoint", "reference", "norm", "restarts", "view", "severity", "layer", "metric", "null",
    "value", "ci_low", "ci_high", "images", "trials",
]  # fmt: skip
_PLACE = _COLUMNS[: _COLUMNS.index("value")]
CLEAN = "clean"
# More digits are noise of the machine.
_DIGITS = 6


def main() -> None:
    """Measure, seed by seed, and write."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    tables = []
    for seed in SEEDS:
        for name in RUNS:
            result = measured(seed, name)
            tables.append(numbers(result, seed, name))
            if seed == SEEDS[0]:
                draw(result, FIGURES.get(name, ()))
            print(f"seed {seed}: {name}", flush=True)
    write_csv(OUT / "attack.csv", joined(tables))
    [path] = save(attack_figure.draw(OUT), OUT / "objectives")
    shrink(path, path)


def measured(seed: int, run: str, *, limit: int | None = None) -> Result:
    """Return the result of the two models of a seed, that without PRC first."""
    models = [CHECKPOINTS / f"digits-{name}-k2-seed{seed}" for name in ("baseline", "prc")]
    return api.attack(models, device="cpu", limit=limit, **RUNS[run])


def draw(result: Result, figures: tuple[str, ...]) -> None:
    """Write the figures with these names."""
    for name, figure in result.plot().items():
        for file in figures:
            if file.endswith(name):
                [path] = save(figure, OUT / file)
                shrink(path, path)


def joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of all runs; what several of them measured, random changes above all, stands there once."""
    table = pd.concat(tables).drop_duplicates(_PLACE)
    return table.sort_values(_PLACE, kind="stable")


def numbers(result: Result, seed: int, run: str) -> pd.DataFrame:
    """Return a row per model, epsilon, layer and number of patches or of the output; then those of the difference."""
    both = pd.concat([result.table.assign(reference=""), result.comparison], ignore_index=True)
    both = both.fillna(dict.fromkeys(("tokens", "null", "layer"), ""))
    both = both[both["tokens"].isin(["patch", ""]) & both["null"].isin(["", "image"])]
    both = both.assign(train_seed=seed, norm=RUNS[run].get("norm", "linf"), restarts=0)
    is_clean = both["severity"] == 0
    # Random changes follow no ascent, and images as they are have neither a norm.
    is_ascent = both["view"].str.startswith("attack") & ~is_clean
    both.loc[is_ascent, "restarts"] = RUNS[run].get("restarts", 0)
    both.loc[is_clean, ["view", "norm"]] = [CLEAN, ""]
    return both[_is_kept(both)][_COLUMNS].round(_DIGITS)


def _is_kept(table: pd.DataFrame) -> pd.Series:
    """Return which rows are written: few of images as they are, and most at the largest epsilon."""
    is_clean = table["view"] == CLEAN
    is_strongest = table["severity"] == table["norm"].map(STRONGEST)
    is_share = (table["metric"] == "expert_share") & (table["expert"] == EXPERT)
    return (
        table["metric"].isin(_METRICS) & ~is_clean
        | table["metric"].isin(_METRICS_AT_STRONGEST) & is_strongest
        | table["metric"].isin(_METRICS_CLEAN) & is_clean
        | is_share & (is_clean | is_strongest)
    )


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    main()
