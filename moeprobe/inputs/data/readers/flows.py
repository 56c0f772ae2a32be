"""Files that say where the pixels of one picture are in another: flow, disparity and homographies, as published.

::

    homography.txt|npy        3 x 3, from the first picture to the second (Oxford's, HPatches')
    flow.flo|npy|npz          Middlebury's format; or (H, W, 2)
    disparity.pfm|npy|npz|png Middlebury's 2014 format; or (H, W); PNG of 16 bits in 1/256 pixel, 0 = unknown (KITTI's)

With ``flow_back`` or ``disparity_back``, from the second picture to the first, pixels that do not come home by it count
as hidden.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.picture_partners import flow_of_disparity, flow_of_homography, mark_hidden
from moeprobe.runtime.files import DAMAGE, display_path, is_file

# What Middlebury's files begin with, and what is larger is not known.
_FLO_TAG, _FLO_UNKNOWN = 202021.25, 1e9
_KITTI_STEPS = 256
_KINDS = {
    "homography": (".txt", ".npy"),
    "flow": (".flo", ".npy", ".npz"),
    "disparity": (".pfm", ".npy", ".npz", ".png"),
}


def read_flow(folder: Path, width: int, height: int) -> NDArray[np.float32]:
    """Return the flow of the pair in a folder, from its first picture of ``width`` x ``height`` pixels to its second.

    Raises:
        UserError: no file says it, or several do, or it cannot be read, or is of another size.
    """
    kind, path = _file_of(folder)
    values = _read(path)
    if kind == "homography":
        if values.shape != (3, 3) or not np.isfinite(values).all():
            raise UserError(f"{display_path(path)} must hold nine numbers in three rows.")
        return flow_of_homography(values.astype(np.float64), width, height)
    flow = _as_flow(kind, values, path)
    if flow.shape[:2] != (height, width):
        raise UserError(
            f"{display_path(path)} is about {flow.shape[1]} x {flow.shape[0]} pixels, and the first picture has "
            f"{width} x {height}."
        )
    back = _existing(folder, f"{kind}_back", _KINDS[kind])
    if back:
        backwards = _as_flow(kind, _read(back[0]), back[0])
        # What is at x in the right picture is at x + disparity in the left one.
        flow = mark_hidden(flow, -backwards if kind == "disparity" else backwards)
    return flow


def _existing(folder: Path, stem: str, endings: tuple[str, ...]) -> list[Path]:
    return [path for path in (folder / f"{stem}{ending}" for ending in endings) if is_file(path)]


def _file_of(folder: Path) -> tuple[str, Path]:
    files = [(kind, path) for kind, endings in _KINDS.items() for path in _existing(folder, kind, endings)]
    if len(files) != 1:
        how = "nothing says" if not files else f"{' and '.join(path.name for _, path in files)} say"
        raise UserError(
            f"In {display_path(folder)} {how} where the pixels are in the second picture: put one file there, flow, "
            "disparity or homography."
        )
    return files[0]


def _as_flow(kind: str, values: NDArray[np.floating], path: Path) -> NDArray[np.float32]:
    shape = "(H, W)" if kind == "disparity" else "(H, W, 2)"
    if values.ndim != (2 if kind == "disparity" else 3) or (kind == "flow" and values.shape[2] != 2):
        raise UserError(f"{display_path(path)} must hold an array {shape}; it is {values.shape}.")
    values = np.where(np.isfinite(values), values, np.float32(np.nan)).astype(np.float32)
    return flow_of_disparity(values) if kind == "disparity" else values


def _read(path: Path) -> NDArray[np.floating]:
    """Return what a file holds as it is; not-a-number where it says that nothing is known."""
    try:
        return _READERS[path.suffix](path)
    except (*DAMAGE, ValueError, SyntaxError) as error:
        raise UserError(f"{display_path(path)} cannot be read as {path.suffix[1:]}: {error}.") from None


def _read_text(path: Path) -> NDArray[np.floating]:
    return np.loadtxt(path)


def _read_npy(path: Path) -> NDArray[np.floating]:
    return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)


def _read_npz(path: Path) -> NDArray[np.floating]:
    with np.load(path, allow_pickle=False) as arrays:
        (name,) = arrays.files
        return np.asarray(arrays[name], dtype=np.float64)


def _read_png(path: Path) -> NDArray[np.floating]:
    with Image.open(path, formats=["PNG"]) as image:
        if not image.mode.startswith("I"):
            raise ValueError("a disparity needs 16 bits a pixel")
        steps = np.asarray(image, dtype=np.float64)
    return np.where(steps > 0, steps / _KITTI_STEPS, np.nan)


def _read_flo(path: Path) -> NDArray[np.floating]:
    content = path.read_bytes()
    tag = np.frombuffer(content, "<f4", 1)[0]
    width, height = (int(number) for number in np.frombuffer(content, "<i4", 2, offset=4))
    if tag != np.float32(_FLO_TAG) or min(width, height) < 1:
        raise ValueError("it does not begin as Middlebury's files do")
    flow = np.frombuffer(content, "<f4", width * height * 2, offset=12).reshape(height, width, 2)
    unknown = (np.abs(flow) > _FLO_UNKNOWN).any(-1, keepdims=True)
    return np.where(unknown, np.nan, flow)


def _read_pfm(path: Path) -> NDArray[np.floating]:
    with path.open("rb") as file:
        kind, size, scale = (file.readline(100).split() for _ in range(3))
        if kind != [b"Pf"]:
            raise ValueError("a disparity has one channel, Pf")
        width, height = map(int, size)
        values = np.frombuffer(file.read(), "<f4" if float(scale[0]) < 0 else ">f4", width * height)
    # Rows are stored from the bottom.
    rows = values.reshape(height, width)[::-1]
    return np.where(np.isfinite(rows), rows, np.nan)


_READERS = {
    ".txt": _read_text, ".npy": _read_npy, ".npz": _read_npz, ".png": _read_png, ".flo": _read_flo,
    ".pfm": _read_pfm,
}  # fmt: skip
