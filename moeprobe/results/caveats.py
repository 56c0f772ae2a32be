"""What is said of checkpoints before their numbers are believed: answers at chance, rounding, unequal routers."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.analyses.output import ACCURACY
from moeprobe.metrics.analyses.touched import PAIRS_DIFFER
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.stats.statistic import Share, standard_error
from moeprobe.metrics.stats.training_pairs import FEWEST
from moeprobe.results.numbers import interval
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.stored import SumsStore

# Accuracy at chance on the data that a model is for: something is set up wrong.

# Fewer images tell a weak model from chance badly, and the commonest class from the others.
ENOUGH_IMAGES = 50
_CAUSES = (
    "the mean and std of its normalization, another input range than [0, 1], the order of its classes, weights that "
    "were not loaded, or other data than it was trained on"
)


def warnings(
    table: pd.DataFrame, sums: SumsStore, *, num_classes: int, clean: float | None
) -> Mapping[str, str]:
    """Return for each checkpoint whose accuracy on clean images is at chance a warning.

    Chance is reached by guessing (1 / classes) or by always naming the commonest class of these images, whichever is
    more; an accuracy is at chance if its 95 % interval contains chance or is below it.

    Args:
        table: values of a run, see ``columns.COLUMNS``.
        sums: its sums per image.
        num_classes: of the data, which are the model's own.
        clean: the severity that changes nothing; None where only clean images were run.
    """
    unperturbed = table["view"] == "clean" if clean is None else table["severity"] == clean
    measured = table[(table["metric"] == ACCURACY.name) & unperturbed]
    warnings_by_name = {}
    for row in measured.to_dict("records"):
        if row["images"] < ENOUGH_IMAGES or pd.isna(row["ci_low"]):
            continue
        chance = max(1 / num_classes, _commonest(sums, row["checkpoint"], row["view"], row["severity"]))
        if row["ci_low"] <= chance:
            warnings_by_name[row["checkpoint"]] = (
                f"answers no better than chance: accuracy {interval(row)} over {row['images']:,} clean images, where "
                f"naming one class always reaches {chance:.3f}. Likely causes: {_CAUSES}."
            )
    return warnings_by_name


def _commonest(sums: SumsStore, checkpoint: str, view: str, severity: float | None) -> float:
    """Return the share of the commonest class among the labeled images of one cell of the output."""
    counts = np.zeros(1, dtype=np.int64)
    for stored in sums:
        cell = stored.cell
        if (stored.checkpoint, cell.view, cell.layer) != (checkpoint, view, ""):
            continue
        if severity is not None and not np.isnan(severity) and cell.severity != severity:
            continue
        for _, columns in stored.blocks():
            labels = columns["label"].astype(np.int64)
            class_counts = np.bincount(labels[labels >= 0], minlength=len(counts))
            counts = class_counts + np.pad(counts, (0, len(class_counts) - len(counts)))
    return float(counts.max() / counts.sum())


# How many choices of experts the arithmetic of narrower passes changes by itself.

# A key of a checkpoint's entry in the sidecar.
PRECISION_FLOOR = "precision_floor"


def changed_share(changed: NDArray[np.integer], choices: NDArray[np.integer]) -> dict[str, Any]:
    """Return the share of choices that changed, for a sidecar.

    Args:
        changed: choices ``(n,)`` of each input whose set of experts differs.
        choices: of how many ``(n,)``.
    """
    share, images = Share(changed.astype(float), choices.astype(float)), int(np.count_nonzero(choices))
    low, high = None, None
    if images >= MIN_IMAGES:
        low, high = share.bounds(None, standard_error(share.influence(), images), images)
    return {
        "images": images,
        "choices": int(choices.sum()),
        "changed": int(changed.sum()),
        "share": share.value(),
        "ci_low": low,
        "ci_high": high,
    }


def sentences_of(sidecar: Sidecar) -> list[str]:
    """Return all that is said of the checkpoints of a run beside its numbers."""
    return [*_pair_sentences(sidecar), *_precision_sentences(sidecar), *_router_sentences(sidecar)]


def _pair_sentences(sidecar: Sidecar) -> list[str]:
    """Return that pairs given by hand are too few for other trainings; nothing where they are enough, or none."""
    number = len(sidecar.request.get("pairs") or ())
    if not 0 < number < FEWEST:
        return []
    pairs = "1 pair of checkpoints says" if number == 1 else f"{number} pairs of checkpoints say"
    return [f"{pairs} nothing of other trainings: an interval over trainings takes {FEWEST} pairs."]


def _precision_sentences(sidecar: Sidecar) -> list[str]:
    """Return for each checkpoint what share of its choices arithmetic alone changes; none of passes in float32."""
    precision = sidecar.request.precision
    subjects = sidecar.checkpoints | dict(sidecar.get("trainings", {}))
    return [
        f"{name}: {precision} alone changes {_share(floor)} of the choices, compared with float32 on "
        f"{floor['images']:,} {floor['inputs']}."
        for name, info in subjects.items()
        if (floor := info.get(PRECISION_FLOOR)) and floor["choices"]
    ]


def _share(floor: Mapping[str, Any]) -> str:
    """Return a share with its interval, and of how many choices it is."""
    row = {
        "metric": PAIRS_DIFFER.name,
        "value": floor["share"],
        "ci_low": np.nan if floor["ci_low"] is None else floor["ci_low"],
        "ci_high": np.nan if floor["ci_high"] is None else floor["ci_high"],
        "flag": "" if floor["ci_low"] is not None else "few_images",
        "tokens": TEXT.token if floor["inputs"] == TEXT.plural else "",
    }
    return f"{interval(row)} ({floor['changed']:,} of {floor['choices']:,})"


# Checkpoints whose tokens have other numbers of experts.

# A key of a checkpoint's entry in the sidecar: ``[experts, experts per token]`` of each layer; 0 where tokens do not
# choose.
ROUTERS = "router_sizes"


def _router_sentences(sidecar: Sidecar) -> list[str]:
    """Return a sentence where checkpoints differ in E or K: a set of one expert is no set of two."""
    routers = {
        name: _describe_routers(info[ROUTERS])
        for name, info in sidecar.checkpoints.items()
        if info.get(ROUTERS)
    }
    if len({*routers.values()}) < 2:
        return []
    (first, of_first), *others = routers.items()
    by_model = ", ".join([f"{first} gives a token {of_first} experts", *map(" ".join, others)])
    return [
        f"The routers differ: {by_model}. Numbers about sets of experts, such as matches and prices, do not mean the "
        "same for them."
    ]


def _describe_routers(routers: Mapping[str, Any]) -> str:
    """Return the numbers of experts of all layers, e.g. ``2 of 8``; each once."""
    return " and ".join(
        dict.fromkeys(f"{chosen or 'no choice'} of {experts}" for experts, chosen in routers.values())
    )
