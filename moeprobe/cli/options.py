"""The options that all probes share, declared once."""

import functools
import inspect
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from moeprobe.cli.early import check_arguments, check_folder
from moeprobe.errors import UserError
from moeprobe.runtime import hub

Checkpoints = Annotated[
    list[str],
    typer.Argument(
        metavar="CHECKPOINT...",
        help="Run folders (their last checkpoint), .safetensors files, hf:PATH_OR_NAME of Hugging Face, or "
        "py:package.module:factory@settings.yaml; with two or more, the first is the reference.",
    ),
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Data set: NAME or NAME:LOCATION, e.g. folder:photos or text:lines.txt; default: the one that the "
        "checkpoints were trained on."
    ),
]


def _allow(context: typer.Context, wanted: bool) -> bool:
    if wanted:
        context.with_resource(hub.downloads())
    return wanted


Download = Annotated[
    bool,
    typer.Option(
        "--download", callback=_allow, help="Fetch hf: and huggingface: names that are not here from the hub."
    ),
]
Attribute = Annotated[
    bool,
    typer.Option(
        "--attribute",
        help="Replay clean routing on perturbed pixels and the other way round: what of the change is switching?",
    ),
]
Gates = Annotated[
    str,
    typer.Option(
        help="With --attribute: weights of the replayed experts, recomputed (for the pixels) or replayed as well."
    ),
]
Images = Annotated[str | None, typer.Option(help="Names of images of the data set, comma-separated.")]
File = Annotated[list[str] | None, typer.Option(help="An image file of your own; may be repeated.")]
Full = Annotated[
    bool, typer.Option("--full", help="Print all that was measured, not the verdict and the headlines alone.")
]
OutOfFigures = Annotated[
    Path | None, typer.Option(help="Folder for the figures and their table; required unless --json.")
]

# name -> (type, default); what `moeprobe.api.Options` takes, and the three that concern the output.
_COMMON: dict[str, tuple[Any, Any]] = {
    "split": (Annotated[str, typer.Option(help="Split of the data set: train, val or test.")], "test"),
    "layers": (
        Annotated[str | None, typer.Option(help="MoE layers, comma-separated, e.g. blocks.3; default all.")],
        None,
    ),
    "limit": (
        Annotated[
            int | None, typer.Option(help="Number of images: a seeded random subset, the same for all.")
        ],
        None,
    ),
    "seed": (Annotated[int, typer.Option(help="Seed of the subset, the views and the intervals.")], 0),
    "batch_size": (Annotated[int, typer.Option(help="Images per forward pass; changes only the speed.")], 64),
    "workers": (Annotated[int, typer.Option(help="Loader processes; changes only the speed.")], 0),
    "device": (Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")], "auto"),
    "capacity": (
        Annotated[
            str,
            typer.Option(
                help="unlimited: every choice is served; trained: the capacity the model evaluates with."
            ),
        ],
        "unlimited",
    ),
    "group_images": (
        Annotated[
            int,
            typer.Option(
                help="Images that compete for the same capacity, with --capacity trained or where experts choose."
            ),
        ],
        1,
    ),
    "masks": (
        Annotated[
            Path | None,
            typer.Option(
                help="Folder of foreground masks, a PNG per image: matches by foreground and background."
            ),
        ],
        None,
    ),
    "class_null": (
        Annotated[
            bool,
            typer.Option(
                "--class-null", help="Give matches a chance level among images of the same class as well."
            ),
        ],
        False,
    ),
    "max_length": (
        Annotated[
            int | None,
            typer.Option(
                help="Of texts: tokens after which they are cut off; default 128, or what fits the model."
            ),
        ],
        None,
    ),
    "skip_bad_images": (
        Annotated[
            bool, typer.Option("--skip-bad-images", help="Go on without unreadable images; count them.")
        ],
        False,
    ),
    "allow_not_finite": (
        Annotated[
            bool,
            typer.Option(
                "--allow-not-finite",
                help="Leave out inputs whose gates or scores are NaN or infinite, and flag the numbers that lack them.",
            ),
        ],
        False,
    ),
    "out": (
        Annotated[Path | None, typer.Option(help="Folder for tables and figures; default: print only.")],
        None,
    ),
    "overwrite": (
        Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run left in --out.")],
        False,
    ),
    "download": (Download, False),
    "json": (Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")], False),
    "dry_run": (
        Annotated[
            bool, typer.Option("--dry-run", help="Say how many passes it takes and how long; do nothing.")
        ],
        False,
    ),
}


class Common:
    """The shared options as typed."""

    def __init__(self, values: dict[str, Any]) -> None:
        values.pop("download")
        self.json: bool = values.pop("json")
        self.dry_run: bool = values.pop("dry_run")
        layers, capacity = values.pop("layers"), values.pop("capacity")
        if capacity not in ("unlimited", "trained"):
            raise UserError(f"--capacity is unlimited or trained; got {capacity!r}.")
        self._values = values | {
            "layers": layers,
            "trained_capacity": capacity == "trained",
            "command": command_line(),
        }

    def options(self) -> Any:
        """Return them as the library takes them.

        Raises:
            UserError: one is out of range.
        """
        from moeprobe.probes.engine.options import Options

        return Options(**self._values)


def command_line() -> str:
    """Return what was typed, for the record."""
    return shlex.join(["moeprobe", *sys.argv[1:]])


def drawing(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that draws the shared options; it needs a folder for that."""
    return probe(command, out=OutOfFigures)


def probe(
    command: Callable[..., None], *, out: Any = _COMMON["out"][0], **defaults: Any
) -> Callable[..., None]:
    """Give a command the shared options; they reach it as one ``Common`` in its parameter ``common``.

    ``defaults`` are the command's own, where it has others.
    """
    own = inspect.signature(command)
    hints = get_type_hints(command, include_extras=True)
    parameters = [
        parameter.replace(annotation=hints[name])
        for name, parameter in own.parameters.items()
        if name != "common"
    ]
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=defaults.get(name, default),
            annotation=out if name == "out" else kind,
        )
        for name, (kind, default) in _COMMON.items()
    ]

    @functools.wraps(command)
    def wrapper(**values: Any) -> None:
        common = Common({name: values.pop(name) for name in _COMMON})
        check_arguments(values, split=common.options().split)
        # A comparison knows whether what it compares lies there.
        if not common.dry_run and "given" not in values:
            check_folder(common.options().out, overwrite=common.options().overwrite)
        command(**values, common=common)

    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    wrapper.__signature__ = inspect.Signature([*keyword, *shared])  # type: ignore[attr-defined]
    wrapper.__annotations__ = {p.name: p.annotation for p in [*keyword, *shared]}
    return wrapper


def attribution(attribute: bool, gates: str) -> str | None:
    """Return how gates are replayed, None where nothing is to be attributed.

    Raises:
        UserError: gates were chosen for nothing.
    """
    if not attribute and gates != "recomputed":
        raise UserError("--gates says how --attribute replays a routing; add --attribute.")
    return gates if attribute else None


def names(text: str | None) -> list[str]:
    """Return comma-separated names, none for None."""
    return [part.strip() for part in text.split(",")] if text else []


def require_folder(out: Path | None, *, json: bool, command: str) -> None:
    """Refuse a command that draws and has no folder to draw into."""
    if out is None and not json:
        raise typer.BadParameter(
            f"name a folder for the figures, e.g. --out reports/{command}", param_hint="--out"
        )


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Return comma-separated numbers, None for None.

    Raises:
        UserError: something in it is no number.
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UserError(
            f"{option} takes numbers separated by commas, e.g. 0,0.1,0.2; got {text!r}."
        ) from None
