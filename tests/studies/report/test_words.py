"""What a report says in words: of differences, collapsed routers, sweeps, and runs of other kinds."""

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.judging.headlines import difference
from moeprobe.judging.words import NO_DIFFERENCE
from moeprobe.runtime.files import write_csv
from tests.studies.report.making import MATCH, NAN, frame_of_differences, judged, row, write_rows, write_run


@pytest.mark.parametrize(
    ("value", "flag", "words"),
    [
        ((0.2, 0.1, 0.3), "", "κ is higher (better) in B than in A, by 0.200 [0.100, 0.300]."),
        ((-0.2, -0.3, -0.1), "", "κ is lower (worse) in B than in A, by 0.200 [0.100, 0.300]."),
        (
            (0.1, 0.0, 0.2),
            "",
            "B and A show no significant difference in κ (+0.100 [+0.000, +0.200]), which "
            "excludes a loss above 0.000.",
        ),
        (
            (-0.1, -0.2, 0.0),
            "",
            "B and A show no significant difference in κ (-0.100 [-0.200, +0.000]), which "
            "excludes a loss above 0.200.",
        ),
        ((0.0, 0.0, 0.0), "", "κ of B and A is the same in every image."),
        (
            (0.3, NAN, NAN),
            "few_images",
            "nothing can be said of κ of B and A: their difference has no interval, +0.300 (few images).",
        ),
    ],
)
def test_the_words_for_a_difference(value: tuple[float, float, float], flag: str, words: str) -> None:
    key = ("blocks.3", "patch", "top1_match_kappa", "pooled")
    sides = [row(name, key, (0.5, 0.4, 0.6)) for name in ("b", "a")]
    for name in ("a", "b"):
        words = re.sub(rf"\b{name.upper()}\b", f"{name} (0.500 [0.400, 0.600])", words)
    judged_row = judged(row("b", key, value, flag=flag, reference="a"))
    assert difference(judged_row, *sides, noun="κ", unit="image") == words


def test_a_collapsed_router_is_called_collapsed(tmp_path: Path) -> None:
    match, chance, kappa = (
        ("blocks.3", "patch", f"top1_match{end}", null)
        for end, null in (("", ""), ("_chance", "pooled"), ("_kappa", "pooled"))
    )
    lines = [
        row("a", match, (0.6, 0.5, 0.7)),
        row("a", chance, (0.1, 0.1, 0.1)),
        row("a", kappa, (0.55, 0.5, 0.6)),
    ]
    lines += [
        row("b", match, (1, 1, 1)),
        row("b", chance, (1, 1, 1)),
        row("b", kappa, (NAN, NAN, NAN), flag="collapsed"),
    ]
    differences = [
        row("b", match, (0.4, 0.3, 0.5), reference="a"),
        row("b", kappa, (NAN, NAN, NAN), flag="collapsed", reference="a"),
    ]
    folder = write_rows(tmp_path / "run", "match-ratio", lines, differences, checkpoints=["a", "b"])
    markdown = api.report([folder]).markdown
    assert (
        "the router of b has collapsed: chance alone reaches 1, so its match of 1.000 says nothing"
        in markdown
    )
    assert "| – (collapsed) |" in markdown
    assert (
        "κ is: a 0.550 [0.500, 0.600] (raw 0.600 [0.500, 0.700], by chance 0.100 [0.100, 0.100])." in markdown
    )
    assert "higher" not in markdown.split("## Match of corresponding patches")[0].split("**Headline")[0]


def test_checkpoints_whose_first_layers_differ_are_told_one_by_one(tmp_path: Path) -> None:
    def lines(name: str, layer: str, kappa: float) -> list[dict[str, Any]]:
        return [row(name, (layer, "patch", "top1_match_kappa", "pooled"), (kappa, kappa - 0.1, kappa + 0.1))]

    rows = [
        *lines("a", "blocks.3", 0.3),
        *lines("a", "blocks.7", 0.2),
        *lines("b", "blocks.5", 0.5),
        *lines("b", "blocks.7", 0.4),
    ]
    folder = write_rows(
        tmp_path / "run", "match-ratio", rows, checkpoints=["a", "b"], request={"layers": ["blocks.7"]}
    )
    markdown = api.report([folder]).markdown
    assert (
        "In blocks.3, the first MoE layer selected (360 images, 5,530 trials), κ is: a 0.300 [0.200, 0.400]."
        in markdown
    )
    assert (
        "In blocks.5, the first MoE layer selected (360 images, 5,530 trials), κ is: b 0.500 [0.400, 0.600]."
        in markdown
    )


def test_a_name_that_stands_for_two_checkpoints_gets_its_hash(tmp_path: Path) -> None:
    first = write_run(tmp_path / "one" / "match", checkpoints=("a", "b"))
    second = write_run(tmp_path / "two" / "match", checkpoints=("a", "b"))
    content = json.loads((second / "table.json").read_text())
    content["checkpoints"]["a"]["sha256"] = "feed" * 16
    (second / "table.json").write_text(json.dumps(content))
    document = api.report([first, second])
    header = next(line for line in document.markdown.splitlines() if line.startswith("| run | metric |"))
    assert [cell.strip() for cell in header.split("|")[3:9]] == [
        "a (61616161)", "b", "a (feedfeed)", "b − a (61616161)", "b − a (feedfeed)", "layer",
    ]  # fmt: skip
    assert "feed" * 16 in document.html
    for label in ("one/match", "two/match"):
        assert f"## Match of corresponding patches: random crop ({label})\n" in document.markdown


def test_recorded_routing_says_its_capacity_once_and_nothing_that_is_not_known(tmp_path: Path) -> None:
    request = {"severities": [0.1, 0.1], "capacity": ["unlimited"], "replayed_gates": None}
    folder = write_run(tmp_path / "run", "analyze-trace", request=request)
    content = json.loads((folder / "table.json").read_text())
    content["checkpoints"]["a"] |= {"sha256": None, "training": {"seed": None, "group": None}}
    (folder / "table.json").write_text(json.dumps(content))
    lines = api.report([folder]).markdown.splitlines()
    assert [line for line in lines if line.startswith("* capacity:")] == ["* capacity: unlimited"]
    assert "* severities: 0.1" in lines
    assert not any("replayed" in line or "None" in line or "none" in line for line in lines)


def test_a_kind_of_run_that_nobody_knows_yet_is_reported(tmp_path: Path) -> None:
    values = {("blocks.3", "patch", "jump", ""): [(0.5, 0.4, 0.6)], ("", "", "share", ""): [(0.25, 0.2, 0.3)]}
    folder = write_run(
        tmp_path / "run",
        "output-jumps",
        checkpoints=("a",),
        values=values,
        pictures=("jumps.png",),
        request={"steps": 7, "how": {"a": [1, 2]}},
    )
    markdown = api.report([folder]).markdown
    assert "## Output jumps: random crop" in markdown
    assert "* steps: 7\n" in markdown and "* how: a [1, 2]\n" in markdown
    assert "| blocks.3 | patch | jump | 0.500 [0.400, 0.600] | 360 | 5,530 |" in markdown
    assert "(report-files/1-run/jumps.png)" in markdown
    assert "These runs have no headline number" in markdown


def test_a_comparison_shows_its_verdicts(tmp_path: Path) -> None:
    key = ("blocks.3", "patch", "top1_match_kappa", "pooled")
    more = {"verdict": NO_DIFFERENCE, "judgement": "", "sim_low": -0.01, "sim_high": 0.21}
    said = [
        {
            "checkpoint": "b",
            "tokens": "patch",
            "metric": key[2],
            "null": key[3],
            "sentence": f"b against a: {NO_DIFFERENCE}.",
        }
    ]
    folder = write_rows(tmp_path / "run", "compare", [], checkpoints=["a", "b"], verdicts=said)
    compared = row("b", key, (0.1, 0.05, 0.15), reference="a", severity=0.1) | more
    write_csv(folder / "comparison.csv", frame_of_differences([compared]))
    markdown = api.report([folder]).markdown
    title = "κ of top-1 match (top1_match_kappa, patches)"
    assert (
        f"{title}: b against a: {NO_DIFFERENCE}.\n\nVerdicts go by simultaneous intervals over 360 images."
        in markdown
    )
    line = next(line for line in markdown.splitlines() if line.startswith("| blocks.3 | 0.1 |"))
    assert [cell.strip() for cell in line.split("|")[3:-1]] == [
        "no significant difference (excludes a loss above 0.010)",
        "+0.100 [-0.010, +0.210]", "–", "–", "–", "360", "5,530",
    ]  # fmt: skip


def test_a_sweep_is_told_at_its_ends(tmp_path: Path) -> None:
    rows = []
    for severity, kappa, accuracy in ((0.0, 1.0, 0.97), (0.1, 0.8, 0.9), (0.4, 0.3, 0.5)):
        rows.append(
            row(
                "a",
                ("blocks.3", "patch", "top1_match_kappa", "pooled"),
                (kappa, kappa, kappa),
                severity=severity,
            )
        )
        rows.append(row("a", ("", "", "accuracy", ""), (accuracy, accuracy, accuracy), severity=severity))
    folder = write_rows(
        tmp_path / "run",
        "sweep",
        rows,
        checkpoints=["a"],
        severity_unit="noise σ",
        request={"severities": [0.0, 0.1, 0.4]},
    )
    markdown = api.report([folder]).markdown
    assert (
        "In blocks.3, the first MoE layer, at severity 0.4, the strongest of the run (360 images, 5,530 trials), κ "
        "is: a 0.300" in markdown
    )
    assert (
        "At severity 0, the weakest of the run (360 images), the accuracy is: a 0.970 [0.970, 0.970]."
        in markdown
    )
    assert "* severities: 0, 0.1, 0.4 (noise σ)" in markdown
    assert "| a | 0.1 | 0.800 [0.800, 0.800] |" in markdown
    assert "What the values rest on: κ: 360 images, 5,530 trials." in markdown


def test_a_sweep_shows_what_changes_the_output_and_its_noise_floor(tmp_path: Path) -> None:
    rows = []
    for severity, features, switching in ((0.0, 0.0, 0.0), (0.4, -0.5, -0.02)):
        for share, value in (("features", features), ("switching", switching), ("interaction", 0.001)):
            key = ("", "", f"class_probability_{share}", "")
            rows.append(
                row("a", key, (value, value - 0.01, value + 0.01), severity=severity, view="gaussian_noise")
            )
    match = ("blocks.3", "patch", "top1_match", "")
    for view, value in (("clean_again", 0.75), ("clean_other_batch", 0.74), ("clean_other_dtype", 0.72)):
        rows.append(row("a", match, (value, value - 0.01, value + 0.01), view=view, images=256, trials=4096))
    rows.append(row("b", match, (1.0, 1.0, 1.0), view="clean_again", images=256, trials=4096))
    folder = write_rows(
        tmp_path / "run", "sweep", rows, checkpoints=["a", "b"],
        request={"replayed_gates": "replayed"}, floor_dtype="bfloat16",
    )  # fmt: skip
    markdown = api.report([folder]).markdown
    changes, floor = markdown.split("**Noise floor**")
    assert (
        "**What changes the class probability, features (pixels) or switching (experts)? Gates replayed**"
        in changes
    )
    assert "| checkpoint | severity | features | switching | interaction |" in changes
    assert (
        "| a | 0.4 | -0.500 [-0.510, -0.490] | -0.020 [-0.030, -0.010] | 0.001 [-0.009, 0.011] |" in changes
    )
    assert (
        "| checkpoint | layer | same batch again | other batch size | bfloat16 | images | trials |" in floor
    )
    assert (
        "| a | blocks.3 | 0.750 [0.740, 0.760] | 0.740 [0.730, 0.750] | 0.720 [0.710, 0.730] | 256 | 4,096 |"
        in floor
    )
    assert "| b | blocks.3 | 1.000 [1.000, 1.000] |  |  | 256 | 4,096 |" in floor
    assert "a is random at evaluation: run again unchanged, only 0.750 of the tokens keep" in floor
    assert "b is random" not in floor


def test_a_run_of_texts_speaks_of_texts(tmp_path: Path) -> None:
    values = {
        (layer, tokens.replace("patch", "token"), metric, null): value
        for (layer, tokens, metric, null), value in MATCH.items()
    }
    api.report([write_run(tmp_path / "run", values=values)], out=tmp_path / "page")
    markdown = (tmp_path / "page" / "report.md").read_text()
    assert "in the run, tokens. Intervals" in markdown and "95 % over texts; " in markdown
    assert "(360 texts, 5,530 trials)" in markdown and "paired, text by text" in markdown
    assert "patch tokens" not in markdown and "interval over images" not in markdown


def test_differences_of_units_are_paired_unit_by_unit(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for name in ("table.csv", "comparison.csv"):
        write_csv(run / name, pd.read_csv(run / name, keep_default_na=False).assign(unit="patient"))
    api.report([run], out=tmp_path / "page")
    markdown = (tmp_path / "page" / "report.md").read_text()
    assert "95 % over patients; differences are paired, patient by patient;" in markdown
    assert "image by image" not in markdown


def test_a_mean_that_few_images_carry_is_told_with_their_number(tmp_path: Path) -> None:
    line = row("a", ("", "", "cross_entropy", ""), (0.137, NAN, NAN), flag="few_carriers", carriers=4)
    folder = write_rows(tmp_path / "run", "eval", [line], [], checkpoints=["a"])
    assert "0.137 (carried by few images: 4)" in api.report([folder]).markdown
