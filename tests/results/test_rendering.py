"""A figure is laid out once and drawn once, and is what matplotlib draws in its own way, pixel by pixel."""

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


def read(content: bytes) -> PIL.Image.Image:
    with PIL.Image.open(io.BytesIO(content)) as picture:
        picture.load()
    return picture


def slowly(figure: Figure) -> PIL.Image.Image:
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
    return read(file.getvalue())


@pytest.mark.parametrize("kind", ["curves", "images"])
def test_a_figure_drawn_once_is_what_savefig_writes(kind: str) -> None:
    figure = drawn(kind)
    before = figure.dpi
    content, expected = render(figure), slowly(drawn(kind))
    picture = read(content)
    assert picture.mode == "RGB" and expected.mode == "RGBA"
    assert np.array_equal(np.asarray(picture.convert("RGBA")), np.asarray(expected))
    assert picture.info == expected.info
    assert content == render(drawn(kind)) and figure.dpi == before


def test_a_figure_that_is_not_opaque_stays_so() -> None:
    figure = drawn("curves")
    figure.set_facecolor("none")
    assert read(render(figure)).getextrema()[-1] == (0, 255)


def test_long_names_are_drawn_whole() -> None:
    """Letters have another width at another resolution: names that just had room were cut off in the file."""
    figure, axes = panels(1, 1, width=14)
    axes[0, 0].set_yticks([0, 1], ["unlabeled_" * 9, "short"], fontsize=8)
    dark = np.flatnonzero((np.asarray(read(render(figure)).convert("L")) < 200).any(axis=0))
    assert 3 < dark[0] < 20
