"""The routing of a few images as a perturbation grows: single frames, a looping GIF of them, and a strip.

GIF and not animated PNG: slides, README pages and old viewers play it everywhere. What its 256 colors cost is small
on pictures like these, and the single frames are there in full.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from moeprobe.probes.overlay.figure import experts_of, key, moved, name_experts, panel_inches, patches
from moeprobe.probes.overlay.record import Overlay
from moeprobe.results.figures import STYLE, panels
from moeprobe.runtime.files import atomic_file

_SECONDS, _LAST_SECONDS = 0.8, 2.0
# Number of white in the palette: the last of 256.
_WHITE = 255


def frame(overlays: Sequence[Overlay], *, title: str, note: str = "", experts: Sequence[int] = ()) -> Figure:
    """Return one frame, of overlays of one layer and severity: a row per image, the image itself, then the checkpoints.

    Frames of the same images, checkpoints, ``note`` (the end of the caption) and ``experts`` (those of the legend) are
    of the same size, and nothing in them moves but what changes.
    """
    checkpoints = list(dict.fromkeys(item.checkpoint for item in overlays))
    images = list(dict.fromkeys(item.image_id for item in overlays))
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        inches = panel_inches(overlays) + 0.3
        size = (max(inches * (1 + len(checkpoints)) + 0.4, 4.2), (inches + 0.25) * len(images) + 0.9)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(images), 1 + len(checkpoints), squeeze=False)
    for row, image in enumerate(images):
        _original(axes[row, 0], next(item for item in overlays if item.image_id == image))
        axes[row, 0].set_ylabel(panels.wrapped(image, 2.6, size=8), fontsize=8)
    axes[0, 0].set_title("clean image", fontsize=10)
    for item in overlays:
        row, column = images.index(item.image_id), 1 + checkpoints.index(item.checkpoint)
        panel = axes[row, column]
        patches(
            panel, item.perturbed, item.perturbed_expert, item.changed, item.compared, inches=inches - 0.3
        )
        panel.set_xlabel(f"{item.changed.sum()} of {item.compared.sum()} changed", fontsize=9)
        if row == 0:
            panel.set_title(panels.wrapped(item.checkpoint, 2.4, size=9), fontsize=10)
    figure.suptitle(f"{panels.wrapped(title, size[0])}\nseverity {overlays[0].severity:g}")
    name_experts(axes[0, 0], experts)
    return panels.below(figure, f"{key(overlays)}{note}.")


def strip(overlays: Sequence[Overlay], *, title: str, unit: str, colors: Mapping[str, str]) -> Figure:
    """Return the severities side by side, a row per checkpoint, of overlays of one layer and image, which comes first.

    ``colors`` are those of the checkpoints (``palette.colors``), some of which may not have this layer.
    """
    checkpoints = list(dict.fromkeys(item.checkpoint for item in overlays))
    severities = list(dict.fromkeys(item.severity for item in overlays))
    inches = float(np.clip(4.2 / len(severities), 1.15, 2.3)) * panel_inches(overlays) / 2.3
    with mpl.rc_context(STYLE | {"axes.grid": False}):
        size = (max(inches * (1 + len(severities)) + 0.4, 4.6), (inches + 0.25) * len(checkpoints) + 1.0)
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.subplots(len(checkpoints), 1 + len(severities), squeeze=False)
    for row, checkpoint in enumerate(checkpoints):
        _original(axes[row, 0], overlays[0])
        name = panels.wrapped(checkpoint, 1.3 * inches, size=9)
        axes[row, 0].set_ylabel(name, fontsize=9, color=colors[checkpoint])
    axes[0, 0].set_title("clean", fontsize=10)
    for item in overlays:
        row, column = checkpoints.index(item.checkpoint), 1 + severities.index(item.severity)
        panel = axes[row, column]
        patches(
            panel, item.perturbed, item.perturbed_expert, item.changed, item.compared, inches=inches - 0.1
        )
        panel.set_xlabel(f"{item.changed.sum()} of {item.compared.sum()}", fontsize=8)
        if row == 0:
            panel.set_title(f"{item.severity:g}", fontsize=10)
    figure.suptitle(panels.wrapped(f"{title}, {overlays[0].image_id}", size[0]))
    name_experts(axes[0, 0], experts_of(overlays))
    numbers = f"Above: {unit}. Below: how many of the compared patches changed"
    return panels.below(figure, f"{numbers}. {key(overlays)}{moved(overlays)}.")


def _original(axes: Axes, item: Overlay) -> None:
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
    indexed = [_indexed(picture, palette) for picture in pictures]
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


def _indexed(picture: Image.Image, palette: Image.Image) -> Image.Image:
    """Return a picture in the colors of a palette; white stays white, which the nearest color may miss by a shade."""
    nearest = np.asarray(picture.quantize(palette=palette, dither=Image.Dither.NONE))
    white = (np.asarray(picture) == 255).all(-1)
    indexed = Image.fromarray(np.where(white, _WHITE, nearest).astype(np.uint8))
    indexed.putpalette(palette.getpalette() or [])
    return indexed
