"""What a reader of servers' responses is, and what readers share.

Arrays are decoded without pickle, and only where the bytes that are there are as many as their shape asks for: what a
shape claims is never allocated.

Axes: T rows (tokens that were routed), L layers as they were sent, K experts per token.
"""

import base64
import binascii
import io
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault, Tokens
from moeprobe.recordings.model_config import MoeShape
from moeprobe.runtime.characters import quote
from moeprobe.runtime.files import NPY_DAMAGE

KEY = "routed_experts"
# More tokens than any sequence has.
_MOST = 2**31 - 1
# The first bytes of an .npy file, in base64.
NPY = "k05VTVBZ"
DTYPES = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "int64")


@dataclass(frozen=True)
class Stated:
    """Tokens of a choice as its response states them; None where it does not."""

    prompt: int | None = None
    generated: int | None = None

    @classmethod
    def of(cls, tokens: Tokens | None) -> "Stated":
        """Return the numbers of tokens of a sequence; of one that is not known nothing."""
        return cls() if tokens is None else cls(tokens.prompt, len(tokens.ids) - tokens.prompt)


@dataclass(frozen=True)
class Weights:
    """What routers weighed in one layer of a capture.

    Attributes:
        gates: ``(T, K)`` of the chosen experts, in the order in which they were asked for.
        scores: ``(T, K)`` what these choices are ordered by, the highest first.
        ordered_by: what that is, one of ``format.ORDERS``.
        all_gates: ``(T, E)`` of all experts; None where they are not known.
        sum_to_one: whether all gates of a token are a distribution.
        lower: tokens that chose an expert of a lower score than one that they did not choose.
    """

    gates: NDArray[np.float32]
    scores: NDArray[np.float32]
    ordered_by: str = "gates"
    all_gates: NDArray[np.float32] | None = None
    sum_to_one: bool = False
    lower: int = 0


@dataclass(frozen=True)
class Capture:
    """The routing of one choice (one generated sequence) of a response.

    Attributes:
        ids: ``(T, L, K)`` as they were sent; None where the server sent null (aborted, or capture is off).
        start: place in the sequence of the first row.
        stated: how many tokens it should be of.
        last: whether a row of the last token may be there too, which no layer has to route.
        name: what it is called; None = as the response, and its number among several.
        tokens: the sequence; None = what the response says.
        generated: ``(T,)`` which rows were generated, where neither tokens nor ``stated`` say it.
        weights: gates of ``(T, K)`` experts, -1 = none, of a layer by its place among layers with experts;
            None = it is not known.
        counts: ``(L, E)`` how often each expert was chosen, where that is all that the server says, with ``ids`` None;
            L all hidden layers, or those with experts.
        unscored: whether logits are there, and nothing says how they became gates.
        ends_together: whether missing rows are leading ones, because the server leaves out no others.
        window: for counts, the span of counting within the file, e.g. "step3"; empty if it is the whole file.
            None = ``name`` says all.
        left_out: lines of layers of multi-token prediction that were left out of the file.
    """

    ids: NDArray[Any] | None
    start: int = 0
    stated: Stated = Stated()
    last: bool = False
    name: str | None = None
    tokens: Tokens | None = None
    generated: NDArray[np.bool_] | None = None
    weights: Callable[[int, NDArray[np.int16]], Weights] | None = None
    counts: NDArray[np.int64] | None = None
    unscored: bool = False
    ends_together: bool = False
    window: str | None = None
    left_out: int = 0


class Reader(ABC):
    """One way in which servers send routed experts.

    Attributes:
        also: what else sends them so; the name of the reader says what did first.
        fallback: whether it reads what no other reader does, and so is tried after them.
        joins_files: whether several files are one recording, e.g. of several ranks, that ``joined`` puts together.
    """

    also: ClassVar[str] = ""
    fallback: ClassVar[bool] = False
    joins_files: ClassVar[bool] = False

    @abstractmethod
    def reads(self, response: Mapping[str, Any]) -> bool:
        """Whether the keys and shapes of a response fit this reader."""

    @abstractmethod
    def captures(self, response: Mapping[str, Any], shape: MoeShape) -> Sequence[Capture]:
        """Return the routing of each choice of a response, in their order.

        Raises:
            Fault: it is not as it should be.
        """

    def gathered(self, lines: Iterator[tuple[str, Any]], path: Path) -> Iterator[tuple[str, Any]]:
        """Yield responses, with the place where they stand, of a file of this reader; each of its lines is one.

        Args:
            lines: each with its place.
            path: of the file.

        Raises:
            UserError: lines do not go together.
        """
        return lines

    def joined(
        self, files: Sequence[tuple[Path, Iterator[tuple[str, Any]]]]
    ) -> Iterator[tuple[Path, str, Any]]:
        """Yield responses of several files, with the file and the place where they stand, if it ``joins_files``.

        Args:
            files: each with its lines.

        Raises:
            UserError: lines or files do not go together.
        """
        for path, lines in files:
            for where, response in self.gathered(lines, path):
                yield path, where, response

    def sequences(self, response: Mapping[str, Any]) -> Sequence[tuple[str, Tokens | None]]:
        """Return the sequences of a gathered response by their names; none where tokens are of no known sequence.

        Of one whose token ids are not known there is None.

        Raises:
            Fault: ids are not as they should be.
        """
        return []

    def log_probabilities(self, response: Mapping[str, Any]) -> Sequence[Any]:
        """Return the log-probabilities of the generated tokens of each of ``sequences``, as lists of numbers or None.

        A sequence, or a token, of which none is known has None.

        Raises:
            Fault: they are not as many as the tokens.
        """
        return []


def find_reader(response: Mapping[str, Any], readers: Iterable[Reader]) -> Reader | None:
    """Return the first reader that reads a response, one that reads what no other does last; None where none does."""
    by_turn = sorted(readers, key=lambda reader: reader.fallback)
    return next((reader for reader in by_turn if reader.reads(response)), None)


def objects_under(response: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return the objects of a list in a response; none where there are none."""
    value = response.get(key)
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def choices(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the choices of a response of an OpenAI-like server; none where there are none."""
    return objects_under(response, "choices")


def holders(response: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the objects that have routed experts under their usual key: the choices, else the response.

    The key may be in the object itself, or in its ``engine_data``.
    """
    for objects in (choices(response), [response]):
        nested = [fields for entry in objects for fields in (entry, entry.get("engine_data"))]
        keyed: list[Mapping[str, Any]] = [
            fields for fields in nested if isinstance(fields, dict) and KEY in fields
        ]
        if keyed:
            return keyed
    return []


def captures_of(response: Mapping[str, Any], capture: Callable[[Any, Stated], Capture]) -> list[Capture]:
    """Return ``capture`` of the value, and of the stated tokens, of each of a response's holders."""
    objects = holders(response)
    several = max(len(objects), len(choices(response))) > 1
    tokens = stated(response.get("usage"), several=several)
    return [capture(fields[KEY], tokens) for fields in objects]


def stated(counts: Any, *, several: bool = False) -> Stated:
    """Return the tokens that a response states; ``several`` choices share one count of generated tokens."""
    counts = counts if isinstance(counts, dict) else {}
    prompt, generated = (count(counts.get(name)) for name in ("prompt_tokens", "completion_tokens"))
    return Stated(prompt, None if several else generated)


def count(value: Any) -> int | None:
    """Return a number of tokens; None for any other value."""
    return value if type(value) is int and 0 <= value <= _MOST else None


def whole_number(fields: Mapping[str, Any], name: str) -> int:
    """Return a number of a line, from 0 up.

    Raises:
        Fault: it is none.
    """
    value = count(fields.get(name))
    if value is None:
        raise Fault(f"{name} takes a whole number from 0 up; got {str(fields.get(name))[:40]}")
    return value


def check_all_sparse(layers: Sequence[int], shape: MoeShape) -> None:
    """Raise ``Fault`` unless these are the layers with experts, numbered among all layers or among themselves."""
    if tuple(layers) not in (shape.sparse, tuple(range(len(shape.sparse)))):
        raise Fault(
            f"it has layers {', '.join(map(str, layers[:8]))}, and the model has experts in "
            f"{', '.join(map(str, shape.sparse[:8]))}; a rank of a pipeline has a part of the layers only, which "
            "is not read"
        )


def start_of(fields: Mapping[str, Any], name: str) -> int:
    """Return where the rows begin, 0 where it is not said."""
    value = fields.get(name)
    if value is None:
        return 0
    if count(value) is None:
        raise Fault(f"{name} takes a whole number from 0 to {_MOST:,}; got {str(value)[:40]}")
    return value


def decode_base64(text: Any, what: str) -> bytes:
    """Return the bytes of base64."""
    if not isinstance(text, str):
        raise Fault(f"{what} takes base64; got {type(text).__name__}")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Fault(f"{what} is not base64 ({error})") from None


def array(content: bytes, *, dtype: Any, shape: Sequence[int], what: str) -> NDArray[Any]:
    """Return bytes as integers of a shape, which may have one -1; nothing is copied."""
    if dtype not in DTYPES:
        text = quote(dtype) if isinstance(dtype, str) else type(dtype).__name__
        raise Fault(f"{what}: its type is one of {', '.join(DTYPES)}; got {text}")
    kind = np.dtype(dtype).newbyteorder("<")
    sizes = list(shape)
    row = math.prod(size for size in sizes if size >= 0) * kind.itemsize
    if -1 in sizes and row:
        sizes[sizes.index(-1)] = len(content) // row
    if math.prod(sizes) * kind.itemsize != len(content):
        sizes_text = " × ".join("?" if size < 0 else f"{size:,}" for size in shape)
        raise Fault(
            f"{what} holds {len(content):,} bytes, which are not {sizes_text} numbers of {kind.itemsize} bytes; it is "
            "truncated, or its shape, type or the model's config.json is another"
        )
    if not content:
        return np.zeros((0, 0, 0), kind)
    return np.frombuffer(content, kind).reshape(sizes)


def npy(content: bytes, what: str, *, axes: str, real: bool = False) -> NDArray[Any]:
    """Return what an .npy file of three axes holds; its header is checked against its bytes before it is read.

    Args:
        content: of the file.
        what: the key that it is from.
        axes: what they are of.
        real: whether it holds float32, and no whole numbers.

    Raises:
        Fault: it is no such file.
    """
    offset, shape, dtype = npy_header(content, what, axes=axes, real=real)
    # Bits of the same size.
    kind = "int32" if real else dtype.name
    numbers = array(content[offset:], dtype=kind, shape=shape, what=what)
    return numbers.view(np.float32) if real else numbers


def npy_header(
    content: bytes, what: str, *, axes: str, real: bool = False
) -> tuple[int, tuple[int, ...], np.dtype[Any]]:
    """Return where the numbers of an .npy file begin, their shape and type; arguments and errors as ``npy``."""
    stream = io.BytesIO(content)
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    try:
        shape, fortran, dtype = headers[np.lib.format.read_magic(stream)](stream)
    except NPY_DAMAGE:
        raise Fault(f"{what} is not base64 of an .npy file") from None
    if len(shape) != 3 or min(shape) < 0:
        raise Fault(f"{what} is an .npy file of shape {shape}; expected {axes}")
    kinds = ("float32",) if real else ("uint8", "uint16", "int16", "int32", "int64")
    if dtype.newbyteorder("=").name not in kinds:
        raise Fault(f"{what} is an .npy file of {dtype}; expected {'float32' if real else 'whole numbers'}")
    if fortran or dtype.byteorder == ">":
        raise Fault(f"{what} is an .npy file in another order of axes or bytes than servers write")
    return stream.tell(), shape, dtype
