"""What a string may hold to be written or shown."""

import re

# How spreadsheets recognize a formula; the wide forms count in East Asian editions.
_FORMULA = re.compile("'*[=+\\-@\t\r＝＋－＠]")

# Controls of both sets but the line break, what turns the direction of writing, other line breaks, half characters.
_STEERING = re.compile(
    "[\0-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\u2029\ud800-\udfff]"
)


def quote(name: str) -> str:
    """Return a name as a sentence may hold it: quoted, escaped, and not too long."""
    return repr(name if len(name) <= 120 else f"{name[:100]}…{name[-19:]}")


def in_one_line(text: str) -> str:
    """Return a text as a terminal shows it: line breaks are spaces, and what would steer the terminal is escaped."""
    joined = " ".join(line.strip() for line in text.splitlines())
    return "".join(map(_escape, joined))


def harmless(text: str) -> str:
    """Return a text with escapes in place of what would steer a terminal; line breaks stay."""
    return _STEERING.sub(lambda match: _escape(match[0]), text)


def harmless_json(text: str) -> str:
    """Return JSON that says the same with its own escapes in place of what would steer a terminal."""
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _escape(character: str) -> str:
    return character if character.isprintable() else character.encode("unicode_escape").decode()


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


def restore(cell: str) -> str:
    """Return the text that ``neutral`` made a cell of."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def exact(value: float) -> str:
    """Return a number in the fewest digits that no other number has, without a point where it is whole."""
    return repr(float(value)).removesuffix(".0")
