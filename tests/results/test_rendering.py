"""A figure is laid out once and drawn once, and is what matplotlib draws in its own way, byte by byte."""

import io

import matplotlib as mpl
import numpy as np
import PIL.Image
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from moeprobe.results.figures import STYLE, render
from moeprobe.results.figures.panels import panels


def drawn(kind: str) -> Figure:
    figure, axes = panels(1, 2)
    for number, panel in enumerate(axes.flat):
        if kind == "curves":
            panel.plot([0, number + 1], [1, 2])
        else:
            panel.imshow(np.random.default_rng(number).random((8, 5 + number)))
        panel.set_title(f"panel {number}")
    if kind == "images":
        figure.colorbar(axes[0, 0].images[0], ax=axes[0, 0])
    figure.suptitle("A title")
    return figure


def slowly(figure: Figure) -> bytes:
    """As matplotlib does it: drawn for the layout, at the resolution of the file, then saved."""
    FigureCanvasAgg(figure)
    file = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.set_dpi(150)
        figure.draw_without_rendering()
        places = [(axes, axes.get_position().get_points()) for axes in figure.axes]
        figure.set_layout_engine("none")
        for axes, corners in places:
            axes.set_position(Bbox(corners.round(4)))
        for text in figure.texts:
            x, y = text.get_position()
            text.set_position((round(x, 4), round(y, 4)))
        figure.savefig(file, format="png", dpi=150, metadata={"Software": None})
    return file.getvalue()


@pytest.mark.parametrize("kind", ["curves", "images"])
def test_a_figure_drawn_once_is_what_savefig_writes(kind: str) -> None:
    figure = drawn(kind)
    before = figure.dpi
    assert render(figure) == slowly(drawn(kind))
    assert figure.dpi == before


def test_long_names_are_drawn_whole() -> None:
    """Letters have another width at another resolution: names that just had room were cut off in the file."""
    figure, axes = panels(1, 1, width=14)
    axes[0, 0].set_yticks([0, 1], ["unlabeled_" * 9, "short"], fontsize=8)
    with PIL.Image.open(io.BytesIO(render(figure))) as image:
        dark = np.flatnonzero((np.asarray(image.convert("L")) < 200).any(axis=0))
    assert 3 < dark[0] < 20
