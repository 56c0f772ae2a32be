"""What a run folder says of itself: the request (``run.json``) and the sidecar (``table.json``) of a finished run.

Both are the dicts that JSON has, in the order of the file, with typed reads. A file may come from somebody else, so it
is read within bounds and checked.
"""

import copy
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from pydantic import BaseModel, Field

from moeprobe import __version__
from moeprobe.errors import UserError, option
from moeprobe.results.own_files import STRICT, validate
from moeprobe.results.packed import Place, find_run
from moeprobe.results.sums import FORMAT
from moeprobe.runtime.device import FLOAT32
from moeprobe.runtime.files import is_file, is_there, read_json
from moeprobe.runtime.run_files import FINISHED, REQUEST, SHARD

if TYPE_CHECKING:
    from pandas import DataFrame


class Request(dict[str, Any]):
    """What determines the numbers of a run; a run with another request is another run."""

    @property
    def kind(self) -> str:
        """The kind of run, e.g. ``match-ratio``."""
        return str(self["kind"])

    @property
    def data(self) -> str:
        """The data set; empty where there is none."""
        return str(self.get("data", ""))

    @property
    def split(self) -> str:
        """The split of the data set; empty where it has none."""
        return str(self.get("split", ""))

    @property
    def seed(self) -> int:
        """The seed of views, subset and intervals."""
        return int(self["seed"])

    @property
    def view(self) -> dict[str, Any]:
        """The name and the parameters of the view; empty where there is none."""
        return dict(self.get("view", {}))

    @property
    def view_name(self) -> str:
        """The name of the view; empty where there is none."""
        return str(self.view.get("name", ""))

    @property
    def severities(self) -> list[float]:
        """The severities of the view."""
        return list(self.get("severities", []))

    @property
    def analyses(self) -> list[str]:
        """The analyses, by catalog name."""
        return list(self.get("analyses", []))

    @property
    def replayed_gates(self) -> str | None:
        """How the experts of a replayed routing are weighted; None where none is replayed."""
        gates: str | None = self.get("replayed_gates")
        return gates

    @property
    def class_null(self) -> bool:
        """Whether matches have a chance level among images of the same class."""
        return bool(self.get("class_null", False))

    @property
    def trained_capacity(self) -> bool:
        """Whether experts have the capacity that the model evaluates with."""
        return bool(self.get("trained_capacity", False))

    @property
    def precision(self) -> str:
        """The precision of the forward passes; in a comparison, of its probe."""
        return str(self.get("precision") or self.probe.get("precision") or FLOAT32)

    @property
    def labels_used(self) -> bool:
        """Whether the data are labeled with the classes of the models."""
        return bool(self.get("labels_used", False))

    @property
    def checkpoints(self) -> dict[str, dict[str, Any]]:
        """What identifies each checkpoint, by name."""
        return dict(self.get("checkpoints", {}))

    @property
    def probe(self) -> "Request":
        """The request of the probe that a comparison is about; empty for other runs."""
        probe = self.get("probe")
        return Request(probe if isinstance(probe, dict) else {})


class Sidecar(dict[str, Any]):
    """The request of a finished run, its checkpoints and inputs, and provenance.

    Attributes:
        packed: where the run is packed that it was read from; None = the run has a folder.
    """

    packed: Place | None = None

    def __or__(self, other: Mapping[str, Any]) -> "Sidecar":  # type: ignore[override]
        """Return a sidecar with some entries added or replaced."""
        return Sidecar({**self, **other})

    @property
    def request(self) -> Request:
        """What determines the numbers."""
        return Request(self.get("request", {}))

    @property
    def checkpoints(self) -> dict[str, dict[str, Any]]:
        """Provenance of each checkpoint by name, with a ``warning`` where there is one."""
        return dict(self.get("checkpoints", {}))

    @property
    def colors(self) -> dict[str, str]:
        """In which colors figures show the checkpoints; empty where they have none."""
        return dict(self.get("colours", {}))

    @property
    def severity_unit(self) -> str | None:
        """What a severity of 1 is; None where nothing has one."""
        unit: str | None = self.get("severity_unit")
        return unit

    @property
    def floor_dtype(self) -> str | None:
        """The number format that the noise floor changes to; None where there is no floor."""
        dtype: str | None = self.get("floor_dtype")
        return dtype

    @property
    def skipped_images(self) -> list[str]:
        """Images that could not be read."""
        return list(self.get("skipped_images", []))

    @property
    def notes(self) -> list[str]:
        """What was not measured, in sentences."""
        return list(self.get("notes", []))

    @property
    def ignored(self) -> list[str]:
        """What was there and is in no number, each with its count."""
        return list(self.get("ignored", []))

    @property
    def traces(self) -> list[dict[str, Any]]:
        """The trace files of recorded routing."""
        return list(self.get("traces", []))

    @property
    def fail_if_worse(self) -> str | None:
        """The metric whose worsening fails a comparison; None where none was named."""
        metric = self.get("fail_if_worse")
        return metric if isinstance(metric, str) else None

    @property
    def look(self) -> tuple[int, int] | None:
        """Which look of a series a comparison is, and of how many; None of a comparison alone."""
        look, looks = self.get("look"), self.request.get("looks")
        return (look, looks) if isinstance(look, int) and isinstance(looks, int) else None


class _Part(BaseModel):
    """Check the types of the entries that moeprobe reads; a missing entry fails where it is needed."""

    model_config = STRICT


class _ViewSchema(_Part):
    name: str = ""


class _RequestSchema(_Part):
    kind: str
    data: str = ""
    split: str = ""
    seed: int = 0
    view: _ViewSchema = _ViewSchema()
    severities: list[float] = []
    analyses: list[str] = []
    layers: list[str] | None = None
    limit: int | None = None
    precision: str = FLOAT32
    aligned: bool = False
    class_null: bool = False
    trained_capacity: bool = False
    labels_used: bool = False
    checkpoints: dict[str, dict[str, Any]] = {}
    recorded: dict[str, Any] = {}
    margin: float = 0


class _AnyRequestSchema(_RequestSchema):
    """A comparison holds the request of its probe."""

    probe: _RequestSchema | dict[str, Any] = {}


class _FloorSchema(_Part):
    inputs: str
    images: int
    choices: int
    changed: int
    share: float | None
    ci_low: float | None
    ci_high: float | None


_Pair = Annotated[list[int], Field(min_length=2, max_length=2)]


class _CheckpointSchema(_Part):
    training: dict[str, Any] = {}
    group_images: int | None = None
    warning: str = ""
    precision_floor: _FloorSchema | None = None
    router_sizes: dict[str, _Pair] | None = None


class _SidecarSchema(_Part):
    request: _AnyRequestSchema
    checkpoints: dict[str, _CheckpointSchema] = {}
    skipped_images: list[str] = []
    notes: list[str] = []
    ignored: list[str] = []
    versions: dict[str, str] = {}
    severity_unit: str | None = None
    command: str = ""


# The keys of a sidecar, in their order in the file; a kind of run has some of them, and may have more at the end.
_KEYS = (
    "request", "severity_unit", "floor_dtype", "command", "checkpoints", "colours",
    "traces", "runs", "verdicts", "equivalent_within", "fail_if_worse", "fail_unless_no_worse_than", "failures",
    "look", "states", "frames", "files",
    "skipped_images", "notes", "ignored", "images_per_second", "wall_seconds", "batch_size", "workers", "device",
    "shards", "names",
)  # fmt: skip


def make_sidecar(
    request: Mapping[str, Any], *, colors: Mapping[str, str] | None = None, **facts: Any
) -> Sidecar:
    """Return the sidecar of a run: its request and ``facts`` in the order of the file, then provenance."""
    content = {"request": request, **({} if colors is None else {"colours": colors}), **facts}
    return Sidecar({key: content[key] for key in _KEYS if key in content} | content | provenance())


def read_sidecar(folder: Path) -> Sidecar:
    """Return the sidecar of a run's folder, or of a packed run by the path that its folder had.

    Raises:
        UserError: the run is unfinished or a part of one, or its sidecar cannot be read, or is not one that moeprobe
            wrote.
    """
    path = folder / FINISHED
    # First, since a kill may have left parts of the folder of a packed run.
    packed = find_run(folder)
    if is_there(folder / SHARD):
        raise UserError(
            f"{folder} holds a shard of a run; put the shards together first: moeprobe merge {folder} ... --out "
            "FOLDER."
        )
    if packed is None and is_file(folder / REQUEST) and not is_there(path):
        raise UserError(f"{folder} holds an unfinished run; give its command again to finish it.")
    content = read_json(path) if packed is None else copy.deepcopy(packed.run.sidecar)
    validate(_SidecarSchema, content, path)
    sidecar = Sidecar(content)
    sidecar.packed = packed
    return sidecar


def check_names(path: Path, table: "DataFrame", sidecar: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if a table of values is about checkpoints that the sidecar beside it does not name."""
    named = sidecar.get("checkpoints", {})
    names = [name for column in ("checkpoint", "reference") if column in table for name in table[column]]
    unknown = next((name for name in names if name not in named), None)
    if unknown is not None:
        raise UserError(
            f"{path} is about {unknown!r}, which {FINISHED} does not name; restore the file, or run the probe again "
            f"with {option('overwrite')}."
        )


_PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "pandas", "pillow", "matplotlib")


def provenance() -> dict[str, Any]:
    """Return versions of what computes, the format of sums and tables, the platform, and the commit of a checkout."""
    return {
        "versions": {"moeprobe": __version__, "python": platform.python_version()} | _package_versions(),
        "format": FORMAT,
        "platform": f"{platform.system()} {platform.machine()}",
        "git_commit": _git_commit(),
    }


@cache
def _package_versions() -> dict[str, str]:
    """Return the versions of the packages that compute; reading them parses their descriptions whole."""
    return {package: metadata.version(package) for package in _PACKAGES}


def _git_commit() -> str | None:
    """Return the commit of the checkout that contains the package; None outside of one."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


# What checkpoints are called on the screen, in figures and in reports; files keep the names of their folders.

R = TypeVar("R")
# Keys of the sidecar: name of a checkpoint -> what it is called; and what else is listed by checkpoint there.
NAMES = "names"
# Only in memory: the names by which a sidecar that is shown calls its checkpoints.
_RENAMED = "renamed"
_BY_CHECKPOINT = ("checkpoints", "colours", "images_per_second")


def choose_names(names: Sequence[str] | None, checkpoints: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the entry of a sidecar about what checkpoints are called; empty where no names were chosen.

    Raises:
        UserError: there is not one different name for each.
    """
    if names is None:
        return {}
    if any(separator in name for name in names for separator in "/\\"):
        # Some figures are files of that name.
        raise UserError(f"{option('names')} takes names without slashes; got {', '.join(names)}.")
    if len(names) != len(checkpoints) or len({*names}) < len(names) or "" in names:
        raise UserError(
            f"{option('names')} takes a name for each of the {len(checkpoints)} checkpoints, all different; "
            f"got {', '.join(names)}."
        )
    return {NAMES: dict(zip(checkpoints, names, strict=True))}


def names_in(sidecar: Mapping[str, Any]) -> dict[str, str]:
    """Return what a sidecar calls its checkpoints; none where that is no different name for each."""
    names = sidecar.get(NAMES)
    if not isinstance(names, dict) or not all(isinstance(name, str) and name for name in names.values()):
        return {}
    unnamed = {*sidecar.get("checkpoints", {})} - names.keys()
    is_unique = len({*names.values()}) == len(names) and not unnamed & {*names.values()}
    return names if is_unique else {}


def rename_table(table: "DataFrame", names: Mapping[str, str]) -> "DataFrame":
    """Return a table with other names of checkpoints."""
    columns = [column for column in ("checkpoint", "reference") if column in table]
    return table.assign(
        **{column: table[column].map(lambda name: names.get(name, name)) for column in columns}
    )


def rename_sidecar(sidecar: Mapping[str, Any], names: Mapping[str, str]) -> Sidecar:
    """Return a sidecar with other names of checkpoints, and nothing left to rename."""
    changed = {key: content for key, content in sidecar.items() if key != NAMES}
    for part in (changed, request := dict(changed.get("request", {}))):
        for key in _BY_CHECKPOINT:
            if isinstance(part.get(key), dict):
                part[key] = {names.get(name, name): content for name, content in part[key].items()}
    if "traces" in changed:
        changed["traces"] = [_renamed_trace(trace, names) for trace in sidecar["traces"]]
    return Sidecar(changed | {"request": request, _RENAMED: dict(names)})


def _renamed_trace(trace: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return what a sidecar says of a trace; its label begins with the checkpoint's name."""
    name = names.get(trace["checkpoint"], trace["checkpoint"])
    return {**trace, "checkpoint": name, "label": f"{name}{trace['label'].removeprefix(trace['checkpoint'])}"}


def rename_items(items: Sequence[R], sidecar: Mapping[str, Any]) -> list[R]:
    """Return what a figure draws besides tables, each with a ``checkpoint``, called as the sidecar says or has said."""
    names = sidecar.get(_RENAMED) or names_in(sidecar)
    called: list[Any] = [*items]
    return [replace(item, checkpoint=names.get(item.checkpoint, item.checkpoint)) for item in called]


def rename(result: R, names: Mapping[str, str]) -> R:
    """Return a result, or the tables of a run, with other names of checkpoints; without any names, as it is."""
    if not names:
        return result
    values: Any = result
    tables = {
        name: rename_table(table, names)
        for name in ("table", "comparison")
        if (table := getattr(values, name, None)) is not None
    }
    changed: R = replace(values, sidecar=rename_sidecar(values.sidecar, names), **tables)
    return changed


def with_names(result: R) -> R:
    """Return a result, or the tables of a run, with checkpoints as its sidecar calls them."""
    values: Any = result
    return rename(result, names_in(values.sidecar))
