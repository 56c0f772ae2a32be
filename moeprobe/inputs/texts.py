"""What views of texts share: words, versions of a text that know where they come from, tokens, and batches of them.

A view acts on the *source*, the text as the data set gives it, or on its tokens. Its random numbers come from the
generator it is handed.

Axes: B texts, T tokens (prefix tokens first, padding last), C characters, D width of the embeddings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from moeprobe.errors import UserError
from moeprobe.inputs.modality import TEXT, Modality
from moeprobe.inputs.spans import Spans, in_source

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@dataclass(frozen=True)
class TokenBatch:
    """Token ids with what belongs to them; its length is B, and a slice or numbers of texts ``(N,)`` take some of them.

    Attributes:
        ids: ``(B, T)`` int64, 0 in padding.
        present: ``(B, T)`` bool, False in padding.
        ordinary: ``(B, T)`` bool, the tokens of the text itself: no padding, and no special token.
        num_prefix_tokens: special tokens in front of every text (BOS, CLS).
        noise: ``(B, T, D)`` float32 unit noise for the embeddings, None = none is added.
        sigma: ``(B,)`` float32, what the noise is multiplied with, in units of the embeddings' root mean square.
    """

    ids: Tensor
    present: Tensor
    ordinary: Tensor
    num_prefix_tokens: int
    noise: Tensor | None = None
    sigma: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, texts: slice | Tensor) -> TokenBatch:
        return self._each(lambda tensor: tensor[texts])

    @property
    def last(self) -> Tensor:
        """``(B,)`` the last token of each text that is not padding, on whichever side padding stands."""
        import torch

        number = torch.arange(1, self.present.shape[1] + 1, device=self.present.device)
        return (self.present * number).amax(1) - 1

    def to(self, device: torch.device) -> TokenBatch:
        """Return the batch on a device."""
        return self._each(lambda tensor: tensor.to(device))

    def pin_memory(self) -> TokenBatch:
        """Return the batch in pinned memory."""
        return self._each(lambda tensor: tensor.pin_memory())

    def _each(self, change: Any) -> TokenBatch:
        tensors = {name: value for name, value in vars(self).items() if not isinstance(value, int | None)}
        return replace(self, **{name: change(value) for name, value in tensors.items()})


MAX_LENGTH = 128
# A string, and the piece of the source that it represents.
Piece = tuple[str, float, float]


@dataclass(frozen=True, eq=False)
class Written:
    """A version of a text: its characters, and where each comes from in the source ``(C, 2)``."""

    text: str
    characters: Spans


@dataclass(frozen=True, eq=False)
class TextSample:
    """One view of one text.

    Attributes:
        ids: ``(T,)`` token ids.
        spans: ``(T, 2)`` position of each token in the source, in characters; empty for special tokens.
        special: ``(T,)`` bool, tokens that the tokenizer added; those in front are the prefix.
        max_length: most tokens of any text, special ones included.
        text: the version of the text that the tokens were made of.
        covered: ``(T, 2)`` the characters of that version that each token covers.
        noise: ``(T, D)`` float32 for the embeddings, or None; shared by the severities of a sweep.
        sigma: what the noise is multiplied with.
    """

    ids: NDArray[np.int64]
    spans: Spans
    special: NDArray[np.bool_]
    max_length: int
    text: str
    covered: NDArray[np.int64]
    noise: torch.Tensor | None = None
    sigma: float = 0.0

    @property
    def num_prefix_tokens(self) -> int:
        """Special tokens in front of the text."""
        # The prefix ends at the first token that is not special.
        return int(np.argmin(self.special))

    def keep(self, tokens: NDArray[np.bool_]) -> TextSample:
        """Return the sample with some of its tokens ``(T,)`` alone."""
        arrays = {name: getattr(self, name)[tokens] for name in ("ids", "spans", "special", "covered")}
        return replace(self, **arrays)

    @property
    def words(self) -> list[str]:
        """What each token reads, with the space in front that no token covers; empty for a special token."""
        ends = np.concatenate([[0], np.maximum.accumulate(self.covered[:, 1])])
        # Tokenizers often leave the space in front of a word to no token.
        return [
            "" if special else " " * self.text[max(first - 1, end) : first].isspace() + self.text[first:last]
            for (first, last), special, end in zip(
                self.covered.tolist(), self.special.tolist(), ends[:-1].tolist(), strict=True
            )
        ]


class Tokenizer(Protocol):
    """What makes tokens of a text."""

    def __call__(
        self, text: str, *, max_length: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return ids ``(T,)``, the characters that each covers ``(T, 2)``, and which are special; at most so many."""


@dataclass(frozen=True)
class TextFraming:
    """How a text is brought to a model's input when nothing is perturbed.

    Attributes:
        tokenizer: the model's own.
        width: of the model's embeddings.
        max_length: a text is cut off after so many tokens, special ones included.
        longest: the most tokens that the model can read; None = any number.
    """

    tokenizer: Tokenizer
    width: int
    max_length: int = MAX_LENGTH
    longest: int | None = None

    modality: ClassVar[Modality] = TEXT

    def clean(self, text: str) -> TextSample:
        """Return the clean view of ``text``."""
        return self.sample(write([(text, 0, len(text))]))

    def sample(self, written: Written) -> TextSample:
        """Return a version of a text as tokens.

        Raises:
            UserError: the tokenizer makes nothing of it.
        """
        ids, covered, special = self.tokenizer(written.text, max_length=self.max_length)
        if special.all():
            raise UserError(f"The tokenizer makes no token of {written.text[:40]!r}.")
        spans = in_source(covered, written.characters)
        # A special token covers no text, whatever the tokenizer says.
        spans[special] = 0
        return TextSample(ids, spans, special, self.max_length, written.text, covered)

    def blank(self) -> TokenBatch:
        """Return the shortest batch there is, to learn of what kind a model's routing is."""
        return stack([self.clean("a")])


def write(pieces: Iterable[Piece]) -> Written:
    """Return the text that pieces make, one after the other; the characters of a piece divide its place evenly."""
    pieces = [piece for piece in pieces if piece[0]]
    origins = [np.zeros((0, 2))]
    for string, start, end in pieces:
        edges = start + np.arange(len(string) + 1) * ((end - start) / len(string))
        origins.append(np.stack([edges[:-1], edges[1:]], axis=1))
    return Written("".join(piece[0] for piece in pieces), np.concatenate(origins))


def stack(samples: Sequence[TextSample]) -> TokenBatch:
    """Return views of several texts as one batch, padded at the end to the longest, without noise."""
    import torch

    longest = max(len(sample.ids) for sample in samples)
    ids = np.zeros((len(samples), longest), dtype=np.int64)
    present, ordinary = (np.zeros((len(samples), longest), dtype=bool) for _ in range(2))
    for row, sample in enumerate(samples):
        length = len(sample.ids)
        ids[row, :length], present[row, :length], ordinary[row, :length] = sample.ids, True, ~sample.special
    return TokenBatch(
        torch.from_numpy(ids),
        torch.from_numpy(present),
        torch.from_numpy(ordinary),
        samples[0].num_prefix_tokens,
    )
