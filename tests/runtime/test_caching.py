"""What a method returned last is kept for the very same argument, and for no other object or method."""

from dataclasses import dataclass, field

import numpy as np

from moeprobe.metrics.stats.statistic import Array
from moeprobe.runtime.caching import cache_last


@dataclass(frozen=True)
class Sums:
    values: Array
    asked: list[str] = field(default_factory=list)

    @cache_last
    def total(self, weights: Array) -> Array:
        self.asked.append("total")
        return self.values @ weights

    @cache_last
    def largest(self, weights: Array) -> Array:
        self.asked.append("largest")
        return (self.values[:, None] * weights).max(0)


def test_each_method_is_computed_once_per_argument() -> None:
    sums, weights = Sums(np.array([1.0, 2.0])), np.array([[1.0, 0.0], [1.0, 3.0]])
    for _ in range(2):
        assert sums.total(weights).tolist() == [3, 6]
        assert sums.largest(weights).tolist() == [2, 6]
    assert sums.asked == ["total", "largest"]


def test_an_equal_argument_is_another_one_and_so_is_another_object() -> None:
    weights = np.ones((2, 1))
    one, other = Sums(np.array([1.0, 2.0])), Sums(np.array([5.0, 7.0]))
    assert one.total(weights).tolist() == [3]
    assert other.total(weights).tolist() == [12]
    assert one.total(weights.copy()).tolist() == [3]
    assert one.asked == ["total", "total"] and other.asked == ["total"]
