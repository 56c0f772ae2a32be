"""The pictures of a run folder: figures, and the frames of animations."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprobe.errors import UserError
from moeprobe.runtime.files import is_there, read_bytes

# Of a figure or a table: a page of more than that opens in no browser.
_LIMIT = 2**30
_MEDIA = {".png": "image/png", ".svg": "image/svg+xml", ".gif": "image/gif"}


@dataclass(frozen=True)
class Picture:
    """A figure of a run: its file's name, its bytes and their media type."""

    name: str
    content: bytes
    media: str

    @property
    def stem(self) -> str:
        """The name of the figure, which may hold dots: ``overlay-blocks.3``."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True)
class Frame:
    """One picture of a series along a severity."""

    severity: float
    picture: Picture


def file_of(folder: Path, path: Path) -> bytes:
    """Read a file of a run; a file outside its folder is refused."""
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path} leads out of its run {folder}; a report holds files of its runs only.")
    return read_bytes(path, limit=_LIMIT)


def read_pictures(path: Path, *, without: set[str], animated: bool) -> list[Picture]:
    """Return the figures in natural order; of a PNG and an SVG the PNG, whose text looks the same everywhere."""
    paths = sorted((file for file in path.glob("figures/*") if file.suffix in _MEDIA), key=_natural)
    with_png = {file.stem for file in paths if file.suffix == ".png"}
    return [
        _picture(path, file)
        for file in paths
        if file.name not in without
        and not (file.suffix == ".svg" and (file.stem in with_png or f"{file.stem}.png" in without))
        and (file.suffix != ".gif" or animated)
    ]


def _natural(path: Path) -> list[Any]:
    """Sort blocks.10 after blocks.3."""
    return [
        (part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d+)", path.name)
    ]


def _picture(folder: Path, path: Path) -> Picture:
    return Picture(path.name, file_of(folder, path), _MEDIA[path.suffix])


def read_frames(path: Path, sidecar: dict[str, Any]) -> dict[str, list[Frame]]:
    """Return the series of pictures that the sidecar names, by growing severity."""
    try:
        names_of_frames = {
            str(layer): [(float(frame["severity"]), str(frame["file"])) for frame in series]
            for layer, series in sidecar.get("frames", {}).items()
        }
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path / 'table.json'} names frames that cannot be read: {error!r}.") from error
    frames = {}
    files = [file for series in names_of_frames.values() for _, file in series]
    missing = [file for file in files if not is_there(path / file)]
    if missing:
        raise UserError(
            f"{path} lacks {len(missing)} of its {len(files)} frames, such as {missing[0]}; repeat its run with "
            "--overwrite."
        )
    for layer, series in names_of_frames.items():
        for _, file in series:
            if Path(file).suffix not in _MEDIA:
                raise UserError(f"{path / 'table.json'} names a frame that is no picture: {file}.")
        frames[layer] = [Frame(severity, _picture(path, path / file)) for severity, file in sorted(series)]
    return {layer: series for layer, series in frames.items() if series}
