"""How far routing depends on batch-mates, on the tokens that the router sees, and on the rest of the picture."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.figures import _parts

_NUMBERS = {
    "batch_contagion": "batch-mates exchanged",
    "token_contagion": "router's tokens exchanged",
    "attention_contagion": "pixels exchanged",
}
_ROWS = {"": "share of tokens that\nchange experts", "_distance": "mean distance of\na token's weights"}


def draw(table: pd.DataFrame, *, colours: Mapping[str, str]) -> dict[str, Figure]:
    """Return the figure: a panel per number, a row for the share and one for the distance."""
    patches = table[table["tokens"] == "patch"]
    measured = set(patches["metric"])
    numbers = [name for name in _NUMBERS if f"{name}_distance" in measured]
    # Where every expert has a share of every token there is no choice to change.
    kinds = [kind for kind in _ROWS if any(f"{name}{kind}" in measured for name in numbers)]
    layers, checkpoints = _parts.layers(patches), _parts.checkpoints(patches)
    figure, axes = _parts.panels(len(kinds), len(numbers), width=max(3.4, 0.6 * len(layers)))
    for row, kind in enumerate(kinds):
        for column, name in enumerate(numbers):
            panel = axes[row, column]
            for number, checkpoint in enumerate(checkpoints):
                here = _parts.select(patches, checkpoint=checkpoint, metric=f"{name}{kind}")
                here = here.set_index("layer").reindex(layers).reset_index()
                x = np.arange(len(layers)) + 0.5 * (number - (len(checkpoints) - 1) / 2) / len(checkpoints)
                _parts.points(panel, x, here, colour=colours[checkpoint], label=checkpoint)
            panel.set_xticks(np.arange(len(layers)), layers, rotation=90 if len(layers) > 5 else 0)
            panel.set_xlim(-0.5, len(layers) - 0.5)
            panel.set(title=_NUMBERS[name] if row == 0 else "", ylabel=_ROWS[kind] if column == 0 else "")
        top = max(panel.get_ylim()[1] for panel in axes[row])
        axes[row, 0].set_ylim(-0.03 * top, top)
    return {"contagion": _parts.finish(figure, patches, title="What changes a token's experts, patches")}
