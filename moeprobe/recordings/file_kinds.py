"""What a file is by its first bytes, whatever its name says; and what to do with one that holds no responses."""

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from moeprobe.errors import UserError, option
from moeprobe.recordings.compressed import is_compressed
from moeprobe.recordings.count_csv import is_csv
from moeprobe.recordings.format import KEY

# Bytes by which any kind is known; of a CSV a part of the header is enough.
HEAD = 256
_MAGIC = (
    (b"PK\x03\x04", "torch"),
    (b"GGUF", "gguf"),
    (b"PAR1", "parquet"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"\xff\xd8\xff", "jpeg"),
    (b"GIF8", "gif"),
    (b"%PDF-", "pdf"),
    (b"\x93NUMPY", "npy"),
    (b"\x89HDF\r\n\x1a\n", "hdf5"),
    (b"SQLite format 3\x00", "sqlite"),
)  # fmt: skip
# Kinds that an import reads, and kinds that hold no routing at all.
_IMPORTED = {"csv": "a CSV", "gguf": "a GGUF file", "torch": "a file of torch"}
_OTHERS = {
    "png": "a PNG picture", "jpeg": "a JPEG picture", "gif": "a GIF picture", "pdf": "a PDF document",
    "npy": "a NumPy array", "hdf5": "an HDF5 file", "sqlite": "an SQLite database",
    "safetensors": "a file of safetensors",
}  # fmt: skip
# The number of entries, the length of the first name, and the name of a tensor.
_OLD_IMATRIX = re.compile(
    rb"\A[\s\S]{2}[\x00-\x0f]\x00[\s\S]\x00\x00\x00(?:blk\.\d+\.|output|token_embd)[\w.]*"
)
_SAFETENSORS = re.compile(rb"\A[\s\S]{5}\x00\x00\x00\{\s*\"")


def kind_of(beginning: bytes) -> str | None:
    """Return the kind of a file that begins so, of ``HEAD`` bytes; None for text that is no CSV, such as JSON.

    The kinds: torch, csv, gguf, imatrix_dat, parquet, safetensors, npy, hdf5, sqlite, png, jpeg, gif and pdf.
    """
    for magic, kind in _MAGIC:
        if beginning.startswith(magic):
            return kind
    if _OLD_IMATRIX.match(beginning):
        return "imatrix_dat"
    if _SAFETENSORS.match(beginning):
        return "safetensors"
    return "csv" if is_csv(beginning[:HEAD]) else None


def check_kind(path: Path, beginning: bytes) -> None:
    """Raise ``UserError`` for a file that holds neither responses nor counts, and say what to do with it."""
    if not beginning:
        raise UserError(f"{path} is empty; give what the server answered.")
    kind = kind_of(beginning)
    if kind == "parquet":
        if _is_trace(path):
            raise UserError(f"{path} is a trace already; run moeprobe trace analyze {path}.")
        raise UserError(f"{path} is a Parquet file, and no trace of moeprobe; give what the server answered.")
    if kind == "imatrix_dat":
        raise UserError(
            f"{path} is an older importance matrix (imatrix.dat), which has no counts per expert. Record it again as "
            "GGUF: llama-imatrix -o imatrix.gguf."
        )
    if (name := _OTHERS.get(kind or "")) is not None:
        raise UserError(f"{path} is {name}; give what the server answered, or its counts.")


def check_log(path: Path, beginning: bytes) -> None:
    """Raise ``UserError`` for a file that is no log of JSON lines, and say what to do with it."""
    check_kind(path, beginning)
    if (name := _IMPORTED.get(kind_of(beginning) or "")) is not None:
        raise UserError(
            f"{path} is {name}, and no log; add {option('model_config', 'config.json')} to import it."
        )


def check_trace_kind(path: Path, beginning: bytes) -> None:
    """Raise ``UserError`` for a file that is known to be no trace, and say how one is made of it."""
    kind = kind_of(beginning) or ""
    if not beginning:
        raise UserError(f"{path} is empty; copy or record it again.")
    if kind in _IMPORTED:
        raise UserError(
            f"{path} is {_IMPORTED[kind]}, and no trace; make one: moeprobe trace import {path} DST.parquet with "
            f"{option('model_config', 'config.json')}."
        )
    if kind in _OTHERS:
        raise UserError(f"{path} is {_OTHERS[kind]}, and no trace.")
    # A log, or what a server answered, is the most likely mix-up; both may be compressed.
    if is_compressed(beginning):
        raise UserError(
            f"{path} is compressed: expand it if it is a trace, or make a trace of a log: "
            f"moeprobe trace import {path} DST.parquet."
        )
    if path.suffix == ".jsonl" or beginning.lstrip()[:1] in (b"{", b"["):
        raise UserError(
            f"{path} looks like a log; make a trace of it: moeprobe trace import {path} DST.parquet."
        )


def _is_trace(path: Path) -> bool:
    try:
        return KEY in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError, ValueError):
        return False
