"""Options that imports share."""

from moeprobe.cli.fields import numbers
from moeprobe.errors import UserError


def factor(text: str, option: str) -> float | str:
    """Return a capacity factor: a number, or "none"."""
    if text == "none":
        return text
    values = numbers(text, option)
    assert values is not None
    if len(values) != 1:
        raise UserError(f"{option} takes one number, or none; got {text!r}.")
    return values[0]


def channels(text: str, option: str) -> list[float]:
    """Return a number per channel."""
    values = numbers(text, option)
    assert values is not None
    if len(values) not in (1, 3):
        raise UserError(f"{option} takes one number, or three with commas between; got {text!r}.")
    return list(values) * (3 // len(values))
