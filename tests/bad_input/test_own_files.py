"""Files that moeprobe wrote, changed by hand or damaged: each command says so in a sentence and opens nothing else."""

import csv
import io
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest

from moeprobe.errors import UserError
from moeprobe.results.csv_files import read_rows, read_texts, read_values
from moeprobe.results.finished import read_result
from moeprobe.studies.report.reading import read_runs
from tests.bad_input.trying import tried
from tests.commands import refused, run
from tests.security.slots import CHECKPOINT
from tests.studies.report.making import write_frames, write_overlay, write_run

MODELS = (CHECKPOINT, CHECKPOINT.with_name("digits-baseline-k2-seed0"))
LINES = {
    "match": ("match-ratio", *MODELS, "--limit", 4),
    "audit": ("audit", *MODELS, "--probes", "confidence", "--limit", 20, "--layers", "blocks.1"),
}
Rows = list[list[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run and an audit of two models."""
    root = tmp_path_factory.mktemp("finished")
    for name, line in LINES.items():
        done = run(*line, "--out", root / name)
        assert done.exit_code == 0, done.output
    return {name: root / name for name in LINES}


@pytest.fixture
def match(finished: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(finished["match"], tmp_path / "match")


@pytest.fixture
def audit(finished: dict[str, Path], tmp_path: Path) -> Path:
    return shutil.copytree(finished["audit"], tmp_path / "audit")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The real path of every file that is opened meanwhile."""
    paths, real = list[str](), os.open

    def noted(path: str, *arguments: int, **keywords: int) -> int:
        paths.append(os.path.realpath(path))
        return real(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", noted)
    return paths


def again(name: str, folder: Path) -> str:
    """The sentence that refuses to print a finished run again."""
    return refused(*LINES[name], "--out", folder)


def rows_of(content: bytes) -> Rows:
    return list(csv.reader(io.StringIO(content.decode(), newline="")))


def written(rows: Rows) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def with_cell(rows: Rows, column: str, cell: str) -> bytes:
    """A table with another cell in its last line."""
    *before, last = rows
    place = rows[0].index(column)
    return written([*before, [*last[:place], cell, *last[place + 1 :]]])


# What no column of its type may hold.
COUNT = ("", "nan", "-1", "6.5", "inf", "1e30", "x", "²", "1_000", "True")
WHOLE = ("0.5", "inf", "x", "1e30")
NUMBER = ("x", "inf", "-inf", "1e999", "1,5", "²")
TYPES = {
    "images": COUNT, "trials": COUNT, "top_k": WHOLE, "draw": WHOLE, "expert": WHOLE, "value": NUMBER, "ci_low": NUMBER,
    "severity": NUMBER, "seed": ("0.5", "inf", "x"), "train_seed": ("0.5", "inf", "x"),
}  # fmt: skip
# A file as a whole.
DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "one byte": lambda content: content[:1],
    "a null byte": lambda content: content.replace(b",", b",\0", 1),
    "UTF-16": lambda content: content.decode().encode("utf-16"),
    "no UTF-8": lambda content: content + b"\xff\n",
    "more cells than columns": lambda content: content.replace(b"\n", b",1\n").replace(b",1\n", b"\n", 1),
    "a column twice": lambda content: b"\n".join(b"0," * (i > 0) + line for i, line in enumerate(content.splitlines())),
}  # fmt: skip


def tables(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Ways in which a table of values is not as it was written."""
    rows = rows_of(content)
    for column, cells in TYPES.items():
        for cell in cells:
            yield f"{column}: {cell!r}", with_cell(rows, column, cell)
    yield "no line", written(rows[:1])
    for column in ("checkpoint", "layer", "metric", "value", "flag", "images", "ci_low"):
        place = rows[0].index(column)
        yield f"no {column}", written([row[:place] + row[place + 1 :] for row in rows])
        yield f"{column} twice", written([[*row, row[place]] for row in rows])
    yield "another checkpoint", with_cell(rows, "checkpoint", "renamed")
    for name, damage in DAMAGE.items():
        yield name, damage(content)


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("name", ["table.csv", "comparison.csv"])
def test_tables_of_values(match: Path, name: str) -> None:
    """Each way is refused, by a report and by whoever reads a finished run."""
    kinds = list(tables((match / name).read_bytes()))

    def reader(read: Callable[[Path], object]) -> Callable[[bytes], None]:
        def replaced(content: bytes) -> None:
            (match / name).write_bytes(content)
            read(match)

        return replaced

    tried(kinds, reader(read_result)).check(least=len(kinds))
    # A report shows a table without a metric, a value or a line as it is.
    tried(kinds, reader(lambda folder: read_runs([folder]))).check(least=len(kinds) - 4)


def test_a_table_reads_as_it_was_written(match: Path) -> None:
    table = read_values(match / "table.csv")
    assert table["images"].dtype == "int64" and set(table["images"]) == {2, 3, 4}
    assert table["draw"].dtype == "Int64" and table["value"].dtype == float
    (match / "long.csv").write_text("seed,checkpoint\n" + "9" * 30 + ",nan\n")
    long = read_values(match / "long.csv")
    assert str(long["seed"][0]) == "9" * 30 and long["checkpoint"][0] == "nan"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_what_a_spreadsheet_put_before_a_table_is_no_part_of_it(match: Path, end: bytes) -> None:
    path = match / "table.csv"
    before, result = path.read_bytes(), read_result(match)
    path.write_bytes(b"\xef\xbb\xbf" + before.replace(b"\n", end))
    pd.testing.assert_frame_equal(read_values(path), result.table)
    pd.testing.assert_frame_equal(read_result(match).table, result.table)
    assert read_texts(path).columns[0] == read_rows(path, texts=["run"]).columns[0] == "run"


@pytest.mark.parametrize(
    ("save", "words"),
    [
        (lambda text: text.replace(",", ";").encode("utf-8-sig"), "semicolons separate its columns"),
        (lambda text: text.replace(",", "\t").encode(), "tabs separate its columns"),
        (
            lambda text: text.replace(",", "\t").encode("utf-16"),
            "it is in UTF-16, as some spreadsheets save it",
        ),
    ],
)
def test_what_a_spreadsheet_saved_otherwise_is_named(
    match: Path, save: Callable[[str], bytes], words: str
) -> None:
    path = match / "table.csv"
    path.write_bytes(save(path.read_text(encoding="utf-8")))
    for read in (read_values, read_texts, lambda path: read_result(path.parent)):
        with pytest.raises(UserError, match=rf"table\.csv is not as moeprobe wrote it \({words}"):
            read(path)


@pytest.mark.parametrize("cell", ["", "inf", "x"])
@pytest.mark.parametrize("column", ["images", "value"])
def test_the_same_command_and_a_report(match: Path, tmp_path: Path, column: str, cell: str) -> None:
    rows = rows_of((match / "table.csv").read_bytes())
    if (column, cell) != ("value", ""):
        (match / "table.csv").write_bytes(with_cell(rows, column, cell))
        said = "table.csv is not as moeprobe wrote it"
        assert said in again("match", match) and said in refused("report", match, "--out", tmp_path / "out")


@pytest.mark.parametrize("size", [0, 1, 32, -1])
def test_sums_that_are_cut(match: Path, size: int) -> None:
    content = (match / "images.parquet").read_bytes()
    (match / "images.parquet").write_bytes(content[:size])
    said = "images.parquet is not as moeprobe wrote it"
    assert said in again("match", match) and said in refused("compare", match)


@pytest.mark.parametrize("checkpoints", [{}, {"renamed": {}}])
def test_sums_of_checkpoints_that_the_sidecar_does_not_name(
    match: Path, checkpoints: dict[str, object]
) -> None:
    content = json.loads((match / "table.json").read_text())
    (match / "table.json").write_text(json.dumps(content | {"checkpoints": checkpoints}))
    assert "which table.json does not name" in refused("compare", match)
    assert "which table.json does not name" in again("match", match)


@pytest.mark.parametrize(
    ("column", "cell"), [("draw", "1"), ("null", "x"), ("tokens", "prefix"), ("metric", "x")]
)
def test_a_table_without_any_row_that_is_shown(match: Path, column: str, cell: str) -> None:
    """Values that moeprobe could have written: the run is printed, be it without a line, or refused."""
    rows = rows_of((match / "table.csv").read_bytes())
    place = rows[0].index(column)
    changed = [rows[0], *[[*row[:place], cell, *row[place + 1 :]] for row in rows[1:]]]
    (match / "table.csv").write_bytes(written(changed))
    printed = run(*LINES["match"], "--out", match)
    assert printed.exit_code in (0, 2), printed.output


OVERLAY = {
    "severity": ("", "inf", "x"),
    "row": ("x", "0.5"),
    "column": ("",),
    "perturbed_expert": ("x", "1.5", "inf"),
}


@pytest.mark.parametrize(
    ("column", "cell"), [(name, cell) for name, cells in OVERLAY.items() for cell in cells]
)
def test_patches_of_an_overlay(tmp_path: Path, column: str, cell: str) -> None:
    folder = write_frames(tmp_path / "run")
    header = [
        "checkpoint",
        "layer",
        "image_id",
        "severity",
        "row",
        "column",
        "perturbed_expert",
        "compared",
        "changed",
    ]
    rows = [
        header,
        *[
            ["a", "blocks.3", "test/0", severity, "0", "0", "1", "True", "True"]
            for severity in ("0.0", "0.2")
        ],
    ]
    (folder / "patches.csv").write_bytes(written(rows))
    assert run("report", folder, "--out", tmp_path / "right").exit_code == 0
    (folder / "patches.csv").write_bytes(with_cell(rows, column, cell))
    assert f"patches.csv is not as moeprobe wrote it ({column} " in refused(
        "report", folder, "--out", tmp_path / "out"
    )


SHARES = [
    ["checkpoint", "layer", "tokens", "class", "expert", "value", "ci_low", "ci_high", "images", "trials"],
    ["a", "blocks.3", "patch", "7", "1", "0.5", "", "", "4", "64"],
]


@pytest.mark.parametrize(
    ("column", "cell"), [("ci_low", "x"), ("value", ""), ("images", "inf"), ("trials", "0.5")]
)
def test_shares_of_classes(tmp_path: Path, column: str, cell: str) -> None:
    """Those of few images have no interval, and are shown beside an overlay."""
    folders = write_run(tmp_path / "run", "routes"), write_overlay(tmp_path / "overlay")
    path = folders[0] / "classes.csv"
    path.write_bytes(written(SHARES))
    assert run("report", *folders, "--out", tmp_path / "right").exit_code == 0
    for content in (with_cell(SHARES, column, cell), written([row[1:] for row in SHARES])):
        path.write_bytes(content)
        assert "classes.csv is not as moeprobe wrote it" in refused(
            "report", *folders, "--out", tmp_path / "out"
        )


@pytest.mark.parametrize("name", ["../match", "/etc", "..", "", "match\0", "a\\b", "link", "\ud800"])
@pytest.mark.parametrize("key", ["runs", "folders"])
def test_an_audit_names_no_run_outside(
    audit: Path, match: Path, opened: list[str], key: str, name: str
) -> None:
    (audit / "link").symlink_to(match)
    content = json.loads((audit / "table.json").read_text())
    (audit / "table.json").write_text(json.dumps(content | {key: [name]}))
    said = again("audit", audit)
    assert ("leads out of" if name == "link" else "it is no name of a folder inside") in said
    assert audit.name in " ".join(opened) and not [path for path in opened if path.startswith(str(match))]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("table.json", b'{"request": {"kind": "audit"}}'),
        ("verdicts.csv", b"property\ncrops\n"),
        ("verdicts.csv", b""),
        ("audit.html", b"\xff"),
        ("confidence/table.csv", b"\xff"),
        ("confidence/table.json", b"[]"),
    ],
)
def test_files_of_a_finished_audit(audit: Path, name: str, content: bytes) -> None:
    (audit / name).write_bytes(content)
    assert f"{name} is not as moeprobe wrote it" in again("audit", audit)


@pytest.mark.parametrize("column", ["images", "trials", "value", "property"])
def test_verdicts_of_a_finished_audit(audit: Path, column: str) -> None:
    rows = rows_of((audit / "verdicts.csv").read_bytes())
    (audit / "verdicts.csv").write_bytes(with_cell(rows, column, "x"))
    assert "verdicts.csv is not as moeprobe wrote it" in again("audit", audit)


@pytest.mark.parametrize(
    "content",
    ['""', "[]", "{", '{"steps": [{"probe": "confidence"}], "left_out": {}, "available": 8}', "\xff"],
)
def test_the_plan_of_an_interrupted_audit(audit: Path, content: str) -> None:
    for name in ("table.json", "audit.html"):
        (audit / name).unlink()
    (audit / "plan.json").write_text(content, encoding="latin-1")
    said = again("audit", audit)
    assert "plan.json" in said and "_Plan" not in said


def test_links_to_themselves(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    (folder / "figures/loop.png").symlink_to("loop.png")
    (tmp_path / "loop").symlink_to("loop")
    assert "Cannot read" in refused("report", folder, "--out", tmp_path / "out")
    assert "There is no folder" in refused("report", tmp_path / "loop", "--out", tmp_path / "out")
    for line in (("compare",), ("curves",), ("merge", "--out", tmp_path / "merged")):
        assert "loop" in refused(*line, tmp_path / "loop")


def test_digits_that_are_no_number(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", pictures=("1²2.png", "1.png"))
    [read] = read_runs([folder])
    assert [picture.name for picture in read.pictures] == ["1.png", "1²2.png"]
