"""What was measured as a table: a line per contestant and whom it is put against."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.speed.measure import ByContestant, Measured, ratios
from benchmarks.speed.race import BEST, Contestant, Race, Ratio, Target

# What the table has.
BENCH_COLUMNS: dict[str, str] = {
    "part": "part of the benchmark",
    "race": "what all contestants of it do",
    "contestant": "how it is done",
    "role": "ours, other, or limit: a bound that nothing can beat",
    "median": "median of one call over the measured rounds",
    "quartile_low": "a quarter of the rounds were below",
    "quartile_high": "a quarter of the rounds were above",
    "unit": "unit of these three: s for seconds, or what the race counts",
    "cpu_seconds": "median of the CPU time of one call, of all threads and finished child processes together",
    "rounds": "interleaved rounds that were measured",
    "items_per_second": "items per second at the median; empty where nothing is counted",
    "against": "contestant that the ratio compares with; best: the fastest of the others, not counting limits",
    "ratio": "median over rounds of the ratio within a round",
    "ratio_quartile_low": "a quarter of the rounds had a lower ratio",
    "ratio_quartile_high": "a quarter of the rounds had a higher ratio",
    "ratio_of": "speed: the other's time over the contestant's; time: the reverse",
    "target": "ratio to reach; empty if there is none",
    "reached": "yes or no, by the median ratio; empty without target and with --quick",
}


def rows(race: Race, measured: Measured, *, part: str, judge: bool) -> Iterator[dict[str, Any]]:
    """Yield the lines of a race: of each contestant one for every target of its, at least one.

    Args:
        race: as it was run.
        measured: what came out.
        part: the part of the benchmark.
        judge: whether targets are said to be reached or not.
    """
    for one in race.contestants:
        targets: list[Target | None] = [target for target in race.targets if target.of == one.name]
        for target in targets or [None]:
            yield _identity(part, race, one, measured) | _against(race, one, target, measured.taken, judge)


def frame(found: list[dict[str, Any]]) -> pd.DataFrame:
    """Return lines as a data frame, with all columns in their order."""
    return pd.DataFrame(found, columns=list(BENCH_COLUMNS))


def _identity(part: str, race: Race, one: Contestant, measured: Measured) -> dict[str, Any]:
    low, median, high = _quartiles(measured.taken[one.name])
    return {
        "part": part,
        "race": race.name,
        "contestant": one.name,
        "role": one.role,
        "median": median,
        "quartile_low": low,
        "quartile_high": high,
        "unit": race.unit,
        "cpu_seconds": float(np.median(measured.cpu[one.name])),
        "rounds": len(measured.taken[one.name]),
        "items_per_second": race.items / median if race.items else np.nan,
    }


def _against(
    race: Race, one: Contestant, target: Target | None, taken: ByContestant, judge: bool
) -> dict[str, Any]:
    wanted: str = race.opponent(one.name) if target is None else target.against
    kind: Ratio = race.ratio if target is None else target.ratio
    other = _quickest_other(race, one, taken) if wanted == BEST else wanted
    empty = {"against": "", "ratio_of": "", "target": "", "reached": ""}
    if other is None or (target is None and other == one.name):
        return empty | dict.fromkeys(("ratio", "ratio_quartile_low", "ratio_quartile_high"), np.nan)
    of, to = (one.name, other) if kind == "time" else (other, one.name)
    low, median, high = _quartiles(ratios(taken, of, to))
    reached = "" if target is None or not judge else "yes" if target.reached(median) else "no"
    return {
        "against": f"{BEST}: {other}" if wanted == BEST else other,
        "ratio": median,
        "ratio_quartile_low": low,
        "ratio_quartile_high": high,
        "ratio_of": kind,
        "target": "" if target is None else target.text,
        "reached": reached,
    }


def _quickest_other(race: Race, one: Contestant, taken: ByContestant) -> str | None:
    """Return who has the least median among those that ours, or any other, is to be compared with."""
    others = [
        other.name
        for other in race.contestants
        if other.name != one.name and other.role != "limit" and not other.role == one.role == "ours"
    ]
    return min(others, key=lambda name: float(np.median(taken[name])), default=None)


def _quartiles(values: NDArray[np.float64]) -> tuple[float, float, float]:
    low, median, high = np.percentile(values, [25, 50, 75])
    return float(low), float(median), float(high)
