"""The expert of each patch as a tint of its own, patches that change experts outlined (Figure 5 of the PRC paper)."""

from collections.abc import Iterable, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from moeprobe.probes.overlay.record import Overlay
from moeprobe.results.figures import STYLE, panels
from moeprobe.results.palette import expert_color

_NOBODY, _UNCOMPARED = "#808080", "#ffffff"
_TINT = 0.55
# Patches of a finer grid, or of fewer points, bear no number.
_MOST_NUMBERED, _LEAST_ROOM = 8, 5.5
# More experts than this are a color each, and have no key.
_MOST_NAMED = 16


def draw(overlays: Sequence[Overlay], *, title: str) -> Figure:
    """Return the figure: a row per image, for each checkpoint its clean and its perturbed image.

    ``overlays`` are of one layer, image by image and checkpoint by checkpoint.
    """
    checkpoints = list(dict.fromkeys(item.checkpoint for item in overlays))
    images = list(dict.fromkeys(item.image_id for item in overlays))
    by_key = {(item.image_id, item.checkpoint): item for item in overlays}
    columns = 2 * len(checkpoints)
    inches = panel_inches(overlays)
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        heads = [panels.wrapped(name, inches - 0.1, size=10) for name in checkpoints]
        # Room for the longest head: pictures keep their shape, whatever the page's.
        room = 0.17 * max(head.count("\n") for head in heads) + 1.0
        size = (inches * columns + 0.4, (inches + 0.3) * len(images) + room)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(images), columns, squeeze=False)
    for row, image in enumerate(images):
        for number, checkpoint in enumerate(checkpoints):
            item = by_key[image, checkpoint]
            clean, perturbed = axes[row, 2 * number], axes[row, 2 * number + 1]
            everywhere = np.ones_like(item.compared)
            patches(clean, item.clean, item.clean_expert, ~everywhere, everywhere, inches=inches - 0.3)
            patches(
                perturbed,
                item.perturbed,
                item.perturbed_expert,
                item.changed,
                item.compared,
                inches=inches - 0.3,
            )
            perturbed.set_xlabel(f"{item.changed.sum()} of {item.compared.sum()} changed", fontsize=9)
            if number == 0:
                # The end of a long path is what tells it from others.
                name = image if len(image) <= 60 else f"…{image[-59:]}"
                clean.set_ylabel(panels.wrapped(name, inches, size=8), fontsize=8)
            if row == 0:
                clean.set_title(f"{heads[number]}\nclean")
                perturbed.set_title(f"{heads[number]}\nperturbed")
    figure.suptitle(panels.wrapped(title, size[0]))
    name_experts(axes[0, 0], experts_of(overlays))
    return panels.below(figure, f"{key(overlays)}{moved(overlays)}.")


def panel_inches(overlays: Sequence[Overlay]) -> float:
    """Return the side of a picture that lets the finest of the grids be seen."""
    side = max(max(item.compared.shape) for item in overlays)
    return 2.3 if side <= _MOST_NUMBERED else 3.1


def experts_of(overlays: Iterable[Overlay]) -> list[int]:
    """Return the experts that are drawn anywhere in some overlays."""
    experts = {
        int(e) for item in overlays for side in (item.clean_expert, item.perturbed_expert) for e in side.flat
    }
    return sorted(experts - {-1})


def name_experts(axes: Axes, experts: Sequence[int]) -> None:
    """Add the color of each expert to the legend; none where there are too many."""
    if len(experts) <= _MOST_NAMED:
        for expert in experts:
            axes.plot([], [], "s", color=expert_color(expert), markersize=8, label=f"{expert}")


def key(overlays: Sequence[Overlay]) -> str:
    """Return what colors, outlines and numbers say, by checkpoint where that differs."""
    shows_of = {item.checkpoint: item.shows for item in overlays}
    if len(set(shows_of.values())) == 1:
        what = f"Color: {overlays[0].shows}"
    else:
        what = "C" + "; c".join(f"olor in {checkpoint}: {said}" for checkpoint, said in shows_of.items())
    return f"{what}. Outlined: other than in the clean image"


def moved(overlays: Sequence[Overlay]) -> str:
    """Return the end of a legend that says what a view that moves the grid leaves open; empty where none does."""
    parts = ""
    if any((item.clean_patch < 0).any() for item in overlays):
        parts += ". Pale (·): no clean patch corresponds"
    if any(item.meeting for item in overlays):
        parts += ". Where clean patches meet in one perturbed patch, the first counts here, each of them in a sweep"
    return parts


def patches(
    axes: Axes,
    pixels: np.ndarray,
    experts: np.ndarray,
    changed: np.ndarray,
    compared: np.ndarray,
    *,
    inches: float = 2.0,
) -> None:
    """Draw an image into ``axes`` of so many ``inches``, each patch in the color of its expert.

    Colors are distinguishable on a gray picture alone. Numbers of experts are drawn where there is room for them.
    """
    rows, columns = experts.shape
    gray = np.repeat((pixels @ np.array([0.299, 0.587, 0.114]))[..., None], 3, axis=-1)
    axes.imshow(gray.clip(0, 1), interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    height, width = pixels.shape[0] / rows, pixels.shape[1] / columns
    extent = (-0.5, pixels.shape[1] - 0.5, pixels.shape[0] - 0.5, -0.5)
    axes.imshow(_tints(experts, compared), extent=extent, interpolation="nearest")
    corners = [(column * width - 0.5, row * height - 0.5) for row in range(rows) for column in range(columns)]
    grid = [Rectangle(corner, width, height) for corner in corners]
    axes.add_collection(
        PatchCollection(grid, facecolor="none", edgecolor="white", linewidth=0.3, alpha=0.5), autolim=False
    )
    room = 72 * inches / max(rows, columns)
    line = float(np.clip(room / 14, 0.5, 1.6))
    # Inside its patch, so that neighbors do not draw over each other.
    inset = 1.2 * line / room
    outlined = [
        Rectangle((x + inset * width, y + inset * height), (1 - 2 * inset) * width, (1 - 2 * inset) * height)
        for (x, y), is_changed in zip(corners, changed.flat, strict=True)
        if is_changed
    ]
    for color, thick in (("white", 2.2 * line), ("black", line)):
        axes.add_collection(
            PatchCollection(outlined, facecolor="none", edgecolor=color, linewidth=thick), autolim=False
        )
    if max(rows, columns) <= _MOST_NUMBERED and room >= _LEAST_ROOM:
        _numbers(axes, experts, compared, corners, (width, height), size=float(np.clip(room * 0.45, 3.5, 14)))


def _tints(experts: np.ndarray, compared: np.ndarray) -> np.ndarray:
    """Return the color and opacity ``(rows, columns, 4)`` of each patch."""
    tints = np.empty((*experts.shape, 4))
    for place, expert in np.ndenumerate(experts):
        color = _NOBODY if expert < 0 else expert_color(int(expert))
        tints[place] = (*to_rgb(color), _TINT) if compared[place] else (*to_rgb(_UNCOMPARED), 0.7)
    return tints


def _numbers(
    axes: Axes,
    experts: np.ndarray,
    compared: np.ndarray,
    corners: Sequence[tuple[float, float]],
    side: tuple[float, float],
    *,
    size: float,
) -> None:
    outline: list[patheffects.AbstractPathEffect] = [
        patheffects.withStroke(linewidth=max(1.0, size / 6), foreground="black")
    ]
    for (x, y), expert, is_compared in zip(corners, experts.flat, compared.flat, strict=True):
        text = axes.text(
            x + side[0] / 2,
            y + side[1] / 2,
            ("–" if expert < 0 else str(expert)) if is_compared else "·",
            ha="center",
            va="center",
            fontsize=size,
            color="white",
            fontweight="bold",
        )
        text.set_path_effects(outline)
