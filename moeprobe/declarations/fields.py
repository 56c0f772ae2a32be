"""The fields of a declaration: one of them is an option of a command and a keyword of a function."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, get_type_hints

from moeprobe.errors import UserError, option
from moeprobe.runtime import arguments

NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Arg:
    """How users give a field: as an option of a command, or as a keyword of a function.

    Attributes:
        help: one sentence.
        flag: its option; empty = the field's name. In a list that is ``--file``, each value has the option again;
            other lists are separated by commas.
        keyword: what functions of the API call it; empty = the field's name.
        metavar: what help calls it where it is an argument without an option; empty = it has an option.
        choices: words that are typed for values; None = the value itself.
        words: all that a text may be; empty = any text.
        low: its least value, in a list the least of each; None = no bound.
        high: its largest value; None = no bound.
        above: a bound that it must exceed; None = no bound.
        below: a bound that it must not reach; None = no bound.
        what: what a refusal calls its numbers; empty = as the field's type is.
        in_request: whether the numbers of a run depend on it and nothing else in the request says so.
        of_figures: whether figures depend on it, and no number does.
    """

    help: str
    flag: str = ""
    keyword: str = ""
    metavar: str = ""
    choices: Mapping[str, Any] | None = None
    words: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    below: float | None = None
    what: str = ""
    in_request: bool = True
    of_figures: bool = False

    def admits(self, value: Any) -> bool:
        """Whether a value, or each in a list, is one of the words and within the bounds."""
        if self.words:
            values = [value] if isinstance(value, str) else value
            return all(word in self.words for word in values)
        values = value if isinstance(value, Sequence) else [value]
        # Written so that NaN is within no bounds.
        return all(
            (self.low is None or number >= self.low)
            and (self.high is None or number <= self.high)
            and (self.above is None or number > self.above)
            and (self.below is None or number < self.below)
            and (self.bounds == "" or abs(number) < math.inf)
            for number in values
            if isinstance(number, int | float)
        )

    @property
    def bounds(self) -> str:
        """The range in words, with a space before it; empty = there is none."""
        if self.above is not None and self.below is not None:
            return f" between {self.above:g} and {self.below:g}"
        if self.low is not None:
            return f" from {self.low:,g} " + ("up" if self.high is None else f"to {_number(self.high)}")
        if self.above is not None:
            return f" above {self.above:g}" + ("" if self.high is None else f", up to {_number(self.high)}")
        return "" if self.high is None else f" up to {_number(self.high)}"


def _number(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else f"{bound:g}"


def plain(value: Any) -> Any:
    """Return a value as JSON has it."""
    if isinstance(value, str | int | float | None):
        return value
    return [plain(one) for one in value] if isinstance(value, Sequence) else str(value)


def fields_of(kind: type) -> Mapping[str, Any]:
    """Return the fields of a question, or of ``Options``, in their order: name -> annotation without its ``Arg``."""
    return _annotations(kind)


def arg_of(kind: type, name: str) -> Arg:
    """Return how a field is typed on the command line; one that is not declared has no sentence."""
    return next(iter(_args(_hints(kind)[name])), Arg(""))


@functools.cache
def _annotations(kind: type) -> Mapping[str, Any]:
    # Once per class: a question looks every one of its fields up here.
    return MappingProxyType(
        {name: hint.__origin__ if _args(hint) else hint for name, hint in _hints(kind).items()}
    )


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    # Once per class: an annotation in quotes is evaluated, for every field of every base.
    hints = get_type_hints(kind, include_extras=True)
    annotations = vars(kind).get("__annotations__", {})
    # What is a question's own is read before what it shares with others.
    names = sorted(
        (field.name for field in dataclasses.fields(kind)), key=lambda name: name not in annotations
    )
    return {name: hints[name] for name in names}


def _args(hint: Any) -> list[Arg]:
    return [one for one in getattr(hint, "__metadata__", ()) if isinstance(one, Arg)]


def keyword_of(kind: type, name: str) -> str:
    """Return what functions of the API call a field."""
    return arg_of(kind, name).keyword or name


def read_field(kind: type, name: str, value: Any) -> Any:
    """Return a value of a field as its annotation asks for it.

    Raises:
        UserError: it is of another type, none of the words, or out of range.
    """
    annotation, arg, flag = fields_of(kind)[name], arg_of(kind, name), flag_of(kind, name)
    read = arguments.read(keyword_of(kind, name), annotation, value, flag=flag)
    if read is None or arg.admits(read):
        return read
    written = option(keyword_of(kind, name), flag=flag)
    if arg.words:
        raise UserError(f"{written} takes {' or '.join(arg.words)}; got {read!r}.")
    what = arg.what or arguments.what_of(annotation)
    value = list(read) if isinstance(read, Sequence) else f"{read:g}" if isinstance(read, float) else read
    raise UserError(f"{written} takes {what}{arg.bounds}; got {value}.")


def flag_of(kind: type, name: str) -> str:
    """Return the option of a field, e.g. ``--group-images``."""
    return arg_of(kind, name).flag or f"--{name.replace('_', '-')}"
