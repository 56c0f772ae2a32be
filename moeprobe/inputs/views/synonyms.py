"""Words of a text exchanged for others that mean the same, by a file of the user's."""

import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np

from moeprobe.errors import UserError
from moeprobe.inputs.texts import Piece
from moeprobe.inputs.views.text import WordView
from moeprobe.runtime.files import expand, read_bytes
from moeprobe.runtime.schema import lower_first

_LIMIT = 64 * 2**20
_WORD = re.compile(r"\w+(?:['’-]\w+)*")


@dataclass(frozen=True)
class Synonyms(WordView):
    """A share of the words that have a synonym, replaced by one: write synonyms:FILE.

    FILE holds a line per set of words that mean the same, separated by commas (``big, large, great``); a word may
    be in several sets, and a synonym may be several words. The first letter stays a capital, a word in capitals
    stays in capitals. The share is of the words that have a synonym.
    """

    location: str
    sha256: str = field(init=False, default="")

    unit: ClassVar[str] = "synonyms: share of words that have one, exchanged"

    def __post_init__(self) -> None:
        # What the file holds belongs to what was asked.
        object.__setattr__(self, "sha256", hashlib.sha256(self._content.encode()).hexdigest())
        if not any(self._synonyms.values()):
            raise UserError(f"{self.location!r} holds no synonyms: write a line per set, e.g. big, large.")

    @cached_property
    def _content(self) -> str:
        try:
            return read_bytes(expand(self.location), limit=_LIMIT).decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise UserError(
                f"Cannot read the synonyms in {self.location!r}: {lower_first(str(error))}."
            ) from None

    @cached_property
    def _synonyms(self) -> dict[str, tuple[str, ...]]:
        """The others of each word, in the order of the file."""
        others_of: dict[str, dict[str, None]] = {}
        for line in self._content.splitlines():
            members = [member.strip() for member in line.split(",") if member.strip()]
            for member in members:
                synonyms = [candidate for candidate in members if candidate.casefold() != member.casefold()]
                others_of.setdefault(member.casefold(), {}).update(dict.fromkeys(synonyms))
        return {word: tuple(synonyms) for word, synonyms in others_of.items()}

    def words(self, text: str) -> list[tuple[int, int]]:
        """Return the words that have a synonym."""
        return [match.span() for match in _WORD.finditer(text) if self._synonyms.get(match[0].casefold())]

    def rewrite(self, word: str, rng: np.random.Generator) -> list[Piece]:
        """Return a synonym in the place of the word."""
        synonyms = self._synonyms[word.casefold()]
        synonym = synonyms[int(rng.integers(len(synonyms)))]
        if word.isupper() and len(word) > 1:
            synonym = synonym.upper()
        elif word[0].isupper():
            synonym = synonym[0].upper() + synonym[1:]
        return [(synonym, 0, len(word))]
