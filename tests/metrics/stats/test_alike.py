"""How alike all tokens of a group are, against loops over all pairs."""

import numpy as np
import pytest

from moeprobe.metrics.stats.alike import CODES, Codes, encode, set_words, within

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


@pytest.mark.parametrize("base", [3, 256, 4096])
def test_codes_are_the_same_where_rows_are(base: int) -> None:
    """Of five numbers: as many rows as codes, as fit into a word, and more."""
    rows = np.random.default_rng(base).choice([0, 1, base - 1], (300, 5))
    codes = encode(rows, base=base)
    assert ((codes >= 0) & (codes < CODES)).all()
    is_same = (rows[:, None] == rows[None]).all(-1)
    assert ((codes[:, None] == codes[None]) == is_same).all() and is_same.sum() > len(rows)
    # The same number elsewhere in the row is another row.
    assert len(set(encode(np.eye(5, dtype=np.int64), base=base).tolist())) == 5


def test_sets_are_bits_of_as_many_words_as_they_take() -> None:
    choices = np.array([[0, 63, -1], [64, 1, 129], [-1, -1, -1]])
    words = [word.tolist() for word in set_words(choices, 130)]
    assert words == [[1 + 2**63, 2, 0], [0, 1, 0], [0, 2, 0]]
