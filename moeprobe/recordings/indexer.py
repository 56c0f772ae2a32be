"""Selections of sparse-attention indexers in servers' responses: which keys each query of each layer selected.

SGLang answers ``meta_info.indexer_topk``, flat base64 of int32 ``(tokens − 1, layers, K)``; vLLM's RFC #47280 has
``choices[i].indexer_topk``, base64 of an .npy file ``(tokens, layers, K)``. Values are positions of keys, -1 = none. No
server documents scores; moeprobe's own name for them, beside either and in the same form of float32, is
``indexer_topk_scores``.

A file is read once. The selections of queries that see more than K keys are kept on disk, sorted.

Axes: T rows of a sequence (queries), R of them that are kept, L layers, K keys of a query, N pairs of query and layer.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError, option
from moeprobe.recordings.indexer_faults import SelectionCheck
from moeprobe.recordings.log_probs import tokens_of
from moeprobe.recordings.log_rows import Fault, Tokens, faults_at
from moeprobe.recordings.long_text import LongArray, LongText
from moeprobe.recordings.model_config import IndexerShape
from moeprobe.recordings.readers.base import (
    NPY,
    Stated,
    array,
    choices,
    decode_base64,
    npy,
    npy_header,
    stated,
)
from moeprobe.recordings.responses import identity, responses
from moeprobe.runtime.characters import quote

KEY = "indexer_topk"
SCORES = f"{KEY}_scores"
# What an .npy file has.
_AXES = "tokens, layers and keys"
# Bytes of one response: 6,000 tokens of 61 layers that select 2,048 keys each are about as many.
MOST_BYTES = 2**32
# Entries (T, L, K) that are looked at together.
ENTRIES = 2**22


@dataclass(frozen=True)
class Selection:
    """What the queries of one sequence selected; the positions are in the file of its ``Selections``.

    Attributes:
        cluster: the request that it belongs to, whose choices are no independent samples.
        tokens: the sequence; None = its ids are not in the response.
        first: position of the first query that is kept.
        present: ``(R, L)`` whether there is a selection.
        offset: byte at which the positions begin.
        dtype: of the positions.
        score_offset: byte at which the scores begin; None = there are none.
    """

    cluster: str
    tokens: Tokens | None
    first: int
    present: NDArray[np.bool_]
    offset: int
    dtype: str
    score_offset: int | None

    @property
    def end(self) -> int:
        """Position after the last query."""
        return self.first + len(self.present)


@dataclass
class Selections:
    """What a file of responses holds.

    Attributes:
        path: the responses.
        file: where positions are kept, and beside it scores.
        top_k: K.
        tokens_per_key: tokens behind a key.
        layers: numbers of the hidden layers.
        sequences: by the names that responses give them.
        nulls: sequences of which nothing was captured.
        uncaptured: pairs of query and layer without a selection.
        complete: pairs of query and layer that see no more than K keys, and so select all of them.
    """

    path: Path
    file: Path
    top_k: int
    tokens_per_key: int
    layers: tuple[int, ...] = ()
    sequences: dict[str, Selection] = field(default_factory=dict)
    nulls: int = 0
    uncaptured: int = 0
    complete: int = 0

    def positions(self, selection: Selection, begin: int, end: int) -> NDArray[np.integer]:
        """Return sorted positions ``(end − begin, L, K)`` of the queries at positions from ``begin`` up to ``end``."""
        return self._read(self.file, selection, selection.dtype, selection.offset, begin, end)

    def scores(self, selection: Selection, begin: int, end: int) -> NDArray[np.float32] | None:
        """Return the scores of these positions; None where there are none."""
        if selection.score_offset is None:
            return None
        path = scores_beside(self.file)
        return self._read(path, selection, "float32", selection.score_offset, begin, end)

    def _read(
        self, path: Path, selection: Selection, dtype: str, offset: int, begin: int, end: int
    ) -> NDArray[Any]:
        row = len(self.layers) * self.top_k
        offset += (begin - selection.first) * row * np.dtype(dtype).itemsize
        entries = np.fromfile(path, dtype, (end - begin) * row, offset=offset)
        return entries.reshape(end - begin, len(self.layers), self.top_k)


def scores_beside(file: Path) -> Path:
    """Return where the scores of positions are kept."""
    return file.with_suffix(".scores")


def read_selections(path: Path, shape: IndexerShape, file: Path, *, start: int | None) -> Selections:
    """Read the selections in a file of responses.

    Args:
        path: the responses.
        shape: the indexers of the model that was served.
        file: where to keep the positions.
        start: position of the first row of each sequence, where the server was asked to leave out leading rows.

    Raises:
        UserError: the file cannot be read, a response is not as documented, or its selections are not of an indexer.
    """
    selections = Selections(path, file, shape.top_k, shape.tokens_per_key)
    check = SelectionCheck(shape.top_k)
    with file.open("wb") as positions, scores_beside(file).open("wb") as scores:
        reading = _Reading(selections, shape, check, positions, scores, start)
        lines = responses(path, progress=lambda count: None, long=(KEY, SCORES), most_bytes=MOST_BYTES)
        for where, response in lines:
            with faults_at(path, where) as location:
                reading.add(response, location)
            # Nor is it kept here while the next one is read.
            del response
    if not selections.sequences and not selections.nulls:
        raise UserError(
            f"{path} holds no {KEY}. Start the server with its flag enable-return-indexer-topk; for SGLang send "
            "return_indexer_topk in each request."
        )
    check.refuse(path)
    return selections


class _Reading:
    """Responses that are read once, one by one."""

    def __init__(
        self,
        selections: Selections,
        shape: IndexerShape,
        check: SelectionCheck,
        positions: BinaryIO,
        scores: BinaryIO,
        start: int | None,
    ) -> None:
        self._selections, self._shape, self._check = selections, shape, check
        self._positions, self._scores, self._start = positions, scores, start

    def add(self, response: Any, location: str) -> None:
        """Add the sequences of a response; one without the key is passed over."""
        if not isinstance(response, dict):
            raise Fault("expected a response, a JSON object")
        holders = _holders(response)
        if not any(KEY in holder for holder in holders):
            return
        name_of, sequences = identity(response, location), tokens_of(response)
        meta = response.get("meta_info")
        counts = stated(meta if isinstance(meta, dict) else response.get("usage"), several=len(holders) > 1)
        for number, holder in enumerate(holders):
            name = name_of if len(holders) == 1 else f"{name_of}/{number}"
            if name in self._selections.sequences:
                raise Fault(f"request {quote(name)} was there before")
            # Null: the server was asked and captured nothing.
            if holder.get(KEY) is None:
                self._selections.nulls += 1
                continue
            tokens = sequences[number] if len(sequences) == len(holders) else None
            total = len(tokens.ids) if tokens is not None else _total(counts)
            keys = self._array(holder[KEY], KEY)
            scores = self._array(holder[SCORES], SCORES) if holder.get(SCORES) is not None else None
            if scores is not None and scores.shape != keys.shape:
                raise Fault(f"{SCORES} has the shape {scores.shape}, and {KEY} {keys.shape}")
            self._keep(name, name_of, tokens, self._first_position(len(keys), total), keys, scores)

    def _array(self, value: Any, what: str) -> NDArray[Any] | LongArray:
        """Return positions, or scores, ``(T, L, K)``."""
        numbers = self._long(value, what) if isinstance(value, LongText) else self._short(value, what)
        # Servers send all layers, or only those that compute selections: their numbers tell.
        by_count = {len(layers): layers for layers in (self._shape.computing, self._shape.layers)}
        if numbers.shape[2] != self._shape.top_k or numbers.shape[1] not in by_count:
            raise Fault(
                f"{what} has {numbers.shape[1]} layers and {numbers.shape[2]:,} keys per query, and config.json "
                f"{len(self._shape.layers)} layers and index_topk {self._shape.top_k:,}"
            )
        layers = by_count[numbers.shape[1]]
        if self._selections.layers not in ((), layers):
            raise Fault(
                f"{what} has {len(layers)} layers, and the responses before {len(self._selections.layers)}"
            )
        self._selections.layers = layers
        return numbers

    def _short(self, value: Any, what: str) -> NDArray[Any]:
        """Return the numbers of a text that was parsed."""
        real, content = what == SCORES, decode_base64(value, what)
        if value.startswith(NPY):
            return npy(content, what, axes=_AXES, real=real)
        numbers = array(
            content, dtype="int32", shape=(-1, len(self._shape.layers), self._shape.top_k), what=what
        )
        return numbers.view(np.float32) if real else numbers

    def _long(self, value: LongText, what: str) -> LongArray:
        """Return the numbers of a long text, none of which is decoded yet."""
        real = what == SCORES
        kind = np.dtype("<f4" if real else "<i4")
        if value.text[: len(NPY)] == NPY.encode():
            # Only the header is decoded here; the numbers follow in parts.
            offset, shape, kind = npy_header(value.head(), what, axes=_AXES, real=real)
        else:
            offset, row = 0, len(self._shape.layers) * self._shape.top_k * kind.itemsize
            shape = value.size // row, len(self._shape.layers), self._shape.top_k
        if offset + math.prod(shape) * kind.itemsize != value.size:
            sizes = " × ".join(f"{size:,}" for size in shape)
            raise Fault(
                f"{what} holds {value.size - offset:,} bytes, which are not {sizes} numbers of {kind.itemsize} bytes; "
                "it is truncated, or its shape, type or the model's config.json is another"
            )
        return LongArray(value, offset, kind, shape)

    def _first_position(self, rows: int, total: int | None) -> int:
        """Return the position of the first row; the last generated token may have a row, or none.

        Raises:
            Fault: rows are missing, or there are more than tokens.
        """
        start = self._start or 0
        if total is None or start + rows in (total, total - 1):
            return start
        verb = "truncated rows" if start + rows < total else "rows of another request"
        raise Fault(
            f"{KEY} has {rows:,} rows from position {start:,} on for {total:,} tokens, known as {verb}; where the "
            f"server was asked to leave out leading rows, say how many with {option('start', max(total - 1 - rows, 0))}"
        )

    def _keep(
        self,
        name: str,
        cluster: str,
        tokens: Tokens | None,
        start: int,
        keys: NDArray[Any] | LongArray,
        scores: NDArray[Any] | LongArray | None,
    ) -> None:
        """Check the rows of a sequence, and write the rows of queries that see more than K keys."""
        rows, layers, top_k = keys.shape
        # A query sees itself and what is before it; several tokens may share a key.
        visible = (np.arange(start, start + rows) + 1) // self._shape.tokens_per_key
        # The first queries see no more than K keys and select all of them: nothing to compare, so not kept.
        complete = int(np.searchsorted(visible, top_k, side="right"))
        # Half the bytes, as long as positions fit.
        dtype = "uint16" if visible.max(initial=0) <= 2**16 else "int32"
        offset, score_offset = self._positions.tell(), self._scores.tell()
        present = np.zeros((rows, layers), dtype=bool)
        step = max(ENTRIES // (layers * top_k), 1)
        for begin in range(0, rows, step):
            block = slice(begin, begin + step)
            of_block = keys[block].reshape(-1, top_k).astype(np.int32)
            visible_keys = np.repeat(visible[block], layers)
            order = None
            if scores is None:
                # Sorted, since a selection is a set: sorted rows compare element by element.
                of_block.sort(axis=1)
            else:
                order = np.argsort(of_block, axis=1)
                of_block = np.take_along_axis(of_block, order, axis=1)
            present[block] = self._check.add(of_block, visible_keys).reshape(-1, layers)
            # Rows of complete queries at the beginning are skipped.
            written = slice(max(complete - begin, 0) * layers, None)
            self._positions.write(np.maximum(of_block[written], 0).astype(dtype).tobytes())
            if scores is not None and order is not None:
                values = np.take_along_axis(scores[block].reshape(-1, top_k), order, axis=1)[written]
                if not (np.isfinite(values) & (values >= 0))[present[block].reshape(-1)[written]].all():
                    raise Fault(f"{SCORES} takes numbers from 0 up: attention that a key gets")
                self._scores.write(np.ascontiguousarray(values, np.float32).tobytes())
        self._selections.complete += complete * layers
        # Only kept queries count: complete ones need no capture.
        self._selections.uncaptured += int((~present[complete:]).sum())
        self._selections.sequences[name] = Selection(
            cluster=cluster,
            tokens=tokens,
            first=start + complete,
            present=present[complete:],
            offset=offset,
            dtype=dtype,
            score_offset=None if scores is None else score_offset,
        )


def _holders(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return for each sequence of a response the object that may have the key.

    It is the choice, or its ``meta_info`` (SGLang, with return_meta_info), or the response's.
    """
    entries = choices(response) or [response]
    holders = []
    for entry in entries:
        meta = entry.get("meta_info")
        holders.append(meta if isinstance(meta, dict) and KEY not in entry else entry)
    return holders


def _total(counts: Stated) -> int | None:
    """Return how many tokens a sequence has; None where that is not said."""
    return None if counts.prompt is None or counts.generated is None else counts.prompt + counts.generated
