"""Sums per image survive the file, whatever stands in the cells beside them."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray

from moeprobe.results import stored, tables
from moeprobe.results.stored import SumsStore, concat, of_file, of_table, write
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, frame, image_table, read_note, with_rows
from moeprobe.runtime.files import write_csv
from tests.results.stores import cells, read_images

Sums = dict[str, NDArray[np.generic]]
NAMES = ["img/ü", "img/10", "img/9"]
IN_ORDER = ["img/10", "img/9", "img/ü"]


def columns(top_k: int, rows: int = 3, patches: int = 4, experts: int = 8) -> Sums:
    rng = np.random.default_rng(top_k)
    return {
        "trials": rng.integers(0, 9, rows),
        "gate_highest": rng.random(rows),
        "load": rng.integers(0, 9, (rows, experts)),
        "load_any": rng.integers(0, 9, (rows, experts)),
        "reference_selected": rng.integers(-1, experts, (rows, patches, top_k)).astype(np.int16),
    }


# Layers of different K, a cell without a layer and with other columns, a missing severity beside 0.
PLACED: list[tuple[Cell, Sums]] = [
    (Cell("blocks.1", "r", 1, "noise", 0.0, 0, "patch"), columns(1)),
    (Cell("blocks.3", "r", 3, "noise", 0.0, 0, "patch"), columns(3) | {"top3_match": np.arange(3)}),
    (Cell("blocks.3", "r", 2, "noise", 0.3, 0, "patch"), columns(2)),
    (Cell("blocks.3", "r", 2, "noise", np.nan, 0, "patch"), columns(2, patches=1)),
    (
        Cell("", "", 0, "noise", 0.3, 0, ""),
        {"loss": np.array([0.1, np.nan, np.inf]), "predicted": np.ones(3, int)},
    ),
]


def accumulated(rows: slice = slice(None)) -> Accumulator:
    found = Accumulator()
    for cell, sums in PLACED:
        found.add(cell, NAMES[rows], {name: column[rows] for name, column in sums.items()})
    return found


def assert_complete(images: SumsStore | pa.Table) -> None:
    found = list(cells(images))
    assert [cell.key() for _, cell, _, _ in found] == [cell.key() for cell, _ in PLACED]
    for (checkpoint, cell, names, got), (_, expected) in zip(found, PLACED, strict=True):
        assert checkpoint == "a" and names == IN_ORDER
        assert type(cell.top_k) is int and type(cell.layer) is str
        assert not np.signbit(cell.severity) or np.isnan(cell.severity)  # -0 is what a table would show
        assert got.keys() == expected.keys()
        for name, column in expected.items():
            sorted_column = column[[NAMES.index(image) for image in IN_ORDER]]
            assert got[name].dtype == column.dtype, name
            assert np.array_equal(got[name], sorted_column, equal_nan=name == "loss"), name


def test_cells_of_all_kinds_come_back(tmp_path: Path) -> None:
    images = image_table(accumulated(), checkpoint="a")
    assert_complete(images)
    write(tmp_path / "images.parquet", of_table(images))
    assert_complete(read_images(tmp_path / "images.parquet"))


def test_small_cells_share_a_row_group_and_large_ones_do_not(tmp_path: Path) -> None:
    small = image_table(accumulated(), checkpoint="a")
    write(tmp_path / "small.parquet", of_table(small))
    assert pq.read_metadata(tmp_path / "small.parquet").num_row_groups == 1
    found = Accumulator()
    found.add(Cell("blocks.5", "r", 1), NAMES, columns(1, patches=100_000))
    large = image_table(found, checkpoint="a")
    write(tmp_path / "both.parquet", of_table(concatenate([small, large])))
    assert pq.read_metadata(tmp_path / "both.parquet").num_row_groups == 2
    assert_complete(of_file(tmp_path / "both.parquet").select(lambda stored: stored.cell.layer != "blocks.5"))


def test_a_file_whose_cells_lie_in_any_order_is_read(tmp_path: Path) -> None:
    images = image_table(accumulated(), checkpoint="a")
    first = [number * len(NAMES) for number in range(len(PLACED))]
    mixed = [*first, *(row for row in reversed(range(images.num_rows)) if row not in first)]
    pq.write_table(images.take(pa.array(mixed)), tmp_path / "images.parquet")
    assert_complete(of_file(tmp_path / "images.parquet"))


def test_shards_give_the_bytes_of_the_whole(tmp_path: Path) -> None:
    whole = of_table(image_table(accumulated(), checkpoint="a"))
    write(tmp_path / "whole.parquet", whole)
    parts: list[SumsStore] = []
    for number, rows in enumerate((slice(2, 3), slice(0, 2))):
        path = tmp_path / f"part-{number}.parquet"
        write(path, of_table(image_table(accumulated(rows), checkpoint="a")), note={"part": number})
        assert read_note(path) == {"part": number}
        parts.append(of_file(path))
        assert parts[-1].table().schema.equals(whole.table().schema, check_metadata=True)
    # One part from its file, one from memory, as after an interruption.
    second = of_table(image_table(accumulated(slice(0, 2)), checkpoint="a"))
    for shards in (parts, [parts[0], second]):
        merged = concat(shards)
        assert_complete(merged)
        write(tmp_path / "merged.parquet", merged)
        assert (tmp_path / "merged.parquet").read_bytes() == (tmp_path / "whole.parquet").read_bytes()


def test_a_file_of_before_whose_row_groups_hold_several_cells_is_read(tmp_path: Path) -> None:
    images = image_table(accumulated(), checkpoint="a")
    pq.write_table(images, tmp_path / "images.parquet", row_group_size=4)
    assert_complete(of_file(tmp_path / "images.parquet"))


def test_checkpoints_of_different_depth_share_a_table() -> None:
    small = Accumulator()
    small.add(Cell("blocks.1", "r", 1), ["x"], {"trials": np.ones(1, int)})
    both = concatenate([image_table(accumulated(), checkpoint="a"), image_table(small, checkpoint="b")])
    found = list(cells(both))
    assert [checkpoint for checkpoint, *_ in found] == ["a"] * len(PLACED) + ["b"]
    assert list(found[-1][3]) == ["trials"]
    assert found[0][3].keys() == PLACED[0][1].keys()


def test_an_image_in_two_parts_is_refused() -> None:
    table = image_table(accumulated(), checkpoint="a")
    with pytest.raises(ValueError, match="twice"):
        list(cells(concatenate([table, table.slice(0, 1)])))


def test_nothing_is_sums_too(tmp_path: Path) -> None:
    empty = of_table(concatenate([image_table(Accumulator(), checkpoint="a")]))
    assert empty.num_rows == 0
    write(tmp_path / "empty.parquet", empty, note={"skipped": ["x"]})
    assert read_note(tmp_path / "empty.parquet") == {"skipped": ["x"]}
    full = of_table(image_table(accumulated(), checkpoint="a"))
    both = concat([of_file(tmp_path / "empty.parquet"), full])
    assert_complete(both)


def test_a_table_has_all_columns_and_empty_cells_where_there_is_nothing(tmp_path: Path) -> None:
    table = tables.frame(
        [{"checkpoint": "a", "train_seed": None, "top_k": 2, "value": 1 / 3, "trials": 10**12}]
    )
    assert list(table.columns) == list(tables.COLUMNS)
    write_csv(tmp_path / "table.csv", table)
    again = pd.read_csv(tmp_path / "table.csv", dtype=str, keep_default_na=False).iloc[0]
    assert (again["value"], again["trials"], again["train_seed"], again["flag"]) == (
        "0.3333333333", "1000000000000", "", "",
    )  # fmt: skip
    comparison = tables.frame([], judged=True)
    assert list(comparison.columns)[1:3] == ["checkpoint", "reference"]


def test_draws_are_put_together_image_by_image() -> None:
    rng = np.random.default_rng(0)
    right, chosen = rng.integers(0, 2, (2, 3, 3)), rng.integers(0, 9, (2, 3, 3, 1))
    load = rng.integers(0, 9, (2, 3, 3, 4))
    parts = []
    for checkpoint in "ab":
        sums = Accumulator()
        for severity in (1.0, 5.0):
            for draw in (1, 2, 3):
                one = int(severity == 5), draw - 1
                order = rng.permutation(3)  # rows may stand in any order
                sums.add(
                    Cell(view="clean", severity=severity, draw=draw),
                    np.array(NAMES)[order].tolist(),
                    {
                        "label": order,
                        "right": right[one][order],
                        "chosen": chosen[one][order],
                        "load": load[one][order],
                    },
                )
        sums.add(Cell(view="clean"), NAMES, {"label": np.arange(3), "right": np.ones(3, int)})
        parts.append(image_table(sums, checkpoint=checkpoint))
    images = of_table(concatenate(parts))
    pooled = list(cells(images.pool_draws(lists=("chosen",))))
    by_name = [NAMES.index(image) for image in IN_ORDER]
    assert [(name, cell.draw) for name, cell, _, _ in pooled] == [(name, 0) for name in "aabbab"]
    for number, (_, cell, names, columns) in enumerate(pooled[:4]):
        assert names == IN_ORDER and cell.severity == (1.0, 5.0)[number % 2]
        assert columns["label"].tolist() == by_name
        assert np.array_equal(columns["right"], right[number % 2].sum(0)[by_name])
        assert np.array_equal(columns["chosen"], chosen[number % 2, :, by_name, 0])
        # A histogram is no list of trials: the draws of an expert add up.
        assert np.array_equal(columns["load"], load[number % 2].sum(0)[by_name])
    # What has no draws stays; with ``keep`` so do the single draws.
    assert all(columns["right"].tolist() == [1, 1, 1] for *_, columns in pooled[4:])
    kept = images.pool_draws(lists=("chosen",), keep_single=True)
    assert kept.num_rows == images.num_rows + 4 * 3
    assert list(cells(kept))[6:] != [] and {cell.draw for _, cell, _, _ in cells(kept)} == {0, 1, 2, 3}
    assert_complete(of_table(image_table(accumulated(), checkpoint="a")).pool_draws(lists=()))


def test_a_file_of_nothing_measured_has_no_columns(tmp_path: Path) -> None:
    """So that a part of a checkpoint to which nothing applies is told from one whose rows are gone."""
    stored.write(tmp_path / "nothing.parquet", stored.SumsStore([]))
    assert not stored.has_columns(tmp_path / "nothing.parquet")
    assert stored.of_file(tmp_path / "nothing.parquet").num_rows == 0


def test_rows_more_come_last_without_a_warning() -> None:
    table = frame([{"checkpoint": "a", "value": 0.5, "severity": None, "flag": "few_images"}])
    with warnings.catch_warnings():
        # Other releases of pandas than the pinned one warn of columns without values.
        warnings.simplefilter("error")
        both = with_rows(table, [{"checkpoint": "b", "value": 1.0, "severity": 0.3}])
    assert both["checkpoint"].tolist() == ["a", "b"] and both["value"].tolist() == [0.5, 1.0]
    assert both["severity"].isna().tolist() == [True, False] and both["severity"][1] == 0.3
    assert both["flag"][0] == "few_images" and both["flag"].isna().tolist() == [False, True]
    assert both["draw"].dtype == "Int64"
