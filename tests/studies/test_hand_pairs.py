"""Pairs given by hand: how a command line reads, what is refused, and that they give what pairs by seed give."""

import json
from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.judging import trainings
from moeprobe.judging.trainings import read_claims
from moeprobe.studies.hand_pairs import names_of_pairs, read_pairs
from tests.commands import refused, run

REFERENCE = Path(__file__).parents[2] / "checkpoints" / "reference"
GROUPS = ("digits-baseline-k2", "digits-prc-k2")


def folder(group: str, seed: int) -> str:
    return str(REFERENCE / f"{group}-seed{seed}")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each of three trainings of two models, and one of all."""
    root = tmp_path_factory.mktemp("runs")
    named = {f"{group}{seed}": folder(group, seed) for group in GROUPS for seed in range(3)}
    for name, checkpoint in named.items():
        api.confidence(checkpoint, data="digits", limit=24, out=root / name, figures=False)
    api.confidence([*named.values()], data="digits", limit=24, out=root / "all", figures=False)
    return {name: root / name for name in [*named, "all"]}


def by_hand(runs: dict[str, Path], pairs: int) -> list[str]:
    base, prc = GROUPS
    return [f"{runs[f'{base}{seed}']}={runs[f'{prc}{seed}']}" for seed in range(pairs)]


def test_a_command_line_of_pairs(tmp_path: Path) -> None:
    (tmp_path / "a=b").mkdir()
    (tmp_path / "c").mkdir()
    a_folder, other = str(tmp_path / "a=b"), str(tmp_path / "c")
    # A folder with the sign in its name is no pair, but may be a side; settings hold the sign, too.
    assert read_pairs([a_folder, f"{other},top_k=1"]) == ([a_folder, f"{other},top_k=1"], [])
    assert read_pairs([f"{a_folder}={other},top_k=1"])[1] == [(a_folder, f"{other},top_k=1")]
    # Names are looked up among what is given beside.
    assert read_pairs([other, "one=two"]) == ([other], [("one", "two")])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["a=b", "a=c"], "a is a side 2 times"),
        (["a=a"], "a is a side 2 times"),
        (["=b"], "lacks a side"),
    ],
)
def test_pairs_that_are_none(arguments: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_pairs(arguments)


def test_names_that_are_none() -> None:
    with pytest.raises(UserError, match=r"tow is no checkpoint of this comparison. Did you mean 'two'\?"):
        names_of_pairs([("one", "tow")], ["a", "b"], ["one", "two"])
    with pytest.raises(UserError, match="one is a side 2 times"):
        names_of_pairs([("a", "one")], ["a", "b"], ["one", "two"])


def test_pairs_by_hand_give_what_pairs_by_seed_give(runs: dict[str, Path], tmp_path: Path) -> None:
    result = run("compare", *by_hand(runs, 3), "--out", tmp_path / "hand")
    assert result.exit_code == 0, result.output
    assert "(3 pairs of trainings): " in result.output
    # The table that it opens with has a line for all pairs, and the report's has too.
    assert "seed0" not in result.output.split("Dead experts")[0]
    report = api.report([tmp_path / "hand"]).markdown
    assert f"| {GROUPS[1]} − {GROUPS[0]} (3 pairs of trainings) |" in report
    found = api.compare(runs["all"])
    for name, expected in (("trainings.csv", found.trainings), ("comparison.csv", found.table)):
        table = pd.read_csv(tmp_path / "hand" / name)
        columns = ["checkpoint", "reference", "metric", "value", "sim_low", "sim_high", "verdict"]
        rows = table[columns].sort_values(columns[:3], ignore_index=True)
        pd.testing.assert_frame_equal(
            rows, expected[columns].sort_values(columns[:3], ignore_index=True), check_dtype=False, rtol=1e-9
        )


def test_two_pairs_say_nothing_of_trainings(runs: dict[str, Path], tmp_path: Path) -> None:
    result = run("compare", *by_hand(runs, 2), "--out", tmp_path / "two")
    assert "2 pairs of checkpoints say nothing of other trainings" in result.output.replace("\n", " ")
    assert not (tmp_path / "two" / "trainings.csv").exists()
    assert len(json.loads((tmp_path / "two" / "table.json").read_text())["request"]["pairs"]) == 2
    assert "nothing of other trainings" in api.report([tmp_path / "two"]).markdown


def test_names_in_a_run_make_pairs_in_any_order(runs: dict[str, Path]) -> None:
    base, prc = GROUPS
    pairs = [(f"{base}-seed{one}", f"{prc}-seed{other}") for one, other in ((0, 2), (1, 0), (2, 1))]
    found = api.compare(runs["all"], pairs=pairs)
    assert tuple(found.table[["reference", "checkpoint"]].iloc[0]) == pairs[0]
    assert set(found.trainings["checkpoint"]) == {prc} and set(found.trainings["trainings"]) == {3}


def test_a_checkpoint_of_the_run_beside_goes_before_a_folder(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checkpoints mostly lie where their run is made, under the names that it has for them."""
    one, other = (f"{group}-seed0" for group in GROUPS)
    for name in (one, other):
        (tmp_path / name).symlink_to(REFERENCE / name)
    monkeypatch.chdir(tmp_path)
    both = str(runs["all"])
    assert read_pairs([both, f"{one}={other}"]) == ([both], [(one, other)])
    # The folder is written as a path; without a run that has the name, it needs no more than its name.
    assert read_pairs([both, f"./{one}={other}"])[0] == [both, f"./{one}"]
    assert read_pairs([str(runs[f"{GROUPS[0]}1"]), f"{one}={other}"])[0][1:] == [one, other]
    assert read_pairs([f"{one}={other}"])[0] == [one, other]


def test_a_run_of_several_is_no_side(runs: dict[str, Path]) -> None:
    one = runs[f"{GROUPS[0]}0"]
    assert "holds 6 checkpoints; give the run as it is and the pairs by name" in refused(
        "compare", f"{runs['all']}={one}"
    )


def test_trainings_without_a_group_are_called_after_themselves() -> None:
    pairs = [(f"b{seed}", f"a{seed}") for seed in range(4)]
    assert list(trainings.group_of_hand_pairs(pairs, {})) == [("b0 and 3 more", "a0 and 3 more")]
    assert not trainings.group_of_hand_pairs(pairs[:2], {})


def test_pairs_by_hand_are_a_pilot(runs: dict[str, Path]) -> None:
    result = run("plan", *by_hand(runs, 3), "--difference", 0.05, "--trainings", "--metric", "gate_highest")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert said.startswith("About ") and "For other trainings: with the 3 pairs of the run" in said


@pytest.mark.slow
def test_a_tradeoff_leads_with_what_a_comparison_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both pair seeds, and read the same sums."""
    monkeypatch.setattr("moeprobe.studies.tradeoff.run.draw_figures", lambda *_, **__: None)
    folders = [folder(group, seed) for group in GROUPS for seed in range(3)]
    measure = ["measure.limit=24", "measure.views=[]", "measure.sigmas=[]", "measure.shots=[]"]
    out = tmp_path / "out"
    result = run("tradeoff", *folders, *measure, "measure.contagion=false", "--out", out, "--device", "cpu")
    assert result.exit_code == 0, result.output
    opening = f"digits, over trainings and images: differences from {GROUPS[0]}"
    assert " ".join(result.output.split()).startswith(opening)
    runs = [out / "cells" / Path(name).name / "confidence" for name in folders]
    expected = api.compare(runs).trainings
    written = read_claims(out / "trainings.csv")
    written = written[written["metric"].isin(expected["metric"])].reset_index(drop=True)
    columns = ["checkpoint", "reference", "layer", "metric", "value", "sim_low", "sim_high", "verdict"]
    pd.testing.assert_frame_equal(written[columns], expected[columns], check_dtype=False, rtol=1e-9)
