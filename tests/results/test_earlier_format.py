"""Runs from before metrics of load counted all K choices: their numbers have the names of now, or are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe.results.earlier_format import is_earlier, with_present_names
from moeprobe.results.finished import read_result
from moeprobe.results.sidecars import provenance
from moeprobe.results.stored import concat, of_table
from moeprobe.results.stored_cell import DamagedSumsError, StoredCell
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import frame, image_table
from moeprobe.studies.report.reading import read_runs
from tests.studies.report.making import row, sidecar, write_rows

EARLIER = ("load_entropy", "dead_experts", "expert_share", "expert_share_any", "max_violation", "top1_match")
PRESENT = {
    1: ["load_entropy", "dead_experts", "expert_share", "expert_share", "max_violation", "top1_match"],
    2: [
        "load_entropy_first", "dead_experts_first", "expert_share_first", "expert_share", "max_violation_first",
        "top1_match",
    ],
}  # fmt: skip


def rows(top_k: int, metrics: tuple[str, ...] = EARLIER) -> list[dict[str, Any]]:
    about: dict[str, Any] = {"group": "", "router": "softmax", "view": "clean", "top_k": top_k}
    return [row("a", ("blocks.1", "patch", name, ""), (0.5, 0.4, 0.6), **about) for name in metrics]


@pytest.mark.parametrize("top_k", [1, 2])
def test_a_table_of_before_is_read_under_present_names(tmp_path: Path, top_k: int) -> None:
    path = write_rows(tmp_path / "run", "confidence", rows(top_k), checkpoints=["a"])
    assert read_result(path).table["metric"].tolist() == PRESENT[top_k]
    (run,) = read_runs([path])
    assert run.table is not None and run.table["metric"].tolist() == PRESENT[top_k]
    assert run.csvs["table.csv"]["metric"].tolist() == PRESENT[top_k]


@pytest.mark.parametrize("more", [{"format": 2}, {"format": 3}, {"format": "?"}])
def test_a_table_of_now_stays_as_it_is(tmp_path: Path, more: dict[str, Any]) -> None:
    metrics = ("load_entropy", "dead_experts", "max_violation")
    path = write_rows(tmp_path / "run", "confidence", rows(2, metrics), checkpoints=["a"], **more)
    assert read_result(path).table["metric"].tolist() == list(metrics)


def test_present_names_without_a_number_stay_and_so_does_another_table() -> None:
    table = frame(rows(2, ("load_entropy", "load_entropy_first")))
    assert with_present_names(table, {}) is table
    assert with_present_names(table.drop(columns="top_k"), {})["metric"].tolist() == list(table["metric"])
    assert is_earlier(sidecar("confidence", ["a"])) and not is_earlier(provenance())


def cell(name: str, *columns: str) -> StoredCell:
    accumulator = Accumulator()
    loads = {column: np.array([[2, 1]]) for column in columns}
    accumulator.add(Cell("blocks.1", "softmax", 2, tokens="patch"), [name], loads)
    (stored_cell,) = of_table(image_table(accumulator, checkpoint="a"))
    return stored_cell


@pytest.mark.parametrize("name", ["load", "balance"])
def test_first_choices_are_not_read_as_all_where_parts_of_before_and_after_meet(name: str) -> None:
    before, after = (
        of_table(part.chunks[0].table()) for part in (cell("x", name), cell("y", name, f"{name}_any"))
    )
    (mixed,) = concat([before, after])
    with pytest.raises(DamagedSumsError, match="count all choices as load, others the first"):
        mixed.load_all()
    with pytest.raises(DamagedSumsError, match="run the probe again"):
        list(mixed.blocks())
    assert f"{name}_of_first" in cell("x", name).load_all()[1]
    assert f"{name}_of_first" not in cell("y", name, f"{name}_any").load_all()[1]
