"""What a table of ``flips`` says in words."""

from collections.abc import Iterator

import pandas as pd

from moeprobe.metrics.analyses.flips import FORCED, flip_metric


def sentences(table: pd.DataFrame) -> list[str]:
    """Return in which layers flips of patches cannot reach the answer; empty where they do in all."""
    return [
        f"{checkpoint}: flips of patches in {layers} cannot reach the answer, so their price is 0."
        for checkpoint, layers in _unreachable(table)
    ]


def is_unreachable(rows: pd.DataFrame) -> bool:
    """Return whether all flips of some rows move nothing at all."""
    sizes = rows[rows["metric"].isin([flip_metric("size", forced).name for forced in FORCED])][
        "value"
    ].dropna()
    return len(sizes) > 0 and bool((sizes == 0).all())


def _unreachable(table: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """Yield each checkpoint that has such layers, and these."""
    patches = table[table["tokens"] == "patch"]
    for checkpoint, rows in patches.groupby("checkpoint", sort=False):
        layers = [
            str(layer) for layer, of_layer in rows.groupby("layer", sort=False) if is_unreachable(of_layer)
        ]
        if layers:
            yield str(checkpoint), " and ".join(layers)
