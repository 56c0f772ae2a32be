"""Make the function of a question of its declaration: its fields are the keywords, its docstring says the rest."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, get_type_hints

from moeprobe.declarations import Probe, registry
from moeprobe.declarations.fields import arg_of, fields_of, keyword_of
from moeprobe.declarations.options import Keywords, Options, combine, with_options
from moeprobe.declarations.question import Question, StandaloneQuestion, check_fields
from moeprobe.declarations.recording_probe import Files, RecordingProbe
from moeprobe.runtime.arguments import check_arguments, signature_of
from moeprobe.runtime.catalog import PROBES
from moeprobe.runtime.progress import Progress

if TYPE_CHECKING:
    from moeprobe.adapters.base import Models

_KEYWORD, _POSITIONAL = Parameter.KEYWORD_ONLY, Parameter.POSITIONAL_OR_KEYWORD
_WIDTH = 116
# A path may be given as a string.
_PATHS: dict[Any, Any] = {Path: str | Path, Path | None: str | Path | None, Files: str | Path | Files}
# What all functions of checkpoints say alike.
SHARED = {
    "models": "checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.",
    "data": "data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.",
    "options": "what all questions have in common; other keywords are applied to them by name (``limit=100``).",
    "watcher": "receives how the run advances; None = a progress bar in a notebook.",
}


def questions() -> dict[str, type[Question[Any]]]:
    """Return the declarations of all questions by the names of their functions."""
    return _by_name(tuple(PROBES.names()))


@cache
def _by_name(names: tuple[str, ...]) -> dict[str, type[Question[Any]]]:
    # By the names of all probes, since plug-ins may join later.
    return {kind.function_name(): kind for kind in (*registry.probes(), *registry.standalone())}


@cache
def function_for(kind: Any) -> Callable[..., Any]:
    """Return the function of a question.

    Raises:
        UserError: a field of a plug-in is called as an argument that all functions have.
    """
    check_fields(kind)
    function = _of_checkpoints(kind) if issubclass(kind, Probe) else _of_what_it_names(kind)
    # As if it were written in that module, which help() and pickles name.
    function.__module__ = "moeprobe.api.questions"
    function.__doc__ = docstring_of(kind)
    return function


def _of_checkpoints(kind: type[Probe[Any]]) -> Callable[..., Any]:
    def ask(
        models: "Models",
        *,
        data: str | None = None,
        options: Options | None = None,
        watcher: Progress | None = None,
        **keywords: Any,
    ) -> Any:
        from moeprobe.probes.engine.run import run  # brings torch; the functions themselves are made without

        probe = kind(**fields_among(kind, keywords))
        combined = combine(options, keywords, defaults=kind.defaults)  # type: ignore[arg-type]
        return run(probe, models, data=data, options=combined, watcher=watcher)

    return with_options(_with_signature(ask, kind))


def _of_what_it_names(kind: type[StandaloneQuestion[Any]]) -> Callable[..., Any]:
    positional = kind.positional()

    def ask(
        *files: Any, options: Options | None = None, watcher: Progress | None = None, **keywords: Any
    ) -> Any:
        keywords |= dict(zip(positional, files, strict=False))
        question = kind(**fields_among(kind, keywords))
        return question.ask(combine(options, keywords, defaults=kind.defaults), watcher)  # type: ignore[arg-type]

    return check_arguments(_with_signature(ask, kind))


def _with_signature(function: Callable[..., Any], kind: type[Question[Any]]) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = kind.function_name()
    function.__signature__ = signature_for(kind)  # type: ignore[attr-defined]
    return function


def fields_among(kind: type[Question[Any]], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a question among the keywords of a function, and remove them there."""
    field_of = {keyword_of(kind, name): name for name in fields_of(kind)}
    return {field_of[keyword]: keywords.pop(keyword) for keyword in [*keywords] if keyword in field_of}


def signature_for(kind: type[Question[Any]]) -> inspect.Signature:
    """Return how the function of a question is called."""
    return inspect.Signature([*_parameters(kind)], return_annotation=kind.result_name())


def _parameters(kind: type[Question[Any]]) -> Iterator[Parameter]:
    parameters = signature_of(kind).parameters
    fields = [
        Parameter(
            keyword_of(kind, name),
            _POSITIONAL if arg_of(kind, name).metavar else _KEYWORD,
            default=parameters[name].default,
            annotation=_PATHS.get(annotation, annotation),
        )
        for name, annotation in fields_of(kind).items()
    ]
    # Required fields first, as Python demands.
    required = [field for field in fields if field.default is Parameter.empty]
    optional = [field for field in fields if field.default is not Parameter.empty]
    if issubclass(kind, Probe):
        yield Parameter("models", _POSITIONAL, annotation="Models")
        required.append(Parameter("data", _KEYWORD, default=None, annotation=str | None))
    yield from sorted([*required, *optional], key=lambda parameter: parameter.kind)
    yield Parameter("options", _KEYWORD, default=None, annotation=Options | None)
    yield Parameter("watcher", _KEYWORD, default=None, annotation=Progress | None)
    # Questions that take only some options list them; the others take all by name.
    if kind.common is not None:
        hints, defaults = get_type_hints(Keywords), signature_of(Options).parameters
        for name in kind.common:
            default = kind.defaults.get(name, defaults[name].default)
            yield Parameter(name, _KEYWORD, default=default, annotation=hints[name])
    else:
        yield Parameter("changes", Parameter.VAR_KEYWORD, annotation=Unpack[Keywords])


def docstring_of(kind: type[Question[Any]]) -> str:
    """Return what the function of a question does, takes and refuses."""
    summary = inspect.getdoc(kind) or ""
    # The example is a command line, which means nothing in Python.
    lines = [_in_python(summary.partition("\n\nExample: ")[0]), "", "Args:"]
    entries = {name: SHARED[name] for name in ("models", "data")} if issubclass(kind, Probe) else {}
    entries |= {keyword_of(kind, name): _in_python(arg_of(kind, name).help) for name in fields_of(kind)}
    entries |= {name: SHARED[name] for name in ("options", "watcher")}
    lines += [_entry(name, text) for name, text in entries.items()]
    wrong = (
        "a file is damaged or missing, or recordings cannot be compared"
        if issubclass(kind, RecordingProbe)
        else "something named does not exist or does not fit"
    )
    raised = ", or ".join(filter(None, [wrong, kind.raises]))
    return "\n".join([*lines, "", "Raises:", _entry("UserError", f"{raised}.")])


def _entry(name: str, text: str) -> str:
    """Return an entry of a docstring's section."""
    return textwrap.fill(
        f"{name}: {text}", _WIDTH, initial_indent=" " * 4, subsequent_indent=" " * 8, break_long_words=False
    )


def _in_python(text: str) -> str:
    """Return a sentence of a command's help in the words of Python: keywords for options, and lists for commas."""
    text = re.sub(r"[;,] (?:may be repeated|comma-separated)|; see: moeprobe [\w ]+", "", text)
    text = re.sub(r"^Comma-separated (\w)", lambda first: first[1].upper(), text)
    return re.sub(r"--([a-z][a-z-]*)", lambda flag: f"``{flag[1].replace('-', '_')}``", text)
