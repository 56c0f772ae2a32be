"""Which of the known names was meant by one that is not known."""

import difflib
import re
from collections.abc import Iterable

# How much alike names are at least: as they are; a word of one; where not even the first letters are the same.
_LIKE, _WORD_LIKE, _OTHER_INITIAL = 0.6, 0.72, 0.86
# What counts besides letters: the same but for separators, its first words, a word in it, its words in another order.
_SAME, _BEGINNING, _PART, _REORDERED = 1.0, 0.97, 0.95, 0.93
# What a name inside another counts ("acc", "validation" for "val"), and its least length: as a beginning, elsewhere.
_INSIDE, _BEGINS, _INNER = 0.8, 3, 5
# Nothing is called by a longer name, and comparing letters takes the square of their number.
_LONGEST = 200
_SEPARATORS = re.compile(r"[_\W]+")


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """Return the known name most like this one, or with a part most like it; None if none is much like it."""
    if len(name) > _LONGEST:
        return None
    # Of several that are as much alike, the shortest, and of these the first.
    rated = (
        (_likeness(name, candidate), -len(candidate), -index, candidate)
        for index, candidate in enumerate(candidates)
    )
    likeness, _, _, near = max(rated, default=(0.0, 0, 0, ""))
    return near if likeness >= _LIKE else None


def _likeness(name: str, candidate: str) -> float:
    """Return how much alike two names are, 0 to 1; ``sofmax`` is much like a part of ``softmax_token_choice``."""
    typed, target = _words(name), _words(candidate)
    if not typed or not target:
        return _ratio(name, candidate)
    if "".join(typed) == "".join(target):
        return _SAME
    parts = [target[start : start + len(typed)] for start in range(len(target) - len(typed) + 1)]
    scores = [
        _ratio("_".join(typed), "_".join(target)),
        _BEGINNING * (target[: len(typed)] == typed),
        _REORDERED * (len(typed) > 1 and sorted(typed) == sorted(target)),
        _INSIDE * _is_inside("".join(typed), "".join(target)),
        *(_PART * _ratio("_".join(typed), "_".join(part), least=_WORD_LIKE) for part in parts),
    ]
    return max(scores)


def _words(name: str) -> list[str]:
    return [word for word in _SEPARATORS.split(name.casefold()) if word]


def _is_inside(first: str, second: str) -> bool:
    """Whether one name is the beginning of the other, or a longer part of it."""
    short, long = sorted((first, second), key=len)
    return (len(short) >= _BEGINS and long.startswith(short)) or (len(short) >= _INNER and short in long)


def _ratio(first: str, second: str, *, least: float = _LIKE) -> float:
    """Return how many of the letters are the same in the same order; 0 where that says nothing."""
    ratio = difflib.SequenceMatcher(None, first.casefold(), second.casefold()).ratio()
    same_initial = first[:1].casefold() == second[:1].casefold()
    return ratio if ratio >= (least if same_initial else _OTHER_INITIAL) else 0.0
