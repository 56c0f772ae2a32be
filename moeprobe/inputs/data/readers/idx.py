"""The idx format of the MNIST family: a big-endian header, then bytes; plain or packed with gzip.

A file begins with two zero bytes, the type of its numbers (8: bytes) and the number of dimensions; then the length of
each dimension, 4 bytes each (Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits").
"""

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.runtime.files import is_file

_BYTES = 8
_MOST = 2**31  # bytes of an array: EMNIST's largest has 547 million


def find(folder: Path, name: str) -> Path | None:
    """Return the file called ``name`` in a folder, or ``name.gz``; None where there is neither."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if is_file(path)), None)


def read(path: Path, *, num_dimensions: int) -> NDArray[np.uint8]:
    """Return the array of bytes that an idx file holds.

    Raises:
        UserError: the file cannot be read, is not in this format, has another number of dimensions, or fewer or more
            bytes than its header says.
    """
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            header = file.read(4)
            if header != bytes([0, 0, _BYTES, num_dimensions]):
                raise UserError(f"{str(path)!r} is no idx file of bytes with {num_dimensions} dimensions.")
            lengths = file.read(4 * num_dimensions)
            shape = struct.unpack(f">{num_dimensions}I", lengths)
            size = math.prod(shape)
            if size > _MOST:
                raise UserError(f"{str(path)!r} says that it holds {size} bytes, more than any of its kind.")
            # One more than there should be: what follows is noticed, and never unpacked as a whole.
            content = file.read(size + 1)
    except (OSError, EOFError, struct.error, zlib.error) as error:
        raise UserError(f"{str(path)!r} cannot be read: it is damaged or cut off.") from error
    if len(content) != size:
        kind = "more" if len(content) > size else f"{len(content)}"
        raise UserError(f"{str(path)!r} should hold {size} bytes and holds {kind}; get it again.")
    return np.frombuffer(content, dtype=np.uint8).reshape(shape)
