"""What can be read in a figure."""

from matplotlib.figure import Figure


def words(figure: Figure) -> str:
    """The heading and the caption, on one line."""
    return " ".join(" ".join([figure.get_suptitle(), *(text.get_text() for text in figure.texts)]).split())
