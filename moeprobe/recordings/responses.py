"""Files of responses: JSON lines, one response each; a JSON document of one or a list of them; or a file of torch.

A CSV of choices or counts, and an importance matrix in GGUF, become a table of counts (``count_table``). A file that
``torch.save`` wrote holds plain containers, tensors and NumPy arrays alone: nothing in it is run.
"""

import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings.compressed import open_expanded
from moeprobe.recordings.count_csv import read_csv
from moeprobe.recordings.count_table import TABLE, CountTable
from moeprobe.recordings.event_stream import is_event_stream, responses_of_events
from moeprobe.recordings.file_kinds import HEAD, check_kind, kind_of
from moeprobe.recordings.format import COLUMNS, batch, lists
from moeprobe.recordings.gguf_file import read_imatrix
from moeprobe.recordings.log_rows import WHOLE_FILE, Fault, Row, as_array
from moeprobe.recordings.long_text import parse_without, read_line
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import DAMAGE
from moeprobe.runtime.torch_names import check_names

# Whole numbers and floats, which are all that routing and what lies beside it takes.
_KINDS = ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "?")


def is_packed(head: bytes) -> bool:
    """Whether a file with these first bytes is of torch."""
    return head.startswith(b"PK\x03\x04")


def load_by_router(path: Path) -> dict[Any, Any]:
    """Return the mapping by routers in a file, e.g. of ``("decoder", None, 1)``; tensors are mapped, and not read.

    Raises:
        UserError: it is damaged, holds what would have to be run, or is no such mapping.
    """
    content = load_unpickled(path)
    if not isinstance(content, dict) or not all(isinstance(name, tuple) for name in content):
        raise UserError(f"{path} holds no dictionary with routers as keys.")
    return content


def load_unpickled(path: Path) -> Any:
    """Return what a file of torch holds; tensors are mapped from it, and not read.

    Raises:
        UserError: it is damaged, or holds what would have to be run.
    """
    import torch

    allowed: list[Any] = [
        np.ndarray, np.dtype, *{type(np.dtype(kind)) for kind in _KINDS},
        # NumPy 2 moved this module; files of either version name their own.
        *((_reconstruct(), f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")),
    ]  # fmt: skip
    try:
        with zipfile.ZipFile(path) as file:
            # A compressed member could not be mapped, and would expand to any size.
            if any(member.compress_type != zipfile.ZIP_STORED for member in file.infolist()):
                raise UserError(f"{path} is compressed, which torch.save never does.")
        check_names(path)
        # Only these types may be made; everything else in a pickle is refused.
        with torch.serialization.safe_globals(allowed), warnings.catch_warnings(action="ignore"):
            return _torch_load(path)
    except DAMAGE as error:
        # Torch's message names the class that was refused.
        refused = re.search(r"GLOBAL ([\w.]{1,100})", str(error))
        if refused is not None:
            raise UserError(
                f"{path} holds {refused[1]}, which would have to be run; in a program that you trust, save a "
                "dictionary of tensors, lists and numbers."
            ) from None
        raise UserError(
            f"{path} is damaged, or torch.save wrote more into it than containers, tensors and arrays."
        ) from None


def _torch_load(path: Path) -> Any:
    import torch

    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        if "nested jagged tensors" not in str(error):
            raise
    # Slow to import, and only needed for nested tensors.
    import torch._dynamo
    import torch.nested

    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)


def _reconstruct() -> Any:
    """Return the constructor of an empty array, which a pickle then fills."""
    return np.empty(0).__reduce__()[0]


def is_nested(value: Any) -> bool:
    """Whether it is a tensor of sequences of different lengths."""
    return bool(getattr(value, "is_nested", False))


def array_of(value: Any, what: str, *, kinds: str = "iu", dims: int) -> NDArray[Any]:
    """Return a tensor, an array or nested lists as an array; what a shape claims is not allocated.

    Args:
        value: what it is.
        what: its name.
        kinds: of its numbers, letters as NumPy has them.
        dims: its axes.

    Raises:
        Fault: it is none, or of other axes or numbers.
    """
    import torch

    if isinstance(value, torch.Tensor):
        plain = value.layout == torch.strided and value.device.type == "cpu" and not value.is_quantized
        # A tensor may claim a size that its storage does not have, by strides of 0.
        if not plain or value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise Fault(f"{what} is no plain tensor")
        # NumPy has no bfloat16.
        value = (value.float() if value.dtype == torch.bfloat16 else value.detach()).numpy()
    numbers = as_array(value)
    if numbers.ndim != dims or (numbers.dtype.kind not in kinds and numbers.size):
        raise Fault(f"{what} takes {'whole ' if kinds == 'iu' else ''}numbers in {dims} axes")
    return numbers


# Rows that other programs' files are read as, gathered into row groups of a trace.

# Rows and list entries of a row group, about.
ROWS_AT_ONCE, _VALUES = 4096, 2**18


def group_rows(
    entries: Iterable[tuple[Row, int]], *, progress: Callable[[int], None]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a trace, some thousands at a time.

    Args:
        entries: rows, and how many bytes of the file each took.
        progress: called with the bytes since the last call.
    """
    rows: list[Row] = []
    values, read = 0, 0
    for row, size in entries:
        rows.append(row)
        read += size
        values += row.experts.size + (0 if row.all_gates is None else row.all_gates.size)
        # By entries as well: a single row may be longer than thousands of others.
        if len(rows) >= ROWS_AT_ONCE or values >= _VALUES:
            yield _batch(rows)
            progress(read)
            rows, values, read = [], 0, 0
    if rows:
        yield _batch(rows)
        progress(read)


def _batch(rows: list[Row]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "id": [row.id for row in rows],
        "layer": [row.layer for row in rows],
        "num_tokens": [len(row.experts) for row in rows],
        "gates_sum_to_one": [row.all_gates is not None and row.sum_to_one for row in rows],
        "experts_choose": False,
    }
    # Most rows share one object, whose values are written once for all.
    shared = rows[0].layer_fields
    is_shared = all(row.layer_fields is shared for row in rows)
    for name, value in shared.items():
        columns[name] = value if is_shared else [row.layer_fields[name] for row in rows]
    for name in (
        "experts",
        "processed",
        "valid",
        "generated",
        "token_ids",
        "kinds",
        "gates",
        "all_gates",
        "counts",
    ):
        values = [getattr(row, name) for row in rows]
        # What no row has is written without a list of nothing for each.
        if any(value is not None for value in values):
            columns[name] = _lists(name, values)
    return batch(columns, rows=len(rows))


def _lists(name: str, values: list[NDArray[Any] | None]) -> pa.Array:
    """Return a column of lists, of which some may be missing (of another layer)."""
    kind = COLUMNS[name][0]
    values_present = [value for value in values if value is not None]
    lengths = np.array([value.size for value in values_present], dtype=np.int64)
    flat = np.concatenate([value.ravel() for value in values_present]) if values_present else np.zeros(0)
    column = lists(flat, lengths, rows=len(values_present), kind=kind)
    if len(values_present) == len(values):
        return column
    present = np.array([value is not None for value in values])
    indices = np.cumsum(present) - 1
    # Rows without a list point nowhere, and become null.
    return column.take(pa.array(indices, pa.int64(), mask=~present))


# The first bytes of pickles, which torch.save does not write any more.
_PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
# Under which a response holds a bare list of lists, which names nothing itself.
COUNTS_KEY = "counts"
# Bytes of one response: 200,000 tokens of 48 layers and 8 experts in 4 bytes each are about as many.
MOST_BYTES = 2**29


class GatheredResponse(dict[str, Any]):
    """What was put together of a whole file or of several lines; its captures say their own names and tokens."""


def responses(
    path: Path, *, progress: Callable[[int], None], long: Sequence[str] = (), most_bytes: int | None = None
) -> Iterator[tuple[str, Any]]:
    """Yield each response with the place where it stands, e.g. ``line 3``.

    Args:
        path: the file.
        progress: called with the bytes read since the last call.
        long: keys whose long base64 is not parsed, and becomes ``long_text.LongText``.
        most_bytes: of one response; None = ``MOST_BYTES``.

    Raises:
        UserError: the file cannot be read, or a response is no JSON or too large.
    """
    most_bytes = MOST_BYTES if most_bytes is None else most_bytes
    try:
        with open_expanded(path) as file:
            if file.peek(2).startswith(_PICKLE):
                raise UserError(
                    f"{path} is a pickle, which is never read, as it can run programs. In a program that you trust, "
                    "load it (verl: DataProto.load_from_disk) and save its tensors: "
                    "torch.save(dict(data.batch.items()), path)."
                )
            beginning = file.peek(HEAD)[:HEAD]
            check_kind(path, beginning)
            if is_packed(beginning):
                # Tensors are mapped from the file, which a compressed one does not allow.
                if file.compressed:
                    raise UserError(
                        f"{path} is a compressed file of torch; decompress it first (gunzip, zstd -d)."
                    )
                yield from _of_torch(path)
                progress(path.stat().st_size)
                return
            if (kind := kind_of(beginning)) in ("csv", "gguf"):
                yield WHOLE_FILE, GatheredResponse({TABLE: _counts(path, file, kind, progress)})
                return
            # An event stream is one document, so it is read as a whole.
            if is_event_stream(beginning):
                yield from _of_events(path, file.read(MOST_BYTES + 1))
                progress(path.stat().st_size)
                return
            number = 0
            while line := read_line(file, most_bytes + 1):
                number += 1
                where = f"line {number}"
                try:
                    content = [] if line.isspace() else _parse(path, where, line, long, most_bytes)
                except UserError:
                    # Not lines, but one document over several of them?
                    if number > 1 or path.suffix == ".jsonl":
                        raise
                    line += file.read(most_bytes + 1)
                    where, content = "the document", _parse(path, "the document", line, long, most_bytes)
                # A bare list of lists is counts of layers; a list of objects is several responses.
                if isinstance(content, list) and content and isinstance(content[0], list):
                    content = {COUNTS_KEY: content}
                several = isinstance(content, list)
                for position, response in enumerate(content if several else [content], start=1):
                    yield f"{where}, response {position}" if several else where, response
                progress(file.advance())
                # A long response is not kept while the next one is read.
                line, content, response = b"", None, None
    except OSError as error:
        raise UserError(f"Cannot read {path}: {error.strerror or error}.") from error


def _counts(path: Path, file: BinaryIO, kind: str, progress: Callable[[int], None]) -> CountTable:
    """Return the counts in a CSV or a GGUF file."""
    try:
        if kind == "csv":
            return read_csv(file, progress=progress)
        table = read_imatrix(file)
    except Fault as fault:
        raise UserError(f"{path}: {fault}.") from None
    progress(path.stat().st_size)
    return table


# What the whole content of a file is called, where it is no object: what each layer has, say.
CONTENT = "content"


def _of_torch(path: Path) -> Iterator[tuple[str, GatheredResponse]]:
    """Yield the objects of a file of torch: one, each of a list, or its whole content under the key ``CONTENT``."""
    content = load_unpickled(path)
    entries = content if isinstance(content, list | tuple) else [content]
    if entries and all(
        isinstance(entry, dict) and all(isinstance(key, str) for key in entry) for entry in entries
    ):
        for number, entry in enumerate(entries):
            # A mapping from layers to logits; whole numbers of two axes are counts, whose key says so.
            by_layer = all(_is_logits(value) for value in entry.values())
            where = WHOLE_FILE if entries[0] is content else f"entry {number}"
            yield where, GatheredResponse({CONTENT: entry} if by_layer else entry)
    elif (
        isinstance(content, dict)
        or hasattr(content, "ndim")
        or any(hasattr(entry, "ndim") for entry in entries)
    ):
        yield WHOLE_FILE, GatheredResponse({CONTENT: content})
    else:
        raise UserError(f"{path} holds no dictionary with names as keys.")


def _is_logits(value: Any) -> bool:
    """Whether a value may be the router logits (tokens, experts) of a layer."""
    return hasattr(value, "ndim") and value.ndim == 2 and "float" in str(value.dtype)


def _of_events(path: Path, content: bytes) -> Iterator[tuple[str, Any]]:
    _check_size(path, "the event stream", content, MOST_BYTES)
    try:
        for number, response in enumerate(responses_of_events(content), start=1):
            yield f"response {number}", response
    except Fault as fault:
        raise UserError(f"{path}: {fault}.") from None


def _check_size(path: Path, where: str, text: bytes | bytearray, most_bytes: int) -> None:
    if len(text) > most_bytes:
        raise UserError(f"{path}, {where}: a response has more than {most_bytes:,} bytes; split it.")


def _parse(path: Path, where: str, text: bytes | bytearray, long: Sequence[str], most_bytes: int) -> Any:
    _check_size(path, where, text, most_bytes)
    try:
        return parse_without(text, long)
    except RecursionError:
        raise UserError(f"{path}, {where}: its lists or objects are nested too deeply.") from None
    except ValueError as error:
        hint = "; in a .jsonl file every line is a document" if path.suffix == ".jsonl" else ""
        if is_event_stream(bytes(text[:64])):
            hint = "; it is an event stream, which is read from a file of its own"
        raise UserError(f"{path}, {where}: this is not JSON ({error}){hint}.") from None


def identity(response: Mapping[str, Any], location: str) -> str:
    """Return the request's name; where it has none, ``location``: its file and line.

    Raises:
        Fault: it is no text.
    """
    meta = response.get("meta_info")
    values = (
        response.get("id"),
        response.get("request_id"),
        meta.get("id") if isinstance(meta, dict) else None,
    )
    for value in values:
        if isinstance(value, str | int) and not isinstance(value, bool) and value != "":
            if not is_unicode(str(value)):
                raise Fault(f"its id holds half a character (a lone surrogate); got {value!r}")
            return str(value)
    return location
