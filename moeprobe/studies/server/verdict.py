"""The verdict on a server: does it route as the model does, and as itself?"""

from collections.abc import Mapping
from itertools import count
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import TEXT
from moeprobe.metrics.analyses.touched import PAIRS_DIFFER
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.recordings.check_trace import CheckedTrace
from moeprobe.results.numbers import interval, number
from moeprobe.runtime.device import FLOAT32

Row = Mapping[str, Any]
# The share that a run should be able to exclude.
_SHARE = 0.01


def differing(table: pd.DataFrame) -> dict[str, Row]:
    """Return by checkpoint the row on the pairs of token and layer that differ from the first trace's."""
    rows = table[(table["metric"] == PAIRS_DIFFER.name) & (table["tokens"] == TEXT.token)]
    return {row["checkpoint"]: row for row in rows.to_dict("records")}


def sentences_of(
    checked: CheckedTrace, agreement: pd.DataFrame, determinism: pd.DataFrame, *, dtype: str, random: bool
) -> list[str]:
    """Return the verdict, what it rests on, and what more requests would show.

    Args:
        checked: the capture, with its overlap with the model.
        agreement: table of the model, the server's first run and perhaps the model in float32.
        determinism: table of the server's runs.
        dtype: precision of the model.
        random: whether the prompts were random tokens.
    """
    model, *in_float32 = differing(agreement).values()
    runs = differing(determinism)
    prompts = " The prompts were random tokens: your own texts may give other shares." if random else ""
    return [
        _verdict(checked, model, runs) + prompts,
        f"From the model in {dtype}, {interval(model)} of the pairs of token and layer differ.",
        *(
            f"Precision alone changes {interval(row)} of them: the model in {FLOAT32} against itself in {dtype}."
            for row in in_float32
        ),
        *(
            f"From its first run, in the run {name}, {interval(row)} of them differ."
            for name, row in runs.items()
        ),
        _power(model),
    ]


def _verdict(checked: CheckedTrace, model: Row, runs: Mapping[str, Row]) -> str:
    if not checked.sound:
        return "The capture is faulty, so nothing can be said of the routing: see the findings."
    if checked.overlap is not None and checked.overlap.is_chance:
        return "The server agrees with the model by chance alone: it serves another model, or other layers."
    unequal = [name for name, row in runs.items() if row["value"] > 0]
    if model["value"] == 0 and not unequal:
        return "The server routes exactly as the model does, and as itself, in all that was sent."
    if model["ci_low"] != model["ci_low"]:
        return f"There are too few requests for a verdict: {model['images']} of at least {MIN_IMAGES}."
    floor = max((row["ci_high"] for row in runs.values()), default=0.0)
    itself = "differs from itself between runs" if unequal else "is equal to itself in all runs"
    if model["ci_low"] > (floor if unequal else 0):
        return f"The server routes otherwise than the model: more than its own runs differ. It {itself}."
    return f"The server differs from the model no more than its own runs may differ. It {itself}."


def _power(model: Row) -> str:
    """Return what so many requests can exclude."""
    enough = next(size for size in count(MIN_IMAGES) if score_interval(0.0, 0.0, size)[1] < _SHARE)
    if model["value"] == 0:
        return (
            f"No difference in {model['images']:,} requests excludes shares above {number(model['ci_high'])}; to "
            f"exclude shares above {_SHARE:g}, about {enough:,} requests are needed."
        )
    half = (model["ci_high"] - model["ci_low"]) / 2
    images = model["images"]
    return f"With {images:,} requests the share is known to within {number(half)}; four times as many halve that."
