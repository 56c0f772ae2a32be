"""Keywords that are checked before anything is done."""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeVar, cast, get_args, get_type_hints

from moeprobe.errors import UserError, keyword_for
from moeprobe.runtime import arguments
from moeprobe.runtime.catalog import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
NO_DEFAULTS: Mapping[str, Any] = MappingProxyType({})


def checked(function: F, *, defaults: Mapping[str, Any] = NO_DEFAULTS) -> F:
    """Refuse keywords that a function does not take, positional arguments too many, and values of another type.

    A lone number or name where the function takes several is one of them.

    Where it takes an ``Unpack[TypedDict]`` (``Keywords``), its signature names each key, for ``help`` and the
    completion of a notebook.

    Args:
        function: the function to call.
        defaults: of those keys.
    """
    signature_read = inspect.signature(function)
    parameters = [
        parameter
        for parameter in signature_read.parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    for unpacked in (
        parameter.annotation
        for parameter in signature_read.parameters.values()
        if parameter.kind is parameter.VAR_KEYWORD
    ):
        [keywords] = get_args(unpacked)
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
        bound = _bound(name, signature, positional, named)
        # What is unpacked from keywords is read by ``Options``.
        for key in bound.arguments.keys() & signature_read.parameters.keys():
            annotation = signature_read.parameters[key].annotation
            bound.arguments[key] = arguments.read(key, annotation, bound.arguments[key])
        return function(*bound.args, **bound.kwargs)

    wrapper.__signature__ = signature  # type: ignore[attr-defined]
    return cast("F", wrapper)


def checked_class(made: type[T]) -> type[T]:
    """Refuse keywords that the constructor of a class does not take, and missing ones; values it checks itself."""
    construct = made.__init__
    signature = signature_of(made)

    @functools.wraps(construct)
    def wrapper(self: T, /, *positional: Any, **named: Any) -> None:
        _bound(f"api.{made.__name__}", signature, positional, named)
        construct(self, *positional, **named)

    made.__init__ = wrapper  # type: ignore[method-assign, assignment]
    return made


def signature_of(made: type) -> inspect.Signature:
    """Return the parameters of a class's constructor, without the object itself."""
    signature = inspect.signature(made.__init__)  # type: ignore[misc]
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def check_keywords(name: str, signature: inspect.Signature, named: Mapping[str, Any]) -> None:
    """Raise ``UserError`` where a signature lacks a keyword; ``name`` is the called function's."""
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values()):
        return
    for keyword, value in named.items():
        if keyword not in signature.parameters:
            parameters = list(signature.parameters)
            meant = keyword_for(keyword, value)
            hint = f" Did you mean {meant}?" if meant else did_you_mean(keyword, parameters)
            raise UserError(f"{name} has no argument {keyword!r}.{hint} There are: {', '.join(parameters)}.")


def _bound(
    name: str, signature: inspect.Signature, positional: tuple[Any, ...], named: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments by their names; raises ``UserError`` where they do not fit."""
    check_keywords(name, signature, named)
    try:
        return signature.bind(*positional, **named)
    except TypeError as error:
        raise UserError(f"{name}: {error}; its arguments are {_shown(signature)}.") from None


def _shown(signature: inspect.Signature) -> str:
    """Return the arguments of a function as they are written: those by position first, the others with ``=``."""
    return ", ".join(
        one.name if one.kind is not one.KEYWORD_ONLY else f"{one.name}="
        for one in signature.parameters.values()
    )
