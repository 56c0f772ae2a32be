"""The lines on whether loads change with time, and what they say: all experts at once, then those that are named.

Axes: n requests, E experts.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from moeprobe.metrics.load_course import COURSE_P, COURSE_RATE, COURSE_SPREAD
from moeprobe.metrics.stats.hot_experts import Windowed
from moeprobe.metrics.stats.load_course import LoadCourse, joint_p
from moeprobe.metrics.stats.many import RATE, false_discovery
from moeprobe.results.numbers import number


@dataclass(frozen=True)
class CourseRow:
    """A number on a layer or on all, or on one expert.

    Attributes:
        layer: empty = all layers together.
        expert: None = all of them.
        metric: which number.
        value: of the metric.
        trials: choices behind it.
    """

    layer: str
    expert: int | None
    metric: str
    value: float
    trials: int


def course_rows(
    choices: Mapping[str, NDArray[np.integer]], window: NDArray[np.int64], num_windows: int
) -> Iterator[CourseRow]:
    """Yield the p of each layer and of all, then the rate and the spread of each expert that anybody chose.

    Nothing is said where each window is a single request.

    Args:
        choices: of each request by expert ``(n, E)``, by layer.
        window: of each request ``(n,)``.
        num_windows: how many there are.
    """
    if num_windows >= len(window):
        return
    courses = {
        layer: LoadCourse.of(Windowed(counts.astype(np.float64), window, num_windows))
        for layer, counts in choices.items()
    }
    totals = {layer: int(counts.sum()) for layer, counts in choices.items()}
    for layer, course in courses.items():
        yield CourseRow(layer, None, COURSE_P.name, course.p, totals[layer])
    if len(courses) > 1:
        yield CourseRow("", None, COURSE_P.name, joint_p([*courses.values()]), sum(totals.values()))
    # All experts of all layers are one list of tests.
    rates = false_discovery(np.concatenate([course.p_values for course in courses.values()]))
    ends = np.cumsum([len(course.p_values) for course in courses.values()])
    for (layer, course), of_layer in zip(courses.items(), np.split(rates, ends[:-1]), strict=True):
        num_choices = choices[layer].sum(0, dtype=np.int64).tolist()
        for expert, (rate, spread) in enumerate(zip(of_layer, course.spread, strict=True)):
            if rate == rate:
                yield CourseRow(layer, expert, COURSE_RATE.name, float(rate), num_choices[expert])
                yield CourseRow(layer, expert, COURSE_SPREAD.name, float(spread), num_choices[expert])


def _joint_test(table: pd.DataFrame) -> tuple[pd.Series, int] | None:
    """Return the row of the test of all experts, and of how many layers they are; None where there is none."""
    tests = table[table["metric"] == COURSE_P.name]
    if tests.empty:
        return None
    layers = tests["layer"][tests["layer"] != ""].nunique()
    return (tests[tests["layer"] == ""] if layers > 1 else tests).iloc[0], layers


def is_shown(table: pd.DataFrame) -> bool:
    """Whether all experts together show that the load changes with time."""
    test = _joint_test(table)
    return test is not None and bool(test[0]["value"] <= RATE)


def sentences(table: pd.DataFrame) -> list[str]:
    """Return whether the load changes with time, and of how many experts; none where it was not tested."""
    test = _joint_test(table)
    if test is None:
        return []
    row, layers = test
    rates = table[table["metric"] == COURSE_RATE.name]
    if rates.empty:
        return ["In every request each expert has the same share of the load, so nothing changes with time."]
    where = f"{len(rates):,} experts of {f'{layers} layers' if layers > 1 else row['layer']}"
    p = f"p = {number(row['value'])}"
    if not is_shown(table):
        return [f"Nothing shows that the load changes with time ({p}, {where} at once)."]
    significant = rates[rates["value"] <= RATE]
    begin = f"The load changes with time ({p}, {where} at once)."
    if significant.empty:
        return [f"{begin} No single expert is named, at a false discovery rate of {RATE:.0%}."]
    spreads = table[table["metric"] == COURSE_SPREAD.name].set_index(["layer", "expert"])["value"]
    keys = list(zip(significant["layer"], significant["expert"], strict=True))
    largest = max(keys, key=lambda key: spreads[key])
    in_layers = significant["layer"].nunique()
    deviation = number(spreads[largest])
    if len(keys) == 1:
        return [
            f"{begin} Of {len(rates):,} experts one is named, expert {int(largest[1])} of {largest[0]}, at a false "
            f"discovery rate of {RATE:.0%}: its share has a standard deviation of {deviation} between windows."
        ]
    # Spreads have no intervals, so nothing separates the largest of several from the others.
    return [
        f"{begin} {len(significant):,} of {len(rates):,} experts are named, in {in_layers} layer"
        f"{'s' if in_layers > 1 else ''}, at a false discovery rate of {RATE:.0%}. Their shares have "
        f"standard deviations of up to {deviation} between windows."
    ]
