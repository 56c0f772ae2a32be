"""What is expensive and asked for several times in a row: computed once per argument.

A chance level and its κ ask for the values under the same resamples one after the other, as do all entries of a matrix;
the draws of a view ask for the clean image.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Self = TypeVar("Self")
Argument = TypeVar("Argument")
Returned = TypeVar("Returned")


def cache_last(method: Callable[[Self, Argument], Returned]) -> Callable[[Self, Argument], Returned]:
    """Return a method that keeps what it returned last, for the argument (the same object) that it was given."""
    key = f"_last_{method.__name__}"

    @wraps(method)
    def once(self: Self, argument: Argument) -> Returned:
        # Not by attribute: records are frozen. Read once, since another thread may ask for something else.
        attributes: dict[str, Any] = vars(self)
        last: tuple[Argument, Returned] | None = attributes.get(key)
        if last is None or last[0] is not argument:
            last = attributes[key] = argument, method(self, argument)
        return last[1]

    return once
