"""The options that all probes share, and keywords that are checked before anything is done."""

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, get_type_hints

from moeprobe.errors import UserError
from moeprobe.runtime import arguments
from moeprobe.runtime.keywords import F, checked


class Keywords(TypedDict, total=False):
    """``Options`` as keywords of a function; a name stands for a path, and one name for a list of one."""

    split: str
    layers: str | Sequence[str] | None
    limit: int | None
    seed: int
    batch_size: int
    workers: int
    device: str
    trained_capacity: bool
    group_images: int
    masks: str | Path | None
    class_null: bool
    max_length: int | None
    skip_bad_images: bool
    allow_not_finite: bool
    out: str | Path | None
    overwrite: bool
    figures: bool
    command: str


@dataclass(frozen=True)
class Options:
    """What all probes have in common.

    Attributes:
        split: of the data set.
        layers: MoE layers to look at, e.g. ("blocks.3",) or "blocks.1,blocks.3"; None = all.
        limit: number of images, a seeded random subset that is the same for all checkpoints; None = all.
        seed: of the subset, the views and the resamples.
        batch_size: images per forward pass; changes nothing but speed.
        workers: loader processes; changes nothing but speed.
        device: "auto", "cpu", "cuda", "mps".
        trained_capacity: keep the capacity that the model evaluates with (which may be none), instead of no limit.
        group_images: images that compete for that capacity, consecutive ones of the run's list.
        masks: folder of foreground masks, a PNG file per image called as the image; None = the data set's own, if any.
        class_null: give matches a chance level among images of the same class as well.
        max_length: tokens after which texts are cut off; None = 128, or as many as each of the models can read.
        skip_bad_images: go on without images that cannot be read, and count them.
        allow_not_finite: leave out inputs whose gates or scores are NaN or infinite, and flag every number that lacks
            them; else the first one is refused.
        out: output folder; None = nothing is written.
        overwrite: replace what an earlier run left there.
        figures: draw figures into ``out`` too.
        command: what was typed, for the sidecar.

    Raises:
        UserError: a value is of another type, or out of range.
    """

    split: str = "test"
    layers: tuple[str, ...] | None = None
    limit: int | None = None
    seed: int = 0
    batch_size: int = 64
    workers: int = 0
    device: str = "auto"
    trained_capacity: bool = False
    group_images: int = 1
    masks: Path | None = None
    class_null: bool = False
    max_length: int | None = None
    skip_bad_images: bool = False
    allow_not_finite: bool = False
    out: Path | None = None
    overwrite: bool = False
    figures: bool = True
    command: str = ""

    def __post_init__(self) -> None:
        for name, kind in _types().items():
            object.__setattr__(self, name, arguments.read(name, kind, getattr(self, name)))
        for name, (least, what) in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"--{name.replace('_', '-')} takes {what}; got {value}.")


_LEAST = {
    "limit": (1, "a positive number of images"),
    "batch_size": (1, "a positive number of images"),
    "group_images": (1, "a positive number of images"),
    "workers": (0, "a number of processes from 0 up"),
}


@functools.cache
def _types() -> dict[str, Any]:
    return get_type_hints(Options)


def combine(options: Options | None, changes: Keywords) -> Options:
    """Return common options with some of them changed by name.

    Raises:
        UserError: ``options`` are no ``Options``, or a value does not fit.
    """
    if not isinstance(options, Options | None):
        raise UserError(f"options takes api.Options(...), or None; got {type(options).__name__}.")
    return dataclasses.replace(options or Options(), **changes)  # type: ignore[arg-type]


def with_options(function: F) -> F:
    """Refuse wrong arguments of a function whose keywords are the fields of ``Options``, as ``checked`` does."""
    return checked(function, defaults={field.name: field.default for field in dataclasses.fields(Options)})
