"""More images than are held at once: the same table however they are cut, and what it says of them."""

from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from benchmarks.speed.made_up import ABOUT, ANALYSES, Size, write
from moeprobe.errors import UserError
from moeprobe.judging import differences
from moeprobe.judging.summarize import summarize
from moeprobe.metrics import nulls
from moeprobe.metrics.analyses.set_match import SetMatch
from moeprobe.metrics.stats.chance.trials import Tokens, Trials, within_image
from moeprobe.metrics.stats.statistic import ImageCache, Share
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results import stored, stored_cell
from moeprobe.results.stored import SumsStore, concat_parts, of_file, of_table, spill
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from moeprobe.results.values import Evaluator
from moeprobe.runtime import parquet
from moeprobe.runtime.files import version_of, write_csv

IMAGES = 2300


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sums") / "sums.parquet"
    write(path, Size(IMAGES, patches=6, layers=2, severities=2, top_k=2))
    return path


def tables(sums: SumsStore) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    analyses = make_analyses(ANALYSES)
    table, comparison = summarize(sums, analyses=analyses, run_info=ABOUT)
    assert comparison is not None
    judged = differences.compare(
        sums, analyses=analyses, run_info=ABOUT, selected_pairs=[("b", "a")], margin=0.02
    )
    return table, comparison, judged


@pytest.mark.slow
@pytest.mark.promise
def test_any_chunks_give_the_same_bytes(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = tables(of_file(path))
    monkeypatch.setattr(stored_cell, "BLOCK_IMAGES", 97)
    monkeypatch.setattr(stored, "GROUP", 1000)
    # In row groups of another size, and the last images first.
    stored.write(tmp_path / "other.parquet", of_table(of_file(path).table()))
    others = SumsStore(replace(one, chunks=one.chunks[::-1]) for one in of_file(tmp_path / "other.parquet"))
    assert {len(one.chunks) for one in others} == {3}
    for number, (one, other) in enumerate(zip(expected, tables(others), strict=True)):
        for name, table in (("one", one), ("other", other)):
            write_csv(tmp_path / f"{name}-{number}.csv", table)
        assert (tmp_path / f"one-{number}.csv").read_bytes() == (
            tmp_path / f"other-{number}.csv"
        ).read_bytes()


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("images", [IMAGES, 50])
def test_any_number_of_processes_gives_the_same_bytes(
    images: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linearized and resampled."""
    write(tmp_path / "sums.parquet", Size(images, patches=6, layers=2, severities=2, top_k=2))
    texts: list[list[bytes]] = []
    for number in (1, 2, 3):
        monkeypatch.setattr(stored, "usable", lambda number=number: number)
        monkeypatch.setattr(stored, "ROWS_OF_ONE_PROCESS", 0)
        sums = of_file(tmp_path / "sums.parquet")
        assert sums.processes == number
        texts.append([])
        for table in tables(sums):
            write_csv(tmp_path / "table.csv", table)
            texts[-1].append((tmp_path / "table.csv").read_bytes())
    assert texts[0] == texts[1] == texts[2]


def test_few_sums_are_left_to_one_process(path: Path) -> None:
    assert of_file(path).num_rows < stored.ROWS_OF_ONE_PROCESS and of_file(path).processes == 1


def test_spilled_sums_are_those_in_memory(tmp_path: Path) -> None:
    write(tmp_path / "sums.parquet", Size(20, patches=6, layers=2, severities=2, top_k=2))
    sums = of_table(of_file(tmp_path / "sums.parquet").table())
    moved = spill(tmp_path / "sums.arrow", sums, {})
    assert moved.table() == sums.table()
    for cell, other in zip(moved, sums, strict=True):
        assert (cell.checkpoint, cell.cell, cell.names()) == (other.checkpoint, other.cell, other.names())


def test_small_chunks_are_read_as_blocks(tmp_path: Path) -> None:
    """Statistics would take as long of each chunk as of a whole block."""
    write(tmp_path / "sums.parquet", Size(60, patches=6, layers=1, severities=1, top_k=2))
    table = of_table(of_file(tmp_path / "sums.parquet").table()).table()
    parts = [of_table(table.filter(pa.array(np.arange(table.num_rows) % 4 == part))) for part in range(4)]
    sums = concat_parts(parts, in_files=True)
    for cell in sums:
        assert len(cell.chunks) == 4
        ((rows, columns),) = cell.blocks()
        names = cell.names()
        assert rows == slice(0, len(names))
        ordered, expected = cell.load_all()
        assert sorted(names) == ordered
        for name, values in columns.items():
            np.testing.assert_array_equal(values[stored_cell.in_order(names)], expected[name])


def test_shares_of_single_experts_are_resampled_where_a_difference_follows(tmp_path: Path) -> None:
    write(tmp_path / "sums.parquet", Size(30, patches=6, layers=1, severities=1, top_k=2))
    cell = next(iter(of_file(tmp_path / "sums.parquet")))
    every, some = (
        Evaluator(make_analyses(ANALYSES), aligned=True, seed=0, paired_experts=paired)(cell).numbers
        for paired in (None, False)
    )
    assert every.keys() == some.keys()
    of_experts = [name for name in every if name.expert is not None and len(every[name].values)]
    assert of_experts
    assert not any(len(some[name].values) for name in of_experts)
    for name in every:
        # As tuples of the same NaN: records compare field by field from Python 3.13 on.
        np.testing.assert_equal(astuple(some[name].interval()), astuple(every[name].interval()))
        if name.expert is None:
            np.testing.assert_equal(some[name].values, every[name].values)


def test_a_file_that_is_replaced_while_it_is_read_is_refused(tmp_path: Path) -> None:
    """What was said of its row groups is of what was there before."""
    path, other = tmp_path / "sums.parquet", tmp_path / "other.parquet"
    for to, images in ((path, 30), (other, 40)):
        write(to, Size(images, patches=6, layers=2, severities=2, top_k=2))
    cell = next(iter(of_file(path)))
    parquet.open_parquet.cache_clear()
    other.replace(path)
    with pytest.raises(
        UserError, match=r"sums\.parquet was replaced while it was read; repeat the command\."
    ):
        cell.load_all()
    assert next(iter(of_file(path))).num_images == 40


def test_damage_in_rows_that_cells_share_is_one_sentence(tmp_path: Path) -> None:
    """What says which cells there are is whole."""
    path = tmp_path / "sums.parquet"
    write(path, Size(30, patches=6, layers=2, severities=2, top_k=2))
    group = parquet.open_parquet(path, version_of(path)).metadata.row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    column = next(each for each in columns if each.path_in_schema.split(".")[0] not in stored_cell.KEYS)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start : start + column.total_compressed_size] = b"\xa5" * column.total_compressed_size
    path.write_bytes(content)
    cell = next(iter(of_file(path)))
    with pytest.raises(
        UserError, match=r"sums\.parquet is not as moeprobe wrote it \(.*; run its command again"
    ):
        cell.load_all()


def test_numbers_of_an_image_are_computed_once_and_blocks_read_twice(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = next(iter(of_file(path)))
    computed: list[str] = []

    def once(cache: ImageCache, name: str, compute: Callable[[], object]) -> object:
        computed.append(name)
        return compute()

    def counted(trials: Trials, tokens: Tokens) -> Share:
        computed.append("inside")
        return within_image(trials, tokens)

    evaluate = Evaluator(make_analyses(ANALYSES), aligned=True, seed=0, largest=0)
    numbers = evaluate(cell).numbers
    with monkeypatch.context() as context:
        context.setattr(ImageCache, "once", once)
        expected = evaluate(cell).numbers
    assert numbers.keys() == expected.keys()
    for name, one in numbers.items():
        np.testing.assert_equal(astuple(one), astuple(expected[name]))
    # In each block of either pass, and of no images that are resampled.
    both_passes = computed.count("inside")
    computed.clear()
    monkeypatch.setattr(nulls, "within_image", counted)
    evaluate(cell)
    assert len(computed) == both_passes // 2 >= 3


def test_values_are_those_of_all_images_at_once_and_their_intervals_about_those_of_resamples(
    path: Path,
) -> None:
    cell = list(of_file(path))[1]
    linear, resampled = (
        Evaluator(make_analyses(ANALYSES), aligned=True, seed=0, largest=largest)(cell).numbers
        for largest in (2000, IMAGES)
    )
    assert linear.keys() == resampled.keys() and len(linear) > 20
    for name, one in linear.items():
        other = resampled[name]
        assert one.point == pytest.approx(other.point, rel=1e-9), name
        assert (one.images, one.trials) == (other.images, other.trials) == (IMAGES, other.trials)
        if name[0] == "load_entropy" or (name[1] == "pooled" and name[0].endswith("chance")):
            continue  # At their end, where resamples are off to one side.
        intervals = one.interval(), other.interval()
        assert intervals[0].method in ("score", "linearized") and intervals[1].method in (
            "score",
            "percentile",
        )
        widths = [interval.high - interval.low for interval in intervals]
        # 2,000 resamples know the width of a percentile interval to about 4 %.
        assert widths[0] == pytest.approx(widths[1], rel=0.16), name
        middle = np.mean([intervals[1].low, intervals[1].high])
        assert np.mean([intervals[0].low, intervals[0].high]) == pytest.approx(middle, abs=0.1 * widths[1]), (
            name
        )


def test_the_table_says_how_its_intervals_were_computed(path: Path) -> None:
    table, comparison, judged = tables(of_file(path))
    assert set(table["interval"]) == {"score", "linearized"} and set(comparison["interval"]) == {"linearized"}
    assert (table["images"] == IMAGES).all()
    # The second checkpoint is made to keep its experts in 0.01 more of all patches.
    moved = judged[(judged["metric"] == "top1_match_kappa") & (judged["severity"] > 0)]
    assert (moved["sim_low"] < 0.01).all() and (moved["sim_high"] > 0.005).all()
    assert (moved["se"] > 0).all() and (
        moved["family_cells"] == 2
    ).all()  # two layers; nothing differs at severity 0


def test_sets_of_any_size_are_measured_in_some_of_the_images() -> None:
    rng = np.random.default_rng(0)
    names = [f"{number:05d}" for number in range(IMAGES)]
    parts = []
    for checkpoint in "ab":
        sums = Accumulator()
        words = rng.integers(0, 8, (2, IMAGES, 3)).astype(np.int32)
        words[1] = np.where(rng.random((IMAGES, 3)) < 0.6, words[0], words[1])
        columns = {
            "label": np.zeros(IMAGES, dtype=np.int64), "set_pairs": np.full(IMAGES, 3),
            "experts": np.full(IMAGES, 3), "unmoved": np.ones(IMAGES, dtype=np.int64),
            "unserved_both": ((words == 0).all(0)).sum(1), "reference_set_0": words[0], "view_set_0": words[1],
        }  # fmt: skip
        sums.add(Cell("blocks.1", "expert_choice", 0, "gaussian_noise", 0.1, 0, "patch"), names, columns)
        parts.append(of_table(image_table(sums, checkpoint=checkpoint)))
    about = About("run", "data", "test", 0, aligned=True, train_seeds={}, groups={})
    table, comparison = summarize(stored.concat(parts), analyses=(SetMatch(),), run_info=about)
    images = table.set_index(["metric", "null"])["images"]
    assert (images["set_jaccard"] > 2000).all() and (images["unserved_both"] == IMAGES).all()
    assert (images["set_jaccard_kappa", "position"] <= 2000).all()
    kappa = table[(table["metric"] == "set_jaccard_kappa") & (table["null"] == "pooled")]
    assert (
        kappa["value"].between(0.5, 0.65).all()
        and (kappa["ci_high"] - kappa["ci_low"]).between(0.01, 0.06).all()
    )
    assert comparison is not None and not comparison["ci_low"].isna().any()
