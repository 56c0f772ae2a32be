"""Synthetic counterparts of what a camera took: pairs warped by the measured displacement, and clips of a shift.

A warped pair keeps the second picture and the correspondence. Its first picture is made of the second's pixels, each
where the first camera saw it, so that nothing but the displacement differs: no exposure, no reflection.

A shifted clip moves its first frame to the right, frame by frame, by as many pixels as change it as much as a real
frame differs from the one before: by the root mean square of the differences, at the models' input size.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import map_coordinates
from scipy.optimize import brentq

from moeprobe.errors import UserError
from moeprobe.inputs.data.readers.flows import read_flow
from reports.scripts.real.folders import atomic_folder
from reports.scripts.real.weights import IMAGE

# Pixels from frame to frame, beyond which no shift is looked for.
_LARGEST_SHIFT = 4.0


def make_warps(root: Path) -> None:
    """Write a warped pair in ``root``/warps for each pair in ``root``/pairs."""
    for pair in sorted((root / "pairs").iterdir()):
        folder = root / "warps" / pair.name
        shutil.copytree(pair, folder, dirs_exist_ok=True)
        first, second = (Image.open(pair / f"{name}.png") for name in ("first", "second"))
        flow = read_flow(pair, *first.size)
        Image.fromarray(warp(np.asarray(first), np.asarray(second), flow)).save(folder / "first.png")


def warp(first: NDArray[np.uint8], second: NDArray[np.uint8], flow: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Return the second picture as the first camera would have seen it.

    Args:
        first: ``(H, W, 3)``; kept where the flow is not known or leads beyond the second picture.
        second: ``(H', W', 3)``.
        flow: ``(H, W, 2)`` from the first to the second, to the right and down, in pixels.
    """
    rows, columns = np.mgrid[: flow.shape[0], : flow.shape[1]]
    x, y = columns + flow[..., 0], rows + flow[..., 1]
    # Not-a-number is in no range.
    seen = (x >= 0) & (x <= second.shape[1] - 1) & (y >= 0) & (y <= second.shape[0] - 1)
    channels = [
        map_coordinates(second[..., channel].astype(np.float64), [y[seen], x[seen]], order=1)
        for channel in range(3)
    ]
    warped = first.copy()
    warped[seen] = np.stack(channels, axis=-1).round().astype(np.uint8)
    return warped


def make_shifts(root: Path) -> None:
    """Write a shifted clip in ``root``/shifts for each clip in ``root``/clips.

    Raises:
        UserError: a folder that is there holds other clips.
    """
    folder, clips = root / "shifts", root / "clips"
    if folder.is_dir():
        if {clip.name for clip in folder.iterdir()} != {clip.name for clip in clips.iterdir()}:
            raise UserError(f"{folder} holds other clips than {clips}; remove it to make it again.")
        return
    with atomic_folder(folder) as shifts:
        for clip in sorted(clips.iterdir()):
            paths = sorted(clip.iterdir())
            frames = [Image.open(path).convert("RGB") for path in paths]
            step = equal_shift(frames)
            (shifts / clip.name).mkdir()
            for number, path in enumerate(paths):
                shift(frames[0], number * step).save(shifts / clip.name / path.name)


def equal_shift(frames: Sequence[Image.Image]) -> float:
    """Return the shift, in pixels from frame to frame, that changes the first frame as much as the clip changes."""
    wanted = change(frames)

    def excess(step: float) -> float:
        return change([shift(frames[0], number * step) for number in range(len(frames))]) - wanted

    return float(brentq(excess, 0, _LARGEST_SHIFT, xtol=1e-3))


def change(frames: Sequence[Image.Image]) -> float:
    """Return the root mean square difference of frames from the one before, at the models' input size."""
    pixels = np.stack([np.asarray(frame.resize((IMAGE, IMAGE)), dtype=np.float64) for frame in frames])
    return float(np.sqrt(np.square(np.diff(pixels, axis=0)).mean()))


def shift(frame: Image.Image, step: float) -> Image.Image:
    """Return a frame with its content moved to the right; its left edge is repeated."""
    margin = int(np.ceil(step)) + 2
    padded = np.pad(np.asarray(frame), ((0, 0), (margin, margin), (0, 0)), mode="edge")
    return Image.fromarray(padded).transform(
        (frame.width, frame.height),
        Image.Transform.AFFINE,
        (1, 0, margin - step, 0, 1, 0),
        Image.Resampling.BICUBIC,
    )
