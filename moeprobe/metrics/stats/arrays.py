"""Arrays of statistics: of numbers, and of integers that count or name."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


# What is expensive and asked for several times in a row: computed once per argument.
#
# A chance level and its kappa ask for the values under the same resamples one after the other, and so do
# all entries of a matrix.

Self = TypeVar("Self")
Argument = TypeVar("Argument")
Returned = TypeVar("Returned")


def remembered(method: Callable[[Self, Argument], Returned]) -> Callable[[Self, Argument], Returned]:
    """Return a method that keeps what it returned last, for the argument (the same object) that it was given."""
    key = f"_last_{method.__name__}"

    @wraps(method)
    def once(self: Self, argument: Argument) -> Returned:
        # Not by attribute: records are frozen.
        attributes: dict[str, Any] = vars(self)
        if key not in attributes or attributes[key][0] is not argument:
            attributes[key] = argument, method(self, argument)
        returned: Returned = attributes[key][1]
        return returned

    return once
