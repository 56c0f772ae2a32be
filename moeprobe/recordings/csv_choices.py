"""A CSV of ``layer,expert``, a line per choice, counted a block at a time: how often each expert was chosen."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from moeprobe.errors import UserError

COLUMNS = ("layer", "expert")
_HEADER = re.compile(rb'\A(?:\xef\xbb\xbf)?[ \t]*"?layer"?[ \t]*,[ \t]*"?expert"?[ \t]*\r?\n')
_PAIR = re.compile(rb"\A[ \t]*\d{1,9}[ \t]*,[ \t]*\d{1,9}[ \t]*\r?(\n|\Z)")
# What a column of 16 bits holds.
_MOST = 2**15


def is_csv(beginning: bytes) -> bool:
    """Whether a file that begins so is such a CSV, with its header or without."""
    return bool(_HEADER.match(beginning) or _PAIR.match(beginning))


def expert_counts(
    path: Path, file: BinaryIO, beginning: bytes, *, progress: Callable[[int], None]
) -> dict[str, Any]:
    """Return the pairs that occur, and how often: arrays ``layer``, ``expert`` and ``count``.

    Args:
        path: of the file, for errors.
        file: open at its beginning.
        beginning: its first bytes.
        progress: called with the bytes read since the last call.

    Raises:
        UserError: a line holds anything but two whole numbers.
    """
    counts: Counter[int] = Counter()
    try:
        reader = pa.csv.open_csv(
            file,
            read_options=pa.csv.ReadOptions(
                column_names=list(COLUMNS), skip_rows=1 if _HEADER.match(beginning) else 0, use_threads=False
            ),
            convert_options=pa.csv.ConvertOptions(
                column_types=dict.fromkeys(COLUMNS, pa.int32()), null_values=[], strings_can_be_null=False
            ),
        )
        for block in reader:
            layer, expert = (block[name].to_numpy().astype(np.int64) for name in COLUMNS)
            if ((layer < 0) | (expert < 0) | (layer >= _MOST) | (expert >= _MOST)).any():
                raise UserError(f"{path} holds a layer or an expert beyond 0 to {_MOST - 1:,}.")
            pairs, times = np.unique(layer * _MOST + expert, return_counts=True)
            counts.update(dict(zip(pairs.tolist(), times.tolist(), strict=True)))
            progress(block.nbytes)
    except (pa.ArrowException, ValueError) as error:
        problem = " ".join(str(error).split())[:160]
        raise UserError(
            f"{path} is no CSV of layer,expert with two whole numbers in each line ({problem})."
        ) from None
    keys = np.array(sorted(counts), np.int64)
    return {
        "layer": keys // _MOST,
        "expert": keys % _MOST,
        "count": np.array([counts[int(key)] for key in keys], np.int64),
    }
