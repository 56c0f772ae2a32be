"""What checkpoints are called with --names: on the screen, in figures and reports; files keep their own names."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from moeprobe.errors import UserError
from moeprobe.results.folder import Result
from moeprobe.results.sidecars import Sidecar, choose_names, names_in, with_names
from moeprobe.results.stored import SumsStore
from moeprobe.results.tables import frame
from moeprobe.studies.report import report
from tests.commands import Trained, refused, run
from tests.studies.report.making import frame_of_differences, row, sidecar

KEY = ("blocks.1", "patch", "top1_match_kappa", "pooled")


def result(names: Any) -> Result:
    rows = [row(name, KEY, (0.5, 0.4, 0.6)) for name in "ab"]
    differences = [row("b", KEY, (0.0, -0.1, 0.1)) | {"reference": "a"}]
    about = Sidecar(sidecar("match-ratio", "ab") | {"names": names})
    return Result(
        frame(rows), frame_of_differences(differences), SumsStore(()), about, lambda of: {"f": of.table}
    )


def test_a_result_is_shown_by_other_names_and_keeps_its_own() -> None:
    own = result({"a": "V-MoE", "b": "PRC"})
    shown = with_names(own)
    assert list(shown.table["checkpoint"]) == ["V-MoE", "PRC"] and list(own.table["checkpoint"]) == ["a", "b"]
    assert shown.comparison is not None
    assert shown.comparison[["checkpoint", "reference"]].values.tolist() == [["PRC", "V-MoE"]]
    assert [*shown.sidecar["checkpoints"]] == ["V-MoE", "PRC"] and [*own.sidecar["checkpoints"]] == ["a", "b"]
    assert with_names(shown) is shown
    drawn: Any = own.plot()["f"]
    assert list(drawn["checkpoint"]) == ["V-MoE", "PRC"]


@pytest.mark.parametrize("names", [None, [], {"a": 3}, {"a": "b"}, {"a": "x", "b": "x"}, {"a": ""}])
def test_names_that_would_mix_checkpoints_up_are_ignored(names: Any) -> None:
    assert names_in(sidecar("match-ratio", "ab") | {"names": names}) == {}


@pytest.mark.parametrize("names", [["x"], ["x", "x"], ["x", ""], ["x", "y", "z"]])
def test_each_checkpoint_has_a_name_of_its_own(names: list[str]) -> None:
    with pytest.raises(UserError, match="names takes a name for each of the 2 checkpoints, all different"):
        choose_names(names, ["a", "b"])


def test_names_of_a_run_of_its_comparison_and_of_its_report(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "confidence"
    asked = ("confidence", *trained.values(), "--limit", 24, "--out", out)
    assert "takes a name for each of the 2 checkpoints" in refused(*asked, "--names", "V-MoE")
    result = run(*asked, "--names", "V-MoE,PRC")
    assert result.exit_code == 0, result.output
    assert "PRC −" in result.output and "baseline" not in result.output.split("Written")[0]
    with (out / "table.csv").open() as file:
        assert {line["checkpoint"] for line in csv.DictReader(file)} == {*trained}
    assert json.loads((out / "table.json").read_text())["names"] == {"baseline": "V-MoE", "prc": "PRC"}
    # A finished run is shown by the names that are typed.
    assert "Own −" in run(*asked, "--names", "Base,Own").output

    compared = run("compare", out, "--names", "A-1,B-2", "--out", tmp_path / "compared")
    assert compared.exit_code == 0, compared.output
    assert "B-2" in compared.output and "baseline" not in compared.output.split("Written")[0]
    with (tmp_path / "compared/comparison.csv").open() as file:
        assert {line["checkpoint"] for line in csv.DictReader(file)} == {"prc"}

    page = report([out, tmp_path / "compared"], names=["First", "Second"])
    assert "Second" in page.markdown and "prc" not in page.markdown.split("## Settings")[0].replace(
        "demo-prc", ""
    )
    assert "V-MoE" in report(out).markdown


def test_traces_are_named_after_checkpoints(trained: Trained, tmp_path: Path) -> None:
    said = refused("trace", "record", trained["prc"], "--names", "PRC", "--out", tmp_path / "t")
    assert "named after the checkpoints; leave --names out" in said


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
@pytest.mark.parametrize(
    "command",
    [
        ("s-matrix", "--limit", 20),
        ("routes", "--limit", 20, "--count", 1),
        ("discontinuity", "--limit", 2, "--count", 1),
        ("overlay", "--count", 1),
    ],
    ids=lambda command: command[0],
)
def test_figures_that_show_more_than_tables_know_the_names(
    command: tuple[object, ...], trained: Trained, tmp_path: Path
) -> None:
    result = run(
        *command[:1], *trained.values(), *command[1:], "--names", "V-MoE,PRC", "--out", tmp_path / "run"
    )
    assert result.exit_code == 0, result.output
    assert list((tmp_path / "run/figures").glob("*.png"))


def test_a_name_is_no_path() -> None:
    with pytest.raises(UserError, match="names without slashes"):
        choose_names(["a/b", "c"], ["a", "b"])
