"""How many choices of experts the arithmetic of narrower passes changes by itself: its numbers, and a sentence."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.analyses.touched import PAIRS_DIFFER
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.stats.statistic import Share, standard_error
from moeprobe.results.numbers import interval
from moeprobe.results.sidecars import Sidecar

# Of a checkpoint's entry in the sidecar.
KEY = "precision_floor"


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


def precision_sentences(sidecar: Sidecar) -> list[str]:
    """Return for each checkpoint what share of its choices arithmetic alone changes; none of passes in float32."""
    precision = sidecar.request.precision
    subjects = sidecar.checkpoints | dict(sidecar.get("trainings", {}))
    return [
        f"{name}: {precision} alone changes {_share(floor)} of the choices, compared with float32 on "
        f"{floor['images']:,} {floor['inputs']}."
        for name, info in subjects.items()
        if (floor := info.get(KEY)) and floor["choices"]
    ]


def _share(floor: Mapping[str, Any]) -> str:
    """Return a share with its interval, and of how many choices it is."""
    row = {
        "metric": PAIRS_DIFFER.name,
        "value": floor["share"],
        "ci_low": np.nan if floor["ci_low"] is None else floor["ci_low"],
        "ci_high": np.nan if floor["ci_high"] is None else floor["ci_high"],
        "flag": "" if floor["ci_low"] is not None else "few_images",
    }
    return f"{interval(row)} ({floor['changed']:,} of {floor['choices']:,})"
