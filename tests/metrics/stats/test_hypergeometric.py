"""The overlap of random sets: against scipy's distribution, number by number."""

import numpy as np
import pytest
from scipy import stats

from moeprobe.metrics.stats import hypergeometric
from moeprobe.metrics.stats.hypergeometric import expected_jaccard


def by_scipy(visible: int, first: int, second: int) -> float:
    common = np.arange(min(first, second) + 1)
    return float(
        (stats.hypergeom.pmf(common, visible, first, second) * common / (first + second - common)).sum()
    )


@pytest.mark.parametrize(("first", "second"), [(1, 1), (3, 5), (7, 2), (300, 400)])
@pytest.mark.parametrize("entries", [2**20, 1])
def test_the_expected_index_is_a_sum_over_all_numbers(
    first: int, second: int, entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The larger sets have 301 numbers in common at most, of which those near the mean are added up."""
    monkeypatch.setattr(hypergeometric, "ENTRIES_AT_ONCE", entries)
    most = max(first, second)
    visible = np.array([most, most + 1, 2 * most, most + 1, 50 * most, 3 * most])
    expected = [by_scipy(number, first, second) for number in visible.tolist()]
    assert expected_jaccard(visible, first, second) == pytest.approx(expected, rel=1e-9)
    assert expected_jaccard(visible[:0], first, second).tolist() == []
