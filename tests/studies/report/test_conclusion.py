"""The conclusion of a report: a sentence on each theme, a verdict on each property, and no line of zeros."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from moeprobe import api
from moeprobe.declarations.registry import scales
from moeprobe.judging import conclusions
from moeprobe.results.palette import colors
from moeprobe.studies.report.reading import Run, read_runs
from moeprobe.studies.report.render import sections
from moeprobe.studies.report.summary import headline_table
from tests.commands import run as run_command
from tests.studies.report.making import EVAL, NAN, Value, row, write_rows, write_run
from tests.studies.report.page import Page

CLEAN = {"view": {"name": "clean"}}
SCALES = scales()
KAPPA, LOAD, DEAD = ("top1_match_kappa", "pooled"), ("load_entropy", ""), ("dead_experts", "")


def run_of(
    folder: Path,
    kind: str,
    differences: dict[tuple[str, tuple[str, str]], Value],
    *,
    flags: Sequence[str] = ("", ""),
    **more: Any,
) -> Run:
    """A run of b against a: (layer, (metric, null)) -> the difference with its interval."""
    rows, paired = [], []
    for (layer, which), difference in differences.items():
        key = (layer, "patch" if layer else "", *which)
        low = 0.4 if difference[0] == difference[0] else 1.0
        rows += [
            row("a", key, (low, low - 0.1, low + 0.1), flag=flags[0]),
            row("b", key, (low + difference[0], low, low + 0.2), flag=flags[1]),
        ]
        paired.append(row("b", key, difference, reference="a", flag=flags[0] or flags[1]))
    (read,) = read_runs([write_rows(folder, kind, rows, paired, checkpoints=["a", "b"], **more)])
    return read


def conclude(runs: Sequence[Run]) -> conclusions.Conclusion:
    return conclusions.conclude(runs, SCALES)


def lines(runs: Sequence[Run]) -> list[list[str]]:
    return [[cell.line for cell in line] for table in conclude(runs).tables for line in table.rows]


def test_a_sentence_on_each_theme_names_both_models_and_every_interval(tmp_path: Path) -> None:
    runs = [
        run_of(
            tmp_path / "confidence",
            "confidence",
            {("blocks.1", LOAD): (-0.05, -0.06, -0.04), ("blocks.1", DEAD): (1, 1, 1)},
            request=CLEAN,
        ),
        run_of(tmp_path / "match", "match-ratio", {("blocks.1", KAPPA): (0.1, 0.05, 0.15)}),
        run_of(tmp_path / "eval", "eval", {("", ("accuracy", "")): (0.01, -0.01, 0.03)}, request=CLEAN),
    ]  # fmt: skip
    assert conclude(runs).sentences == [
        "Under random crop, b routes more stably than a: κ +0.100 [+0.050, +0.150] in blocks.1.",
        "On clean images, b and a show no significant difference in accuracy: accuracy +0.010 [-0.010, +0.030], "
        "excludes a loss above 0.010.",
        "b loads its experts less evenly than a: load entropy -0.050 [-0.060, -0.040] in blocks.1.",
        "b loads its experts less evenly than a: number of dead experts +1 [+1, +1] in blocks.1.",
    ]
    assert lines(runs) == [
        ["κ, under random crop", "better", "+0.100 [+0.050, +0.150]", "blocks.1"],
        [
            "Accuracy, on clean images",
            "no significant difference (excludes a loss above 0.010)",
            "+0.010 [-0.010, +0.030]",
            "output",
        ],
        ["Load entropy (1 = even)", "lower", "-0.050 [-0.060, -0.040]", "blocks.1"],
        ["Dead experts (share < 1 / 10E)", "worse", "+1 [+1, +1]", "blocks.1"],
    ]


UP, DOWN, NONE = (0.1, 0.05, 0.15), (-0.2, -0.25, -0.15), (0.02, -0.01, 0.05)


@pytest.mark.parametrize(
    ("first", "second", "word", "shown", "layer"),
    [
        (UP, UP, "better in 2 of 2 layers", UP, "blocks.1, first of 2"),
        (UP, NONE, "better in 1 of 2 layers", UP, "blocks.1, first of 2"),
        (NONE, DOWN, "worse in 1 of 2 layers", DOWN, "blocks.3, largest of 2"),
        (UP, DOWN, "mixed: better in 1, worse in 1 of 2 layers", UP, "blocks.1, first of 2"),
        (NONE, NONE, "no significant difference (excludes a loss above 0.010)", NONE, "blocks.1, first of 2"),
        ((0.0, 0.0, 0.0), (0.0, 0.0, 0.0), "identical", (0.0, 0.0, 0.0), "blocks.1, first of 2"),
        ((0.1, NAN, NAN), DOWN, "worse in 1 of 2 layers", DOWN, "blocks.3, largest of 2"),
        ((0.1, NAN, NAN), (0.1, NAN, NAN), "unstable", (0.1, NAN, NAN), "blocks.1, first of 2"),
    ],
)
def test_a_verdict_speaks_of_all_layers(
    first: Value, second: Value, word: str, shown: Value, layer: str, tmp_path: Path
) -> None:
    run = run_of(tmp_path / "run", "match-ratio", {("blocks.1", KAPPA): first, ("blocks.3", KAPPA): second})
    ((_, said, difference, place),) = lines([run])
    assert (said, place) == (word, layer)
    assert difference.startswith(f"{shown[0]:+.3f}")
    (sentence,) = conclude([run]).sentences
    assert ("stably than" in sentence) == word.startswith(("better", "worse"))


def test_a_collapsed_router_is_no_better_one(tmp_path: Path) -> None:
    run = run_of(
        tmp_path / "run", "match-ratio", {("blocks.1", KAPPA): (NAN, NAN, NAN)}, flags=("", "collapsed")
    )
    assert lines([run])[0][1] == "b collapsed"
    assert conclude([run]).sentences == ["Under random crop, b against a: b collapsed in routing stability."]


def test_the_set_decides_where_tokens_have_two_experts(tmp_path: Path) -> None:
    keys = [KAPPA, ("top1_match", ""), ("top2_set_match", ""), ("top2_set_match_kappa", "pooled")]
    keys += [("top2_set_match_kappa", "image")]
    run = run_of(tmp_path / "run", "match-ratio", {("blocks.1", key): UP for key in keys})
    assert [line[0] for line in lines([run])] == [
        "κ, under random crop", "κ within the image, under random crop",
    ]  # fmt: skip
    assert conclusions.lead_of(run, SCALES).startswith(
        "κ, under random crop: a 0.400 [0.300, 0.500], b 0.500 "
    )
    assert len(conclude([run]).sentences[0].split("κ")) == 2, "κ within the image stands in the table alone"


def test_without_a_second_model_the_values_are_told(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", checkpoints=("a",))
    markdown = api.report([folder]).markdown
    assert "κ is: a 0.354 [0.333, 0.375]" in markdown.split("**Headline numbers**")[0]
    assert not conclude(read_runs([folder])).tables


def test_many_pairs_are_left_to_the_table(tmp_path: Path) -> None:
    values = {key: [given[0]] * 4 for key, given in EVAL.items()}
    runs = read_runs([write_run(tmp_path / "run", "eval", checkpoints=("a", "b", "c", "d"), values=values)])
    assert conclude(runs).sentences == ["3 pairs of checkpoints were compared; the table has their verdicts."]
    assert [line[1] for line in lines(runs)] == ["b − a", "c − a", "d − a"]


def test_two_runs_with_one_property_are_told_apart_and_one_number_is_told_once(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path / name, "match-ratio", {("blocks.1", KAPPA): given})
        for name, given in (("one", UP), ("two", DOWN))
    ]
    assert [line[0][-5:] for line in lines(runs)] == ["(one)", "(two)"]
    same = [run_of(tmp_path / name, "match-ratio", {("blocks.1", KAPPA): UP}) for name in ("3", "4")]
    assert len(lines(same)) == 1


def test_lines_of_zeros_are_left_out_and_named(tmp_path: Path) -> None:
    keys = {"load_entropy": 0.9, "unserved": 0.0}
    rows = [
        row(name, (layer, "patch", metric, ""), (value, 0.0, 1.0))
        for layer in ("blocks.1", "blocks.3")
        for metric, value in keys.items()
        for name in ("a", "b")
    ]
    rows[-1]["value"] = 0.25  # unserved, b, blocks.3
    folder = write_rows(tmp_path / "run", "confidence", rows, checkpoints=["a", "b"])
    markdown = api.report([folder]).markdown
    assert "| blocks.1 | patch | tokens without an expert" not in markdown
    assert "| blocks.3 | patch | tokens without an expert" in markdown
    assert "Left out, since 0 for every checkpoint: tokens without an expert (blocks.1)." in markdown


def test_figures_are_drawn_again_with_the_names_of_the_report(tmp_path: Path) -> None:
    from tests.studies.report.test_coloring import drawn, only, picture_of

    folder = drawn(tmp_path / "run", "a", "b")
    (run,) = api.report([folder], names=["V-MoE", "PRC"]).runs
    assert only(run) == picture_of(("V-MoE", "PRC"), *colors(("V-MoE", "PRC")).values())
    other = drawn(tmp_path / "other", "a", "b", kind="overlay")
    document = api.report([other], names=["V-MoE", "PRC"])
    assert "keep its own names of checkpoints" in document.markdown
    assert "keep its own names" not in api.report([folder]).markdown


def test_the_terminal_begins_with_the_conclusion(runs: list[Path], tmp_path: Path) -> None:
    result = run_command("report", *runs, "--out", tmp_path / "page")
    assert result.exit_code == 0, result.output
    assert result.output.startswith(
        "Under random crop, b routes more stably than a: κ +0.195 [+0.175, +0.215]"
    )
    read = json.loads(run_command("report", *runs, "--out", tmp_path / "other", "--json").stdout)
    assert read["conclusions"] == api.report(runs).conclusions and len(read["conclusions"]) == 2


def test_a_companion_of_two_headlines_has_one_line(tmp_path: Path) -> None:
    keys = [("top2_set_match", ""), ("top2_set_match_kappa", "pooled"), ("top2_set_match_kappa", "image")]
    run = run_of(tmp_path / "run", "match-ratio", {("blocks.1", key): UP for key in [KAPPA, *keys]})
    table = headline_table([run])
    assert table is not None
    labels = [line[1].text for line in table.rows]
    assert labels.count("top-2 match, any order") == 1 and len(labels) == len({*labels})


def test_the_figure_of_an_audit_is_seen_first(tmp_path: Path) -> None:
    pictures = ("output.png", "routing.png", "attribution.png")
    folder = write_run(tmp_path / "run", "sweep", pictures=pictures)
    (section,) = sections(read_runs([folder]))
    assert [picture.stem for picture in section.leading_pictures] == ["routing"]
    assert [picture.stem for picture in section.other_pictures] == ["attribution", "output"]


def test_nothing_but_the_conclusion_is_unfolded(runs: list[Path]) -> None:
    html = api.report(runs).html
    shown = html
    while "<details" in shown:
        start = shown.rindex("<details")
        shown = shown[:start] + shown[shown.index("</details>", start) + len("</details>") :]
    page = Page(shown)
    assert len(page.all("table")) == 1, "the verdicts"
    assert len(page.all("img")) == 4, "a figure of the first run, and three frames"
    assert "5,530 trials" not in page.text and "SHA-256" not in page.text
    assert len(Page(html).all("table")) > 8
