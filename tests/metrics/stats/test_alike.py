"""How alike all tokens of a group are, against loops over all pairs."""

import numpy as np
import pytest

from moeprobe.metrics.stats.alike import CODES, Codes, within

# Lengths of groups: equal ones, one long among short and empty ones, and none.
_LENGTHS = {"equal": [7] * 30, "ragged": [0, 1, 200, 3, 0, 2, 2, 1, 0], "none": [0, 0]}


@pytest.mark.parametrize("lengths", _LENGTHS.values(), ids=_LENGTHS)
@pytest.mark.parametrize("size", [3, 5000, 2**31, CODES])
@pytest.mark.parametrize("width", [1, 3])
def test_equal_codes_of_groups_are_those_of_all_pairs(lengths: list[int], size: int, width: int) -> None:
    """Few codes are counted and many are sorted, in 32 or 64 bits; the highest codes too, and groups beside others."""
    rng = np.random.default_rng(size)
    group = np.repeat(np.arange(len(lengths)), lengths)
    # The last few codes: a group ends with codes that the next one begins with.
    reference, view = size - 1 - rng.integers(0, 3, (2, len(group), width))
    expected = [
        sum(
            (left[:, None] == right[None]).sum()
            for left in reference[group == number].T
            for right in view[group == number].T
        )
        for number in range(len(lengths))
    ]
    assert within([Codes(1.0, reference, view, size)], group, len(lengths)).tolist() == expected


def test_a_code_at_the_end_of_a_group_is_no_pair_with_the_next_one() -> None:
    """The reference's last code of one group is the view's only code of the next."""
    reference, view = np.array([[4], [9]]), np.array([[2], [4]])
    assert within([Codes(1.0, reference, view)], np.arange(2), 2).tolist() == [0, 0]
