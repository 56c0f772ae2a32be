"""A checkpoint has one color in a whole report, whichever runs it is in and whoever is drawn beside it."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from moeprobe import api
from moeprobe.probes.match_ratio import figure as match_ratio
from moeprobe.results.figures import save
from moeprobe.results.palette import COLORS, colors
from moeprobe.results.tables import frame
from moeprobe.studies.report.reading import Run
from tests.commands import Trained
from tests.studies.report.making import MATCH, row, write_rows

BLUE, RED, GREEN = (color.lower() for color in COLORS[:3])


def drawn(folder: Path, *names: str, without_svg: bool = False) -> Path:
    """A run whose figure is drawn as its command draws it: colors by the order of its own checkpoints."""
    rows = [row(name, key, given[0], view="random_crop") for name in names for key, given in MATCH.items()]
    sidecar: dict[str, Any] = {"colours": colors(names)}
    write_rows(folder, "match-ratio", rows, checkpoints=names, **sidecar)
    figure = match_ratio.draw(frame(rows), colors=colors(names))["match-ratio"]
    save(figure, folder / "figures" / "match-ratio", formats=("png",) if without_svg else ("png", "svg"))
    return folder


def color_counts(svg: bytes) -> dict[str, int]:
    """How often each of the palette's colors is in a drawing."""
    found = Counter(re.findall(r"#[0-9a-f]{6}", svg.decode()))
    return {color: found[color] for color in (BLUE, RED, GREEN) if found[color]}


def only(run: Run) -> bytes:
    (picture,) = run.pictures
    return picture.content


def test_whoever_is_missing_all_others_keep_their_colors(tmp_path: Path) -> None:
    first, second = drawn(tmp_path / "1", "a", "b"), drawn(tmp_path / "2", "b")
    alone = (second / "figures" / "match-ratio.svg").read_bytes()
    document = api.report([first, second], out=tmp_path / "out")
    both, one = document.runs
    # What is right as it is, is shown as it was drawn.
    assert only(both) == (first / "figures" / "match-ratio.png").read_bytes()
    assert set(color_counts(alone)) == {BLUE}
    assert color_counts(only(one)) == {RED: color_counts(alone)[BLUE]}
    assert only(one) == alone.replace(BLUE.encode(), RED.encode())
    assert (tmp_path / "out/report-files/2-2/match-ratio.svg").read_bytes() == only(one)
    assert "report-files/2-2/match-ratio.svg" in document.markdown
    assert "keep its own colors" not in document.markdown + document.html


def test_colors_are_exchanged_all_at_once(tmp_path: Path) -> None:
    runs = [drawn(tmp_path / "1", "a", "b"), drawn(tmp_path / "2", "b", "a")]
    before = color_counts((runs[1] / "figures" / "match-ratio.svg").read_bytes())
    found = api.report(runs).runs[1]
    assert color_counts(only(found)) == {BLUE: before[RED], RED: before[BLUE]}
    legend = re.findall(rb'style="[^"]*(#[0-9a-f]{6})[^"]*"', only(found))
    assert legend.index(RED.encode()) < legend.index(BLUE.encode()), "b is drawn first, in red"


def test_a_color_that_is_taken_goes_to_nobody_else(tmp_path: Path) -> None:
    runs = [drawn(tmp_path / name, name) for name in "abc"]
    found = [color_counts(run.pictures[0].svg) for run in api.report(runs).runs]
    assert [set(counts) for counts in found] == [{BLUE}, {RED}, {GREEN}]


def test_one_name_for_two_files_is_two_colors(tmp_path: Path) -> None:
    one, other = drawn(tmp_path / "1", "a"), drawn(tmp_path / "2", "a")
    text = (other / "table.json").read_text()
    (other / "table.json").write_text(text.replace('"sha256": "', '"sha256": "f'))
    found = [set(color_counts(run.pictures[0].svg)) for run in api.report([one, other]).runs]
    assert found == [{BLUE}, {RED}]


def test_a_figure_that_cannot_be_recolored_says_so(tmp_path: Path) -> None:
    runs = [drawn(tmp_path / "1", "a", "b"), drawn(tmp_path / "2", "b", without_svg=True)]
    document = api.report(runs)
    said = "The figures of this run keep its own colors; elsewhere b has another one."
    for text in (document.markdown, document.html):
        assert text.count(said) == 1
    assert only(document.runs[1]) == (runs[1] / "figures" / "match-ratio.png").read_bytes()


def test_more_checkpoints_than_colors_repeat_them_and_say_so(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(8)]
    many, last = drawn(tmp_path / "1", *names), drawn(tmp_path / "2", *names[::-1])
    document = api.report([many, last])
    assert not document.runs[0].miscolored
    assert document.runs[1].miscolored == ["m6", "m5", "m4", "m3", "m2", "m1"]
    assert only(document.runs[1]) == (last / "figures" / "match-ratio.png").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["match_ratio", "confidence", "noise_sweep", "discontinuity", "compare"])
def test_every_figure_with_colors_says_which(kind: str, trained: Trained, tmp_path: Path) -> None:
    pair = [trained["prc"], trained["baseline"]]
    asked: dict[str, dict[str, Any]] = {"compare": {"probe": "eval"}, "noise_sweep": {"sigmas": [0, 0.1]}}
    limit = 2 if kind == "discontinuity" else 20
    found = getattr(api, kind)(pair, out=tmp_path / "run", limit=limit, **asked.get(kind, {}))
    sidecar = (found.result if kind == "discontinuity" else found).sidecar
    assert sidecar["colours"] == {"prc": COLORS[0], "baseline": COLORS[1]}
    svgs = [path.read_bytes() for path in (tmp_path / "run" / "figures").glob("*.svg")]
    assert svgs
    for svg in svgs:
        assert {BLUE, RED} >= set(color_counts(svg)) >= {RED}
