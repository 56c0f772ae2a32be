"""The pictures of a run folder: figures, the frames of animations, and what an overlay shows under a slider."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import ORDINARY, Modality, modality_of
from moeprobe.results.numbers import interval
from moeprobe.results.palette import expert_color
from moeprobe.runtime.files import is_there, read_bytes, resolve

# The largest figure or table to embed: no browser opens a larger page.
_LIMIT = 2**30
_MEDIA = {".png": "image/png", ".svg": "image/svg+xml", ".gif": "image/gif"}

# With more a browser is slow, and a page large.
MOST_PATCHES = 20_000
# Classes listed for an expert that is clicked.
_MOST_CLASSES = 3
_SIDES = ("perturbed_set", "perturbed_gates", "perturbed_margin", "clean_set", "clean_gates", "clean_margin")
_COLUMNS = {
    "checkpoint", "layer", "image_id", "severity", "perturbed_expert", "clean_patch_expert", "compared", "changed",
    *_SIDES,
}  # fmt: skip


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
    if not resolve(path).is_relative_to(resolve(folder)):
        raise UserError(f"{path} leads out of its run {folder}; a report holds files of its runs only.")
    return read_bytes(path, limit=_LIMIT)


def read_pictures(path: Path, *, without: set[str], animated: bool) -> list[Picture]:
    """Return the figures in natural order; of a PNG and an SVG the PNG, whose text looks the same everywhere."""
    paths = sorted((file for file in path.glob("figures/*") if file.suffix in _MEDIA), key=_natural)
    with_png = {file.stem for file in paths if file.suffix == ".png"}
    return [
        read_picture(path, file)
        for file in paths
        if file.name not in without
        and not (file.suffix == ".svg" and (file.stem in with_png or f"{file.stem}.png" in without))
        and (file.suffix != ".gif" or animated)
    ]


def _natural(path: Path) -> list[Any]:
    """Sort blocks.10 after blocks.3."""
    # Not ``isdigit``, which is true of ² too.
    return [
        (part.isdecimal(), int(part) if part.isdecimal() else 0, part)
        for part in re.split(r"(\d+)", path.name)
    ]


def read_picture(folder: Path, path: Path) -> Picture:
    """Read a figure; raises ``UserError`` for a file outside the run's folder."""
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
            f"{option('overwrite')}."
        )
    for layer, series in names_of_frames.items():
        for _, file in series:
            if Path(file).suffix not in _MEDIA:
                raise UserError(f"{path / 'table.json'} names a frame that is no picture: {file}.")
        frames[layer] = [
            Frame(severity, read_picture(path, path / file)) for severity, file in sorted(series)
        ]
    return {layer: series for layer, series in frames.items() if series}


@dataclass(frozen=True)
class Explorer:
    """The patches or tokens of an overlay, for the script of the page.

    Attributes:
        routing: JSON: names, and for each layer, checkpoint, image and severity the columns of a grid (0 for a text)
            and its patches or tokens, each as ``[expert, expert of the clean one, compared, changed, set, gates,
            margin, clean set, clean gates, clean margin]``, and of a token what it reads; null where a checkpoint
            lacks a layer. Changed: 1 = the set, or the expert without sets; 2 = the first of the same set.
        pixels: a row per image: the clean one, then every severity; None for texts.
        steps: how many severities there are.
        unit: what the slider is called.
        modality: of the inputs.
        class_shares: JSON: for each expert a sentence per checkpoint and layer, see ``class_shares``.
        has_sets: whether sets of several experts are compared.
    """

    routing: str
    pixels: Picture | None
    steps: int
    unit: str
    modality: Modality
    class_shares: str
    has_sets: bool


def explorer_of(
    patches: pd.DataFrame | None,
    pixels: Picture | None,
    *,
    modality: Modality,
    unit: str,
    classes: pd.DataFrame | None = None,
) -> Explorer | None:
    """Return what a page shows of an overlay; None without pixels or words, and for too many patches or tokens.

    Args:
        patches: the table of patches or tokens, as text.
        pixels: the images.
        modality: of the inputs.
        unit: of the severity.
        classes: the share of each class that each expert has, as ``routes`` writes it; None = no run has it.
    """
    if patches is None or not set(patches.columns) >= _COLUMNS:
        return None
    if "word" not in patches and (pixels is None or "column" not in patches):
        return None
    if not 0 < len(patches) <= MOST_PATCHES:
        return None
    names = {
        key: list(dict.fromkeys(patches[key])) for key in ("layer", "checkpoint", "image_id", "severity")
    }
    names["severity"].sort(key=float)
    grids = {key: _grid(part) for key, part in patches.groupby(list(names), sort=False)}
    experts = {
        int(text) for key in ("perturbed_expert", "clean_patch_expert") for text in patches[key] if text
    }
    content = {
        **names,
        "colors": {expert: expert_color(expert) for expert in sorted(experts)},
        "grids": _nest(list(names.values()), grids),
    }
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    shares = {} if classes is None else class_shares(classes, names["checkpoint"], names["layer"])
    return Explorer(
        text,
        pixels,
        len(names["severity"]),
        unit.split(",", maxsplit=1)[0],
        modality,
        json.dumps(shares, ensure_ascii=False),
        has_sets="changed_set" in patches and bool(patches["perturbed_set"].str.contains(" ").any()),
    )


def class_shares(
    classes: pd.DataFrame, checkpoints: Sequence[str], layers: Sequence[str]
) -> dict[str, list[str]]:
    """Return by expert, for each checkpoint and layer, the classes of whose tokens it has the largest shares.

    Args:
        classes: ``classes.csv`` of ``routes``, as text.
        checkpoints: names in the overlay.
        layers: names in the overlay.
    """
    numbers = {key: pd.to_numeric(classes[key]) for key in ("value", "ci_low", "ci_high", "images", "trials")}
    ordinary = classes.assign(flag="", **numbers)[classes["tokens"].isin(ORDINARY)]
    sentences: dict[str, list[str]] = {}
    for (checkpoint, layer, expert), rows in ordinary.groupby(["checkpoint", "layer", "expert"], sort=False):
        of_class = rows[rows["class"] != ""].nlargest(_MOST_CLASSES, "value")
        if checkpoint not in checkpoints or layer not in layers or of_class.empty:
            continue
        tokens = modality_of(rows["tokens"]).tokens
        shares = [f"{interval(row)} of {row['class']}" for row in of_class.to_dict("records")]
        overall = [f"{interval(row)} of all" for row in rows[rows["class"] == ""].to_dict("records")]
        sentences.setdefault(expert, []).append(
            f"{checkpoint}, {layer}: share of the {tokens} of a class: {', '.join(shares + overall)}."
        )
    return sentences


def _grid(part: pd.DataFrame) -> dict[str, Any]:
    """Return the patches of one image, row by row, or the tokens of a text."""
    compared, changed = (part[key] == "True" for key in ("compared", "changed"))
    # Older runs have no column of sets.
    changed_set = part["changed_set"] == "True" if "changed_set" in part else changed
    flags = [compared.astype(int), changed_set.astype(int).mask(changed & ~changed_set, 2)]
    experts = [part[key] for key in ("perturbed_expert", "clean_patch_expert")]
    sides = [part[key].map(_short_number) if key.endswith("_margin") else part[key] for key in _SIDES]
    words = [part["word"]] if "word" in part else []
    columns = [*experts, *flags, *sides, *words]
    num_columns = 0 if words else 1 + max(map(int, part["column"]))
    return {"columns": num_columns, "patches": list(zip(*columns, strict=True))}


def _short_number(text: str) -> str:
    return f"{float(text):.3g}" if text else ""


def _nest(levels: Sequence[Sequence[str]], grids: dict[Any, Any], names: tuple[str, ...] = ()) -> Any:
    """Return the grids as lists in lists, in the order of the names of each level."""
    if not levels:
        return grids.get(names)
    return [_nest(levels[1:], grids, (*names, name)) for name in levels[0]]
