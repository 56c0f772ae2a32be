"""How the sequences of a batch lie in its values: alone, one by one, padded, or one behind the other (packed).

Axes: B sequences, S places of a padded sequence, T tokens of a sequence, N tokens of all sequences.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault, token_array
from moeprobe.recordings.responses import array_of, is_nested
from moeprobe.recordings.routing_values import axes_of

_MASK = "attention_mask"
# What trainers call the places where sequences begin and end, the first of which is 0; and the lengths themselves.
_BOUNDS = ("cu_seqlens", "cu_seq_lens", "cu_seqlens_q", "cu_seqlens_padded", "cu_lens")
_LENGTHS = ("seq_lens", "seqlens", "seq_lengths", "sequence_lengths", "seq_len", "lengths", "input_lengths")


@dataclass(frozen=True)
class BatchLayout:
    """Where sequences begin and end.

    Attributes:
        lengths: ``(B,)`` tokens of sequences that lie one behind the other; None = they do not.
        mask: ``(B, S)`` which places are tokens and no padding; None = there is no padding.
    """

    lengths: NDArray[np.int64] | None = None
    mask: NDArray[np.bool_] | None = None

    def parts(self, value: Any, what: str, *, axes: int, tail: bool = False) -> list[Any]:
        """Return the value of each sequence.

        Args:
            value: arrays, tensors or lists.
            what: its key.
            axes: of one sequence's value.
            tail: whether a value of fewer places than the mask has those at the end (generated tokens).

        Raises:
            Fault: it has more or fewer places than there are tokens, or nothing says which are padding.
        """
        depth, _ = axes_of(value)
        if depth == axes:
            return self._split(value, what, axes)
        if depth != axes + 1:
            raise Fault(f"{what} takes numbers in {axes} or {axes + 1} axes; got {depth}")
        if is_nested(value):
            return list(value.unbind())
        if self.mask is None and isinstance(value, list | tuple):
            return list(value)
        if len(value) == 1 and self.mask is None:
            return [value[0]]
        if self.mask is None:
            raise Fault(
                f"{what} is one array of {len(value)} sequences, and {_MASK}, which marks the padding, is missing; "
                "save it too, or a list of one array for each sequence"
            )
        return self._without_padding(value, what, axes, tail=tail)

    def _without_padding(self, value: Any, what: str, axes: int, *, tail: bool) -> list[Any]:
        assert self.mask is not None
        if len(value) != len(self.mask):
            raise Fault(f"{what} has {len(value)} sequences, and {_MASK} {len(self.mask)}")
        parts = [array_of(part, what, kinds="iubf", dims=axes) for part in value]
        widths, width = {len(part) for part in parts}, max(map(len, parts))
        if len(widths) > 1 or width > self.mask.shape[1]:
            # Lists of different lengths are not padded, if they are as long as the mask counts.
            if [len(part) for part in parts] == self.mask.sum(1).tolist():
                return parts
            raise Fault(f"{what} has up to {width} places, and {_MASK} {self.mask.shape[1]}")
        marks = self.mask[:, self.mask.shape[1] - width :] if tail else self.mask[:, :width]
        return [part[row] for part, row in zip(parts, marks, strict=True)]

    def _split(self, value: Any, what: str, axes: int) -> list[Any]:
        lengths = self.lengths
        if self.mask is not None and len(value) == self.mask.size:
            value, lengths = (
                array_of(value, what, kinds="iuf", dims=axes)[self.mask.ravel()],
                self.mask.sum(1),
            )
        if lengths is None or len(lengths) == 1:
            return [value]
        if len(value) == lengths.sum() - len(lengths):
            # Without the last token of each, which no layer has to route.
            lengths = lengths - 1
        if len(value) != lengths.sum():
            raise Fault(f"{what} has {len(value):,} places, and its sequences {lengths.sum():,} tokens")
        return [value[end - length : end] for length, end in zip(lengths, np.cumsum(lengths), strict=True)]


def layout_of(fields: Mapping[str, Any]) -> BatchLayout:
    """Return how sequences lie in the fields of a batch.

    Raises:
        Fault: lengths or a mask are not as they should be.
    """
    mask = fields.get(_MASK)
    if mask is not None and axes_of(mask)[0] == 2:
        numbers = array_of(mask, _MASK, kinds="iub", dims=2)
        if not np.isin(numbers, (0, 1)).all():
            raise Fault(f"{_MASK} takes 0 and 1")
        return BatchLayout(mask=numbers.astype(bool))
    for name in (*_BOUNDS, *_LENGTHS):
        if fields.get(name) is None or axes_of(fields[name]) != (1, "i"):
            continue
        numbers = token_array(_plain(fields[name], name), name).astype(np.int64)
        if name in _BOUNDS:
            if len(numbers) < 2 or numbers[0] != 0 or (np.diff(numbers) < 0).any():
                raise Fault(f"{name} takes places that begin with 0 and only grow")
            numbers = np.diff(numbers)
        return BatchLayout(lengths=numbers)
    return BatchLayout()


def id_lists(value: Any, what: str, layout: BatchLayout, *, tail: bool = False) -> list[NDArray[np.int32]]:
    """Return the token ids ``(T,)`` of each sequence; arguments and errors as ``BatchLayout.parts``."""
    return [token_array(_plain(part, what), what) for part in layout.parts(value, what, axes=1, tail=tail)]


def _plain(value: Any, what: str) -> Any:
    """Return a list as it is, and anything else as an array."""
    return value if isinstance(value, list) else array_of(value, what, dims=1)
