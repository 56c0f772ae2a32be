"""The Parquet files of one trace: one file, or the parts in a folder or under a pattern.

Parts are of one checkpoint, view and layers, and no input is in two of them. Their row groups have one numbering, so a
trace in parts reads as the same rows in one file: parts in the order of their paths, rows in the order of each file.
Few files are open at a time, however many parts there are.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from moeprobe.errors import UserError, option
from moeprobe.recordings import checks
from moeprobe.recordings.file_kinds import HEAD, check_trace_kind
from moeprobe.recordings.format import FORMAT, KEY, LACKING, READ, SCHEMA, VERSION
from moeprobe.recordings.trace_paths import find_parts, folder_error
from moeprobe.runtime.files import (
    Version,
    check_regular,
    is_folder,
    open_regular,
    sha256,
    status,
    version_of,
)
from moeprobe.runtime.parquet import check_parquet_size, open_parquet
from moeprobe.runtime.similar_paths import did_you_mean_path

# What Arrow says of a damaged file.
UNREADABLE = (pa.ArrowException, OSError, ValueError)
# What all parts of a trace say alike.
_ALIKE = (
    "version", "data", "split", "view", "severity", "severity_unit", "seed", "layers", "inputs", "reference", "aligned",
)  # fmt: skip
# What sentences call the entries of the checkpoint, and the name among them.
_CHECKPOINT = "the checkpoint's"
_NAME = f"{_CHECKPOINT} name"


class TraceParts:
    """The open files of one trace.

    Args:
        path: a file, a folder of parts, or a pattern.

    Attributes:
        path: as given.
        files: the parts, in their order.
        about: the metadata of the trace.
        columns: the names of the columns.
        starts: ``(G + 1,)`` the first row of each row group, and the number of all rows.
        groups: of each part, its row groups by their numbers in the trace.

    Raises:
        UserError: a file is missing, truncated, no trace or of an unknown version, or the parts do not fit together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files = find_parts(path)
        self._versions: list[Version] = []
        # By the number of a row group, its file and its number there.
        self._places: list[tuple[int, int]] = []
        self.groups: list[range] = []
        abouts, sizes = list[dict[str, Any]](), [0]
        for number, part in enumerate(self.files):
            file = _open(part)
            self._versions.append(version_of(part))
            abouts.append(_metadata_of(part, file.schema_arrow))
            if number:
                self._check_fits(part, abouts[0], abouts[-1])
            # Before anything is read: a small file may claim billions of rows.
            check_parquet_size(part, file.metadata, all_rows=True)
            self.groups.append(range(len(self._places), len(self._places) + file.num_row_groups))
            for group in range(file.num_row_groups):
                self._places.append((number, group))
                sizes.append(file.metadata.row_group(group).num_rows)
            self.columns = set(file.schema_arrow.names)
        self.starts = np.cumsum(sizes, dtype=np.int64)
        self.about = _join_metadata(abouts)

    def row_group(self, group: int, columns: Sequence[str] | None = None) -> pa.Table:
        """Return a row group with some columns, or all of them.

        Raises:
            UserError: it is damaged, or its file was replaced.
        """
        number, of_file = self._places[group]
        path = self.files[number]
        try:
            file = open_parquet(path, self._versions[number], verify=True)
            return file.read_row_group(
                of_file, columns=None if columns is None else list(columns), use_threads=False
            )
        except UNREADABLE as error:
            raise checks.damage_error(path) from error

    def sha256(self) -> str:
        """Return the hash of the file's bytes; for several files, of their hashes in order."""
        hashes = [sha256(path) for path in self.files]
        return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()

    def misfit_error(self, path: Path, what: str, values: Sequence[Any]) -> UserError:
        """Return the error where the first part and another one differ in something."""
        first, second = (json.dumps(value, ensure_ascii=False) for value in values)
        sentence = (
            f"{self.files[0]} and {path} are no parts of one trace: {what} is {first} in the first and {second} in "
            "the second"
        )
        if is_folder(self.path):
            return UserError(f"{folder_error(self.path)} {sentence}.")
        # An import calls the model after its file unless it is told a name.
        mend = f"give their imports one {option('name')}" if what == _NAME else "name them one by one"
        return UserError(f"{sentence}; {mend}.")

    def _check_fits(self, path: Path, first: Mapping[str, Any], part: Mapping[str, Any]) -> None:
        """Raise ``UserError`` unless a file has what the first part has."""
        expected, facts = map(_comparable, (first, part))
        for name in dict.fromkeys([*expected, *facts]):
            values = expected.get(name), facts.get(name)
            if values[0] != values[1]:
                raise self.misfit_error(path, name, values)


def _comparable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return what all parts say alike, by what sentences call it."""
    checkpoint = {f"{_CHECKPOINT} {name}": entry for name, entry in metadata["checkpoint"].items()}
    return checkpoint | {name: metadata[name] for name in _ALIKE}


def _join_metadata(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the metadata of a trace from the metadata of its parts."""
    joined = dict(parts[0])
    for part in parts[1:]:
        joined["skipped"] = list(dict.fromkeys([*joined["skipped"], *part["skipped"]]))
        if part.get("missing"):
            joined["missing"] = list(dict.fromkeys([*joined.get("missing", []), *part["missing"]]))
        if part.get("misplaced"):
            joined["misplaced"] = joined.get("misplaced", 0) + part["misplaced"]
        if part.get("clusters"):
            joined["clusters"] = joined.get("clusters", {}) | part["clusters"]
    return joined


def _open(path: Path) -> pq.ParquetFile:
    """Return an open Parquet file.

    Raises:
        UserError: it is missing, truncated or none.
    """
    if status(path) is None:
        raise UserError(f"There is no trace {path}.{did_you_mean_path(path)}")
    check_regular(path)
    # Checksums are verified: a flipped bit would otherwise become another expert.
    try:
        return open_parquet(path, version_of(path), verify=True)
    except UNREADABLE as error:
        with open_regular(path) as file:
            check_trace_kind(path, file.peek(HEAD)[:HEAD])
        raise checks.damage_error(path) from error


def _metadata_of(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """Return the metadata of a trace of a version that is known.

    Raises:
        UserError: the version is not known, or the columns or metadata do not fit a trace.
    """
    text = (schema.metadata or {}).get(KEY)
    if text is None:
        raise UserError(
            f"{path} is a Parquet file, but no routing trace of moeprobe; record one: moeprobe trace record."
        )
    try:
        metadata = json.loads(text)
        form, version = metadata["format"], metadata["version"]
        # Half a character (a lone surrogate) could be neither printed nor written.
        json.dumps(metadata, ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise checks.damage_error(path) from error
    if form != FORMAT or version not in READ:
        raise UserError(
            f"{path} is a trace of version {version}, and this moeprobe reads versions {READ[0]} to {VERSION}; update "
            "moeprobe."
        )
    checks.metadata(path, metadata)
    expected = pa.schema([field for field in SCHEMA if field.name not in LACKING.get(version, ())])
    if not schema.remove_metadata().equals(expected):
        wrong = [field.name for field in expected if schema.get_field_index(field.name) < 0]
        wrong += [name for name in schema.names if expected.get_field_index(name) < 0]
        wrong += [
            field.name for field in expected if not wrong and not schema.field(field.name).equals(field)
        ]
        raise UserError(
            f"{path}: the column {(wrong or ['id'])[0]} is not as a trace has it; record it again."
        )
    return metadata
