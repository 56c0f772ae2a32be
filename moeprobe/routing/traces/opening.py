"""Open a file as a routing trace: what it says of itself, and whether its columns are those of its version."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from moeprobe.errors import UserError
from moeprobe.routing.traces import checks
from moeprobe.routing.traces.format import FORMAT, KEY, LACKING, READ, SCHEMA, VERSION
from moeprobe.runtime.files import check_regular

# What Arrow says of a damaged file.
UNREADABLE = (pa.ArrowException, OSError, ValueError)


def open_file(path: Path) -> pq.ParquetFile:
    """Return an open Parquet file.

    Raises:
        UserError: it is missing, truncated or none.
    """
    if path.is_dir():
        example = min(path.rglob("*.parquet"), default=path / "clean.parquet")
        raise UserError(f"{path} is a folder; name the traces in it, e.g. {example}.")
    if not path.exists():
        raise UserError(f"There is no trace {path}.")
    check_regular(path)
    try:
        return pq.ParquetFile(path, page_checksum_verification=True)
    except UNREADABLE as error:
        if path.suffix == ".jsonl":
            raise UserError(
                f"{path} is a log; make a trace of it: moeprobe import trace {path} DST."
            ) from None
        raise checks.damaged(path) from error


def metadata_of(path: Path, schema: pa.Schema) -> dict[str, Any]:
    """Return the metadata of a trace of a version that is known.

    Raises:
        UserError: the version is not known, or the columns or metadata are not those of a trace.
    """
    text = (schema.metadata or {}).get(KEY)
    if text is None:
        raise UserError(
            f"{path} is a Parquet file, but no routing trace of moeprobe; record one: moeprobe trace."
        )
    try:
        about = json.loads(text)
        form, version = about["format"], about["version"]
        # Half a character (a lone surrogate) could be neither printed nor written.
        json.dumps(about, ensure_ascii=False).encode()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise checks.damaged(path) from error
    if form != FORMAT or version not in READ:
        raise UserError(
            f"{path} is a trace of version {version}, and this moeprobe reads versions {READ[0]} to {VERSION}; update "
            "moeprobe."
        )
    checks.about(path, about)
    due = pa.schema([field for field in SCHEMA if field.name not in LACKING.get(version, ())])
    if not schema.remove_metadata().equals(due):
        wrong = [field.name for field in due if schema.get_field_index(field.name) < 0]
        wrong += [name for name in schema.names if due.get_field_index(name) < 0]
        wrong += [field.name for field in due if not wrong and not schema.field(field.name).equals(field)]
        raise UserError(
            f"{path}: the column {(wrong or ['id'])[0]} is not as a trace has it; record it again."
        )
    return about
