"""Match of two random views: raw beside its chance level, and beyond chance (kappa)."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.figures import _parts


def draw(table: pd.DataFrame) -> dict[str, Figure]:
    """Return the figure: a column per MoE layer, raw match above, kappa below."""
    patches = table[(table["tokens"] == "patch") & table["metric"].str.contains("_match")]
    names = [name for name in dict.fromkeys(patches["metric"]) if name.endswith("_match")]
    layers, checkpoints = _parts.layers(patches), _parts.checkpoints(patches)
    colours = _parts.colours(checkpoints)
    figure, axes = _parts.panels(2, len(layers))
    for column, layer in enumerate(layers):
        for number, checkpoint in enumerate(checkpoints):
            here = _parts.select(patches, layer=layer, checkpoint=checkpoint)
            x = np.arange(len(names)) + 0.22 * (number - (len(checkpoints) - 1) / 2)
            raw = here[here["metric"].isin(names)].set_index("metric").loc[names]
            _parts.points(axes[0, column], x, raw, colour=colours[checkpoint], label=checkpoint)
            pooled = here[here["null"] == "pooled"].set_index("metric")
            chance = pooled.loc[[f"{name}_chance" for name in names], "value"].to_numpy(float)
            axes[0, column].plot(
                x, chance, "_", color=colours[checkpoint], markersize=14, label=f"{checkpoint}: chance"
            )
            kappa = pooled.loc[[f"{name}_kappa" for name in names]]
            _parts.points(axes[1, column], x, kappa, colour=colours[checkpoint], label=checkpoint)
        axes[0, column].set(title=layer, ylim=(0, 1), ylabel="share of patches" if column == 0 else "")
        axes[1, column].set(ylabel="κ (beyond chance)" if column == 0 else "")
        axes[1, column].axhline(0, color="#808080", linewidth=0.8)
        for row in axes[:, column]:
            row.set_xticks(np.arange(len(names)), [_label(name) for name in names])
            row.set_xlim(-0.6, len(names) - 0.4)
    view = patches["view"].iloc[0]
    return {
        "match-ratio": _parts.finish(figure, patches, title=f"Same experts for corresponding patches: {view}")
    }


def _label(metric: str) -> str:
    base = metric.removesuffix("_match")
    return base.replace("_set", "\nany order").replace("top", "top-")
