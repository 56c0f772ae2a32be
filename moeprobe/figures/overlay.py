"""Expert numbers drawn into the patches, changed ones red (Figure 5 of the PRC paper)."""

import textwrap
from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from moeprobe.analyses.overlay import Overlay
from moeprobe.figures import STYLE

_CHANGED, _SAME, _NOBODY = "#e31a1c", "#ffffff", "#808080"
# A patch of fewer points than this has no room for a number.
_LEAST_ROOM = 5.5


def draw(overlays: Sequence[Overlay], *, title: str) -> Figure:
    """Return the figure: a row per image, for each checkpoint its clean and its perturbed image.

    ``overlays`` are of one layer, image by image and checkpoint by checkpoint.
    """
    checkpoints = list(dict.fromkeys(item.checkpoint for item in overlays))
    images = list(dict.fromkeys(item.image_id for item in overlays))
    by_key = {(item.image_id, item.checkpoint): item for item in overlays}
    columns = 2 * len(checkpoints)
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(2.3 * columns + 0.3, 2.45 * len(images) + 0.9), layout="constrained")
        axes = figure.subplots(len(images), columns, squeeze=False)
    for row, image in enumerate(images):
        for number, checkpoint in enumerate(checkpoints):
            item = by_key[image, checkpoint]
            clean, perturbed = axes[row, 2 * number], axes[row, 2 * number + 1]
            everywhere = np.ones_like(item.compared)
            patches(clean, item.clean, item.clean_expert, ~everywhere, everywhere)
            patches(perturbed, item.perturbed, item.perturbed_expert, item.changed, item.compared)
            perturbed.set_xlabel(f"{item.changed.sum()} of {item.compared.sum()} changed", fontsize=9)
            if number == 0:
                # The end of a long path is what tells it from others.
                name = image if len(image) <= 60 else f"…{image[-59:]}"
                clean.set_ylabel(textwrap.fill(name, 30), fontsize=8)
            if row == 0:
                clean.set_title(f"{checkpoint}\nclean")
                perturbed.set_title(f"{checkpoint}\nperturbed")
    legend = f"{numbers(overlays)}; red: another one than in the clean image{moved(overlays)}"
    # About eleven characters fit an inch.
    figure.suptitle(f"{title}\n{textwrap.fill(legend, int(11 * figure.get_figwidth()))}")
    return figure


def moved(overlays: Sequence[Overlay]) -> str:
    """Return the end of a legend that says what a view that moves the grid leaves open; empty where none does."""
    parts = ""
    if any((item.clean_patch < 0).any() for item in overlays):
        parts += "; ·: no clean patch corresponds"
    if any(item.meeting for item in overlays):
        parts += "; where clean patches meet in one perturbed patch, the first counts here, each of them in a sweep"
    return parts


def numbers(overlays: Sequence[Overlay]) -> str:
    """Return what the numbers in the patches are, by checkpoint where that differs."""
    shown = {item.checkpoint: item.shows for item in overlays}
    if len(set(shown.values())) == 1:
        return f"number: {overlays[0].shows}"
    return "; ".join(f"number in {checkpoint}: {what}" for checkpoint, what in shown.items())


def patches(
    axes: Axes,
    pixels: np.ndarray,
    experts: np.ndarray,
    changed: np.ndarray,
    compared: np.ndarray,
    *,
    inches: float = 2.0,
) -> None:
    """Draw an image into ``axes`` of so many ``inches``, with the expert of each patch where there is room for it."""
    rows, columns = experts.shape
    axes.imshow(pixels, interpolation="nearest", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    height, width = pixels.shape[0] / rows, pixels.shape[1] / columns
    room = 72 * inches / max(rows, columns)
    size = float(np.clip(room * 0.5, 3.5, 16))
    outline: list[patheffects.AbstractPathEffect] = [
        patheffects.withStroke(linewidth=max(1.0, size / 6), foreground="black")
    ]
    for row in range(rows):
        for column in range(columns):
            x, y = column * width - 0.5, row * height - 0.5
            if experts[row, column] < 0:
                axes.add_patch(
                    Rectangle((x, y), width, height, facecolor=_NOBODY, alpha=0.8, edgecolor="none")
                )
            if changed[row, column]:
                axes.add_patch(
                    Rectangle((x, y), width, height, facecolor=_CHANGED, alpha=0.35, edgecolor="none")
                )
            axes.add_patch(
                Rectangle((x, y), width, height, fill=False, edgecolor="#ffffff", linewidth=0.3, alpha=0.5)
            )
            if room < _LEAST_ROOM:
                continue
            expert = experts[row, column]
            number = "–" if expert < 0 else str(expert) if compared[row, column] else "·"
            text = axes.text(
                x + width / 2,
                y + height / 2,
                number,
                ha="center",
                va="center",
                fontsize=size,
                color=_CHANGED if changed[row, column] else _SAME,
                fontweight="bold",
            )
            text.set_path_effects(outline)
