"""Where nothing differs, surfaces name a side as rarely as docs/concepts/interval-coverage.md says."""

import csv
from pathlib import Path

import numpy as np
import pytest

from benchmarks.exchanged import CSV, FIELDS, IMAGES, RUNS, SURFACES, exchange, experiment, prepare, rates
from moeprobe.judging.words import FALSE_SIDES
from moeprobe.results.finished import read


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare(tmp_path_factory.mktemp("runs"), ["match-ratio"], limit=60)["match-ratio"]


def error(runs: int) -> float:
    return float(np.sqrt(FALSE_SIDES * (1 - FALSE_SIDES) / runs))


def test_an_exchange_moves_whole_images_between_the_two_models(folder: Path) -> None:
    table = read(folder).sums.table()
    exchanged = exchange(table, 40, np.random.default_rng(0))
    names = set(exchanged["image_id"].to_pylist())
    assert len(names) == 40 and exchanged.num_rows * 60 == table.num_rows * 40
    rows = table.to_pandas().query(
        "image_id in @names and metric != ''" if "metric" in table.column_names else "image_id in @names"
    )
    moved = exchanged.to_pandas().merge(
        rows, on=["checkpoint", "layer", "tokens", "image_id"], suffixes=("", "_before")
    )
    same = (moved["top1_match"] == moved["top1_match_before"]).groupby(moved["image_id"]).all()
    assert 0 < same.sum() < 40, "some images stay, some move"


def test_every_surface_speaks_and_an_experiment_is_the_same_each_time(folder: Path) -> None:
    first = experiment(folder, 40, 3)
    assert set(first) == set(SURFACES) and first == experiment(folder, 40, 3)
    assert all(page.named for page in first.values())


@pytest.mark.slow
@pytest.mark.promise
def test_no_surface_names_more_false_sides_than_it_says(folder: Path) -> None:
    """Not above the nominal share by more than four standard errors of so few experiments."""
    runs = 40
    for row in rates("match-ratio", folder, 40, runs=runs, seed=1):
        assert row["share"] <= FALSE_SIDES + 4 * error(runs), row


def test_the_committed_shares_are_below_the_nominal_one() -> None:
    with CSV.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == FIELDS
    assert {(row["run"], int(row["images"])) for row in rows} == {(run, n) for run in RUNS for n in IMAGES}
    by_surface: dict[tuple[str, str], list[tuple[float, int]]] = {}
    for row in rows:
        runs = int(row["runs"])
        # Of fifty rows some are beyond two standard errors by chance.
        assert float(row["share"]) <= FALSE_SIDES + 3 * error(runs), row
        by_surface.setdefault((row["surface"], row["images"]), []).append((float(row["share"]), runs))
    for cells in by_surface.values():
        shares, runs_of = zip(*cells, strict=True)
        assert np.average(shares, weights=runs_of) <= FALSE_SIDES + 2 * error(sum(runs_of))
    assert max(float(row["plain"]) for row in rows) > 2 * FALSE_SIDES, "plain intervals name more"
