"""A routing trace as a file: which experts each token of each input chose, and how confident the router was.

The file is Parquet, so that pandas, Arrow or DuckDB read it without moeprobe. One row is one MoE layer of one input (an
image, or a request to a server). Lists run over the tokens of the input in their order, prefix tokens first; where a
token has several values they are concatenated: T tokens with K choices are a list of T·K.

Columns: see ``COLUMNS``. The file's metadata have a JSON object under ``moeprobe-trace``:

* ``format``: "moeprobe-trace"; ``version``: 4; ``moeprobe``: the version that wrote it;
* ``checkpoint``: ``name``, ``sha256`` (null if unknown), and for a model of moeprobe ``capacity``, ``group_images``,
  ``seed`` and ``group`` of its training;
* ``data``, ``split``, ``view``, ``severity``, ``severity_unit``, ``seed``: as specified for the run; null where it is
  not known;
* ``layers``: the MoE layers, in forward order;
* ``inputs``: an object that is equal where two traces are of the same inputs (for images, of the same pixels); null
  where that is not known;
* ``reference``: the ``inputs`` of the trace that ``partner`` points into; null where the patches did not move;
* ``aligned``: whether the view leaves the patches where they are; null where there is no view;
* ``skipped``: inputs that were to be recorded and could not be read;
* ``missing``: a sentence on each kind of rows that an import lacked; absent where it lacked none;
* ``misplaced``: sequences that lack rows, so that nothing says which tokens theirs are of; absent where there are none;
* ``clusters``: of inputs that are choices of one request and one prompt, the first one, by the others' names; absent
  where there are none. Such inputs are no independent samples.

Rows come in row groups of one batch each, so neither writing nor reading holds more than a few of them. Every input has
a row for every layer. An unknown version is refused: later additions get another number. Version 1 has no
``ordered_by``, ``generated`` and ``token_ids``; its choices are ordered where it holds gates, and otherwise sets.
Version 2 has no ``counts``, and version 3 no ``kinds``.

Of some servers nobody knows more than how often each expert was chosen. Such rows have no tokens (T = 0), but
``counts``, and say of the load alone.

Choices that are in no known order (``ordered_by`` is empty, K > 1) are a set, written from the lowest number up, so
that nothing can depend on an order that means nothing.

Axes: T tokens, K choices, E experts, P tokens after the prefix (patches).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import ArrayLike, NDArray

from moeprobe import __version__
from moeprobe.inputs.modality import TOKEN_KINDS
from moeprobe.runtime.files import atomic_file
from moeprobe.runtime.parquet_writer import open_parquet_writer

FORMAT, VERSION = "moeprobe-trace", 4
# Versions that are read.
READ = (1, 2, 3, 4)
KEY = FORMAT.encode()
# What may be kept of the gates.
KEPT = ("none", "chosen", "summary", "all")
# What a token's choices may be ordered by, the highest first; ties go to the lower expert.
ORDERS = ("gates", "logits", "scores")

# The router of layers in which the token's id alone says which experts it has.
BY_TOKEN_ID = "token_id"


def _list(kind: pa.DataType) -> pa.DataType:
    # Parquet's own name for what a list holds.
    return pa.list_(pa.field("element", kind))


# Each column of a trace: its type, whether it may be empty, and what it says.
COLUMNS: dict[str, tuple[pa.DataType, bool, str]] = {
    "id": (pa.string(), False, "the input: name of the image, or of the request"),
    "layer": (pa.string(), False, "MoE layer, e.g. blocks.3"),
    "router": (
        pa.string(), False, "the layer's router; token_id where a token's number in the vocabulary alone decides",
    ),
    "num_experts": (pa.int16(), False, "E"),
    "top_k": (
        pa.int16(), False,
        "K, choices per token; E where experts choose their tokens, 0 where every expert gets a share of every token",
    ),
    "num_tokens": (pa.int32(), False, "T"),
    "num_prefix_tokens": (pa.int16(), False, "tokens before the patches, e.g. 1 for CLS"),
    "grid_rows": (pa.int16(), True, "rows of patches; empty for a sequence"),
    "grid_columns": (pa.int16(), True, "columns of patches"),
    "patch_size": (pa.int16(), True, "pixels of a patch's side"),
    "gates_sum_to_one": (pa.bool_(), False, "whether all gates of a token are a distribution over the experts"),
    "token_local": (pa.bool_(), False, "whether a token's choice depends on that token alone"),
    "experts_choose": (pa.bool_(), False, "whether experts choose their tokens"),
    "gates_kept": (
        pa.string(), False,
        "recorded gates: none; chosen; summary (also highest, second, rest); all (also all_gates)",
    ),
    "ordered_by": (
        pa.string(), True,
        "what the experts of a token are ordered by, the best first: gates, logits, or scores (what the choice is read "
        "off, where that is neither); empty where they are a set",
    ),
    "experts": (
        _list(pa.int16()), False, "T·K: the experts a token chose, from 0; best first, of a set lowest first; -1 = none"
    ),
    "processed": (_list(pa.bool_()), False, "T·K: whether the expert had capacity for the token"),
    "valid": (_list(pa.bool_()), False, "T: whether the token is one, and no padding"),
    "generated": (
        _list(pa.bool_()), True, "T: whether the token was generated, and is none of the prompt; empty where not known"
    ),
    "token_ids": (_list(pa.int32()), True, "T: the token in the model's vocabulary; empty where not known"),
    "kinds": (
        _list(pa.int8()), True,
        "T: the token's kind in a sequence or prompt with pictures: "
        + ", ".join(f"{number} = {kind}" for number, kind in enumerate(TOKEN_KINDS))
        + "; -1 or empty where not known",
    ),
    "gates": (_list(pa.float32()), True, "T·K: the gates of the chosen experts, 0 where there is none"),
    "highest": (_list(pa.float32()), True, "T: highest gate of all experts"),
    "second": (_list(pa.float32()), True, "T: second highest gate"),
    "rest": (_list(pa.float32()), True, "T: sum of the other gates"),
    "all_gates": (_list(pa.float32()), True, "T·E: every gate"),
    "slot": (_list(pa.int32()), True, "T: slot of the largest weight, where slots hold mixtures of tokens"),
    "partner": (
        _list(pa.int32()), True,
        "P: for each patch of the view that covers less of the source, the patch of the other that shows the same; "
        "-1 = none; empty where patches did not move",
    ),
    "view_first": (pa.bool_(), True, "whether that view is this one, and not the reference's"),
    "counts": (
        _list(pa.int64()), True, "E: how often each expert was chosen, where that is all that is known; else empty"
    ),
}  # fmt: skip
SCHEMA = pa.schema([pa.field(name, kind, nullable=empty) for name, (kind, empty, _) in COLUMNS.items()])
# What earlier versions lack.
LACKING = {
    1: ("ordered_by", "generated", "token_ids", "kinds", "counts"),
    2: ("kinds", "counts"),
    3: ("kinds",),
}
# What tells a row, and what is one value of it.
SCALARS = tuple(name for name, (kind, _, _) in COLUMNS.items() if not pa.types.is_list(kind))
_FLOATS = ("gates", "highest", "second", "rest", "all_gates")
# What is written as numbers of a dictionary: of experts it takes three quarters of the space and of the time.
_FEW_VALUES = [
    *(name for name in SCALARS if pa.types.is_string(COLUMNS[name][0])),
    "experts.list.element",
]


def metadata(
    *,
    checkpoint: Mapping[str, Any],
    layers: Sequence[str],
    skipped: Sequence[str] = (),
    missing: Sequence[str] = (),
    misplaced: int = 0,
    clusters: Mapping[str, str] | None = None,
    **about: Any,
) -> dict[str, Any]:
    """Return the metadata of a file; an absent entry is unknown."""
    empty = dict.fromkeys(
        ("data", "split", "view", "severity", "severity_unit", "seed", "inputs", "reference", "aligned")
    )
    if unknown := about.keys() - empty.keys():
        raise ValueError(f"The metadata of a trace has no {', '.join(sorted(unknown))}.")
    return {
        "format": FORMAT,
        "version": VERSION,
        "moeprobe": __version__,
        "checkpoint": dict(checkpoint),
        "layers": list(layers),
        "skipped": list(skipped),
    } | (
        empty
        | about
        | ({"missing": list(missing)} if missing else {})
        | ({"misplaced": misplaced} if misplaced else {})
        | ({"clusters": dict(clusters)} if clusters else {})
    )


def lists(values: ArrayLike, length: int | NDArray[np.int64], *, rows: int, kind: pa.DataType) -> pa.Array:
    """Return a column of lists from their values one after another and the length of each, or of all."""
    lengths = np.broadcast_to(np.asarray(length, np.int64), (rows,))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    flat = pa.array(np.ascontiguousarray(np.asarray(values).ravel()), kind.value_type)
    if len(flat) != offsets[-1]:
        raise ValueError(f"{len(flat)} values do not fill lists of {offsets[-1]}.")
    return pa.ListArray.from_arrays(offsets, flat, type=kind)


def batch(columns: Mapping[str, Any], *, rows: int) -> pa.RecordBatch:
    """Return rows of a trace: lists (see ``lists``), arrays, or one value for all rows; missing values are empty."""
    arrays = []
    for field in SCHEMA:
        value = columns.get(field.name)
        if isinstance(value, pa.Array):
            arrays.append(value)
        elif value is None or isinstance(value, (str, int, float, bool)):
            arrays.append(pa.repeat(pa.scalar(value, field.type), rows))
        else:
            arrays.append(pa.array(value, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class TraceWriter:
    """An open trace; see ``writing``."""

    def __init__(self, writer: pq.ParquetWriter, thread: Executor | None) -> None:
        self._writer, self._thread = writer, thread
        self._pending: Future[None] | None = None
        self.closed = False

    def write(self, rows: Sequence[pa.RecordBatch]) -> None:
        """Write rows as one row group; in a thread, it may fail only when the next one is written."""
        table = pa.Table.from_batches(rows, SCHEMA).combine_chunks()
        size = max(table.num_rows, 1)
        if self._thread is None:
            self._writer.write_table(table, row_group_size=size)
        else:
            self._wait()
            self._pending = self._thread.submit(self._writer.write_table, table, row_group_size=size)

    def _wait(self) -> None:
        if self._pending is not None:
            self._pending.result()

    def close(self, info: Mapping[str, Any]) -> None:
        """Write the metadata, which may only be known at the end."""
        self._wait()
        self._writer.add_key_value_metadata({KEY: json.dumps(info, ensure_ascii=False)})
        self.closed = True


@contextmanager
def writing(path: Path, *, threaded: bool = False) -> Iterator[TraceWriter]:
    """Yield a writer; the file is there when the block succeeds, and nothing is otherwise.

    Args:
        path: of the file.
        threaded: encode a row group in a thread while the next one is made. Nothing may be forked meanwhile: a copy of
            this process would wait for ever for what the thread has locked.

    Raises:
        UserError: the file cannot be written.
    """
    numbers = [f"{name}.list.element" for name in _FLOATS]
    with (
        atomic_file(path) as temporary,
        open_parquet_writer(
            temporary,
            SCHEMA,
            compression="zstd",
            use_dictionary=_FEW_VALUES,
            use_byte_stream_split=numbers,
            # Nobody looks for a gate; of thousands of small row groups they would be half the file.
            write_statistics=False,
            write_page_checksum=True,
            store_schema=False,
        ) as writer,
        ThreadPoolExecutor(1) if threaded else nullcontext() as thread,
    ):
        trace = TraceWriter(writer, thread)
        yield trace
        if not trace.closed:
            raise ValueError(f"{path.name} was written without its metadata.")


def is_ordered(*, top_k: int, ordered_by: str | None) -> bool:
    """Whether it is known which of a token's experts came first; of one expert there is nothing to know."""
    return top_k < 2 or ordered_by is not None


def as_set(experts: NDArray[np.int16]) -> NDArray[np.intp]:
    """Return the order in which choices ``(..., K)`` are a set: the lowest expert first, absent ones (-1) last."""
    # As an unsigned number -1 is the highest.
    return np.argsort(experts.view(np.uint16), axis=-1, kind="stable")


def sorted_sets(experts: NDArray[np.int16]) -> NDArray[np.int16]:
    """Return choices ``(..., K)`` in the order of ``as_set``, in a fifth of the time."""
    return np.sort(experts.view(np.uint16), axis=-1).view(np.int16)


def is_sorted(experts: NDArray[np.int16]) -> bool:
    """Whether all choices ``(..., K)`` are in the order of ``as_set``."""
    return not beside(np.greater, experts.view(np.uint16)).any()


def beside(compare: np.ufunc, choices: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
    """Return how each choice of a token ``(..., K)`` compares with its next one; False for the last one.

    In one pass over memory, which takes a tenth of the time of K comparisons for each token.
    """
    result = np.zeros(choices.shape, dtype=bool)
    compare(choices.reshape(-1)[:-1], choices.reshape(-1)[1:], out=result.reshape(-1)[:-1])
    result[..., -1:] = False
    return result
