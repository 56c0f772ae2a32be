"""What is expensive and asked for several times in a row: computed once per argument.

A chance level and its kappa ask for the values under the same resamples one after the other, and so do all entries of a
matrix.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

Self = TypeVar("Self")
Argument = TypeVar("Argument")
Returned = TypeVar("Returned")


def remembered(method: Callable[[Self, Argument], Returned]) -> Callable[[Self, Argument], Returned]:
    """Return a method that keeps what it returned last, for the argument (the very same object) that it was given."""
    place = f"_last_{method.__name__}"

    @wraps(method)
    def once(self: Self, argument: Argument) -> Returned:
        # Not by attribute: records are frozen.
        kept: dict[str, Any] = vars(self)
        if place not in kept or kept[place][0] is not argument:
            kept[place] = argument, method(self, argument)
        returned: Returned = kept[place][1]
        return returned

    return once
