"""The sidecar of a finished run, ``table.json``, as it may come from somebody else: read within bounds, and checked."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, ValidationError

from moeprobe.errors import UserError
from moeprobe.results.packed import find_run
from moeprobe.runtime.filenames import FINISHED
from moeprobe.runtime.files import read_json

if TYPE_CHECKING:
    from pandas import DataFrame


class _Part(BaseModel):
    """Check the types of the entries that moeprobe reads; a missing entry fails where it is needed."""

    model_config = ConfigDict(extra="allow", strict=True)


class _View(_Part):
    name: str = ""


class _Request(_Part):
    kind: str
    data: str = ""
    split: str = ""
    seed: int = 0
    view: _View = _View()
    severities: list[float] = []
    analyses: list[str] = []
    layers: list[str] | None = None
    limit: int | None = None
    aligned: bool = False
    class_null: bool = False
    trained_capacity: bool = False
    labels_used: bool = False
    checkpoints: dict[str, dict[str, Any]] = {}
    recorded: dict[str, Any] = {}
    margin: float = 0


class _Asked(_Request):
    """A comparison holds the request of its probe."""

    probe: _Request | dict[str, Any] = {}


class _About(_Part):
    training: dict[str, Any] = {}
    group_images: int | None = None
    warning: str = ""


class _Sidecar(_Part):
    request: _Asked
    checkpoints: dict[str, _About] = {}
    skipped_images: list[str] = []
    notes: list[str] = []
    versions: dict[str, str] = {}
    severity_unit: str | None = None
    command: str = ""


def read_sidecar(folder: Path) -> dict[str, Any]:
    """Return the sidecar of a run's folder, or of a packed run by the path that its folder had.

    Raises:
        UserError: it cannot be read, or is not one that moeprobe wrote.
    """
    path = folder / FINISHED
    packed = find_run(folder)
    content = read_json(path) if packed is None else copy.deepcopy(packed.run.sidecar)
    try:
        _Sidecar.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        location = ".".join(str(part) for part in problem["loc"]) or "all of it"
        raise UserError(
            f"{path} is not as moeprobe wrote it: {location}: {problem['msg'][:1].lower()}{problem['msg'][1:]}; "
            "run its command again with --overwrite."
        ) from None
    assert isinstance(content, dict)
    return content


def check_names(path: Path, table: "DataFrame", sidecar: Mapping[str, Any]) -> None:
    """Raise ``UserError`` if a table of values is about checkpoints that the sidecar beside it does not name."""
    named = sidecar.get("checkpoints", {})
    names = [name for column in ("checkpoint", "reference") if column in table for name in table[column]]
    unknown = next((name for name in names if name not in named), None)
    if unknown is not None:
        raise UserError(
            f"{path} is about {unknown!r}, which {FINISHED} does not name; restore the file, or run the probe again "
            "with --overwrite."
        )
