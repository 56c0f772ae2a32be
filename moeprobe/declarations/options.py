"""The options that all probes share, and keywords that are checked before anything is done."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

from moeprobe.declarations.fields import NONE, Arg, fields_of, read_field
from moeprobe.errors import UserError
from moeprobe.runtime.arguments import HIGHEST_SEED, LOWEST_SEED, F, check_arguments, checked_class
from moeprobe.runtime.device import AUTO, FLOAT32, check_device, check_dtype, check_precision
from moeprobe.runtime.placement import make_placement
from moeprobe.runtime.processes import MOST_WORKERS
from moeprobe.runtime.spread import REPLICAS, ModelShare

# Clean images that are run again unchanged: arithmetic does not need more.
FLOOR_IMAGES = 256
# What a vision-language model is asked about each picture.
PROMPT = "What is this?"


class Keywords(TypedDict, total=False):
    """``Options`` as keywords of a function; a string is taken as a path, and a single name as a list of one."""

    split: str
    layers: str | Sequence[str] | None
    names: str | Sequence[str] | None
    limit: int | None
    seed: int
    batch_size: int
    workers: int | None
    retry: bool
    device: str
    device_map: str | None
    max_memory: str | None
    offload: str | Path | None
    parallel: str
    dtype: str
    precision: str
    floor_images: int
    trained_capacity: bool
    group_images: int
    masks: str | Path | None
    class_null: bool
    unit: str | None
    max_length: int | None
    chunk_length: int | None
    prompt: str
    image_size: int | None
    skip_bad_images: bool
    allow_not_finite: bool
    out: str | Path | None
    overwrite: bool
    figures: bool
    svg: bool
    command: str


@checked_class
@dataclass(frozen=True)
class Options:
    """Options of all probes; each field is an option of their commands, except the last two.

    Raises:
        UserError: a value is of another type, or out of range.
    """

    split: Annotated[str, Arg("Split of the data set: train, val or test.")] = "test"
    layers: Annotated[
        tuple[str, ...] | None,
        Arg(
            "MoE layers, comma-separated, e.g. blocks.3, or first, last of each model; default all.",
            in_request=False,
        ),
    ] = None
    names: Annotated[
        tuple[str, ...] | None,
        Arg(
            "What to call the checkpoints on the screen and in figures and reports, comma-separated, e.g. V-MoE,PRC.",
            in_request=False,
        ),
    ] = None
    limit: Annotated[
        int | None,
        Arg(
            "Number of images: a seeded random subset, the same for all checkpoints.",
            low=1,
            what="a number of inputs",
        ),
    ] = None
    seed: Annotated[
        int, Arg("Seed of the subset, the views and the intervals.", low=LOWEST_SEED, high=HIGHEST_SEED)
    ] = 0
    batch_size: Annotated[
        int,
        Arg(
            "Images per forward pass; changes only the speed.",
            in_request=False,
            low=1,
            what="a number of inputs",
        ),
    ] = 64
    workers: Annotated[
        int | None,
        Arg(
            "Loader processes; changes only the speed. Default: up to three for many image files, else none.",
            in_request=False,
            low=0,
            high=MOST_WORKERS,
            what="a number of processes",
        ),
    ] = None
    retry: Annotated[
        bool, Arg("If memory runs out, continue with batches of half the size.", in_request=False)
    ] = False
    device: Annotated[str, Arg("auto, cpu, cuda or mps.", in_request=False)] = "auto"
    device_map: Annotated[
        str | None,
        Arg(
            "Spread hf: models over devices: auto, balanced, or a JSON file of modules and devices.",
            in_request=False,
        ),
    ] = None
    max_memory: Annotated[
        str | None,
        Arg(
            "What hf: models may use of each device, e.g. 0:70GiB,cpu:100GiB; the rest is on the disk (--offload).",
            in_request=False,
        ),
    ] = None
    offload: Annotated[
        Path | None,
        Arg(
            "Folder for weights of hf: models that memory does not hold; emptied at the end.",
            in_request=False,
        ),
    ] = None
    parallel: Annotated[
        str,
        Arg(
            "With torchrun, what a process holds of hf: models: replicas (all), experts or tensor (a share); "
            "experts:4 = four processes hold a model, and groups of four share the inputs.",
            in_request=False,
        ),
    ] = REPLICAS
    dtype: Annotated[
        str, Arg("Precision of hf: models: float32, bfloat16 or float16; auto: as they were saved.")
    ] = AUTO
    precision: Annotated[
        str,
        Arg(
            "Arithmetic of the forward passes: float32, bfloat16 or float16; weights and routers stay in float32."
        ),
    ] = FLOAT32
    floor_images: Annotated[
        int,
        Arg(
            "Clean images that are run again to measure what arithmetic alone changes (the noise floor); 0 = none.",
            low=0,
            what="a number of images",
        ),
    ] = FLOOR_IMAGES
    trained_capacity: Annotated[
        bool,
        Arg(
            "unlimited: every choice is served; trained: the capacity the model evaluates with.",
            flag="--capacity",
            choices={"unlimited": False, "trained": True},
        ),
    ] = False
    group_images: Annotated[
        int,
        Arg(
            "Images that compete for the same capacity, with --capacity trained or where experts choose.",
            low=1,
            what="a number of images",
        ),
    ] = 1
    masks: Annotated[
        Path | None,
        Arg("Folder of foreground masks, one PNG per image; adds matches by foreground and background."),
    ] = None
    class_null: Annotated[bool, Arg("Also give matches a chance level among images of the same class.")] = (
        False
    )
    unit: Annotated[
        str | None,
        Arg(
            "What was sampled, if not single images: folder (of the image's file), a column of the data set, or a CSV "
            "with the columns image_id and unit (e.g. patient); intervals and verdicts count units.",
            in_request=False,
        ),
    ] = None
    max_length: Annotated[
        int | None,
        Arg(
            "For texts: number of tokens after which they are cut off; default 128, or what fits the model.",
            low=1,
            what="a number of tokens",
        ),
    ] = None
    chunk_length: Annotated[
        int | None,
        Arg(
            "For long texts in causal models (hf:): tokens that are read at once; less memory, the same routing.",
            in_request=False,
            low=1,
            what="a number of tokens",
        ),
    ] = None
    prompt: Annotated[
        str, Arg("For pictures in a vision-language model (hf:): what it is asked about each.")
    ] = PROMPT
    image_size: Annotated[
        int | None,
        Arg(
            "For pictures in a vision-language model: side of the square that it sees; default its processor's.",
            low=1,
            what="a number of pixels",
        ),
    ] = None
    skip_bad_images: Annotated[bool, Arg("Skip unreadable images and count them.")] = False
    allow_not_finite: Annotated[
        bool,
        Arg("Leave out inputs whose gates or scores are NaN or infinite, and flag the values affected."),
    ] = False
    out: Annotated[
        Path | None, Arg("Folder for tables and figures; default: print only.", in_request=False)
    ] = None
    overwrite: Annotated[bool, Arg("Replace what an earlier run left in --out.", in_request=False)] = False
    figures: Annotated[bool, Arg("Draw figures into the output folder.", in_request=False)] = True
    svg: Annotated[bool, Arg("Write figures as SVG too, not only as PNG.", in_request=False)] = False
    command: Annotated[str, Arg("What was typed, for the sidecar.", in_request=False)] = ""

    def __post_init__(self) -> None:
        for name in fields_of(Options):
            object.__setattr__(self, name, read_field(Options, name, getattr(self, name)))
        check_device(self.device)
        make_placement(self.device, self.device_map, self.max_memory, self.offload)
        check_dtype(self.dtype)
        check_precision(self.precision)
        ModelShare.read(self.parallel)


def combine(options: Options | None, changes: Keywords, *, defaults: Mapping[str, Any] = NONE) -> Options:
    """Return common options with some of them changed by name; ``defaults`` hold where no options are given.

    Raises:
        UserError: ``options`` are no ``Options``, or a value does not fit.
    """
    if not isinstance(options, Options | None):
        raise UserError(f"options takes api.Options(...), or None; got {type(options).__name__}.")
    return dataclasses.replace(options or Options(**defaults), **changes)  # type: ignore[arg-type]


def with_options(function: F) -> F:
    """Refuse wrong arguments of a function whose keywords are fields of ``Options``, as ``check_arguments`` does."""
    return check_arguments(
        function, defaults={field.name: field.default for field in dataclasses.fields(Options)}
    )
