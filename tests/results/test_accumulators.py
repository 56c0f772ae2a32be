"""Merging is a disjoint union: whoever adds what, in whichever order, the sums are the same."""

import itertools

import numpy as np
import pytest

from moeprobe.results.sums import Accumulator, Cell

CELLS = [
    Cell("blocks.1", "r", 2, "noise", 0.1, 0, "patch"),
    Cell("blocks.1", "r", 2, "crop", np.nan, 0, "patch"),
]


def accumulator(images: list[int]) -> Accumulator:
    found = Accumulator()
    for cell in CELLS:
        columns = {"trials": np.array(images, dtype=np.int64), "loss": np.sqrt(np.array(images, dtype=float))}
        found.add(cell, [f"i/{image}" for image in images], columns)
    return found


def content(one: Accumulator) -> dict[object, object]:
    found: dict[object, object] = {}
    for sums in one.cells():
        names, columns = sums.join()
        arrays = {name: (column.dtype.str, column.tobytes()) for name, column in columns.items()}
        found[sums.cell.key()] = (names.tolist(), arrays)
    return found


WHOLE = content(accumulator(list(range(11))))


def test_merging_is_associative_and_commutative() -> None:
    parts = [accumulator([3, 10]), accumulator([0, 1, 2, 9, 8]), accumulator([7, 4, 5, 6])]
    for one, two, three in itertools.permutations(parts):
        assert content(one.merge(two).merge(three)) == WHOLE
        assert content(one.merge(two.merge(three))) == WHOLE


def test_the_empty_accumulator_changes_nothing() -> None:
    everything, empty = accumulator(list(range(11))), Accumulator()
    assert content(everything.merge(empty)) == content(empty.merge(everything)) == WHOLE
    assert content(accumulator(list(range(11))).merge(accumulator([]))) == WHOLE


@pytest.mark.parametrize("cuts", [[1], [10], [2, 3], [5, 5, 9], list(range(1, 11))])
def test_uneven_shards_are_the_whole(cuts: list[int]) -> None:
    merged = Accumulator()
    for shard in np.split(np.random.default_rng(0).permutation(11), cuts):
        merged = merged.merge(accumulator(shard.tolist()))
    assert content(merged) == WHOLE


def test_merging_leaves_its_parts_alone() -> None:
    one, two = accumulator([1]), accumulator([2])
    before = content(one), content(two)
    one.merge(two)
    assert (content(one), content(two)) == before


def test_an_image_counted_twice_is_refused() -> None:
    merged = accumulator([0, 1]).merge(accumulator([1, 2]))
    with pytest.raises(ValueError, match="twice"):
        merged.cells()[0].join()


def test_a_missing_severity_is_one_cell() -> None:
    found = Accumulator()
    for image in ("a", "b"):
        found.add(Cell(severity=float("nan")), [image], {"trials": np.ones(1, dtype=np.int64)})
    found.add(Cell(severity=0.0), ["a"], {"trials": np.ones(1, dtype=np.int64)})
    assert [len(sums.join()[0]) for sums in found.cells()] == [2, 1]


def test_cells_without_a_severity_are_equal() -> None:
    """From Python 3.13 on, dataclasses compare field by field, and NaN does not equal itself."""
    one, other = (Cell("blocks.1", severity=float("nan")) for _ in range(2))
    assert one == other and {one: 1}[other] == 1
    assert one != Cell("blocks.1", severity=0.0) and one != Cell("blocks.2") and one != "blocks.1"


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"trials": np.ones(2, dtype=np.int64)}, "trials has 2 rows for 1 images"),
        ({"trials": np.ones(1, dtype=np.float32)}, "trials is float32"),
        ({"trials": np.ones(1, dtype=bool)}, "trials is bool"),
        ({"other": np.ones(1, dtype=np.int64)}, "other, trials"),
    ],
    ids=["length", "float32", "bool", "columns"],
)
def test_what_does_not_belong_to_the_sums_is_refused(columns: dict[str, np.ndarray], problem: str) -> None:
    found = Accumulator()
    found.add(Cell(), ["a"], {"trials": np.ones(1, dtype=np.int64)})
    with pytest.raises(ValueError, match=problem):
        found.add(Cell(), ["b"], columns)
