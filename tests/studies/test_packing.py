"""Finished cells are packed into two files; whatever stops that in between loses none of them."""

import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moeprobe.results import finished as runs
from moeprobe.results.figures.tradeoff.rows import numbers_of
from moeprobe.results.packed import read_pack
from moeprobe.runtime.locks import Lock
from tests.commands import Trained, refused, run
from tests.studies.test_tradeoff import PACKED, unpack

MEASURE = (
    "measure.limit=24", "measure.views=[]", "measure.sigmas=[0.1]", "measure.shots=[]",
    "measure.contagion=false",
)  # fmt: skip
NAMES = ["baseline", "prc"]


@pytest.fixture(scope="module")
def out(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trade-off of two trainings, packed."""
    folder = tmp_path_factory.mktemp("packing") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("moeprobe.studies.tradeoff.run.draw_figures", lambda *_, **__: None)
        made = run("tradeoff", *trained.values(), *MEASURE, "--out", folder, "--device", "cpu")
    assert made.exit_code == 0, made.output
    return folder


@pytest.fixture
def copy(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("moeprobe.studies.tradeoff.run.draw_figures", lambda *_, **__: None)
    shutil.copytree(out, tmp_path / "out")
    return tmp_path / "out"


def content(out: Path) -> dict[str, bytes]:
    return {name: (out / name).read_bytes() for name in (*PACKED, "table.csv")}


def content_of_table(out: Path) -> bytes:
    return (out / "table.csv").read_bytes()


def again(out: Path) -> str:
    result = run("tradeoff", "--out", out)
    assert result.exit_code == 0 and "2 cells: 2 kept" in result.output, result.output
    return " ".join(result.output.split())


def files(out: Path) -> set[str]:
    return {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}


def test_two_files_are_left(out: Path) -> None:
    expected = {*PACKED, "run.json", "table.csv", "table.json", "paper.csv", ".moeprobe.files"}
    assert files(out) == expected
    assert list(read_pack(out)) == NAMES
    assert list(read_pack(out)["prc"].runs) == ["confidence", "eval", "noise"]
    images = runs.read(out / "cells" / "prc" / "noise").sums.table()
    # The table is about patches and the output, and not about the noise floor.
    assert set(images["tokens"].to_pylist()) == {"patch", ""}
    assert set(images["view"].to_pylist()) == {"gaussian_noise"}


def test_folders_of_the_old_form_are_read_and_packed(copy: Path) -> None:
    before = content(copy)
    unpack(copy)
    assert (copy / "cells" / "prc" / "noise" / "images.parquet").is_file()
    again(copy)
    after = content(copy)
    assert not (copy / "cells").exists()
    # The hashes are of the runs' own files, of which these hold fewer rows.
    assert before.pop("cells.json") != after.pop("cells.json") and before == after


def test_nothing_is_written_where_all_is_packed(copy: Path) -> None:
    before = [(copy / name).stat().st_mtime_ns for name in PACKED]
    again(copy)
    assert [(copy / name).stat().st_mtime_ns for name in PACKED] == before


def test_folders_stay_while_others_share_the_output_folder(copy: Path) -> None:
    before = content_of_table(copy)
    unpack(copy)
    with Lock(copy / ".moeprobe.lock", shared=True):
        said = again(copy)
        assert "cells/ (another process" in said and "cells.parquet and cells.json (what" not in said
        assert not (copy / "cells.json").exists()
        assert content_of_table(copy) == before
    assert "figures/, cells.parquet and cells.json (what" in again(copy)
    assert not (copy / "cells").exists()
    assert content_of_table(copy) == before


KILL = "lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)"
KILLED = {
    # What packing knows by these names, and nobody else.
    "before the Parquet file": f"packing.files = SimpleNamespace(**vars(packing.files) | {{'atomic_file': {KILL}}})",
    "between the files": f"packing.files = SimpleNamespace(**vars(packing.files) | {{'write_json': {KILL}}})",
    "before the folders go": f"packing.OutputFolder.discard = {KILL}",
    "amid the folders": "gone = []\n"
    "unlink = Path.unlink\n"
    "def third(path, **named):\n"
    "    if 'cells' in path.parts:\n"
    "        gone.append(path)\n"
    "    os.kill(os.getpid(), signal.SIGKILL) if len(gone) == 3 else unlink(path, **named)\n"
    "Path.unlink = third",
}


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("when", KILLED)
def test_killed_while_packing(copy: Path, when: str) -> None:
    before = content(copy)
    unpack(copy)
    code = (
        "import os, signal\nfrom pathlib import Path\nfrom types import SimpleNamespace\nfrom moeprobe import api\n"
        "from moeprobe.studies.tradeoff import packing, run\nrun.draw_figures = lambda *_: None\n"
        f"{KILLED[when]}\napi.tradeoff([], out={str(copy)!r})"
    )
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert killed.returncode == -9, killed.stderr
    again(copy)
    after = content(copy)
    assert {name: after[name] == before[name] for name in ("cells.parquet", "table.csv")} == {
        "cells.parquet": True,
        "table.csv": True,
    }
    assert files(copy) == {*PACKED, "run.json", "table.csv", "table.json", "paper.csv", ".moeprobe.files"}


def test_a_packed_run_is_reported_with_its_trade_off(copy: Path) -> None:
    said = refused("report", copy / "cells" / NAMES[0] / "noise")
    assert f"is packed into {copy}; report {copy}, or compare" in said


def test_the_figure_does_without_costs_that_are_not_known(copy: Path) -> None:
    """Of trainings whose folders hold no times."""
    found = pd.read_csv(copy / "table.csv", keep_default_na=False, na_values={"severity": [""], "draw": [""]})
    timed = found["metric"].isin(["step_seconds", "training_seconds", "training_steps"])
    assert timed.any() and "training_time" in numbers_of(found)
    rest = found[~timed]
    assert "training_time" not in numbers_of(rest) and numbers_of(rest)


def test_views_of_a_trade_off_have_no_parameters(trained: Trained, tmp_path: Path) -> None:
    views = "measure.views=['random_crop,first_area=[0.2,0.4]']"
    assert "takes views without parameters, e.g. random_crop" in refused(
        "tradeoff", *trained.values(), views, "--out", tmp_path / "out"
    )


def test_compare_takes_packed_runs_by_the_paths_of_their_folders(copy: Path, tmp_path: Path) -> None:
    pair = [copy / "cells" / name / "noise" for name in NAMES]
    found = []
    for number in (1, 2):
        result = run("compare", *pair, "--out", tmp_path / str(number) / "compare")
        assert result.exit_code == 0, result.output
        found.append(pd.read_csv(tmp_path / str(number) / "compare" / "comparison.csv"))
        if number == 1:
            unpack(copy)
    pd.testing.assert_frame_equal(*found)
    assert "accuracy" in set(found[0]["metric"]) and "top1_match_kappa" in set(found[0]["metric"])


def test_what_somebody_else_put_there_stays(copy: Path) -> None:
    unpack(copy)
    again(copy)  # with a record from here on
    for name in ("notes.txt", "eval/notes.txt"):
        (copy / "cells" / "prc" / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / "cells" / "prc" / name).write_text("mine")
    again(copy)
    assert {"cells/prc/notes.txt", "cells/prc/eval/notes.txt"} <= files(copy)


def test_a_column_of_another_type_leaves_the_folders(copy: Path) -> None:
    """Two versions of moeprobe may differ in it; folders are read as well."""
    before = content_of_table(copy)
    unpack(copy)
    path = copy / "cells" / "prc" / "eval" / "images.parquet"
    images = pq.read_table(path)
    place = images.column_names.index("accuracy")
    other = pa.int32() if pa.types.is_integer(images["accuracy"].type) else pa.float32()
    pq.write_table(images.set_column(place, "accuracy", images["accuracy"].cast(other)), path)
    again(copy)
    assert not (copy / "cells.json").exists() and path.is_file()
    assert content_of_table(copy) == before


@pytest.mark.parametrize(
    ("name", "damaged", "said"),
    [
        ("cells.json", b"{", "is not JSON"),
        (
            "cells.json",
            b'{"cells": {"prc": {"about": {}, "runs": []}}}',
            "is not as moeprobe wrote it (cells.prc.runs: ",
        ),
        ("cells.parquet", b"PAR1", "cells.parquet is not as moeprobe wrote it"),
        ("cells.parquet", None, "cells.parquet is missing, which cells.json next to it belongs to"),
    ],
)
def test_damage_is_one_sentence(copy: Path, name: str, damaged: bytes | None, said: str) -> None:
    (copy / name).unlink()
    if damaged is not None:
        (copy / name).write_bytes(damaged)
    assert said in refused("tradeoff", "--out", copy)


def test_rows_that_are_missing_are_noticed(copy: Path) -> None:
    images = pq.read_table(copy / "cells.parquet")
    pq.write_table(images.slice(0, images.num_rows - 1), copy / "cells.parquet")
    assert "rows of prc/noise instead of" in refused("tradeoff", "--out", copy)
