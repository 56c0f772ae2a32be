"""Documents with one thing wrong: each place of a JSON document times each way to be wrong."""

import copy
import math
from collections.abc import Iterator
from typing import Any

REMOVED = object()
# What may stand in a place: of the wrong type, out of range, or of a size that nobody means.
WRONG: dict[str, Any] = {
    "removed": REMOVED,
    "null": None,
    "text": "wrong",
    "no text": "",
    "half a character": "\ud800",
    "a null byte": "a\0b",
    "a path outside": "../../../etc/passwd",
    "minus one": -1,
    "zero": 0,
    "huge": 10**30,
    "fraction": 0.5,
    "infinite": math.inf,
    "no number": math.nan,
    "true": True,
    "list": [],
    "list of lists": [[[]]],
    "mapping": {},
    "mapping of something": {"wrong": 1},
}


def places(document: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to each value; of a long list the first and the last."""
    if above:
        yield above
    if isinstance(document, dict):
        for key, value in document.items():
            yield from places(value, (*above, key))
    elif isinstance(document, list) and document:
        for index in {0, len(document) - 1}:
            yield from places(document[index], (*above, index))


def mutated(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is wrong, and the document with that wrong."""
    for way in places(document):
        for name, value in WRONG.items():
            changed = copy.deepcopy(document)
            inside = changed
            for step in way[:-1]:
                inside = inside[step]
            if value is REMOVED:
                del inside[way[-1]]
            elif type(inside[way[-1]]) is type(value) and inside[way[-1]] == value:
                continue
            else:
                inside[way[-1]] = value
            yield f"{'.'.join(map(str, way))}: {name}", changed
    for name, value in WRONG.items():
        if value is not REMOVED:
            yield f"all of it: {name}", value
