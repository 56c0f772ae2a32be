"""Names of any language in figures: no warning, no raw control character, and fonts where there are some."""

from pathlib import Path

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.ttLib.tables._g_l_y_f import Glyph
from matplotlib import font_manager
from matplotlib.figure import Figure

from moeprobe.results.figures import render

pytestmark = pytest.mark.pictures
HAN = "数字"


def figure(name: str) -> Figure:
    drawn = Figure(figsize=(2, 2))
    axes = drawn.add_subplot(title=name)
    axes.set_xticks([0.5], labels=[name])
    return drawn


def font(path: Path, name: str) -> None:
    """Write a font that has nothing but empty letters."""
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", "empty"])
    builder.setupCharacterMap({ord(letter): "empty" for letter in HAN})
    builder.setupGlyf(dict.fromkeys((".notdef", "empty"), Glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys((".notdef", "empty"), (500, 0)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": name, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)


@pytest.mark.parametrize("name", [HAN, "a\x1b[31mb", "c\u202ed", f"{HAN}\nκ"])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_no_name_makes_a_warning(name: str, kind: str) -> None:
    """Warnings are errors in all tests."""
    content = render(figure(name), kind)
    assert b"\x1b" not in content or kind == "png"


def test_a_control_character_is_escaped() -> None:
    assert render(figure("a\x1bb")) == render(figure(r"a\x1bb"))


def test_fonts_that_are_installed_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boxes, usual = render(figure(HAN)), render(figure("κ ± σ"), "svg")
    font(tmp_path / "font.ttf", "Unifont")
    monkeypatch.setattr(font_manager.fontManager, "ttflist", [*font_manager.fontManager.ttflist])
    font_manager.fontManager.addfont(tmp_path / "font.ttf")
    assert render(figure(HAN)) != boxes
    assert b"Unifont" in render(figure(HAN), "svg")
    assert render(figure("κ ± σ"), "svg") == usual
