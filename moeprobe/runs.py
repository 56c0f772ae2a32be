"""A run's output folder: opened under the rules of resuming, filled, and marked as finished.

A folder holds ``run.json`` (what was asked) from the start, part files while it is computed, and at the end
``table.csv``, ``comparison.csv``, ``images.parquet``, ``figures/`` and, last of all, the sidecar ``table.json``,
whose presence says that the run is finished.
"""

import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa

from moeprobe import __version__, showing
from moeprobe.errors import UserError
from moeprobe.files import write_json
from moeprobe.tables import write_csv, write_images

_REQUEST, _FINISHED, _PARTS = "run.json", "table.json", "parts"
# Names in a run's folder that no checkpoint's may be.
TAKEN = frozenset({_REQUEST, _FINISHED, _PARTS})
_PACKAGES = ("torch", "torchvision", "timm", "numpy", "scipy", "pandas", "pillow", "matplotlib")


@dataclass(frozen=True)
class Result:
    """What an aggregate run found.

    Attributes:
        table: one value per row; the columns are described in ``tables.COLUMNS``.
        comparison: paired differences from the first checkpoint; None with a single one.
        images: the sums per image.
        sidecar: configuration and provenance.
        drawing: makes the figures of such a result.
    """

    table: pd.DataFrame
    comparison: pd.DataFrame | None
    images: pa.Table
    sidecar: dict[str, Any]
    drawing: Callable[["Result"], Mapping[str, Any]] = lambda _: {}

    def summary(self) -> pd.DataFrame:
        """Return what is read first, a line per layer and metric; a notebook shows it for the result."""
        return showing.summary(self.table, self.comparison)

    def plot(self) -> showing.Figures:
        """Return the figures of this result by name; nothing is written."""
        return showing.Figures(self.drawing(self))

    def __repr__(self) -> str:
        kind = self.sidecar.get("request", {}).get("kind", "")
        return showing.one_line(
            "Result", {"kind": kind, "checkpoints": self._checkpoints(), "rows": len(self.table)}
        )

    def _repr_html_(self) -> str:
        request = self.sidecar.get("request", {})
        data = f"{request.get('data', '')} {request.get('split', '')}".strip()
        caption = f"{request.get('kind', '')}: {data}; 95 % intervals; all rows in .table, figures by .plot()"
        return showing.table_html(self.summary(), caption=caption)

    def _checkpoints(self) -> str:
        return "+".join(dict.fromkeys(self.table["checkpoint"]))


class OutputFolder:
    """The folder of one run.

    Args:
        path: the folder.
        request: what is asked, as JSON; a folder with another request is not touched.
        overwrite: replace what an earlier run left there.
        again: go on with what a run of this kind left there, finished or not, whatever it was asked.

    Raises:
        UserError: the folder holds a finished or a different run and ``overwrite`` is off, or something that
            moeprobe did not write, or it cannot be written to.
    """

    def __init__(
        self, path: Path, request: dict[str, Any], *, overwrite: bool = False, again: bool = False
    ) -> None:
        self.path = path
        request = json.loads(json.dumps(request))
        if path.exists() and not path.is_dir():
            raise UserError(f"{path} is a file; give a folder for --out.")
        if path.is_dir() and _is_used(path):
            earlier = _read_request(path)
            if earlier is None:
                raise UserError(f"{path} is not empty and not a folder of moeprobe; choose another --out.")
            finished = (path / _FINISHED).exists()
            # A run that stopped before it had anything leaves its question behind, and no reason to keep it.
            begun = any(item.name != _REQUEST for item in path.iterdir())
            if overwrite:
                _remove(path)
            elif again and earlier["kind"] == request["kind"]:
                (path / _FINISHED).unlink(missing_ok=True)
            elif finished or (begun and earlier != request):
                state = "holds a finished run" if finished else "holds an unfinished run of something else"
                raise UserError(f"{path} {state}; add --overwrite to replace it, or choose another --out.")
        write_json(path / _REQUEST, request)

    @property
    def parts(self) -> Path:
        """Where part files are kept."""
        return self.path / _PARTS

    def write(self, result: Result) -> None:
        """Write the tables and the sums per image."""
        write_csv(self.path / "table.csv", result.table)
        if result.comparison is not None:
            write_csv(self.path / "comparison.csv", result.comparison)
        write_images(self.path / "images.parquet", result.images)

    def finish(self, sidecar: Mapping[str, Any]) -> None:
        """Write the sidecar, which marks the run as finished, and remove the part files."""
        write_json(self.path / _FINISHED, sidecar)
        shutil.rmtree(self.parts, ignore_errors=True)


def _is_used(path: Path) -> bool:
    """Whether a folder holds anything but a question that another process is writing this moment."""
    return any(not fnmatch(item.name, f".{_REQUEST}.*.tmp") for item in path.iterdir())


def _remove(path: Path) -> None:
    try:
        shutil.rmtree(path)
    except OSError as error:
        raise UserError(f"Cannot replace {path}: {error.strerror or error}.") from error


def _read_request(path: Path) -> Any:
    """Return what an earlier run was asked; None where there was none (others too may call a file run.json)."""
    try:
        request = json.loads((path / _REQUEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return request if isinstance(request, dict) and "kind" in request else None


def provenance() -> dict[str, Any]:
    """Return versions of what computes, the platform, and the commit of a checkout."""
    versions = {"moeprobe": __version__, "python": platform.python_version()}
    for package in _PACKAGES:
        versions[package] = metadata.version(package)
    return {
        "versions": versions,
        "platform": f"{platform.system()} {platform.machine()}",
        "git_commit": _git_commit(),
    }


def _git_commit() -> str | None:
    """Return the commit of the checkout that the package lies in; None outside of one."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
