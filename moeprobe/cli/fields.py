"""Options of the command line, made of the fields that a probe or ``Options`` declares."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from moeprobe.errors import UserError
from moeprobe.probes.base import NONE, Arg, arg_of, fields_of, flag_of

# How a sequence is typed, and read: the option repeated for each value, or all values comma-separated.
_REPEATED = Sequence[str | Path]
_NUMBERS = (Sequence[float], Sequence[int])


@dataclass(frozen=True)
class Field:
    """A field as an option.

    Attributes:
        name: of the field.
        annotation: of the field, without its ``Arg``.
        arg: how it is typed.
        flag: the option.
        default: what it is where it is not typed; ``inspect.Parameter.empty`` = it must be.
    """

    name: str
    annotation: Any
    arg: Arg
    flag: str
    default: Any

    def parameter(self) -> inspect.Parameter:
        """Return the parameter that typer makes the option of."""
        if self.annotation is bool and self.arg.choices is None:
            option = typer.Option(self.flag, help=self.arg.help)
        else:
            # Named only where it is not what typer makes of the parameter's name.
            option = typer.Option(*([self.flag] if self.arg.flag else []), help=self.arg.help)
        return keyword(self.name, Annotated[self._typed(), option], self._typed_default())

    def read(self, typed: Any) -> Any:
        """Return the value of what was typed.

        Raises:
            UserError: it is none of the choices, or no list of numbers.
        """
        if self.arg.choices is not None:
            if typed not in self.arg.choices:
                raise UserError(f"{self.flag} is {' or '.join(self.arg.choices)}; got {typed!r}.")
            return self.arg.choices[typed]
        kinds = self._kinds()
        if _REPEATED in kinds:
            return typed or []
        if any(kind in kinds for kind in _NUMBERS):
            return numbers(typed, self.flag)
        if Sequence[str] in kinds:
            return names(typed)
        return typed

    def _kinds(self) -> tuple[Any, ...]:
        return (self.annotation, *get_args(self.annotation))

    def _typed(self) -> Any:
        kinds = self._kinds()
        if self.arg.choices is not None:
            return str
        if _REPEATED in kinds:
            return list[str] | None
        if tuple[str, ...] in kinds or Sequence[str] in kinds or any(kind in kinds for kind in _NUMBERS):
            return str if isinstance(self.default, Sequence) and self.default else str | None
        return self.annotation

    def _typed_default(self) -> Any:
        if self.arg.choices is not None:
            return next(word for word, value in self.arg.choices.items() if value == self.default)
        if isinstance(self.default, Sequence) and not isinstance(self.default, str):
            return ",".join(map(str, self.default)) or None
        return self.default


def fields_for(
    kind: type,
    *,
    defaults: Mapping[str, Any] = NONE,
    helps: Mapping[str, str] = NONE,
    but: Sequence[str] = (),
) -> list[Field]:
    """Return the fields of a probe, or of ``Options``, as options.

    Args:
        kind: the dataclass.
        defaults: other defaults than its own, by name.
        helps: other sentences than its own, by name.
        but: fields that are not typed.
    """
    own = {
        field.name: inspect.Parameter.empty if field.default is MISSING else field.default
        for field in fields(kind)
    }
    return [
        Field(
            name,
            annotation,
            replace(arg_of(kind, name), help=helps.get(name, arg_of(kind, name).help)),
            flag_of(kind, name),
            defaults.get(name, own[name]),
        )
        for name, annotation in fields_of(kind).items()
        if name not in but
    ]


def keyword(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
    """Return a parameter of a command."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def names(text: str | None) -> list[str]:
    """Return comma-separated names, none for None."""
    return [part.strip() for part in text.split(",")] if text else []


def numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    """Return comma-separated numbers, None for None.

    Raises:
        UserError: something in it is no number.
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UserError(
            f"{option} takes numbers separated by commas, e.g. 0,0.1,0.2; got {text!r}."
        ) from None
