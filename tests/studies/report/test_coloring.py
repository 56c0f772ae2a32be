"""A checkpoint has one color in a whole report, whichever runs it is in and whoever is drawn beside it."""

import functools
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from moeprobe import api
from moeprobe.probes.match_ratio import figure as match_ratio
from moeprobe.results.figures import render
from moeprobe.results.palette import COLORS, colors
from moeprobe.results.tables import frame
from moeprobe.studies.report.coloring import redraw
from moeprobe.studies.report.reading import Run, read_runs
from tests.commands import Trained
from tests.studies.report.making import MATCH, row, write_rows

BLUE, RED, GREEN = COLORS[:3]
# Of one layer's patches: a figure of one panel is drawn in a quarter of the time of all.
VALUES = {key: values for key, values in MATCH.items() if key[:2] == ("blocks.3", "patch")}


def drawn(folder: Path, *names: str, kind: str = "match-ratio") -> Path:
    """A run whose figure is drawn as its command draws it: colors by the order of its own checkpoints."""
    more: dict[str, Any] = {"colours": colors(names)}
    write_rows(folder, kind, rows_of(names), checkpoints=names, **more)
    (folder / "figures").mkdir()
    (folder / "figures" / "match-ratio.png").write_bytes(picture_of(names, *colors(names).values()))
    return folder


def rows_of(names: tuple[str, ...]) -> list[dict[str, Any]]:
    return [row(name, key, given[0], view="random_crop") for name in names for key, given in VALUES.items()]


@functools.cache
def picture_of(names: tuple[str, ...], *palette: str) -> bytes:
    """The figure of checkpoints in these colors, drawn once for all tests."""
    figures = match_ratio.draw(frame(rows_of(names)), colors=dict(zip(names, palette, strict=True)))
    return render(figures["match-ratio"])


def shown(run: Run) -> set[str]:
    """Which of the palette's colors the only figure of a run shows."""
    pixels = np.asarray(Image.open(io.BytesIO(only(run))).convert("RGB")).astype(np.uint32)
    there = {f"#{pixel:06x}" for pixel in np.unique(pixels @ np.array([1 << 16, 1 << 8, 1], dtype=np.uint32))}
    return {color for color in COLORS if color.lower() in there}


def only(run: Run) -> bytes:
    (picture,) = run.pictures
    return picture.content


@pytest.mark.slow
@pytest.mark.promise
def test_whoever_is_missing_all_others_keep_their_colors(tmp_path: Path) -> None:
    first, second = drawn(tmp_path / "1", "a", "b"), drawn(tmp_path / "2", "b")
    document = api.report([first, second], out=tmp_path / "out")
    both, one = document.runs
    # What is right as it is, is shown as it was drawn.
    assert only(both) == (first / "figures" / "match-ratio.png").read_bytes()
    assert shown(read_runs([second])[0]) == {BLUE} and shown(one) == {RED}
    assert only(one) == picture_of(("b",), RED)
    assert (tmp_path / "out/report-files/2-2/match-ratio.png").read_bytes() == only(one)
    assert "report-files/2-2/match-ratio.png" in document.markdown
    assert "keep its own colors" not in document.markdown + document.html


def test_colors_are_exchanged(tmp_path: Path) -> None:
    runs = [drawn(tmp_path / "1", "a", "b"), drawn(tmp_path / "2", "b", "a")]
    assert only(api.report(runs).runs[1]) == picture_of(("b", "a"), RED, BLUE)


@pytest.mark.slow
@pytest.mark.promise
def test_a_color_that_is_taken_goes_to_nobody_else(tmp_path: Path) -> None:
    runs = [drawn(tmp_path / name, name) for name in "abc"]
    assert [shown(run) for run in api.report(runs).runs] == [{BLUE}, {RED}, {GREEN}]


def test_one_name_for_two_files_is_two_colors(tmp_path: Path) -> None:
    one, other = drawn(tmp_path / "1", "a"), drawn(tmp_path / "2", "a")
    text = (other / "table.json").read_text()
    (other / "table.json").write_text(text.replace('"sha256": "', '"sha256": "f'))
    assert [shown(run) for run in api.report([one, other]).runs] == [{BLUE}, {RED}]


@pytest.mark.parametrize("damage", ["kind", "figure", "table"])
def test_a_figure_that_cannot_be_recolored_says_so(damage: str, tmp_path: Path) -> None:
    kind = "discontinuity" if damage == "kind" else "match-ratio"
    runs = [drawn(tmp_path / "1", "a", "b"), drawn(tmp_path / "2", "b", kind=kind)]
    figures, table = runs[1] / "figures", runs[1] / "table.csv"
    if damage == "figure":
        (figures / "match-ratio.png").rename(figures / "of-another-version.png")
    if damage == "table":
        table.write_text(table.read_text().replace(",split,", ",other,"))
    document = api.report(runs)
    said = "The figures of this run keep its own colors; elsewhere b has another one."
    for text in (document.markdown, document.html):
        assert text.count(said) == 1
    assert only(document.runs[1]) == next(figures.iterdir()).read_bytes()


@pytest.mark.slow
@pytest.mark.promise
def test_more_checkpoints_than_colors_repeat_them(tmp_path: Path) -> None:
    names = tuple(f"m{number}" for number in range(8))
    many, last = drawn(tmp_path / "1", *names), drawn(tmp_path / "2", *names[::-1])
    document = api.report([many, last])
    assert only(document.runs[1]) == picture_of(names[::-1], *reversed(colors(names).values()))


KINDS: dict[str, dict[str, Any]] = {
    "match-ratio": {},
    "confidence": {},
    "noise-sweep": {"sigmas": [0, 0.1]},
    "sweep": {"view": "gaussian_blur", "severities": [0, 1]},
    "s-matrix": {},
    "contagion": {},
    "fewshot": {},
}


@pytest.mark.pictures
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_drawn_again_is_the_figure_of_the_run(kind: str, trained: Trained, tmp_path: Path) -> None:
    pair = [trained["prc"], trained["baseline"]]
    api.probe(kind, pair, out=tmp_path / "run", limit=20, svg=True, **KINDS[kind])
    assert {path.suffix for path in (tmp_path / "run/figures").iterdir()} == {".png", ".svg"}
    (run,) = read_runs([tmp_path / "run"])
    assert run.colors == {"prc": COLORS[0], "baseline": COLORS[1]}
    again = redraw(run, run.colors)
    assert {name: render(figure) for name, figure in again.items()} == {
        picture.stem: picture.content for picture in run.pictures if picture.stem != "s-matrix-steps"
    }


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_figures_without_colors_of_checkpoints_stay_as_they_are(trained: Trained, tmp_path: Path) -> None:
    """The second run has the checkpoints the other way round: its heat maps are drawn again, its steps are not."""
    for name, pair in (("one", ["prc", "baseline"]), ("two", ["baseline", "prc"])):
        api.s_matrix(
            [trained[checkpoint] for checkpoint in pair], out=tmp_path / name, limit=2, layers="blocks.3"
        )
    _, two = api.report([tmp_path / "one", tmp_path / "two"]).runs
    assert {picture.stem for picture in two.pictures} == {"s-matrix", "s-matrix-steps"} and not two.miscolored
    (steps,) = (picture for picture in two.pictures if picture.stem == "s-matrix-steps")
    assert steps.content == (tmp_path / "two" / "figures" / "s-matrix-steps.png").read_bytes()


@pytest.mark.pictures
def test_a_comparison_is_drawn_again_from_its_table(trained: Trained, tmp_path: Path) -> None:
    api.compare(list(trained.values()), probe="eval", out=tmp_path / "run", limit=20)
    (run,) = read_runs([tmp_path / "run"])
    assert only(run) == render(redraw(run, run.colors)["forest"])
