"""Capitals for small letters, and the other way round, in some words of a text."""

import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from moeprobe.inputs.texts import Piece
from moeprobe.inputs.views.text import WordView

_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class LetterCase(WordView):
    """A share of the words in capitals, or in lower case where they were in capitals.

    Words of scripts without capitals are left out of the share.
    """

    unit: ClassVar[str] = "letter_case: share of words in the other case"

    def words(self, text: str) -> list[tuple[int, int]]:
        """Return the runs of letters that have a case."""
        return [match.span() for match in _WORD.finditer(text) if _change_case(match[0]) != match[0]]

    def rewrite(self, word: str, rng: np.random.Generator) -> list[Piece]:
        """Return the word letter by letter: a capital may take several characters (ß, SS)."""
        upper = not word.isupper()
        return [(_change_case(letter, upper), index, index + 1) for index, letter in enumerate(word)]


def _change_case(letters: str, upper: bool | None = None) -> str:
    return letters.upper() if (not letters.isupper() if upper is None else upper) else letters.lower()
