"""Counts in nested lists and objects, of JSON or of torch, made one table.

* A list of layers, each a list of counts of its experts: ``[[12, 0, 3], [4, 5, 6]]`` (LMDeploy, DLBlas); or such a
  matrix, or one for each step, under a key such as ``counts``.
* Layers by their names: ``{"0": [12, 0, 3], "1": [4, 5, 6]}``, or experts by theirs too:
  ``{"layer_3": {"expert_0": 5}}``; under a key such as ``layers``, or not.
* An object per layer, ``{"layer": 3, "counts": [12, 0, 3]}`` (tt-metal), or per count,
  ``{"layer": 3, "expert": 0, "count": 12}``.
* Lists and lines of these are windows. Objects of single layers form one window until a layer comes again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.count_names import (
    COUNTS,
    EXPERTS,
    LAYERS,
    RANKS,
    STEPS,
    expert_number,
    layer_number,
    plain,
    step_name,
)
from moeprobe.recordings.count_table import CountTable, TableBuilder
from moeprobe.recordings.log_rows import Fault, faults_at
from moeprobe.recordings.responses import array_of
from moeprobe.runtime.characters import quote

# Keys that hold the counts of all layers. Those of other programs hold tokens, so they are not among them.
_ALL_LAYERS = (
    "layers", "counts", "expert_counts", "experts_counts", "token_counts", "tokens_per_expert", "expert_load",
    "expert_loads", "moe_load", "expert_hits", "expert_usage", "expert_activations", "activation_counts",
    "activation_count",
)  # fmt: skip


def is_layout(response: Mapping[str, Any]) -> bool:
    """Whether an object has one of these layouts; only the first of its layers is looked at."""
    if _of_role(response, LAYERS) is not None:
        return _counts_of_record(response) is not None
    value = _all_layers(response)
    if value is None:
        return _is_by_layer(response)
    return _is_by_layer(value) if isinstance(value, Mapping) else _is_list_of_layers(value)


def read_layouts(lines: Iterator[tuple[str, Any]], path: Path) -> CountTable:
    """Return the counts of all lines, or responses, of a file.

    Raises:
        UserError: one has another layout than the first, or holds other things than counts.
    """
    reading = _Reading()
    where = "the file"
    for where, response in lines:
        with faults_at(path, where):
            reading.add(response)
    with faults_at(path, where):
        return reading.table()


class _Reading:
    """Layouts that are read one after the other."""

    def __init__(self) -> None:
        self._builder = TableBuilder(adds=False)
        self._windows = 0
        # By rank: the window that its records are in, and the layers and experts seen there. One that comes again
        # begins the next window.
        self._passes: dict[str, tuple[int, set[tuple[int, int | None]]]] = {}

    def table(self) -> CountTable:
        """Return the counts so far; a single window that names no step has no name."""
        table = self._builder.table("counts")
        # A single window is the whole file, and needs no name.
        return replace(table, windows=("",)) if table.windows == ("window0",) else table

    def add(self, value: Any) -> None:
        """Add an object or a list."""
        if isinstance(value, Mapping):
            # A record names its layer in a field; the other layouts have layers as keys or places.
            if _of_role(value, LAYERS) is not None:
                self._add_record(value)
                return
            rows = _all_layers(value)
            if rows is None and not _is_by_layer(value):
                raise Fault("it is no object of layers with counts of their experts, as those before it are")
            self._add_layers(value if rows is None else rows, _step_of(value), _rank_of(value))
        else:
            self._add_layers(value, "", "")

    def _add_layers(self, rows: Any, step: str, rank: str) -> None:
        """Add all layers of a window, or of one window after the other."""
        if isinstance(rows, Mapping):
            window = self._next_window(step, rank)
            for name, counts in rows.items():
                if _is_about(name):
                    continue
                layer = layer_number(name)
                if layer is None:
                    raise Fault(f"{quote(str(name)[:40])} names no layer; layers are numbers from 0 up")
                self._add_row(window, layer, counts)
            return
        if isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
            for entry in rows:
                if not isinstance(entry, Mapping):
                    raise Fault("a list of windows or layers holds other things than objects")
                self.add(entry)
            return
        counts = _array(rows)
        # Two axes are one step, three are several.
        for step_counts in counts[None] if counts.ndim == 2 else counts:
            window = self._next_window(step, rank)
            layers, experts = step_counts.shape
            expert = np.tile(np.arange(experts), layers)
            self._builder.add(window, np.repeat(np.arange(layers), experts), expert, step_counts.ravel())
            # The name is of the first window; those behind it are numbered.
            step = ""

    def _add_record(self, record: Mapping[str, Any]) -> None:
        """Add a layer, or a single count."""
        layer = _number(_of_role(record, LAYERS), "layer", layer_number)
        counts = _counts_of_record(record)
        expert = _of_role(record, EXPERTS)
        expert_index = None if expert is None else _number(expert, "expert", expert_number)
        step, rank = _step_of(record), _rank_of(record)
        if step:
            window = self._builder.window(step, rank)
        else:
            # A rank without records so far must begin a window, so the first record counts as repeated.
            window, present = self._passes.get(rank, (-1, {(layer, expert_index)}))
            if (layer, expert_index) in present:
                window, present = self._next_window("", rank), set()
                self._passes[rank] = window, present
            present.add((layer, expert_index))
        if expert_index is None:
            self._add_row(window, layer, counts)
        else:
            self._builder.add(window, layer, np.array([expert_index]), _array([counts], dims=1))

    def _add_row(self, window: int, layer: int, counts: Any) -> None:
        """Add the counts of a layer's experts, a list or by their names."""
        if isinstance(counts, Mapping):
            numbers = [_number(name, "expert", expert_number) for name in counts]
            self._builder.add(window, layer, np.array(numbers, np.int64), _array([*counts.values()], dims=1))
            return
        values = _array(counts, dims=1)
        self._builder.add(window, layer, np.arange(len(values)), values)

    def _next_window(self, step: str, rank: str) -> int:
        """Return the window of a step and rank; without a step, a new one."""
        if not step:
            step = f"window{self._windows}"
            self._windows += 1
        return self._builder.window(step, rank)


def _is_by_layer(value: Mapping[str, Any]) -> bool:
    """Whether keys name layers, and the first of these has counts."""
    layers = [name for name in value if not _is_about(name)]
    if not layers or not all(layer_number(name) is not None for name in layers):
        return False
    return _are_counts(value[layers[0]])


def _is_list_of_layers(value: Any) -> bool:
    """Whether it is a list of lists of counts, a matrix, or a list of objects with one of the layouts."""
    if getattr(value, "ndim", 0) in (2, 3):
        return True
    if not isinstance(value, list) or not value:
        return False
    first = value[0]
    if isinstance(first, Mapping):
        return is_layout(first)
    return _are_counts(first) or (isinstance(first, list) and bool(first) and _are_counts(first[0]))


def _are_counts(value: Any) -> bool:
    """Whether it is a list of numbers, or numbers by the names of experts."""
    if isinstance(value, Mapping):
        return bool(value) and all(
            expert_number(name) is not None and _is_count(count) for name, count in value.items()
        )
    if getattr(value, "ndim", 0) == 1:
        return True
    # A list with a single number may be anything.
    return isinstance(value, list) and len(value) > 1 and all(map(_is_count, value))


def _is_count(value: Any) -> bool:
    # Some programs write counts as floats.
    return type(value) is int or (type(value) is float and value.is_integer())


def _counts_of_record(record: Mapping[str, Any]) -> Any:
    """Return the counts of an object per layer or per count; None where it has none, or several."""
    values = [value for name, value in record.items() if plain(name) in COUNTS]
    if len(values) != 1:
        return None
    is_single = _of_role(record, EXPERTS) is not None
    return values[0] if (_is_count(values[0]) if is_single else _are_counts(values[0])) else None


def _all_layers(response: Mapping[str, Any]) -> Any:
    """Return the value of the one key that holds all layers; None if there is none, or several."""
    values = [value for name, value in response.items() if plain(name) in _ALL_LAYERS]
    return values[0] if len(values) == 1 else None


def _of_role(response: Mapping[str, Any], names: Sequence[str]) -> Any:
    """Return the value of the one key of some names; None where there is none, or several."""
    values = [value for name, value in response.items() if plain(name) in names]
    return values[0] if len(values) == 1 and isinstance(values[0], int | str) else None


def _is_about(name: object) -> bool:
    """Whether a key says of what window the layers beside it are."""
    return plain(name) in STEPS or plain(name) in RANKS


def _step_of(response: Mapping[str, Any]) -> str:
    step = _of_role(response, STEPS)
    return "" if step is None else step_name("step", step)


def _rank_of(response: Mapping[str, Any]) -> str:
    rank = _of_role(response, RANKS)
    return "" if rank is None else str(rank)


def _number(name: Any, what: str, number_of: Callable[[object], int | None]) -> int:
    number = number_of(name)
    if number is None:
        raise Fault(f"{quote(str(name)[:40])} names no {what}; {what}s are numbers from 0 up")
    return number


def _array(value: Any, *, dims: int | None = None) -> NDArray[Any]:
    """Return counts as an array, of two axes (layers, experts) or three (steps, layers, experts) unless told."""
    if dims is None:
        first = value[0] if isinstance(value, list) and value else None
        nested = isinstance(first, list) and bool(first) and isinstance(first[0], list)
        dims = 3 if nested or getattr(value, "ndim", 2) == 3 else 2
    return array_of(value, "counts", kinds="iuf", dims=dims)
