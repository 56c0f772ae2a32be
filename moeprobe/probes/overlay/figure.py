"""The expert of each patch or token as its tint; patches whose set changes are outlined (PRC paper, Figure 5)."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray
from PIL import Image

from moeprobe.probes.overlay.record import (
    ImageOverlay,
    InputOverlay,
    TextOverlay,
    count_changed,
)
from moeprobe.results.figures import STYLE, panels
from moeprobe.results.palette import expert_color
from moeprobe.runtime.files import atomic_file

_NOBODY, _UNCOMPARED = "#808080", "#ffffff"
_TINT = 0.55
# Characters of a line, and what one of them and a line with its row of numbers take on paper, in inches.
_CHARACTERS, _WIDTH, _HEIGHT = 46, 0.075, 0.24
# Patches of a finer grid, or of fewer points, bear no number.
_MOST_NUMBERED, _LEAST_ROOM = 8, 5.5
# More experts than this are a color each, and have no key.
_MOST_NAMED = 16
# Dashes of the outline where only the first expert of a set changed.
_DASHES = (0, (2.5, 2))


def draw(overlays: Sequence[ImageOverlay], *, title: str) -> Figure:
    """Return the figure: a row per image, for each checkpoint its clean and its perturbed image.

    ``overlays`` are of one layer, image by image and checkpoint by checkpoint.
    """
    checkpoints = list(dict.fromkeys(item.checkpoint for item in overlays))
    images = list(dict.fromkeys(item.image_id for item in overlays))
    by_key = {(item.image_id, item.checkpoint): item for item in overlays}
    columns = 2 * len(checkpoints)
    inches = panel_inches(overlays)
    heads = [panels.wrap(name, inches - 0.1, size=10) for name in checkpoints]
    # Room for the longest head: pictures keep their shape, whatever the page's.
    room = 0.17 * max(head.count("\n") for head in heads) + 1.0
    size = (inches * columns + 0.4, (inches + 0.3) * len(images) + room)
    figure, axes = panels.pictures(len(images), columns, size)
    for row, image in enumerate(images):
        for number, checkpoint in enumerate(checkpoints):
            item = by_key[image, checkpoint]
            clean, perturbed = axes[row, 2 * number], axes[row, 2 * number + 1]
            everywhere = np.ones_like(item.compared)
            patches(clean, item.clean, item.clean_expert, everywhere, inches=inches - 0.3)
            _draw_perturbed(perturbed, item, inches=inches - 0.3)
            if number == 0:
                # The end of a long path is what tells it from others.
                name = image if len(image) <= 60 else f"…{image[-59:]}"
                clean.set_ylabel(panels.wrap(name, inches, size=8), fontsize=8)
            if row == 0:
                clean.set_title(f"{heads[number]}\nclean")
                perturbed.set_title(f"{heads[number]}\nperturbed")
    figure.suptitle(panels.wrap(title, size[0]))
    name_experts(axes[0, 0], experts_of(overlays))
    return panels.add_caption(figure, f"{key(overlays)}{moved_grid_legend(overlays)}.")


def panel_inches(overlays: Sequence[ImageOverlay]) -> float:
    """Return the side of a picture that lets the finest of the grids be seen."""
    side = max(max(item.compared.shape) for item in overlays)
    return 2.3 if side <= _MOST_NUMBERED else 3.1


def experts_of(overlays: Iterable[InputOverlay]) -> list[int]:
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


def key(overlays: Sequence[InputOverlay]) -> str:
    """Return what colors, outlines and numbers say, by checkpoint where that differs."""
    shows_of = {item.checkpoint: item.shows for item in overlays}
    if len(set(shows_of.values())) == 1:
        what = f"Color: {overlays[0].shows}"
    else:
        what = "C" + "; c".join(
            f"olor in {checkpoint}: {description}" for checkpoint, description in shows_of.items()
        )
    clean = f"from the clean {overlays[0].modality.name}"
    if not any(item.has_sets for item in overlays):
        return f"{what}. Outlined: expert changed {clean}"
    return f"{what}. Outlined: set of experts changed {clean}; dashed: only which of the set is first"


def moved_grid_legend(overlays: Sequence[InputOverlay]) -> str:
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
    compared: np.ndarray,
    *,
    outlined: np.ndarray | None = None,
    dashed: np.ndarray | None = None,
    inches: float = 2.0,
) -> None:
    """Draw an image into ``axes`` of so many ``inches``, each patch in the color of its expert.

    Colors are distinguishable on a gray picture alone. Numbers of experts are drawn where they fit.
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
    boxes = [
        Rectangle((x + inset * width, y + inset * height), (1 - 2 * inset) * width, (1 - 2 * inset) * height)
        for x, y in corners
    ]
    # White below black is seen on any color; where only the first of a set changed, it fills the gaps of dashes.
    if outlined is not None:
        _outline(axes, boxes, outlined, color="white", thick=2.2 * line)
        _outline(axes, boxes, outlined, color="black", thick=line)
    if dashed is not None:
        _outline(axes, boxes, dashed, color="white", thick=line)
        _outline(axes, boxes, dashed, color="black", thick=line, style=_DASHES)
    if max(rows, columns) <= _MOST_NUMBERED and room >= _LEAST_ROOM:
        _numbers(axes, experts, compared, corners, (width, height), size=float(np.clip(room * 0.45, 3.5, 14)))


def _outline(
    axes: Axes,
    boxes: Sequence[Rectangle],
    which: NDArray[np.bool_],
    *,
    color: str,
    thick: float,
    style: Any = "solid",
) -> None:
    """Draw the frames of some of the boxes."""
    framed = [box for box, is_framed in zip(boxes, which.flat, strict=True) if is_framed]
    frames = PatchCollection(framed, facecolor="none", edgecolor=color, linewidth=thick, linestyle=style)
    axes.add_collection(frames, autolim=False)


def _draw_perturbed(axes: Axes, item: ImageOverlay, *, inches: float) -> None:
    """Draw the perturbed image with its patches, and how many of them changed."""
    patches(
        axes,
        item.perturbed,
        item.perturbed_expert,
        item.compared,
        outlined=item.changed_set,
        dashed=item.changed_order,
        inches=inches,
    )
    axes.set_xlabel(count_changed(item).replace(", ", ",\n"), fontsize=9)


def _tints(experts: np.ndarray, compared: np.ndarray) -> np.ndarray:
    """Return the color and opacity ``(rows, columns, 4)`` of each patch."""
    tints = np.empty((*experts.shape, 4))
    for cell, expert in np.ndenumerate(experts):
        color = _NOBODY if expert < 0 else expert_color(int(expert))
        tints[cell] = (*to_rgb(color), _TINT) if compared[cell] else (*to_rgb(_UNCOMPARED), 0.7)
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


# The routing of a few images as a perturbation grows: single frames, a looping GIF of them, and a strip.
#
# GIF and not animated PNG: slides, README pages and old viewers play it everywhere. What its 256 colors cost is small
# on pictures like these, and the single frames are there in full.

_SECONDS, _LAST_SECONDS = 0.8, 2.0
# Number of white in the palette: the last of 256.
_WHITE = 255


def frame(
    overlays: Sequence[ImageOverlay], *, title: str, note: str = "", experts: Sequence[int] = ()
) -> Figure:
    """Return one frame, of overlays of one layer and severity: a row per image, the image itself, then the checkpoints.

    Frames of the same images, checkpoints, ``note`` (the end of the caption) and ``experts`` (in the legend) are
    of the same size, and only changed content moves.
    """
    checkpoints = list(dict.fromkeys(item.checkpoint for item in overlays))
    images = list(dict.fromkeys(item.image_id for item in overlays))
    inches = panel_inches(overlays) + 0.3
    size = (max(inches * (1 + len(checkpoints)) + 0.4, 4.2), (inches + 0.25) * len(images) + 0.9)
    figure, axes = panels.pictures(len(images), 1 + len(checkpoints), size)
    for row, image in enumerate(images):
        _original(axes[row, 0], next(item for item in overlays if item.image_id == image))
        axes[row, 0].set_ylabel(panels.wrap(image, 2.6, size=8), fontsize=8)
    axes[0, 0].set_title("clean image", fontsize=10)
    for item in overlays:
        row, column = images.index(item.image_id), 1 + checkpoints.index(item.checkpoint)
        panel = axes[row, column]
        _draw_perturbed(panel, item, inches=inches - 0.3)
        if row == 0:
            panel.set_title(panels.wrap(item.checkpoint, 2.4, size=9), fontsize=10)
    figure.suptitle(f"{panels.wrap(title, size[0])}\nseverity {overlays[0].severity:g}")
    name_experts(axes[0, 0], experts)
    return panels.add_caption(figure, f"{key(overlays)}{note}.")


def strip(overlays: Sequence[ImageOverlay], *, title: str, unit: str, colors: Mapping[str, str]) -> Figure:
    """Return the severities side by side, a row per checkpoint, of overlays of one layer and image, which comes first.

    ``colors`` belong to the checkpoints (``palette.colors``), some of which may not have this layer.
    """
    checkpoints = list(dict.fromkeys(item.checkpoint for item in overlays))
    severities = list(dict.fromkeys(item.severity for item in overlays))
    inches = float(np.clip(4.2 / len(severities), 1.15, 2.3)) * panel_inches(overlays) / 2.3
    size = (max(inches * (1 + len(severities)) + 0.4, 4.6), (inches + 0.25) * len(checkpoints) + 1.0)
    figure, axes = panels.pictures(len(checkpoints), 1 + len(severities), size)
    for row, checkpoint in enumerate(checkpoints):
        _original(axes[row, 0], overlays[0])
        name = panels.wrap(checkpoint, 1.3 * inches, size=9)
        axes[row, 0].set_ylabel(name, fontsize=9, color=colors[checkpoint])
    axes[0, 0].set_title("clean", fontsize=10)
    for item in overlays:
        row, column = checkpoints.index(item.checkpoint), 1 + severities.index(item.severity)
        panel = axes[row, column]
        _draw_perturbed(panel, item, inches=inches - 0.1)
        panel.set_xlabel(item.short_count, fontsize=8)
        if row == 0:
            panel.set_title(f"{item.severity:g}", fontsize=10)
    figure.suptitle(panels.wrap(f"{title}, {overlays[0].image_id}", size[0]))
    name_experts(axes[0, 0], experts_of(overlays))
    order = (
        " (+ those with another first expert of the same set)" if any(i.has_sets for i in overlays) else ""
    )
    numbers = f"Above: {unit}. Below: how many of the compared patches changed{order}"
    return panels.add_caption(figure, f"{numbers}. {key(overlays)}{moved_grid_legend(overlays)}.")


def _original(axes: Axes, item: ImageOverlay) -> None:
    """Draw the clean image alone, in its own colors."""
    axes.imshow(item.clean.clip(0, 1), interpolation="nearest", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])


def write_gif(frames: Sequence[Path], path: Path) -> Path:
    """Write images of one size as a GIF that loops forever; the same images give the same bytes."""
    pictures = [Image.open(file).convert("RGB") for file in frames]
    # One palette for all, and no dithering: what stays the same in the picture stays the same in the file. Every fourth
    # pixel either way is enough to choose the colors by.
    width, height = (side // 4 for side in pictures[0].size)
    together = Image.new("RGB", (width, height * len(pictures)))
    for number, picture in enumerate(pictures):
        together.paste(picture.resize((width, height), Image.Resampling.NEAREST), (0, height * number))
    palette = together.quantize(_WHITE, method=Image.Quantize.MEDIANCUT, kmeans=1)
    colors = (palette.getpalette() or [])[: 3 * _WHITE]
    palette.putpalette([*colors, *[0] * (3 * _WHITE - len(colors)), 255, 255, 255])
    indexed = [_reduce_to_palette(picture, palette) for picture in pictures]
    milliseconds = [round(1000 * _SECONDS)] * (len(indexed) - 1) + [round(1000 * _LAST_SECONDS)]
    with atomic_file(path) as temporary:
        indexed[0].save(
            temporary,
            format="GIF",
            save_all=True,
            append_images=indexed[1:],
            duration=milliseconds,
            loop=0,
            optimize=True,
        )
    return path


def _reduce_to_palette(picture: Image.Image, palette: Image.Image) -> Image.Image:
    """Return a picture in the colors of a palette; white stays white, which the nearest color may miss by a shade."""
    nearest = np.asarray(picture.quantize(palette=palette, dither=Image.Dither.NONE))
    white = (np.asarray(picture) == 255).all(-1)
    indexed = Image.fromarray(np.where(white, _WHITE, nearest).astype(np.uint8))
    indexed.putpalette(palette.getpalette() or [])
    return indexed


def draw_texts(overlays: Sequence[TextOverlay], *, title: str) -> Figure:
    """Return the figure: a row per text, for each checkpoint its clean and its perturbed version.

    ``overlays`` are of one layer, text by text and checkpoint by checkpoint.
    """
    checkpoints = list(dict.fromkeys(item.checkpoint for item in overlays))
    texts = list(dict.fromkeys(item.image_id for item in overlays))
    by_key = {(item.image_id, item.checkpoint): item for item in overlays}
    heights = [max(_lines(item) for item in overlays if item.image_id == text) for text in texts]
    inches = _CHARACTERS * _WIDTH
    size = ((inches + 0.15) * 2 * len(checkpoints) + 0.4, _HEIGHT * sum(heights) + 0.4 * len(texts) + 0.9)
    with mpl.rc_context(STYLE | {"axes.grid": False, "axes.spines.left": False, "axes.spines.bottom": False}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(
            len(texts), 2 * len(checkpoints), squeeze=False, gridspec_kw={"height_ratios": heights}
        )
    for row, text in enumerate(texts):
        for number, checkpoint in enumerate(checkpoints):
            clean, perturbed = axes[row, 2 * number], axes[row, 2 * number + 1]
            for panel in (clean, perturbed):
                panel.set(xlim=(0, _CHARACTERS), ylim=(heights[row], 0), xticks=[], yticks=[])
            item = by_key.get((text, checkpoint))
            if item is None:
                continue  # this checkpoint has no such layer
            everywhere = np.ones(len(item.clean_words), dtype=bool)
            _tokens(clean, item.clean_words, item.clean_expert, everywhere)
            _tokens(
                perturbed,
                item.perturbed_words,
                item.perturbed_expert,
                item.compared,
                outlined=item.changed_set,
                dashed=item.changed_order,
            )
            perturbed.set_xlabel(count_changed(item), fontsize=9)
            if row == 0:
                head = panels.wrap(checkpoint, inches - 0.1, size=10)
                clean.set_title(f"{head}\nclean")
                perturbed.set_title(f"{head}\nperturbed")
        axes[row, 0].set_ylabel(panels.wrap(text, _HEIGHT * heights[row], size=8), fontsize=8)
    figure.suptitle(panels.wrap(title, size[0]))
    name_experts(axes[0, 0], experts_of(overlays))
    pale = any((item.clean_patch < 0).any() for item in overlays)
    note = ". White: no clean token corresponds" if pale else ""
    return panels.add_caption(figure, f"{key(overlays)}. Small numbers: experts{note}.")


def _lines(item: TextOverlay) -> int:
    """Return how many lines the longer version of a text takes."""
    return max(int(token_positions(words)[-1, 1]) + 1 for words in (item.clean_words, item.perturbed_words))


def token_positions(words: Sequence[str]) -> NDArray[np.int64]:
    """Return where each word begins ``(T, 2)``: its character within the line, and its line.

    A word that does not fit is the first of the next line; one longer than a line is cut off by it.
    """
    positions = np.zeros((max(len(words), 1), 2), dtype=np.int64)
    character = line = 0
    for number, word in enumerate(words):
        width = len(visible_form(word))
        if character and character + width > _CHARACTERS:
            character, line = 0, line + 1
        positions[number] = character, line
        character += width
    return positions


def visible_form(word: str) -> str:
    """Return the drawn form of a token: line breaks are seen, and so is a token without a character."""
    return (word.replace("\n", "⏎").replace("\t", " ") or "·")[:_CHARACTERS]


def _tokens(
    axes: Axes,
    words: Sequence[str],
    experts: NDArray[np.int64],
    compared: NDArray[np.bool_],
    *,
    outlined: NDArray[np.bool_] | None = None,
    dashed: NDArray[np.bool_] | None = None,
) -> None:
    """Draw the tokens of a version of a text."""
    boxes, colors = [], []
    for (character, line), word, expert, is_compared in zip(
        token_positions(words).tolist(), words, experts.tolist(), compared.tolist(), strict=True
    ):
        width = len(visible_form(word))
        boxes.append(Rectangle((character + 0.08, line + 0.06), width - 0.16, 0.88))
        color = to_rgba(_NOBODY if expert < 0 else expert_color(expert), _TINT)
        colors.append(color if is_compared else to_rgba("white"))
        text: dict[str, Any] = {"ha": "center", "clip_on": True}
        center = character + width / 2
        axes.text(center, line + 0.4, visible_form(word), fontsize=8, family="monospace", va="center", **text)
        number = "–" if expert < 0 else str(expert)
        axes.text(center, line + 0.8, number, fontsize=4.5, color="#303030", va="center", **text)
    axes.add_collection(PatchCollection(boxes, facecolors=colors, linewidths=0), autolim=False)
    if outlined is not None:
        _outline(axes, boxes, outlined, color="black", thick=1.3)
    if dashed is not None:
        _outline(axes, boxes, dashed, color="black", thick=0.9, style=_DASHES)
