"""Running a race: values first, then times, in interleaved rounds."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.race import Contestant, Race
from benchmarks.speed.values import check_values
from moeprobe.runtime.progress import Progress

if sys.platform != "win32":
    import resource

ByContestant = dict[str, NDArray[np.float64]]
_MOST_REPEATS = 1000
# Seconds from which work needs no warming up: the call whose values are compared is its first round.
WARM_SECONDS = 5.0


@dataclass(frozen=True)
class Clock:
    """How time is taken.

    Attributes:
        shortest: seconds; work that takes less is repeated within a round.
        wait: called around every call, until the device is done.
        now: the time in seconds.
    """

    shortest: float
    wait: Callable[[], object]
    now: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class Measured:
    """What one call of each contestant took, round by round ``(rounds,)``.

    Attributes:
        taken: by the clock that was asked for, or by the race's meter.
        cpu: seconds of all threads and finished children together, whatever the clock.
    """

    taken: ByContestant
    cpu: ByContestant


def cpu_seconds() -> float:
    """Return what this process, all threads of it, and its finished children have computed."""
    return time.process_time() + cpu_seconds_of_children()


def cpu_seconds_of_children() -> float:
    """Return what finished child processes have computed; 0 on Windows, which does not count it."""
    if sys.platform == "win32":
        return 0.0
    # Not os.times: it counts in ticks, and two of 10 ms can be missing.
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def measure(race: Race, *, rounds: int, clock: Clock, watcher: Progress, warm_up: bool = True) -> Measured:
    """Return what one call of the work of each contestant takes, in the race's unit, and its CPU time.

    Everyone's values are compared first, and one more round warms up; for work that takes long, and for all without
    ``warm_up``, the first call is the first round. The order of contestants is another one in every round, since it
    alone moves ratios.

    Args:
        race: what is run.
        rounds: measured rounds.
        clock: how time is taken.
        watcher: receives the progress, round by round.
        warm_up: run what is short once more before it is measured.

    Raises:
        DisagreementError: contestants compute different values.
    """
    watcher.start(race.name, rounds + 2)
    returned: dict[str, object] = {}
    long: dict[str, tuple[float, float]] = {}
    for one in race.contestants:
        begun = time.perf_counter()
        taken, cpu, returned[one.name] = _call(race, one, clock)
        if not warm_up or time.perf_counter() - begun > WARM_SECONDS:
            long[one.name] = one.scale * taken, one.scale * cpu
    check_values(race, returned)
    returned.clear()
    watcher.advance(1)
    repeats = {one.name: 1 if one.name in long else _repeats(race, one, clock) for one in race.contestants}
    watcher.advance(1)
    taken_by, cpu_by = ({one.name: np.empty(rounds) for one in race.contestants} for _ in range(2))
    rng = np.random.default_rng(0)
    for number in range(rounds):
        for index in rng.permutation(len(race.contestants)):
            one = race.contestants[index]
            first = long.get(one.name) if number == 0 else None
            taken_by[one.name][number], cpu_by[one.name][number] = (
                _measure_one(race, one, repeats[one.name], clock) if first is None else first
            )
        watcher.advance(1)
    return Measured(taken_by, cpu_by)


def ratios(taken: Mapping[str, NDArray[np.float64]], of: str, against: str) -> NDArray[np.float64]:
    """Return, round by round, the time of one contestant over that of another."""
    return taken[of] / taken[against]


def _repeats(race: Race, one: Contestant, clock: Clock) -> int:
    """Return how often the work is done in a round; finding out warms up."""
    taken = _call(race, one, clock)[0]
    if race.meter is not None or taken >= clock.shortest:
        return 1
    return min(_MOST_REPEATS, math.ceil(clock.shortest / max(taken, 1e-9)))


def _measure_one(race: Race, one: Contestant, repeats: int, clock: Clock) -> tuple[float, float]:
    """Return what a call takes, and its CPU time, on average."""
    taken, cpu, _ = zip(*(_call(race, one, clock) for _ in range(repeats)), strict=True)
    return one.scale * sum(taken) / repeats, one.scale * sum(cpu) / repeats


def _call(race: Race, one: Contestant, clock: Clock) -> tuple[float, float, object]:
    """Return what was measured of one call, its CPU time, and what it returned."""
    if one.before is not None:
        one.before()
    clock.wait()
    start, cpu = clock.now(), cpu_seconds()
    returned = one.work()
    clock.wait()
    taken, cpu = clock.now() - start, cpu_seconds() - cpu
    return taken if race.meter is None else race.meter(returned), cpu, returned
