"""Which experts see pictures: layers × experts, the share of an expert's choices that image tokens make."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from moeprobe.metrics.one_kind import ALONE
from moeprobe.probes.routes.figure import finish
from moeprobe.probes.routes.modality import ModalityTable
from moeprobe.results.figures import heat_maps


def draw(tables: Sequence[ModalityTable], table: pd.DataFrame) -> dict[str, Figure]:
    """Return a heat map per checkpoint; 0.5, where both kinds use an expert alike, is marked in the color bar."""
    if not tables:
        return {}
    checkpoints = list(dict.fromkeys(each.checkpoint for each in tables))
    of = {name: [each for each in tables if each.checkpoint == name] for name in checkpoints}
    num_experts = max(each.use.shape[1] for each in tables)
    layers = max(len(part) for part in of.values())
    width = float(np.clip(0.5 * num_experts, 2.8, 9.0))
    figure, axes = heat_maps.grid(len(of), 1, width=width, height=max(1.2, 0.4 * layers + 0.7))
    scale = Normalize(0, 1)
    for panel, (name, part) in zip(axes[:, 0], of.items(), strict=True):
        values = np.full((len(part), num_experts), np.nan)
        for number, each in enumerate(part):
            values[number, : each.use.shape[1]] = each.image_shares
        layer_names = [each.layer for each in part]
        heat_maps.draw_named(
            panel, values, scale, rows=layer_names, columns=[str(expert) for expert in range(num_experts)]
        )
        panel.set_title(name)
    axes[-1, 0].set_xlabel("expert")
    heat_maps.color_bar(figure, axes, scale, "share of image tokens", marks={"alike": 0.5})
    notes = [
        "0: words alone, 1: image tokens alone, both kinds weighed alike; white: no token chooses the expert",
        f"Nearly one kind alone: below {1 - ALONE:.2f} or from {ALONE} up",
    ]
    return {
        "modality": finish(figure, table, title="Image tokens among the choices of each expert", notes=notes)
    }
