"""What a report writes, where, and what it never writes over; the same runs give the same bytes."""

import json
import re
from pathlib import Path
from urllib.parse import unquote

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import RunWarning, UserError
from moeprobe.studies.report.reading import read_runs as reading
from tests.commands import Trained, names_in, refused, run
from tests.studies.report.page import Page


def test_the_same_runs_give_the_same_bytes_wherever_they_lie(runs: list[Path], tmp_path: Path) -> None:
    first = api.report(runs, out=tmp_path / "first")
    (tmp_path / "elsewhere").mkdir()
    moved = [path.rename(tmp_path / "elsewhere" / path.name) for path in runs]
    second = api.report(moved, out=tmp_path / "second")
    contents = [
        {path.relative_to(tmp_path / name): path.read_bytes() for path in document.files}
        for name, document in (("first", first), ("second", second))
    ]
    assert contents[0] == contents[1]
    assert len(contents[0]) == 2 + 5 + 1 + 4  # report.html, report.md; CSVs; a figure; frames and their strip
    assert str(tmp_path).encode() not in contents[0][Path("report.html")]


def test_what_is_written(runs: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("report", *runs, "--out", out)
    assert result.exit_code == 0, result.output
    assert "0.549 [0.526, 0.571]" in result.output and f"Written to {out}/" in result.output
    assert names_in(out) == {"report.html", "report.md", "report-files"}
    markdown = (out / "report.md").read_text()
    targets = re.findall(r"\]\((report-files/[^)]*)\)", markdown)
    assert {out / unquote(target) for target in targets} == {
        path for path in (out / "report-files").rglob("*") if path.is_file()
    }
    assert (out / "report-files" / "1-match" / "table.csv").read_bytes() == (
        runs[0] / "table.csv"
    ).read_bytes()
    (out / "mine.txt").write_text("mine")
    assert "add --overwrite" in refused("report", runs[1], "--out", out)
    result = run("report", runs[1], "--out", out, "--overwrite", "--json")
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [line["value"] for line in printed["headlines"]] == pytest.approx([0.972, 0.975, 0.003])
    assert printed["files"][:2] == [str(out / "report.html"), str(out / "report.md")]
    assert {path.name for path in (out / "report-files").iterdir()} == {"1-eval"}
    assert (out / "mine.txt").read_text() == "mine"


def test_an_interrupted_report_goes_on(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another is asked for; what is somebody else's in the folder stays."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with monkeypatch.context() as patch:

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr("moeprobe.studies.report.write_text", stop)
        assert run("report", *runs, "--out", out).exit_code == 130
    assert names_in(out) == {"report-files", "mine.txt"}
    (out / "report-files" / "mine.txt").write_text("mine")
    assert run("report", runs[1], "--out", out).exit_code == 0
    assert names_in(out) == {"report.html", "report.md", "report-files", "mine.txt"}
    assert {path.name for path in (out / "report-files").iterdir()} == {"1-eval", "mine.txt"}


def test_a_report_that_another_process_made_meanwhile_stays(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def meanwhile(paths: list[Path], names: list[str] | None) -> object:
        with monkeypatch.context() as patch:
            patch.setattr("moeprobe.studies.report.read_runs", reading)
            api.report(runs[0], out=out)
        return reading(paths, names=names)

    monkeypatch.setattr("moeprobe.studies.report.read_runs", meanwhile)
    with pytest.raises(UserError, match="is there already"):
        api.report(runs[1], out=out)
    monkeypatch.undo()
    assert (out / "report.html").read_text() == api.report(runs[0]).html


def test_the_same_report_is_finished(runs: list[Path], tmp_path: Path) -> None:
    arguments = ("report", *runs, "--out", tmp_path / "out")
    first = run(*arguments)
    assert first.exit_code == 0, first.output
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")}
    with pytest.warns(RunWarning, match="out is finished; add overwrite=True to repeat it"):
        again = run(*arguments)
    assert again.exit_code == 0 and again.stdout == first.stdout
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*")} == times
    assert "is there already; add --overwrite" in refused("report", runs[1], "--out", tmp_path / "out")


@pytest.mark.parametrize("name", ["report.html", "report.md", "report-files"])
@pytest.mark.parametrize("link", [True, False])
def test_a_report_is_not_written_over_what_is_none(
    runs: list[Path], tmp_path: Path, name: str, link: bool
) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    out.mkdir()
    if link:
        (out / name).symlink_to(mine)
    else:
        (out / name).write_text("mine")
    for more in ((), ("--overwrite",)):
        assert name in refused("report", runs[1], "--out", out, *more)
    assert not mine.exists() and names_in(out) == {name}


def test_a_report_is_not_put_into_a_run_or_onto_a_file(runs: list[Path], tmp_path: Path) -> None:
    for out in (runs[0], runs[0] / "deeper" / "still"):
        assert "is in the run" in refused("report", *runs, "--out", out, "--overwrite")
    (tmp_path / "file").touch()
    assert "is a file" in refused("report", *runs, "--out", tmp_path / "file")
    # Beside the runs is where it may well be wanted.
    assert run("report", *runs, "--out", runs[0].parent).exit_code == 0


def test_nothing_is_written_unless_asked(
    runs: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.chdir(tmp_path)
    assert api.report(runs).files == []
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.pictures
@pytest.mark.slow
def test_real_runs(trained: Trained, tmp_path: Path) -> None:
    """What the probes write is what the report reads."""
    for command in (
        ["match-ratio"],
        ["confidence"],
        ["noise-sweep", "--sigmas", "0,0.2", "--attribute"],
        ["eval"],
        ["overlay", "--count", 1],
    ):
        assert (
            run(*command, *trained.values(), "--limit", 24, "--out", tmp_path / str(command[0])).exit_code
            == 0
        )
    folders = [tmp_path / name for name in ("match-ratio", "confidence", "noise-sweep", "eval", "overlay")]
    document = api.report(folders)
    assert "**Noise floor**" in document.markdown
    assert "switching (experts)? Gates recomputed**" in document.markdown
    # And the pixels of the overlay, for its script.
    assert len(Page(document.html).all("img")) == 1 + 1 + 3 + 2 + 1
    for folder in folders[:4]:
        table = pd.read_csv(folder / "table.csv", dtype={"layer": str, "null": str}).fillna(
            {"layer": "", "null": ""}
        )
        told = document.headlines[
            (document.headlines["run"] == folder.name) & (document.headlines["reference"] == "")
        ]
        keys = [
            "checkpoint",
            "layer",
            "metric",
            "null",
            "severity",
            "value",
            "ci_low",
            "ci_high",
            "images",
            "trials",
        ]
        both = told.merge(table[table["tokens"] != "prefix"], on=keys)
        assert len(both) == len(told) >= 2
        assert set(told["layer"]) <= {"blocks.1", ""}
        for value in told["value"]:
            assert f"{value:.3f}" in document.markdown or (
                float(value).is_integer() and f"{value:.0f} [" in document.markdown
            )
