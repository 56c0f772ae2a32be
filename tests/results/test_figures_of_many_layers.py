"""Figures of models with many layers are read on a page, and show every number that they are given."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from moeprobe.probes.confidence import figure as confidence
from moeprobe.probes.contagion import Contagion
from moeprobe.probes.discontinuity import figure as discontinuity
from moeprobe.probes.match_ratio import figure as match_ratio
from moeprobe.probes.s_matrix import figure as s_matrix
from moeprobe.probes.sweep import figure as sweep
from moeprobe.results.figures import save
from moeprobe.results.folder import Result
from moeprobe.results.palette import colors
from moeprobe.results.tables import frame
from tests.results.drawn import words
from tests.studies.report.making import Value, row

pytestmark = pytest.mark.slow

NAMES = ("baseline", "prc")
COLORS = colors(NAMES)
SEVERITIES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4)


def value(name: str, layer: int, metric: str, severity: float = 0.0) -> Value:
    """Another number in every cell."""
    found = 0.5 + 0.1 * NAMES.index(name) - 0.004 * layer - 0.5 * severity + 0.001 * (len(metric) % 7)
    return found, found - 0.02, found + 0.02


def table(
    layers: int, metrics: Mapping[str, tuple[str, ...]], severities: tuple[float | None, ...]
) -> pd.DataFrame:
    return frame(
        [
            row(
                name, (f"blocks.{2 * layer + 1}", "patch", metric, null), value(name, layer, metric, severity or 0),
                view="gaussian_noise", severity=severity, images=50,
            )
            for name in NAMES for layer in range(layers) for severity in severities
            for metric, nulls in metrics.items() for null in nulls
        ]
    )  # fmt: skip


MATCH: dict[str, tuple[str, ...]] = {
    f"{name}{what}": nulls
    for name in ("top1_match", "top2_match", "top2_set_match")
    for what, nulls in (
        ("", ("",)),
        ("_chance", ("pooled", "position", "image")),
        ("_kappa", ("pooled", "position", "image")),
    )
}
GATES: dict[str, tuple[str, ...]] = {
    f"gate_{name}": ("",) for name in ("highest", "second", "rest", "margin", "entropy")
}


def matrix(layers: int, experts: int) -> pd.DataFrame:
    rows = []
    for name in NAMES:
        for layer in range(layers):
            key = (f"blocks.{layer}", "patch", "s", "")
            for i, j in np.ndindex(experts, experts):
                found = value(name, layer, "s") if i == j else (0.01, 0.0, 0.02)
                rows.append(row(name, key, found, view="prc_crops", expert=i, expert_b=j))
            for metric in ("s_diagonal", "s_offdiagonal"):
                rows.append(row(name, (*key[:2], metric, ""), value(name, layer, metric), view="prc_crops"))
    return frame(rows)


DRAWN: dict[str, Callable[[int], dict[str, Figure]]] = {
    "match": lambda layers: match_ratio.draw(table(layers, MATCH, (None,)), colors=COLORS),
    "confidence": lambda layers: confidence.draw(table(layers, GATES, (None,)), colors=COLORS),
    "sweep": lambda layers: sweep.draw(table(layers, MATCH | GATES, SEVERITIES), colors=COLORS, unit="σ"),
    "s-matrix": lambda layers: s_matrix.draw(matrix(layers, 4), colors=COLORS),
}


@pytest.mark.parametrize("layers", [2, 16, 48])
@pytest.mark.parametrize("name", DRAWN)
def test_no_figure_is_wider_than_a_page(name: str, layers: int) -> None:
    for figure in DRAWN[name](layers).values():
        width, height = figure.get_size_inches()
        assert width <= 17 and height <= 22, (width, height)


@pytest.mark.parametrize("name", ["match", "confidence", "sweep"])
def test_every_value_of_every_layer_is_drawn(name: str) -> None:
    """The match and κ pooled at each severity, or each gate."""
    drawn = {
        float(y)
        for figure in DRAWN[name](16).values()
        for axes in figure.axes
        for line in axes.get_lines()
        for y in np.asarray(line.get_ydata(), dtype=float)
    }
    metrics = {"match": ("top1_match", "top2_set_match_kappa"), "confidence": tuple(GATES)}
    for metric in metrics.get(name, ("top1_match", "top1_match_kappa", "gate_highest")):
        for layer in range(16):
            for severity in SEVERITIES if name == "sweep" else (0.0,):
                assert any(
                    np.isclose(y, value(checkpoint, layer, metric, severity)[0])
                    for y in drawn
                    for checkpoint in NAMES[:1]
                ), (metric, layer)


def test_small_heat_maps_show_every_layer_and_their_means_are_a_figure_of_their_own() -> None:
    found = DRAWN["s-matrix"](16)
    assert set(found) == {"s-matrix", "s-matrix-layers"}
    assert sum(bool(axes.get_images()) for axes in found["s-matrix"].axes) == 32
    assert set(DRAWN["s-matrix"](3)) == {"s-matrix"}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("layers", [2, 16])
def test_caption_legend_and_panels_lie_apart(name: str, layers: int) -> None:
    for figure in DRAWN[name](layers).values():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        renderer = canvas.get_renderer()
        caption = figure.texts[-1].get_window_extent(renderer)
        panels = [axes.get_tightbbox(renderer) for axes in figure.axes if axes.axison]
        lowest = min(box.y0 for box in panels if box is not None) if panels else caption.y1
        assert caption.y0 >= 0 and caption.x1 <= figure.bbox.x1
        for legend in figure.legends:
            box = legend.get_window_extent(renderer)
            assert caption.y1 <= box.y0 + 1 and box.y1 <= lowest + 1
            assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
        assert caption.y1 <= lowest + 1


def test_ticks_are_the_severities_that_were_measured() -> None:
    for axes in DRAWN["sweep"](2)["routing"].axes:
        assert set(axes.get_xticks()) <= set(SEVERITIES)
        assert {*axes.get_xticks(), *axes.get_xticks(minor=True)} == set(SEVERITIES)


def test_few_lines_of_chance_and_axes_of_shares_from_0_to_1() -> None:
    figure = DRAWN["sweep"](2)["routing"]
    for axes in figure.axes:
        assert sum(bool(np.size(line.get_xdata())) for line in axes.get_lines()) <= 2 * len(NAMES)
        low, high = axes.get_ylim()
        assert low <= 0 and high == pytest.approx(1.03)


def test_sample_sizes_are_of_what_is_drawn() -> None:
    found = table(2, MATCH | GATES, SEVERITIES)
    output = table(1, {"accuracy": ("",)}, SEVERITIES).assign(layer="", tokens="")
    churn = table(1, {"churn": ("",)}, SEVERITIES).assign(layer="", tokens="", images=25)
    figures = sweep.draw(pd.concat([found, output, churn]), colors=COLORS, unit="σ")
    for name in ("routing", "output"):
        assert "digits test, 50 images; bands" in words(figures[name])


def contagion_of(still: tuple[str, ...]) -> Mapping[str, Figure]:
    rows = []
    for name in NAMES:
        for kind in ("batch", "token", "attention"):
            for end in ("", "_distance"):
                found = (0.0, 0.0, 0.0) if kind in still else value(name, 1, kind)
                rows.append(row(name, ("blocks.1", "patch", f"{kind}_contagion{end}", ""), found))
    result = SimpleNamespace(table=frame(rows), sidecar=SimpleNamespace(colors=COLORS))
    return Contagion().draw(cast(Result, result))


def test_what_never_changes_is_a_sentence_and_no_panel() -> None:
    (figure,) = contagion_of(("batch", "token")).values()
    assert [axes.get_title() for axes in figure.axes if axes.get_title()] == ["pixels exchanged"]
    assert (
        "0 exactly when batch-mates are exchanged or other tokens at the router are exchanged: each token is routed "
        "by itself"
    ) in words(figure)
    (figure,) = contagion_of(()).values()
    assert len(figure.axes) == 6 and "0 exactly" not in words(figure)
    assert contagion_of(("batch", "token", "attention")) == {}


def test_jumps_are_drawn_on_two_logarithmic_axes() -> None:
    rows = [
        row(name, ("", "", f"switches_above_{x:g}", ""), (y, 0.0, 2 * y), view="gaussian_noise")
        for name in NAMES
        for x, y in ((0, 60.0), (1e-4, 50.0), (1e-3, 20.0), (1e-2, 0.5), (0.1, 0.0))
    ]
    figure = discontinuity.draw_jumps(frame(rows), COLORS, until="up to 0.4 (σ)")
    (panel,) = figure.axes
    assert (panel.get_xscale(), panel.get_yscale()) == ("log", "log")
    low, high = panel.get_ylim()
    drawn = {
        float(y) for line in panel.get_lines() for y in np.asarray(line.get_ydata(), float) if np.isfinite(y)
    }
    assert {50.0, 20.0, 0.5} <= drawn and 0 < low < 0.5 and high > 50
    assert "Up to 0.4 (σ)" in words(figure) and "None found: no point" in words(figure)


def test_the_same_table_gives_the_same_bytes(tmp_path: Path) -> None:
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        for name, figure in DRAWN["match"](16).items():
            save(figure, tmp_path / place / name, svg=True)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["match-ratio.png", "match-ratio.svg"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
