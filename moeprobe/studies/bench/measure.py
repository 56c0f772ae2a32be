"""Running a race: values first, then times, in interleaved rounds."""

import math
import time
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from moeprobe.runtime.progress import Progress
from moeprobe.studies.bench.race import Contestant, Race
from moeprobe.studies.bench.values import check_values

Measured = dict[str, NDArray[np.float64]]
_MOST_REPEATS = 1000


def measure(
    race: Race, *, rounds: int, shortest: float, wait: Callable[[], object], watcher: Progress
) -> Measured:
    """Return contestant -> ``(rounds,)`` what was measured of one call of its work, in the race's unit.

    Everyone's values are compared before anyone is timed; one more round warms up. Another one begins each round.

    Args:
        race: what is run.
        rounds: measured rounds.
        shortest: seconds; work that takes less is repeated within a round.
        wait: called around every call, until the device is done.
        watcher: receives the progress, round by round.

    Raises:
        DisagreementError: contestants compute different values.
    """
    watcher.start(race.name, rounds + 2)
    returned: dict[str, object] = {}
    for one in race.contestants:
        if one.before is not None:
            one.before()
        returned[one.name] = one.work()
    check_values(race, returned)
    returned.clear()
    watcher.advance(1)
    repeats = {one.name: _repeats(race, one, shortest, wait) for one in race.contestants}
    watcher.advance(1)
    measured: Measured = {one.name: np.empty(rounds) for one in race.contestants}
    for number in range(rounds):
        start = number % len(race.contestants)
        for one in [*race.contestants[start:], *race.contestants[:start]]:
            measured[one.name][number] = _measure_one(race, one, repeats[one.name], wait)
        watcher.advance(1)
    return measured


def ratios(measured: Mapping[str, NDArray[np.float64]], of: str, against: str) -> NDArray[np.float64]:
    """Return, round by round, the time of one contestant over that of another."""
    return measured[of] / measured[against]


def _repeats(race: Race, one: Contestant, shortest: float, wait: Callable[[], object]) -> int:
    """Return how often the work is done in a round; finding out warms up."""
    taken = _measure_one(race, one, 1, wait)
    if race.meter is not None or taken >= shortest:
        return 1
    return min(_MOST_REPEATS, math.ceil(shortest / max(taken, 1e-9)))


def _measure_one(race: Race, one: Contestant, repeats: int, wait: Callable[[], object]) -> float:
    total = 0.0
    for _ in range(repeats):
        if one.before is not None:
            one.before()
        wait()
        start = time.perf_counter()
        returned = one.work()
        wait()
        total += time.perf_counter() - start if race.meter is None else race.meter(returned)
    return total / repeats
