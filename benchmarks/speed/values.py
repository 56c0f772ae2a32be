"""Whether contestants of a race compute the same."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.race import Contestant, DisagreementError, Race


def check_values(race: Race, returned: Mapping[str, object]) -> None:
    """Raise ``DisagreementError`` where what a contestant returned differs from what the first one did.

    Args:
        race: says the tolerance.
        returned: contestant -> what its ``work`` returned.
    """
    compared = [one for one in race.contestants if one.role != "limit"]
    if race.tolerance is None or not compared:
        return
    first, *others = compared
    expected = _values(race, first, returned)
    for other in others:
        actual = _values(race, other, returned)
        if expected.keys() != actual.keys():
            raise DisagreementError(
                f"{race.name}: {other.name} and {first.name} return different things: {', '.join(actual)} and "
                f"{', '.join(expected)}."
            )
        for place, array in expected.items():
            difference = _difference(array, actual[place])
            if not difference <= race.tolerance:
                what = f" in {place}" if place else ""
                raise DisagreementError(
                    f"{race.name}: {other.name} and {first.name} differ{what} by {difference:.2g} of the largest "
                    f"value; {race.tolerance:g} is allowed."
                )


def _values(race: Race, one: Contestant, returned: Mapping[str, object]) -> dict[str, NDArray[Any]]:
    return dict(_flatten(race.values(returned[one.name]), ""))


def _flatten(value: Any, place: str) -> Iterator[tuple[str, NDArray[Any]]]:
    """Yield the arrays in a value, each with its place, e.g. ``gradients.0``."""
    if isinstance(value, Mapping):
        parts = list(value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        parts = list(enumerate(value))
    else:
        if hasattr(value, "detach"):  # a tensor; numpy has no bfloat16
            value = value.detach().cpu()
            value = (
                value.float() if value.is_floating_point() and value.element_size() < 4 else value
            ).numpy()
        yield place, np.asarray(value)
        return
    for key, part in parts:
        yield from _flatten(part, f"{place}.{key}" if place else str(key))


def _difference(expected: NDArray[Any], actual: NDArray[Any]) -> float:
    """Return the largest difference relative to the largest expected value; infinite where it cannot be formed."""
    if expected.shape != actual.shape:
        return float("inf")
    if expected.dtype.kind not in "iufb" or actual.dtype.kind not in "iufb":
        return 0.0 if np.array_equal(expected, actual) else float("inf")
    if not expected.size:
        return 0.0
    expected, actual = expected.astype(float), actual.astype(float)
    empty = np.isnan(expected)
    if not np.array_equal(empty, np.isnan(actual)):
        return float("inf")
    largest = np.abs(expected[~empty]).max(initial=0)
    difference = np.abs(expected - actual)[~empty].max(initial=0)
    return float(difference / largest) if largest else float(difference)
