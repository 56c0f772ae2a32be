"""Which tokens of two versions of a text correspond, against a plain loop and by hand."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprobe.inputs.spans import align, in_source
from moeprobe.inputs.texts import write

Pairs = list[tuple[float, float]]
spans = st.lists(st.tuples(st.floats(0, 20), st.floats(0, 5)), max_size=12)


def loop(reference: list[Any], view: list[Any]) -> list[int]:
    """The rule, token by token."""
    found = []
    for start, end in reference:
        center = (start + end) / 2
        best = -1
        for number, (low, high) in enumerate(view):
            if start < end and low <= center < high:
                distance = abs((low + high) / 2 - center)
                if best < 0 or distance < abs((view[best][0] + view[best][1]) / 2 - center):
                    best = number
        found.append(best)
    return found


@given(spans, spans)
def test_partners_are_those_of_a_loop(one: Pairs, other: Pairs) -> None:
    reference, view = (
        np.array([(start, start + length) for start, length in side]).reshape(-1, 2) for side in (one, other)
    )
    assert align(reference, view).tolist() == loop(list(map(tuple, reference)), list(map(tuple, view)))


@given(st.lists(st.integers(1, 5), min_size=1, max_size=12))
def test_a_text_corresponds_to_itself(lengths: list[int]) -> None:
    """Also where tokens are bytes of one character, or overlap: (0, 2) and (1, 2) of a token that ends within one."""
    ends = np.cumsum(lengths)
    starts = ends - lengths
    tokens = []
    for start, end in zip(starts, ends, strict=True):
        tokens.append((start, end))
        # Pieces of the last character of what stands before them, or of the one character.
        tokens += [(end - 1, end)] * int(start % 3)
    characters = write([("x" * int(ends[-1]), 0, int(ends[-1]))]).characters
    placed = in_source(np.array(tokens), characters)
    assert align(placed, placed).tolist() == list(range(len(tokens)))


def test_a_word_in_pieces_by_hand() -> None:
    """``big dog`` -> ``enormous dog``, its first word in two pieces and in one."""
    version = write([("enormous", 0, 3), (" dog", 3, 7)])
    assert version.text == "enormous dog"
    pieces = in_source(np.array([[0, 2], [2, 8], [8, 12]]), version.characters)
    np.testing.assert_allclose(pieces, np.array([[0, 0.75], [0.75, 3], [3, 7]]))
    clean = np.array([[0.0, 3.0], [3.0, 7.0]])
    # The center of "big", 1.5, lies in the second piece; both pieces have their center in "big".
    assert align(clean, pieces).tolist() == [1, 2]
    assert align(pieces, clean).tolist() == [0, 0, 1]


def test_what_was_put_in_has_no_place_and_what_is_gone_no_partner() -> None:
    version = write([("a", 0, 1), ("##", 1, 1), ("c", 2, 3)])
    placed = in_source(np.array([[0, 1], [1, 3], [3, 4]]), version.characters)
    np.testing.assert_array_equal(placed, [[0, 1], [0, 0], [2, 3]])
    clean = np.array([[0.0, 1.0], [1.0, 2.0], [2.0, 3.0]])
    assert align(clean, placed).tolist() == [0, -1, 2]
    assert align(placed, clean).tolist() == [0, -1, 2]


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0)])
def test_nothing_corresponds_to_nothing(sizes: tuple[int, int]) -> None:
    one, other = (np.array([[n, n + 1.0] for n in range(size)]).reshape(-1, 2) for size in sizes)
    assert align(one, other).tolist() == [-1] * sizes[0]
