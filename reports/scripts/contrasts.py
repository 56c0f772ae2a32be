"""What "Routers in Vision Mixture of Experts" concludes, as contrasts of the committed cells and of its own values.

A contrast is the mean accuracy of some routers minus that of others, of one budget, image by image. Of one training
seed its interval is from a bootstrap of the images, the same for all routers. Of three or more it is over trainings and
images at once. Beside it stands the same contrast of the values of the paper, which have no interval. Routers that a
sweep or the paper lacks are left out of a mean.
"""

import itertools
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moeprobe.metrics.stats.bootstrap import Bootstrap
from moeprobe.metrics.stats.linearized import LARGEST, linearize_all
from moeprobe.metrics.stats.statistic import Contrast
from moeprobe.metrics.stats.training_pairs import FEWEST
from moeprobe.results import finished
from moeprobe.results.numbers import number
from moeprobe.runtime.files import write_csv
from reports.scripts.claims import over_trainings

_EXPERTS = ("softmax_expert_choice", "sinkhorn_expert_choice", "sparse_expert_choice")
_TOKENS = ("softmax_token_choice", "sinkhorn_token_choice", "sparse_token_choice")
# Name of a contrast: the routers of its first mean, and of its second.
CONTRASTS = {
    "expert choice − token choice": (_EXPERTS, _TOKENS),
    "token choice: Sinkhorn − softmax": (_TOKENS[1:2], _TOKENS[:1]),
    "token choice: sparse − softmax": (_TOKENS[2:], _TOKENS[:1]),
    "expert choice: Sinkhorn − softmax": (_EXPERTS[1:2], _EXPERTS[:1]),
    "expert choice: sparse − softmax": (_EXPERTS[2:], _EXPERTS[:1]),
    "soft MoE − expert choice": (("soft_moe",), _EXPERTS),
}
# What the paper measures -> what is measured here: folder of the probe, column of the sums, column of the trials.
MEASURES = {
    "jft": ("accuracy", "eval", "accuracy", "labelled"),
    "imagenet_10shot": ("10-shot accuracy", "fewshot", "fewshot_accuracy", "fewshot_trials"),
}
_SHOTS = 10.0


def write(folder: Path, table: pd.DataFrame) -> None:
    """Write ``contrasts.csv``: of each seed and of all, with intervals, and of the paper's architectures, without."""
    own, theirs = _own(folder, table), _published(pd.read_csv(folder / "paper.csv"))
    theirs = theirs[theirs["budget"].isin(own["budget"]) & theirs["contrast"].isin(own["contrast"])]
    write_csv(folder / "contrasts.csv", pd.concat([own, theirs], ignore_index=True))


def lines(folder: Path) -> list[str]:
    """Return the contrasts in Markdown: a line per measure, contrast and budget."""
    rows = pd.read_csv(folder / "contrasts.csv")
    # Over trainings where there are several, else of the one that there is.
    rows = rows[(rows["source"] != "seed") | ~rows["source"].eq("trainings").any()]
    own, theirs = rows[rows["source"] != "paper"], rows[rows["source"] == "paper"]
    of_paper = list(dict.fromkeys(theirs["which"]))
    found = [
        f"| | contrast | k or c | {' | '.join(f'ours, {name}' for name in dict.fromkeys(own['which']))} | "
        f"{' | '.join(f'*paper, {name}*' for name in of_paper)} |",
        f"|{'---|' * (3 + own['which'].nunique() + len(of_paper))}",
    ]
    for (measure, contrast, budget), here in rows.groupby(["measure", "contrast", "budget"], sort=False):
        cells = [_cell(row) for row in here.to_dict("records")]
        found.append(f"| {measure} | {contrast} | {budget} | {' | '.join(cells)} |")
    return found


def interval(difference: NDArray[np.float64], *, most: float = 1.0) -> dict[str, float]:
    """Return the mean of a difference that each image has, ``most`` in size, and its interval over images."""
    count = len(difference)
    statistic = Contrast(difference, np.ones(count), most=most)
    if count > LARGEST:
        estimate = linearize_all(statistic, np.ones(count)).interval()
    else:
        (replicates,) = Bootstrap(count, seed=0).replicate([(statistic, np.ones(count))])
        estimate = replicates.interval()
    return {"value": estimate.value, "ci_low": estimate.low, "ci_high": estimate.high, "images": count}


def shares(run: Path, correct: str, trials: str) -> "dict[str, pd.Series[float]]":
    """Return the share of each image's trials that are right, of each checkpoint: of ten shots the mean of draws."""
    parts: dict[str, list[pd.DataFrame]] = {}
    for stored in finished.read(run).sums:
        if stored.cell.severity == _SHOTS or np.isnan(stored.cell.severity):
            names, columns = stored.load_all()
            if correct in columns:
                part = pd.DataFrame({"image": names, "right": columns[correct], "of": columns[trials]})
                parts.setdefault(stored.checkpoint, []).append(part)
    sums = {name: pd.concat(own).groupby("image")[["right", "of"]].sum() for name, own in parts.items()}
    return {name: own["right"] / own["of"] for name, own in sums.items()}


def _cell(row: dict[str, float]) -> str:
    if pd.isna(row["value"]):
        return "–"
    value, low, high = (number(row[name], signed=True) for name in ("value", "ci_low", "ci_high"))
    return value if pd.isna(row["ci_low"]) else f"{value} [{low}, {high}]"


def _own(folder: Path, table: pd.DataFrame) -> pd.DataFrame:
    cells = table.drop_duplicates("checkpoint").set_index("checkpoint")
    cells["budget"] = cells["top_k"].fillna(cells["capacity_factor"]).astype(int)
    rows = []
    for measure, probe, correct, trials in MEASURES.values():
        for budget, (contrast, sides) in itertools.product(sorted(set(cells["budget"])), CONTRASTS.items()):
            routers = [[one for one in side if one in set(cells["router"])] for side in sides]
            if not all(routers):
                continue
            about = {"measure": measure, "contrast": contrast, "budget": budget}
            differences = {}
            images = None  # the same of all seeds, in one order
            for seed, same in cells[cells["budget"] == budget].groupby("train_seed"):
                means = []
                for side in routers:
                    names = [str(name) for name in same.index[same["router"].isin(side)]]
                    assert len(names) == len(side), (side, budget, seed)
                    parts = [shares(folder / "cells" / name / probe, correct, trials)[name] for name in names]
                    images = parts[0].index if images is None else images
                    assert all(part.index.equals(images) for part in parts)
                    means.append(np.mean([part.to_numpy() for part in parts], axis=0))
                differences[int(seed)] = means[0] - means[1]
            rows += [
                about | {"source": "seed", "which": str(seed)} | interval(difference)
                for seed, difference in differences.items()
            ]
            if len(differences) >= FEWEST:
                which = {"source": "trainings", "which": f"{len(differences)} seeds"}
                together = over_trainings(np.array([*differences.values()]))
                rows.append(about | which | together | {"images": rows[-1]["images"]})
    return pd.DataFrame(rows)


def _published(values: pd.DataFrame) -> pd.DataFrame:
    budget = values["top_k"].fillna(values["capacity_factor"]).astype(int)
    rows = []
    for (task, architecture, of), here in values.groupby(["task", "architecture", budget], sort=False):
        accuracy = here.set_index("router")["accuracy"]
        for contrast, sides in CONTRASTS.items():
            first, second = (accuracy.reindex(routers).mean() for routers in sides)
            about = {"measure": MEASURES[task][0], "contrast": contrast, "budget": of}
            rows.append(about | {"source": "paper", "which": architecture, "value": first - second})
    return pd.DataFrame(rows)
