"""What a string may hold to be written or shown."""

import re

# How spreadsheets recognize a formula; the wide forms count in East Asian editions.
_FORMULA = re.compile("'*[=+\\-@\t\r＝＋－＠]")


def quoted(name: str) -> str:
    """Return a name as a sentence may hold it: quoted, escaped, and not too long."""
    return repr(name if len(name) <= 120 else f"{name[:100]}…{name[-19:]}")


def in_one_line(text: str) -> str:
    """Return a text as a terminal shows it: line breaks are spaces, and what would steer the terminal is escaped."""
    joined = " ".join(line.strip() for line in text.splitlines())
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in joined)


def is_unicode(text: str) -> bool:
    r"""Whether a string can be written as UTF-8: JSON may hold half a character, a lone surrogate such as "\ud800"."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def neutral(text: str) -> str:
    """Return a text as a CSV cell that no spreadsheet takes for a formula: a leading apostrophe where it would."""
    return f"'{text}" if _FORMULA.match(text) else text


def restored(cell: str) -> str:
    """Return the text that ``neutral`` made a cell of."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def exact(value: float) -> str:
    """Return a number in the fewest digits that no other number has, without a point where it is whole."""
    return repr(float(value)).removesuffix(".0")
