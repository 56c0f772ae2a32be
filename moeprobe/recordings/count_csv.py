"""CSV files of counts: a line per choice, a line per count, or a line per layer with a column for each expert.

Columns are known by their names, in any order:

* a line per choice, ``layer,expert`` (also without its header): llama.cpp's ``moe-trace``;
* a line per count, ``layer_id,expert_id,count``: SGLang's recorder, and balancers of experts;
* a line per layer, ``layer,expert_0,expert_1,…``.

A step (``step``, ``iter``, …) and a rank may stand beside them. Other columns are passed over where a count is there.
"""

import csv
import re
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
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
from moeprobe.recordings.log_rows import Fault
from moeprobe.runtime.characters import quote

# Bytes of a header: a column for each of 32,767 experts.
_MOST_HEADER = 2**20
_DELIMITERS = (",", ";", "\t")
_FIELD = rb'(?: *"[\w .#/()%+\x80-\xff-]*(?:" *|\Z)|[\w .#/()%+\x80-\xff-]*)'
_LINE = re.compile(rb"\A(?:\xef\xbb\xbf)?" + _FIELD + rb"(?:[,;\t]" + _FIELD + rb")+(?:\r?\n|\Z)")
_NUMBERS = re.compile(r"\s*\d+\s*\Z")
_ROLES: Mapping[str, Sequence[str]] = {
    "layer": LAYERS, "expert": EXPERTS, "count": COUNTS, "step": STEPS, "rank": RANKS,
}  # fmt: skip
_HELP = "name its columns layer, expert and count"


def is_csv(beginning: bytes) -> bool:
    """Whether a file that begins so is a CSV: names or numbers in its first line, and no JSON."""
    line, end, _ = beginning.partition(b"\n")
    if not end:
        # The beginning of a long header, whose last name may be cut.
        line = line.rstrip(b"\r")
    return bool(_LINE.match(line + end))


def read_csv(file: BinaryIO, *, progress: Callable[[int], None]) -> CountTable:
    """Return the counts in a CSV, read a block at a time.

    Args:
        file: open at its beginning; it can be wound back.
        progress: called with the bytes read since the last call.

    Raises:
        Fault: the columns are not known, or a line does not hold what they say.
    """
    columns, delimiter = _header(file)
    roles = _roles(columns)
    experts = _expert_columns(columns, roles)
    per_choice = "count" not in roles and not experts
    builder = TableBuilder(adds=per_choice)
    numeric = [*([roles["count"]] if "count" in roles else []), *experts]
    texts = [roles[role] for role in ("layer", "expert", "step", "rank") if role in roles]
    try:
        reader = pa.csv.open_csv(
            file,
            read_options=pa.csv.ReadOptions(
                column_names=[str(index) for index in range(len(columns))], use_threads=False
            ),
            parse_options=pa.csv.ParseOptions(delimiter=delimiter),
            convert_options=pa.csv.ConvertOptions(
                include_columns=[str(index) for index in (*texts, *numeric)],
                column_types={str(index): pa.string() for index in texts}
                | {str(index): pa.float64() for index in numeric},
                null_values=[],
                strings_can_be_null=False,
            ),
        )
        for block in reader:
            _add(block, builder, roles, experts)
            progress(block.nbytes)
    except (pa.ArrowException, ValueError) as error:
        problem = " ".join(str(error).split())[:160]
        raise Fault(f"this CSV cannot be read ({problem})") from None
    return builder.table("choices" if per_choice else "counts")


def _header(file: BinaryIO) -> tuple[list[str], str]:
    """Return the names of the columns and what divides them; a file of numbers alone is wound back."""
    start = file.tell()
    line = file.readline(_MOST_HEADER)
    try:
        text = line.decode("utf-8-sig").strip("\r\n")
    except UnicodeDecodeError:
        raise Fault("the header of this CSV is no UTF-8") from None
    delimiter = max(_DELIMITERS, key=text.count)
    try:
        columns = next(csv.reader([text], delimiter=delimiter), [])
    except csv.Error as error:
        raise Fault(f"the header of this CSV cannot be read ({error})") from None
    if not all(_NUMBERS.match(name) for name in columns):
        return columns, delimiter
    if len(columns) != 2:
        raise Fault(f"this CSV has no header; {_HELP}")
    file.seek(start)
    return ["layer", "expert"], delimiter


def _roles(columns: Sequence[str]) -> dict[str, int]:
    """Return which column has which role.

    Raises:
        Fault: two have one role, the layer is missing, or it is unclear whether rows are counts or choices.
    """
    roles: dict[str, int] = {}
    for role, names in _ROLES.items():
        indices = [index for index, name in enumerate(columns) if plain(name) in names]
        if len(indices) > 1:
            joined = " and ".join(columns[index].strip() for index in indices)
            raise Fault(f"its columns {joined} may each be the {role}; keep one")
        if indices:
            roles[role] = indices[0]
    listed = ", ".join(name.strip() for name in columns[:8])
    if "layer" not in roles:
        raise Fault(f"this CSV has no column of layers ({listed}); {_HELP}")
    if "count" in roles and "expert" not in roles:
        raise Fault(f"this CSV has no column of experts ({listed}); {_HELP}")
    if "expert" in roles and "count" not in roles and len(columns) > len(roles):
        raise Fault(
            f"this CSV has no column of counts ({listed}); {_HELP}, or keep layer and expert alone, a line per choice"
        )
    return roles


def _expert_columns(columns: Sequence[str], roles: Mapping[str, int]) -> list[int]:
    """Return the columns of the experts 0, 1, … of a file with a line per layer; none for other files."""
    if "expert" in roles:
        return []
    numbered = {
        number: index
        for index, name in enumerate(columns)
        if index not in roles.values() and (number := expert_number(name)) is not None
    }
    if len(numbered) < 2 or sorted(numbered) != list(range(len(numbered))):
        raise Fault(
            f"this CSV has neither a column of experts nor columns for the experts 0, 1, … in full; {_HELP}"
        )
    return [numbered[number] for number in range(len(numbered))]


def _add(
    block: pa.RecordBatch, builder: TableBuilder, roles: Mapping[str, int], experts: Sequence[int]
) -> None:
    """Add a block of lines."""
    layer = _numbers(block[str(roles["layer"])], "layer", layer_number)
    windows = _windows(block, builder, roles)
    if not experts:
        expert = _numbers(block[str(roles["expert"])], "expert", expert_number)
        counts = block[str(roles["count"])].to_numpy() if "count" in roles else np.ones(len(expert), np.int64)
        builder.add(windows, layer, expert, counts)
        return
    for number, index in enumerate(experts):
        builder.add(windows, layer, np.full(len(layer), number, np.int64), block[str(index)].to_numpy())


def _windows(block: pa.RecordBatch, builder: TableBuilder, roles: Mapping[str, int]) -> NDArray[np.int64]:
    """Return the window of each line."""
    codes, names = np.zeros(len(block), np.int64), [("", "")]
    for position, role in enumerate(("step", "rank")):
        if role not in roles:
            continue
        column = block[str(roles[role])].dictionary_encode()
        texts = [text.strip() for text in column.dictionary.to_pylist()]
        pairs, codes = np.unique(codes * len(texts) + column.indices.to_numpy(), return_inverse=True)
        names = [
            (step_name(role, texts[pair % len(texts)]), names[pair // len(texts)][1])
            if position == 0
            else (names[pair // len(texts)][0], texts[pair % len(texts)])
            for pair in pairs.tolist()
        ]
    # Dictionaries keep the order in which texts come first, so windows follow the order of the file.
    return np.array([builder.window(*name) for name in names], np.int64)[codes]


def _numbers(column: pa.StringArray, what: str, number_of: Callable[[str], int | None]) -> NDArray[np.int64]:
    """Return the numbers in names such as ``3`` or ``layers.3``, each name read once."""
    encoded = column.dictionary_encode()
    numbers = []
    for text in encoded.dictionary.to_pylist():
        number = number_of(text)
        if number is None:
            raise Fault(f"{quote(text[:40])} names no {what}; {what}s are numbers from 0 up")
        numbers.append(number)
    return np.array(numbers, np.int64)[encoded.indices.to_numpy()]
