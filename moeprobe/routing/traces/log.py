"""A server's log of its routing, as JSON lines: one object per MoE layer of one request.

    {"id": "r17", "layer": "blocks.3", "num_experts": 8, "experts": [[3, 5], [0, 1]], "gates": [[0.6, 0.3], [0.5, 0.4]]}

* ``id``: the request; what traces are matched by.
* ``layer``: the MoE layer; every request has the same ones.
* ``num_experts``: E, never guessed; may be left out where the caller tells it for all layers.
* ``experts``: per token, in the order of the sequence, the K experts that it chose (from 0; -1 fills up), best first.
* ``gates``, optional: per token the K weights of these experts. Where they are given they say which is best: the
  choices are sorted by them, ties to the lower expert.
* ``all_gates``, optional, instead of ``gates``: per token the E gates, a distribution. Without them there is no
  confidence.
* ``processed``, optional: per token K times whether the expert had room; default yes.
* ``valid``, optional: per token whether it is one, and no padding; default yes.
* ``num_prefix_tokens``, optional: tokens at the beginning that are reported apart; default 0.
* ``router``, optional: its name; default "recorded".
* ``token_local``, optional: whether a token's choice depends on that token alone; default false.

Experts that choose their tokens, and weights without choices, cannot be told in it.

Axes: T tokens, K choices, E experts.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.routing.traces.checks import expert_problems
from moeprobe.routing.traces.format import COLUMNS, batch, lists
from moeprobe.runtime.catalog import unknown
from moeprobe.runtime.characters import is_unicode
from moeprobe.runtime.files import open_regular

_KNOWN = (
    "id", "layer", "num_experts", "experts", "gates", "all_gates", "processed", "valid", "num_prefix_tokens", "router",
    "token_local",
)  # fmt: skip
# Rows and list entries of a row group, about.
_ROWS, _VALUES = 4096, 2**18
# What a column of 16 bits holds.
_MOST = 2**15 - 1


@dataclass(frozen=True)
class _Row:
    """One line. Arrays as in ``formats.trace_reading.Block``, of one input."""

    id: str
    layer: str
    # Of the layer: what must be the same in all of its lines.
    alike: dict[str, Any]
    experts: NDArray[np.int16]
    processed: NDArray[np.bool_]
    valid: NDArray[np.bool_]
    gates: NDArray[np.float32] | None
    all_gates: NDArray[np.float32] | None


class Log:
    """A log that is read once, from the beginning.

    Args:
        path: the file.
        num_experts: E of every layer where a line does not say; None = each line must.
        progress: told how many bytes were read since the last time.

    Attributes:
        requests: for each the number of its layers that were read.
        layers: MoE layers in the order in which they came.
        num_tokens: tokens of all lines.
    """

    def __init__(
        self, path: Path, *, num_experts: int | None = None, progress: Callable[[int], None] | None = None
    ) -> None:
        self.path = path
        self.requests: dict[str, int] = {}
        self.layers: dict[str, dict[str, Any]] = {}
        self.num_tokens = 0
        self._num_experts = num_experts
        self._progress = progress or (lambda count: None)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a trace, some thousands at a time.

        Raises:
            UserError: the file cannot be read, a line is not what it should be (the sentence has its number), or
                at the end a request lacks a layer.
        """
        rows: list[_Row] = []
        values, read = 0, 0
        for row, size in self._rows():
            rows.append(row)
            read += size
            values += row.experts.size + (0 if row.all_gates is None else row.all_gates.size)
            if len(rows) >= _ROWS or values >= _VALUES:
                yield _batch(rows)
                self._progress(read)
                rows, values, read = [], 0, 0
        if rows:
            yield _batch(rows)
            self._progress(read)
        self._check_layers()

    def _rows(self) -> Iterator[tuple[_Row, int]]:
        seen: set[tuple[str, str]] = set()
        try:
            with open_regular(self.path) as file:
                for number, line in enumerate(file, start=1):
                    if not line.strip():
                        continue
                    try:
                        row = _parse(line, num_experts=self._num_experts)
                        if (row.id, row.layer) in seen:
                            raise _Fault(f"{row.layer} of {row.id} was there before")
                        for name, value in self.layers.setdefault(row.layer, row.alike).items():
                            if row.alike[name] != value:
                                raise _Fault(
                                    f"{name} of {row.layer} is {row.alike[name]}, and was {value} in the lines before"
                                )
                    except _Fault as fault:
                        raise UserError(f"{self.path}, line {number}: {fault}.") from None
                    seen.add((row.id, row.layer))
                    self.requests[row.id] = self.requests.get(row.id, 0) + 1
                    self.num_tokens += len(row.experts)
                    yield row, len(line)
        except OSError as error:
            raise UserError(f"Cannot read {self.path}: {error.strerror or error}.") from error

    def _check_layers(self) -> None:
        if not self.requests:
            raise UserError(f"{self.path} holds no requests.")
        for name, count in self.requests.items():
            if count < len(self.layers):
                raise UserError(
                    f"{self.path} has {count} of the {len(self.layers)} layers ({', '.join(self.layers)}) of request "
                    f"{name}; take out its lines, or log all of its layers."
                )


class _Fault(Exception):  # noqa: N818
    """What is wrong with a line, without a full stop."""


def _parse(line: bytes, *, num_experts: int | None) -> _Row:
    found = _fields(line)
    identity, layer = found["id"], _text(found, "layer")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise _Fault(f"id takes a name or a whole number; got {identity!r}")
    if not is_unicode(str(identity)):
        raise _Fault(f"id holds half a character (a lone surrogate); got {identity!r}")
    if "num_experts" not in found and num_experts is None:
        raise _Fault("num_experts is missing; add it to each line, or tell it for all with --num-experts")
    most = _whole(found, "num_experts", num_experts or 0, low=1)
    prefix = _whole(found, "num_prefix_tokens", 0, low=0)
    for name, value in (("num_experts", most), ("num_prefix_tokens", prefix)):
        if value > _MOST:
            raise _Fault(f"{name} is at most {_MOST:,}; got {value:,}")
    experts = _array(
        found, "experts", kinds="iu", dims=2, what="a list of experts for each token, all of the same length"
    )
    tokens, top_k = experts.shape
    if tokens <= prefix or not 1 <= top_k <= most:
        raise _Fault(
            f"experts holds {tokens} tokens with {top_k} of {most} experts each; more than the {prefix} prefix tokens "
            f"are due, with 1 to {most} experts"
        )
    for problem, odd in expert_problems(experts, num_experts=most).items():
        if odd.any():
            raise _Fault(f"token {int(np.argmax(odd.any(-1)))} has {problem}")
    experts = experts.astype(np.int16)
    processed = _array(found, "processed", kinds="b", shape=experts.shape, default=experts >= 0)
    valid = _array(found, "valid", kinds="b", shape=(tokens,), default=np.ones(tokens, bool))
    gates, whole = _gates(found, experts, num_experts=most)
    if gates is not None:
        order = np.lexsort((experts, -gates, experts < 0), axis=-1)
        experts, processed, gates = (
            np.take_along_axis(side, order, axis=-1) for side in (experts, processed, gates)
        )
    alike = {
        "num_experts": most,
        "top_k": top_k,
        "num_prefix_tokens": prefix,
        "router": _text(found, "router", "recorded"),
        "token_local": bool(_flag(found, "token_local")),
        "gates_kept": "none" if gates is None else "chosen" if whole is None else "all",
    }
    return _Row(str(identity), layer, alike, experts, processed, valid, gates, whole)


def _fields(line: bytes) -> dict[str, Any]:
    """Return the fields of a line, all of which are known, and none of those that must be there missing."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _Fault(f"this is not JSON ({error})") from None
    except RecursionError:
        raise _Fault("its lists or objects are nested too deeply") from None
    if not isinstance(found, dict):
        raise _Fault('one object per line is due, such as {"id": …, "layer": …, "experts": …}')
    for name in found:
        if name not in _KNOWN:
            raise _Fault(unknown("field", name, _KNOWN).rstrip("."))
    for name in ("id", "layer", "experts"):
        if name not in found:
            raise _Fault(f"{name} is missing")
    return found


def _gates(
    found: dict[str, Any], experts: NDArray[np.int16], *, num_experts: int
) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
    """Return the gates of the chosen experts and of all, None where they were not logged."""
    if "gates" in found and "all_gates" in found:
        raise _Fault("gates are among all_gates; give one of the two")
    for name, width in (("gates", experts.shape[1]), ("all_gates", num_experts)):
        if name not in found:
            continue
        values = _array(found, name, kinds="fiu", shape=(len(experts), width)).astype(np.float32)
        if not (np.isfinite(values) & (values >= 0)).all():
            raise _Fault(f"{name} takes numbers from 0 up")
        if name == "gates":
            return np.where(experts < 0, np.float32(0), values), None
        sums = values.sum(-1)
        if (abs(sums - 1) > 1e-2).any():
            raise _Fault(
                f"all_gates of a token add up to {sums[np.argmax(abs(sums - 1))]:.3g}, and not to 1; log the gates of "
                "the chosen experts as gates"
            )
        chosen = np.take_along_axis(values, experts.astype(np.int64).clip(0), axis=-1)
        return np.where(experts < 0, np.float32(0), chosen), values
    return None, None


def _array(
    found: dict[str, Any],
    name: str,
    *,
    kinds: str,
    dims: int | None = None,
    shape: tuple[int, ...] | None = None,
    what: str = "",
    default: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Return a nested list as an array of some kinds of numbers and of a shape."""
    if name not in found:
        assert default is not None
        return default
    try:
        array = np.asarray(found[name])
    except (ValueError, OverflowError):
        array = np.asarray(None)
    fits = array.shape == shape if shape is not None else array.ndim == dims
    if not fits or array.dtype.kind not in kinds or array.size == 0:
        due = (
            what
            if shape is None
            else f"{' × '.join(map(str, shape))} {'truth values' if kinds == 'b' else 'numbers'}"
        )
        raise _Fault(f"{name} takes {due}")
    return array


def _text(found: dict[str, Any], name: str, default: str = "") -> str:
    value = found.get(name, default)
    if not isinstance(value, str) or not value:
        raise _Fault(f"{name} takes a name; got {value!r}")
    if not is_unicode(value):
        raise _Fault(f"{name} holds half a character (a lone surrogate); got {value!r}")
    return value


def _whole(found: dict[str, Any], name: str, default: int, *, low: int) -> int:
    value = found.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise _Fault(f"{name} takes a whole number from {low} up; got {value!r}")
    return value


def _flag(found: dict[str, Any], name: str) -> bool:
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise _Fault(f"{name} takes true or false; got {value!r}")
    return value


def _batch(rows: list[_Row]) -> pa.RecordBatch:
    columns: dict[str, Any] = {
        "id": [row.id for row in rows],
        "layer": [row.layer for row in rows],
        "num_tokens": [len(row.experts) for row in rows],
        "gates_sum_to_one": [row.all_gates is not None for row in rows],
        "experts_choose": False,
    }
    for name in rows[0].alike:
        columns[name] = [row.alike[name] for row in rows]
    for name in ("experts", "processed", "valid", "gates", "all_gates"):
        columns[name] = _lists(name, [getattr(row, name) for row in rows])
    return batch(columns, rows=len(rows))


def _lists(name: str, values: list[NDArray[Any] | None]) -> pa.Array:
    """Return a column of lists, of which some may be missing (of another layer)."""
    kind = COLUMNS[name][0]
    there = [value for value in values if value is not None]
    lengths = np.array([value.size for value in there], dtype=np.int64)
    flat = np.concatenate([value.ravel() for value in there]) if there else np.zeros(0)
    found = lists(flat, lengths, rows=len(there), kind=kind)
    present = np.array([value is not None for value in values])
    places = np.cumsum(present) - 1
    return found.take(pa.array(places, pa.int64(), mask=~present))
