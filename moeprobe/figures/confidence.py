"""Router confidence: highest gate, second, the rest, and the margin."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.figures import _parts
from moeprobe.medium import medium_of

_LABELS = {"gate_highest": "highest", "gate_second": "second", "gate_rest": "rest", "gate_margin": "margin"}


def draw(table: pd.DataFrame, *, colours: Mapping[str, str], title: str | None = None) -> dict[str, Figure]:
    """Return the figure: a panel per MoE layer; none where no gates are a distribution; colours are of checkpoints."""
    patches = _parts.ordinary(table[table["metric"].isin(list(_LABELS))])
    if patches.empty:
        return {}
    layers, checkpoints = _parts.layers(patches), _parts.checkpoints(patches)
    figure, axes = _parts.panels(1, len(layers))
    for column, layer in enumerate(layers):
        for number, checkpoint in enumerate(checkpoints):
            here = _parts.select(patches, layer=layer, checkpoint=checkpoint)
            if here.empty:
                continue  # this checkpoint has no such layer
            x = np.arange(len(_LABELS)) + 0.22 * (number - (len(checkpoints) - 1) / 2)
            values = _parts.by_metric(here, list(_LABELS))
            _parts.points(axes[0, column], x, values, colour=colours[checkpoint], label=checkpoint)
        axes[0, column].set(title=layer, ylim=(0, 1), ylabel="mean gate" if column == 0 else "")
        axes[0, column].set_xticks(np.arange(len(_LABELS)), list(_LABELS.values()))
    clean = f"Router confidence on clean {medium_of(patches['tokens']).plural}"
    return {"confidence": _parts.finish(figure, patches, title=title or clean)}
