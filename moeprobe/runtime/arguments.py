"""What an argument may be, by its annotation: a value of that type, or one sentence."""

import functools
import inspect
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from moeprobe.errors import UserError, option
from moeprobe.runtime.catalog import did_you_mean

# Seeds: torch takes no higher one, and a negative one is a slip.
LOWEST_SEED, HIGHEST_SEED = 0, 2**63 - 1


def several(value: Any) -> list[Any]:
    """Return a value as a list: one thing, or many."""
    single = isinstance(value, str | bytes) or not isinstance(value, Iterable)
    return [value] if single else list(value)


def check_two(values: Sequence[Any], what: str) -> None:
    """Raise ``UserError`` unless there are at least two; ``what`` they are, e.g. "models to align"."""
    if len(values) < 2:
        raise UserError(f"Name at least two {what}.")


def check_positive(name: str, value: float) -> None:
    """Raise ``UserError`` unless the value of an option is a finite number above 0."""
    if not 0 < value < float("inf"):
        raise UserError(f"{option(name)} takes a number above 0; got {value:g}.")


def read(name: str, annotation: Any, value: Any, *, flag: str | None = None) -> Any:
    """Return a value as its annotation asks for it; of an annotation that is not known here, as it is.

    A lone number or name where a sequence is due is a sequence of one.

    Args:
        name: of the argument, as Python writes it.
        annotation: e.g. ``int``, ``Sequence[float] | None``.
        value: the argument.
        flag: its option on the command line; None = the name with hyphens.

    Raises:
        UserError: it is of another type.
    """
    kind, optional = _without_none(annotation)
    if kind not in _READERS or (optional and value is None):
        return value
    reader, what = _READERS[kind]
    try:
        return reader(value)
    # RuntimeError: a tensor that is no single number
    except (TypeError, ValueError, OverflowError, RuntimeError):
        what += ", or None" if optional and ", or" not in what else ""
        raise UserError(f"{option(name, flag=flag)} takes {what}; got {value!r}.") from None


def what_of(annotation: Any) -> str:
    """Return what an argument takes in numbers, e.g. "a whole number"; of a list its numbers."""
    kind, _ = _without_none(annotation)
    return {int: "a whole number", Sequence[int]: "whole numbers", Sequence[float]: "numbers"}.get(
        kind, "a number"
    )


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


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError
    return operator.index(value)


def _number(value: Any) -> float:
    if isinstance(value, bool | str | bytes):
        raise TypeError
    return value if type(value) in (int, float) else float(value)


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
    int: (_integer, "a whole number"),
    float: (_number, "a number"),
    bool: (lambda value: _of(bool, value), "True or False"),
    Path: (_path, "a path"),
    str | Path: (_path, "a path"),
    tuple[str, ...]: (_names, "a name, or a list of names"),
    Sequence[int]: (_wholes, "a whole number, or a list of them"),
    Sequence[float]: (_numbers, "a number, or a list of numbers"),
    Sequence[str]: (_texts, "a string, or a list of strings"),
    Sequence[str | Path]: (_files, "a path, or a list of paths"),
}


# What Python has for an option of the command line, for who types that one's name.
_KEYWORDS: Mapping[str, Callable[[Any], str]] = {
    "capacity": lambda value: f"trained_capacity={value == 'trained'}",
    "file": lambda value: f"files={json.dumps([str(path) for path in several(value)])}",
    "full_gates": lambda value: f"all_gates={value}",
    "download": lambda _: "api.downloads()",
    "plugins": lambda _: "api.use_plugins",
}

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


def check_arguments(function: F, *, defaults: Mapping[str, Any] = NO_DEFAULTS) -> F:
    """Refuse keywords that a function does not take, positional arguments too many, and values of another type.

    A lone number or name where the function takes several is one of them.

    Where it takes an ``Unpack[TypedDict]`` (``Keywords``), its signature names each key, for Python's help and the
    completion of a notebook.

    Args:
        function: the function to call.
        defaults: of those keys.
    """
    signature_read = inspect.signature(function)
    unpacked = [
        parameter
        for parameter in signature_read.parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD and get_args(parameter.annotation)
    ]
    parameters = [parameter for parameter in signature_read.parameters.values() if parameter not in unpacked]
    for parameter in unpacked:
        [keywords] = get_args(parameter.annotation)
        declared = {parameter.name for parameter in parameters}
        parameters += [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=defaults.get(name, ...), annotation=kind
            )
            for name, kind in get_type_hints(keywords).items()
            if name not in declared
        ]
    signature = signature_read.replace(parameters=parameters)
    name = f"api.{function.__name__}"

    @functools.wraps(function)
    def wrapper(*positional: Any, **named: Any) -> Any:
        bound = bind(name, signature, positional, named)
        # What is unpacked from keywords is read by ``Options``.
        for key in bound.arguments.keys() & signature_read.parameters.keys():
            annotation = signature_read.parameters[key].annotation
            bound.arguments[key] = read(key, annotation, bound.arguments[key])
        return function(*bound.args, **bound.kwargs)

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    return cast("F", wrapper)


def checked_class(cls: type[T], *, package: str = "api") -> type[T]:
    """Refuse keywords that the constructor of a class does not take, and missing ones; values it checks itself.

    ``package`` is where users import it from.
    """
    construct = cls.__init__
    signature = signature_of(cls)

    @functools.wraps(construct)
    def wrapper(self: T, /, *positional: Any, **named: Any) -> None:
        bind(f"{package}.{cls.__name__}", signature, positional, named)
        construct(self, *positional, **named)

    cls.__init__ = wrapper  # type: ignore[method-assign, assignment]
    return cls


def signature_of(cls: type) -> inspect.Signature:
    """Return the parameters of a class's constructor, without the object itself."""
    signature = inspect.signature(cls.__init__)  # type: ignore[misc]
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def check_keywords(name: str, signature: inspect.Signature, keywords: Mapping[str, Any]) -> None:
    """Raise ``UserError`` where a signature lacks a keyword; ``name`` is the called function's."""
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        return
    for keyword, value in keywords.items():
        if keyword not in signature.parameters:
            parameters = list(signature.parameters)
            meant = _KEYWORDS.get(keyword)
            hint = f" Did you mean {meant(value)}?" if meant else did_you_mean(keyword, parameters)
            raise UserError(f"{name} has no argument {keyword!r}.{hint} There are: {', '.join(parameters)}.")


def bind(
    name: str, signature: inspect.Signature, positional: tuple[Any, ...], keywords: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments by their names; raises ``UserError`` where they do not fit."""
    check_keywords(name, signature, keywords)
    try:
        return signature.bind(*positional, **keywords)
    except TypeError as error:
        raise UserError(f"{name}: {error}; its arguments are {_describe_parameters(signature)}.") from None


def _describe_parameters(signature: inspect.Signature) -> str:
    """Return the arguments of a function as they are written: those by position first, the others with ``=``."""
    return ", ".join(
        parameter.name if parameter.kind is not parameter.KEYWORD_ONLY else f"{parameter.name}="
        for parameter in signature.parameters.values()
    )
