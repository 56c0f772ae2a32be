"""Figures show all that they are given, whatever the checkpoints have in common."""

import ast
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from moeprobe.probes.confidence import figure as confidence
from moeprobe.probes.discontinuity import figure as discontinuity
from moeprobe.probes.match_ratio import figure as match_ratio
from moeprobe.probes.sweep import figure as sweep
from moeprobe.results.figures import panels
from moeprobe.results.palette import colors
from moeprobe.results.tables import frame
from tests.results.drawn import words
from tests.sources import tree_of

PACKAGE = Path(panels.__file__).parents[2]
_MATCH = [
    (f"top1_match{what}", null)
    for what, nulls in (
        ("", [""]),
        ("_chance", ["pooled", "position", "image"]),
        ("_kappa", ["pooled", "image"]),
    )
    for null in nulls
]
COLORS = colors(["low", "high"])
_GATES = [(f"gate_{name}", "") for name in ("highest", "second", "rest", "margin", "entropy")]


def table(severities: list[float | None]) -> pd.DataFrame:
    """Two checkpoints far apart, whose second layers lie lower still; one has a layer of its own."""
    rows = []
    for checkpoint, layers in (("low", ["blocks.1", "blocks.3"]), ("high", ["blocks.1", "blocks.5"])):
        for number, layer in enumerate(layers):
            for step, severity in enumerate(severities):
                for place, (metric, null) in enumerate([*_MATCH, *_GATES]):
                    value = (0.9 if checkpoint == "high" else 0.5) - 0.2 * number - 0.1 * step + 0.001 * place
                    rows.append(
                        {
                            "checkpoint": checkpoint, "dataset": "digits", "split": "test", "layer": layer,
                            "view": "noise", "severity": severity, "tokens": "patch", "metric": metric, "null": null,
                            "value": value, "ci_low": value - 0.02, "ci_high": value + 0.02, "images": 30, "flag": "",
                        }
                    )  # fmt: skip
    return frame(rows)


def figures() -> dict[str, Figure]:
    return {
        "sweep": sweep.draw(table([0.0, 0.1, 0.2]), colors=COLORS, unit="σ")["routing"],
        "match": match_ratio.draw(table([None]), colors=COLORS)["match-ratio"],
        "confidence": confidence.draw(table([None]), colors=COLORS)["confidence"],
    }


def caption_of(dataset: str, *, mark: str | None) -> str:
    figure, _ = panels.panels(1, 1)
    rows = table([None]).assign(dataset=dataset, split="" if dataset == "requests" else "test")
    panels.finish(figure, rows, title="A title", notes=["A note"], mark=mark)
    return " ".join(figure.texts[-1].get_text().split())


def test_a_caption_says_what_was_measured_once() -> None:
    assert caption_of("digits", mark="bars") == "A note. digits test, 30 images; bars: 95 % over images."
    assert caption_of("digits", mark=None) == "A note. digits test."
    assert caption_of("requests", mark="bars") == "A note. 30 requests; bars: 95 % over requests."
    assert caption_of("requests", mark=None) == "A note."


@pytest.mark.parametrize("name", figures())
def test_no_point_lies_outside_its_panel(name: str) -> None:
    drawn = 0
    for axes in figures()[name].axes:
        low, high = axes.get_ylim()
        for line in axes.get_lines():
            y = np.asarray(line.get_ydata(), dtype=float)
            drawn += np.isfinite(y).sum()
            assert np.all((y >= low) & (y <= high)), (axes.get_title(), line.get_label())
    assert drawn > 12


@pytest.mark.parametrize("name", figures())
def test_a_row_of_panels_shares_its_axis_and_every_checkpoint_its_color(name: str) -> None:
    figure = figures()[name]
    columns = 3
    for row in range(len(figure.axes) // columns):
        assert len({axes.get_ylim() for axes in figure.axes[row * columns : (row + 1) * columns]}) == 1
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"low", "high"} <= set(labels) and len(labels) == len(set(labels))


@pytest.mark.parametrize("number", [2, 8])
def test_no_bar_of_jumps_hides_that_of_another_checkpoint(number: int) -> None:
    given = colors([f"model {one}" for one in range(number)])
    sizes = (0.001, 0.003, 0.01)
    rows = [
        {
            "checkpoint": checkpoint, "dataset": "digits", "split": "test", "view": "noise", "tokens": "",
            "metric": f"switches_above_{size:g}", "value": 2.0, "ci_low": 1.0, "ci_high": 4.0, "images": 30,
        }
        for checkpoint in given for size in sizes
    ]  # fmt: skip
    (panel,) = discontinuity.draw_jumps(pd.DataFrame(rows), given, until="up to 0.2").axes
    bars = [bar for bar in panel.collections if isinstance(bar, LineCollection)]
    places = [segment[0][0] for bar in bars for segment in bar.get_segments()]
    assert len(set(places)) == number * len(sizes), "every bar has a place of its own"
    for place in places:
        # Nearest to the size that it is of.
        assert min(abs(np.log10(place / size)) for size in sizes) < np.log10(3) / 3


@pytest.mark.parametrize(("lowest", "shaded"), [(0.97, [(0.97, 1.0)] * 3), (1.0, [])])
def test_the_noise_floor_is_shaded_from_its_value_and_not_from_its_interval(
    lowest: float, shaded: list[tuple[float, float]]
) -> None:
    found = table([0.0, 0.1])
    floors = found[(found["metric"] == "top1_match") & (found["severity"] == 0)].assign(
        view="clean_other_dtype", severity=np.nan, value=lowest, ci_low=0.9, ci_high=1.0
    )
    figure = sweep.draw(pd.concat([found, floors]), colors=COLORS, unit="σ")["routing"]
    bands = [patch for axes in figure.axes for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [(band.get_y(), pytest.approx(band.get_y() + band.get_height())) for band in bands] == shaded
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("noise floor (arithmetic)" in labels) == bool(shaded)
    assert ("nothing to shade" in words(figure)) == (not shaded)


@pytest.mark.slow
@pytest.mark.promise
def test_what_is_not_drawn_is_said_to_stand_in_the_table() -> None:
    for kind, severities in (("sweep", [0.0, 0.1]), ("match", [None])):
        found = table(list(severities))
        extra = found[found["metric"] == "top1_match_kappa"]
        parts = {
            "": found,
            "In the table only: chance and κ by class": pd.concat([found, extra.assign(null="class")]),
            "In the table only: foreground and background": pd.concat(
                [found, extra.assign(tokens="boundary")]
            ),
        }
        for said, rows in parts.items():
            drawn = {
                "sweep": lambda rows=rows: sweep.draw(rows, colors=COLORS, unit="σ")["routing"],
                "match": lambda rows=rows: match_ratio.draw(rows, colors=COLORS)["match-ratio"],
            }[kind]()
            assert said in words(drawn) and ("In the table only" in words(drawn)) == bool(said)


def test_no_figure_claims_intervals_that_are_not_there() -> None:
    found = table([None])
    assert "bars: 95 % over images" in words(match_ratio.draw(found, colors=COLORS)["match-ratio"])
    found[["ci_low", "ci_high"]] = np.nan
    found["images"] = 19
    assert words(match_ratio.draw(found, colors=COLORS)["match-ratio"]).endswith(
        "19 images; no intervals: they need at least 20 images."
    )


def test_severities_do_not_run_into_one_another() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure = sweep.draw(table([0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4]), colors=COLORS, unit="σ")["routing"]
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        ticks = [label for label in axes.get_xticklabels() if label.get_text()]
        boxes = sorted((label.get_window_extent() for label in ticks), key=lambda box: box.x0)
        assert len(boxes) >= 4 and "0.2" in [label.get_text() for label in ticks]
        for left, right in pairwise(boxes):
            assert right.x0 - left.x1 > 0.5 * (left.x1 - left.x0)


@pytest.mark.parametrize(("kind", "severities"), [("sweep", [0.0, 0.1]), ("match", [None])])
def test_a_collapsed_router_is_called_collapsed(kind: str, severities: list[float | None]) -> None:
    found = table(severities)
    gone = (found["checkpoint"] == "low") & found["metric"].str.endswith("_kappa")
    found.loc[gone, ["value", "ci_low", "ci_high"]] = np.nan
    found.loc[gone, "flag"] = "collapsed"
    drawn = {
        "sweep": lambda: sweep.draw(found, colors=COLORS, unit="σ")["routing"],
        "match": lambda: match_ratio.draw(found, colors=COLORS)["match-ratio"],
    }[kind]()
    words = [text.get_text() for axes in drawn.axes for text in axes.texts]
    # Two layers, and each severity of a sweep.
    assert words.count("collapsed") == 2 * len(severities)


def test_no_figure_asks() -> None:
    """A title names what is drawn, or says what was found."""
    files = [*PACKAGE.glob("**/*figure.py"), *PACKAGE.glob("results/figures/**/*.py")]
    strings = [
        (path.name, node.value)
        for path in files
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert len(strings) > 1000
    # What follows a title in the same string, such as the view, is no constant.
    assert not [text for text in strings if text[1].rstrip().endswith("?")]
