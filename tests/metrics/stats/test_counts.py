"""Tables of counts that add up over blocks, and how numbers are found by key."""

import numpy as np
import pytest

from moeprobe.metrics.stats.chance import counts
from moeprobe.metrics.stats.chance.counts import Pairs, count


@pytest.mark.parametrize("has_weights", [True, False])
@pytest.mark.parametrize("is_dense", [True, False])
def test_sums_by_key_add_up_in_the_order_of_the_blocks(
    is_dense: bool, has_weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, however long keys wait, and whoever else adds to the same sums."""
    for name, number in (("_DENSE", 50 if is_dense else 0), ("_AT_ONCE", 4), ("_WAITING", 16)):
        monkeypatch.setattr(counts, name, number)
    rng = np.random.default_rng(0)
    total, expected = count(np.zeros(0, np.int64), 50, np.zeros(0) if has_weights else None), np.zeros(50)
    for size in (30, 1, 0, 40, 2, 9, 3, 60, 5):
        keys = rng.integers(0, 50, size)
        weights = rng.random(size) if has_weights else None
        expected = expected + np.bincount(keys, weights=weights, minlength=50)
        block = count(keys, 50, weights)
        _ = total + block
        total += block
        assert total.at(np.array([[7, 0]])).tolist() == [[expected[7], expected[0]]]
    occurring = np.arange(50) if total.keys is None else total.keys
    assert total.values.tolist() == expected[occurring].tolist()
    assert set(np.flatnonzero(expected)) <= set(occurring)


@pytest.mark.parametrize("number", [0, 1, 700])
def test_numbers_are_found_by_key(number: int) -> None:
    """Those that there are not are 0."""
    rng = np.random.default_rng(1)
    keys = np.unique(rng.integers(0, 2**40, number))
    of_reference, of_view = rng.random((2, len(keys)))
    known = dict(zip(keys.tolist(), zip(of_reference, of_view, strict=True), strict=True))
    wanted = np.concatenate([keys, keys + 1, [0, 2**62]])
    reference, view = wanted[:, None], np.where(rng.random(len(wanted)) < 0.5, wanted, wanted[::-1])[:, None]
    found = Pairs(of_reference, of_view, keys).sum_at(reference, view)
    assert found[:, 0].tolist() == [
        known.get(one, (0, 0))[0] + known.get(other, (0, 0))[1]
        for one, other in zip(reference[:, 0].tolist(), view[:, 0].tolist(), strict=True)
    ]
