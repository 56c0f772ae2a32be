"""Slips of the fingers in some words of a text."""

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moeprobe.inputs.texts import Piece
from moeprobe.inputs.views.text import WordView

_WORD = re.compile(r"[^\W\d_]{2,}")
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
# The keys left and right of each on an English keyboard.
_NEIGHBORS = {
    key: row[max(index - 1, 0) : index] + row[index + 1 : index + 2]
    for row in _ROWS
    for index, key in enumerate(row)
}


@dataclass(frozen=True)
class Typos(WordView):
    """One slip in a share of the words: two letters swapped, one omitted, one doubled, or a neighboring key hit.

    A word is a run of two or more letters of any script. Letters that are swapped differ; the neighboring key is that
    of an English keyboard. Where a word has no such letters, or a letter no such key, one is doubled. Each of the four
    is equally likely, at any place of the word where it can be.
    """

    unit: ClassVar[str] = "typos: share of words with a slip"

    def words(self, text: str) -> list[tuple[int, int]]:
        """Return the runs of two letters or more."""
        return [match.span() for match in _WORD.finditer(text)]

    def rewrite(self, word: str, rng: np.random.Generator) -> list[Piece]:
        """Return the word with one slip."""
        slip = int(rng.integers(4))
        swap_positions = [index for index in range(len(word) - 1) if word[index] != word[index + 1]]
        if slip == 0 and not swap_positions:
            slip = 2
        at = (
            swap_positions[int(rng.integers(len(swap_positions)))]
            if slip == 0
            else int(rng.integers(len(word)))
        )
        letter = word[at]
        before, after = (word[:at], 0, at), (word[at + 1 :], at + 1, len(word))
        near = _NEIGHBORS.get(letter.lower(), "")
        key = near[int(rng.integers(len(near)))] if near else ""
        if slip == 0:
            swapped = [(word[at + 1], at + 1, at + 2), (letter, at, at + 1)]
            return [before, *swapped, (word[at + 2 :], at + 2, len(word))]
        if slip == 1:
            return [before, after]
        if slip == 2 or not key:
            return [before, (letter * 2, at, at + 1), after]
        return [before, (key.upper() if letter.isupper() else key, at, at + 1), after]
