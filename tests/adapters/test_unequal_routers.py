"""Routers of different kinds side by side: what each is asked, and what all of them are told by."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.metrics.registry import agreement
from tests.commands import Trained, pictures, refused, run
from tests.routing.routings import Softened, checkpoint

pytestmark = pytest.mark.slow

IMAGES = ("--limit", 22)


@pytest.fixture(scope="module")
def kinds(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """``baseline``, whose tokens choose two experts, and ``experts``, whose experts choose their tokens."""
    overrides = [
        "name=experts",
        "steps=2",
        "epochs=null",
        "schedule.warmup_steps=1",
        "objective.load_weight=0",
    ]
    folder = tmp_path_factory.mktemp("kinds") / "experts"
    api.train("digits-baseline", overrides=[*overrides, "model.router=softmax_expert_choice"], folder=folder)
    return {"baseline": trained["baseline"], "experts": folder}


@pytest.fixture(scope="module")
def probed(kinds: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """Each probe of the two side by side: its folder, and what it printed."""
    root, found = tmp_path_factory.mktemp("probed"), {}
    for command in (
        ("match-ratio", "--full"), ("noise-sweep", "--full", "--sigmas", "0,0.2"), ("overlay", "--count", "2", "--svg"),
    ):  # fmt: skip
        out = root / command[0]
        with pictures():
            result = run(command[0], *kinds.values(), *command[1:], *IMAGES, "--out", out)
        assert result.exit_code == 0, result.output
        assert list((out / "figures").glob("*.png"))
        found[command[0]] = out, result.output
    return found


@pytest.mark.parametrize("name", ["match-ratio", "noise-sweep"])
def test_each_is_told_by_what_applies_and_both_by_one_measure(
    probed: dict[str, tuple[Path, str]], name: str
) -> None:
    out, printed = probed[name]
    table, comparison = pd.read_csv(out / "table.csv"), pd.read_csv(out / "comparison.csv")
    routing = table.dropna(subset="layer")
    measured = routing.groupby("checkpoint")["metric"].agg(set)
    only_tokens = {"top1_match", "top2_match", "top2_set_match", "load_entropy", "dead_experts_first"}
    assert only_tokens <= measured["baseline"] and not only_tokens & measured["experts"]
    both = {"set_jaccard", "set_jaccard_chance", "set_jaccard_kappa", "weight_distance", "churn", "unserved"}
    assert both <= measured["baseline"] & measured["experts"]
    assert "unserved_both" in measured["experts"] - measured["baseline"]
    top_k = routing.groupby("checkpoint")["top_k"]
    assert set(top_k.get_group("baseline")) == {2} and top_k.get_group("experts").isna().all()
    differing = set(comparison.dropna(subset="layer")["metric"])
    assert {"set_jaccard_kappa", "weight_cosine", "churn"} <= differing and not only_tokens & differing
    # Eight experts take four of the 17 tokens of an image each, some the same ones, so some are left out.
    left_out = routing[(routing["metric"] == "unserved") & (routing["tokens"] == "patch")]
    assert ((left_out["value"] > 0) == (left_out["checkpoint"] == "experts")).all()
    assert ("overlap of expert sets" if name == "match-ratio" else "set overlap") in printed


def test_the_lines_of_a_layer_stand_together(probed: dict[str, tuple[Path, str]]) -> None:
    """Though only one of the two has some of the numbers."""
    out, printed = probed["match-ratio"]
    named = [line.split("│")[1:3] for line in printed.splitlines() if line.startswith("│ blocks.")]
    places = [tuple(cell.strip() for cell in cells) for cells in named]
    assert set(places) == {
        (f"blocks.{number}", tokens) for number in (1, 3) for tokens in ("patch", "prefix")
    }
    assert len(places) == 4 * printed.count("view random_crop")  # once in each part that fits the window
    page = api.report([out]).markdown.splitlines()
    layers = [line.split(" | ")[0] for line in page if line.startswith("| blocks.")]
    # Patches, and below them the prefix tokens.
    changes = [name for number, name in enumerate(layers) if number == 0 or name != layers[number - 1]]
    assert changes == ["| blocks.1", "| blocks.3"] * 2


def test_the_screen_shows_the_churn_of_all_experts(probed: dict[str, tuple[Path, str]]) -> None:
    out, printed = probed["match-ratio"]
    lines = [line for line in printed.splitlines() if "churn: tokens an expert lost" in line]
    found = pd.read_csv(out / "comparison.csv").query("metric == 'churn' and expert.isna()")
    assert len(lines) == len(found) == 2
    for line, (_, row) in zip(lines, found.iterrows(), strict=True):
        assert f"{row['value']:+.3f} [{row['sim_low']:+.3f}, {row['sim_high']:+.3f}]" in line


def test_a_noise_floor_for_both(probed: dict[str, tuple[Path, str]]) -> None:
    out, printed = probed["noise-sweep"]
    assert "Noise floor: overlap of expert sets of 22 clean images" in printed and "random at" not in printed
    table = pd.read_csv(out / "table.csv")
    again = table[(table["view"] == "clean_again") & (table["metric"] == "set_jaccard")]
    assert set(again["checkpoint"]) == {"baseline", "experts"} and (again["value"] == 1).all()


def test_what_an_overlay_draws_is_named(probed: dict[str, tuple[Path, str]]) -> None:
    out, _ = probed["overlay"]
    patches = pd.read_csv(out / "patches.csv")
    missing = patches.groupby("checkpoint")["clean_expert"].agg(lambda expert: expert.isna().any())
    assert missing["experts"] and not missing["baseline"]
    svg = (out / "figures" / "overlay-blocks.3.svg").read_text(encoding="utf-8")
    drawn = " ".join(re.findall(r">([^<>]+)</t", svg))
    assert re.search(r"Color in baseline: .*; color in experts: ", drawn)


def test_verdicts_and_the_report(probed: dict[str, tuple[Path, str]], tmp_path: Path) -> None:
    run_folder = probed["match-ratio"][0]
    result = run("compare", run_folder, "--fail-if-worse", "set_jaccard_kappa", "--out", tmp_path / "compare")
    assert result.exit_code in (0, 3), result.output
    assert "set_jaccard_kappa, patches" in result.output and "experts against baseline" in result.output
    sentence = refused("compare", run_folder, "--fail-if-worse", "top1_match")
    assert "top1_match in no layer in common" in sentence and "set_jaccard" in sentence
    document = api.report([run_folder, probed["noise-sweep"][0], probed["overlay"][0], tmp_path / "compare"])
    assert "κ of overlap of expert sets" in document.markdown
    assert set(document.headlines["metric"]) >= {"set_jaccard_kappa", "set_jaccard", "set_jaccard_chance"}


def test_what_only_one_has_is_refused_before_anything_is_run(
    kinds: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "moeprobe.studies.compare.Sources.measure", lambda self, watcher: pytest.fail("it ran")
    )
    command = ("compare", *kinds.values(), "--probe", "match-ratio", *IMAGES, "--fail-if-worse", "top1_match")
    assert "top1_match in no layer in common" in refused(*command, "--out", tmp_path / "out")


def test_experts_that_choose_alone(kinds: Trained) -> None:
    rows = json.loads(run("confidence", kinds["experts"], *IMAGES, "--json").stdout)["table"]
    assert {row["metric"] for row in rows} == {
        "gate_highest", "gate_second", "gate_rest", "gate_margin", "gate_entropy", "unserved", "selection_margin",
        "experts_per_token", *(f"experts_per_token_{number}" for number in ("0", "1", "2", "3_or_more")),
    }  # fmt: skip


def test_slots_alone_and_beside_choices(kinds: Trained, tmp_path: Path) -> None:
    soft = checkpoint("soft", adapter=Softened)
    alone = api.noise_sweep([soft], sigmas=[0, 0.2], limit=20, out=tmp_path / "alone")
    metrics = set(alone.table.dropna(subset="layer")["metric"]) - {""}
    assert {"slot_match", "slot_match_kappa", "weight_distance"} <= metrics
    assert not {name for name in metrics if name.startswith(("top", "set_", "churn", "unserved", "load"))}
    beside = api.match_ratio([kinds["baseline"], soft], limit=20, out=tmp_path / "beside")
    assert beside.comparison is not None
    assert {"weight_cosine", "weight_cosine_kappa", "weight_distance"} <= set(beside.comparison["metric"])
    document = api.report([tmp_path / "alone", tmp_path / "beside"])
    assert "κ of same slot" in document.markdown and "κ of cosine of the weights" in document.markdown
    shown = api.overlay([soft], count=1, out=tmp_path / "overlay")
    assert all("largest weight" in item.shows for item in shown.overlays)
    with pytest.raises(UserError, match="every expert gets a share"):
        api.discontinuity([soft], limit=1)


def test_one_without_agreement_does_not_silence_the_others(kinds: Trained) -> None:
    """Of a single expert nothing agrees or disagrees."""
    one = checkpoint("one", num_experts=1, top_k=1)
    result = api.match_ratio([str(kinds["experts"]), one], limit=20)
    measured = zip(result.table["checkpoint"], result.table["metric"], strict=True)
    assert agreement(measured) == "set_jaccard"
    assert agreement([("one", "unserved")]) == "top1_match"
    assert result.comparison is not None
    # An expert of one model is no relative of another's.
    beside = api.match_ratio([str(kinds["baseline"]), str(kinds["experts"])], limit=20)
    assert beside.table["expert"].notna().any() and beside.comparison is not None
    assert beside.comparison["expert"].isna().all()


def test_where_experts_choose_no_table_says_how_many_a_token_does(kinds: Trained) -> None:
    for result in (api.match_ratio([kinds["experts"]], limit=8), api.contagion([kinds["experts"]], limit=8)):
        assert result.table["top_k"].isna().all()
    soft = api.contagion([checkpoint("soft", router="soft_moe")], limit=8).table
    assert not soft["metric"].str.startswith("token_contagion").any()
    assert soft["metric"].str.startswith("attention_contagion").any()


def test_a_report_keeps_views_apart(kinds: Trained, tmp_path: Path) -> None:
    """A run may hold the same number of two views."""
    for view in ("random_crop", "prc_crops"):
        api.match_ratio([kinds["experts"]], view=view, limit=20, out=tmp_path / view)
    tables = [pd.read_csv(tmp_path / view / "table.csv") for view in ("random_crop", "prc_crops")]
    pd.concat(tables).to_csv(tmp_path / "random_crop" / "table.csv", index=False)
    document = api.report([tmp_path / "random_crop"])
    lines = [line for line in document.markdown.splitlines() if "| overlap of expert sets |" in line]
    assert {view for line in lines for view in ("random_crop", "prc_crops") if f"| {view} |" in line} == {
        "random_crop", "prc_crops",
    }  # fmt: skip
