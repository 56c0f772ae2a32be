"""What an argument may be, by its annotation: a value of that type, or one sentence."""

import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args

from moeprobe.errors import UserError


def several(value: Any) -> list[Any]:
    """Return a value as a list: one thing, or many."""
    single = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    return [value] if single else list(value)


def read(name: str, annotation: Any, value: Any) -> Any:
    """Return a value as its annotation asks for it; of an annotation that is not known here, as it is.

    A lone number or name where a sequence is due is a sequence of one.

    Args:
        name: of the argument, as Python writes it.
        annotation: e.g. ``int``, ``Sequence[float] | None``.
        value: the argument.

    Raises:
        UserError: it is of another type.
    """
    kind, optional = _without_none(annotation)
    if kind not in _READERS or (optional and value is None):
        return value
    reader, what = _READERS[kind]
    try:
        return reader(value)
    except (TypeError, ValueError, RuntimeError):  # RuntimeError: a tensor that is no single number
        what += ", or None" if optional and ", or" not in what else ""
        raise UserError(f"--{name.replace('_', '-')} takes {what}; got {value!r}.") from None


def _without_none(annotation: Any) -> tuple[Any, bool]:
    """Return an annotation without its None, and whether it had one."""
    kinds = get_args(annotation)
    if not isinstance(annotation, UnionType) or NoneType not in kinds:
        return annotation, False
    kinds_left = [kind for kind in kinds if kind is not NoneType]
    kind = kinds_left[0]
    for alternative in kinds_left[1:]:
        kind = kind | alternative
    return kind, True


def _whole(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str | bytes):
        raise TypeError
    return value if type(value) in (int, float) else float(value)


def _switch(value: Any) -> bool:
    return _of(bool, value)


def _text(value: Any) -> str:
    return _of(str, value)


def _path(value: Any) -> Path:
    return Path(_of((str, Path), value))


def _of(kinds: Any, value: Any) -> Any:
    if not isinstance(value, kinds):
        raise TypeError
    return value


def _wholes(value: Any) -> list[float]:
    # As the command line reads them, 5.0 is 5; what is not whole is refused where it is known what is counted.
    return [int(number) if float(number).is_integer() else number for number in _numbers(value)]


def _numbers(value: Any) -> list[float]:
    return [_number(number) for number in _many(value)]


def _many(value: Any) -> list[Any]:
    """Return numbers as a list, also an array's or a tensor's, with a single one as well."""
    return [value] if getattr(value, "ndim", 1) == 0 else several(value)


def _texts(value: Any) -> list[str]:
    return [_text(text) for text in several(value)]


def _files(value: Any) -> list[str | Path]:
    return [_of((str, Path), file) for file in several(value)]


def _names(value: Any) -> tuple[str, ...]:
    names = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(names, Sequence) or not names:
        raise TypeError
    if not all(_text(part) for part in names):
        raise ValueError
    return tuple(names)


_READERS: dict[Any, tuple[Callable[[Any], Any], str]] = {
    str: (_text, "a string"),
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    bool: (_switch, "True or False"),
    Path: (_path, "a path"),
    str | Path: (_path, "a path"),
    tuple[str, ...]: (_names, "a name, or a list of names"),
    Sequence[int]: (_wholes, "a whole number, or a list of them"),
    Sequence[float]: (_numbers, "a number, or a list of numbers"),
    Sequence[str]: (_texts, "a string, or a list of strings"),
    Sequence[str | Path]: (_files, "a path, or a list of paths"),
}
