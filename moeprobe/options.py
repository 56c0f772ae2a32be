"""The options that all probes share, and keywords that are checked before anything is done."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, TypeVar, cast, get_args, get_type_hints

from moeprobe import arguments
from moeprobe.catalog import did_you_mean
from moeprobe.errors import UserError, keyword_for

F = TypeVar("F", bound=Callable[..., Any])


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


def checked(function: F) -> F:
    """Refuse keywords that a function does not take, positional arguments too many, and values of another type.

    A lone number or name where the function takes several is one of them.

    Where it takes an ``Unpack[TypedDict]`` (``Keywords``), its signature names each key, for ``help`` and the
    completion of a notebook.
    """
    own = inspect.signature(function)
    parameters = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    defaults = {field.name: field.default for field in dataclasses.fields(Options)}
    for unpacked in (one.annotation for one in own.parameters.values() if one.kind is one.VAR_KEYWORD):
        [keywords] = get_args(unpacked)
        named = {one.name for one in parameters}
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, ...), annotation=kind
            )
            for name, kind in get_type_hints(keywords).items()
            if name not in named
        ]
    signature = own.replace(parameters=parameters)
    name = f"api.{function.__name__}"

    @functools.wraps(function)
    def wrapper(*given: Any, **named: Any) -> Any:
        for keyword, value in named.items():
            if keyword not in signature.parameters:
                known = list(signature.parameters)
                meant = keyword_for(keyword, value)
                hint = f" Did you mean {meant}?" if meant else did_you_mean(keyword, known)
                raise UserError(f"{name} has no argument {keyword!r}.{hint} There are: {', '.join(known)}.")
        try:
            bound = signature.bind(*given, **named)
        except TypeError as error:
            raise UserError(f"{name}: {error}; its arguments are {_shown(signature)}.") from None
        # What is unpacked from keywords is read by ``Options``.
        for one in bound.arguments.keys() & own.parameters.keys():
            annotation = own.parameters[one].annotation
            bound.arguments[one] = arguments.read(one, annotation, bound.arguments[one])
        return function(*bound.args, **bound.kwargs)

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    return cast("F", wrapper)


def _shown(signature: inspect.Signature) -> str:
    """Return the arguments of a function as they are written: those by position first, the others with ``=``."""
    return ", ".join(
        one.name if one.kind is not one.KEYWORD_ONLY else f"{one.name}="
        for one in signature.parameters.values()
    )
