"""Names of any language in figures: fonts for letters that matplotlib's own lacks, escapes for other characters."""

import functools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.text import Text

from moeprobe.runtime.characters import harmless

_OWN = "DejaVu Sans"
# Fonts of several systems; those that are installed are asked, in this order, for what matplotlib's font lacks.
_OTHERS = (
    "Noto Sans CJK SC", "Noto Sans CJK JP", "Noto Sans CJK KR", "Noto Sans SC", "Noto Sans JP", "Noto Sans KR",
    "Source Han Sans SC", "WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "PingFang SC",
    "Hiragino Sans", "Apple SD Gothic Neo", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS",
    "Noto Sans Devanagari", "Noto Sans Thai", "Noto Sans Symbols2", "Noto Emoji", "Unifont",
)  # fmt: skip


@contextmanager
def prepare_letters(figure: Figure) -> Iterator[None]:
    """Prepare the texts of a figure that is drawn in the block; a letter that no font has is a box, without a warning.

    Only texts that need other fonts name them, so that figures have the same bytes wherever their letters are usual.
    """
    texts = [text for text in figure.findobj(Text) if isinstance(text, Text)]
    if any(_is_harmful(text) for text in texts):
        _escape(figure, texts)
    for text in texts:
        letters = text.get_text().replace("\n", "")
        if not letters.isascii() and not _letters().issuperset(map(ord, letters)):
            text.set_fontfamily([*text.get_fontfamily(), *_installed_fonts()])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from", category=UserWarning)
        yield


def _is_harmful(text: Text) -> bool:
    return text.get_text() != harmless(text.get_text())


def _escape(figure: Figure, texts: list[Text]) -> None:
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            labels = axis.get_ticklabels()
            if any(
                map(_is_harmful, labels)
            ):  # an axis keeps the names, and writes them again when it is drawn
                axis.set_ticklabels([harmless(label.get_text()) for label in labels])
    for text in texts:
        text.set_text(harmless(text.get_text()))


@functools.cache
def _letters() -> frozenset[int]:
    """Return the characters that matplotlib's own font has."""
    return frozenset(font_manager.get_font(font_manager.findfont(_OWN)).get_charmap())


def _installed_fonts() -> list[str]:
    """Return the other fonts that are here."""
    families = {font.name for font in font_manager.fontManager.ttflist}
    return [name for name in _OTHERS if name in families]
