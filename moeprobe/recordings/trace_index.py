"""Where the rows of a trace are: read once, a row group at a time, and checked file by file.

What stays in memory is an input's name once, and twelve bytes for each row, whatever the columns hold.

Axes: n inputs of the trace.
"""

from bisect import bisect_right
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.recordings import checks
from moeprobe.recordings.parts import TraceParts

# What is read of every row: these, and what is the same in all rows of a layer.
_ROW = ("id", "layer", "num_tokens")


class TraceIndex:
    """The inputs of a trace, and where each of its layers has them.

    Args:
        parts: the files of the trace.

    Attributes:
        number_of: the number of each input, in the order of the files.
        layers: by layer, what holds for all of its rows (``checks.OF_LAYER``).
        rows: by layer ``(n,)``, the row of each input.
        num_tokens: by layer ``(n,)`` int32, the tokens of each input.

    Raises:
        UserError: a row is missing, is there twice, or says something else than the other rows of its layer; or an
            input is in two files.
    """

    def __init__(self, parts: TraceParts) -> None:
        self._parts = parts
        self.number_of: dict[str, int] = {}
        self.layers: dict[str, dict[str, Any]] = {}
        # The number of the first input of each file.
        self._first_inputs: list[int] = []
        rows, tokens = defaultdict[str, list[Any]](list), defaultdict[str, list[Any]](list)
        for number in range(len(parts.files)):
            for layer, (of_layer, num_tokens) in self._read_file(number).items():
                rows[layer].append(of_layer)
                tokens[layer].append(num_tokens)
        self.rows = {layer: np.concatenate(arrays) for layer, arrays in rows.items()}
        self.num_tokens = {layer: np.concatenate(arrays) for layer, arrays in tokens.items()}

    def _read_file(self, number: int) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int32]]]:
        """Return the rows and tokens of the inputs of a file, by layer, in the order of the inputs' numbers."""
        path, names = self._parts.files[number], self._parts.about["layers"]
        self._first_inputs.append(len(self.number_of))
        first_input = len(self.number_of)
        groups = self._parts.groups[number]
        start = self._parts.starts[groups.start]
        # The input, the layer and the tokens of every row, in small numbers.
        inputs, layers, tokens = list[Any](), list[Any](), list[Any]()
        columns = [name for name in (*_ROW, *checks.OF_LAYER) if name in self._parts.columns]
        for group in groups:
            table = self._parts.row_group(group, columns)
            self._check_layers(number, table)
            codes, values = _encode(table["layer"])
            layers.append(np.array([names.index(value) for value in values], np.int16)[codes])
            codes, values = _encode(table["id"])
            inputs.append(self._number_inputs(number, values)[codes])
            tokens.append(table["num_tokens"].to_numpy().astype(np.int32))
        if not sum(map(len, inputs)):
            raise checks.no_inputs_error(path)
        of_input, of_layer, num_tokens = map(np.concatenate, (inputs, layers, tokens))
        num_inputs = len(self.number_of) - first_input
        by_layer = {}
        for code, name in enumerate(names):
            (rows,) = np.nonzero(of_layer == code)
            local = of_input[rows] - first_input
            self._check_each_once(path, name, local, first_input, num_inputs)
            row_of_input = np.empty(num_inputs, np.int64)
            row_of_input[local] = rows + start
            size = np.empty(num_inputs, np.int32)
            size[local] = num_tokens[rows]
            by_layer[name] = row_of_input, size
        return by_layer

    def _number_inputs(self, number: int, ids: list[str]) -> NDArray[np.int32]:
        """Return the numbers of some inputs of a file; those that are new get the next ones."""
        first_input, numbers = self._first_inputs[-1], np.empty(len(ids), np.int32)
        for index, name in enumerate(ids):
            input_number = self.number_of.setdefault(name, len(self.number_of))
            if input_number < first_input:
                first_file = self._parts.files[bisect_right(self._first_inputs, input_number) - 1]
                raise UserError(
                    f"{first_file} and {self._parts.files[number]} both hold the input {name}; each input of a trace "
                    "in parts is in one of its files."
                )
            numbers[index] = input_number
        return numbers

    def _check_layers(self, number: int, table: pa.Table) -> None:
        """Raise ``UserError`` where rows of a layer do not say the same of it; note what they say."""
        if "ordered_by" not in table.column_names:  # version 1: gates say in which order
            orders = [
                None if gates_kept == "none" else "gates" for gates_kept in table["gates_kept"].to_pylist()
            ]
            table = table.append_column("ordered_by", pa.array(orders, pa.string()))
        path = self._parts.files[number]
        combinations = table.group_by(["layer", *checks.OF_LAYER], use_threads=False).aggregate([])
        for values in combinations.to_pylist():
            name = values.pop("layer")
            if name not in self._parts.about["layers"]:
                raise checks.unknown_layer_error(path, name)
            expected = self.layers.setdefault(name, values)
            for column in checks.OF_LAYER:
                if values[column] == expected[column]:
                    continue
                pair = expected[column], values[column]
                if number:
                    raise self._parts.misfit_error(path, f"{column} of {name}", pair)
                raise checks.unlike_error(path, name, column, pair)

    def _check_each_once(
        self, path: Any, layer: str, inputs: NDArray[np.int64], first_input: int, num_inputs: int
    ) -> None:
        """Raise ``UserError`` unless a layer of a file has every input of it, once."""
        counts = np.bincount(inputs, minlength=num_inputs)
        if (counts == 1).all():
            return
        ids = list(self.number_of)[first_input:]
        if counts.max() > 1:
            raise checks.twice_error(path, layer, ids[int(np.argmax(counts > 1))])
        raise checks.lost_row_error(path, layer, ids[int(np.argmax(counts == 0))])


def _encode(column: pa.ChunkedArray) -> tuple[NDArray[np.int32], list[str]]:
    """Return the number of each value of a column, and the values by their numbers."""
    encoded = column.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
