"""A command for each question that names what it is about, made of its declaration."""

from collections.abc import Callable
from typing import Any

from moeprobe.cli.front.early import (
    check_checkpoints,
    check_data,
    check_folder,
    check_traces,
    check_view,
)
from moeprobe.cli.front.finished import result_of
from moeprobe.cli.front.options import (
    CommonOptions,
    Full,
    defer,
    fields_for,
    keyword,
    require_folder,
    with_parameters,
)
from moeprobe.declarations import Layout
from moeprobe.declarations.options import Options
from moeprobe.declarations.question import StandaloneQuestion, check_fields
from moeprobe.runtime import distributed
from moeprobe.runtime.arguments import several


def standalone_command(kind: type[StandaloneQuestion[Any]]) -> Callable[..., None]:
    """Return the command of a question: what it is about, its own fields, then the common options that it takes."""
    check_fields(kind)
    return defer(lambda: _with_options(kind), docstring=kind.__doc__)


def _with_options(kind: type[StandaloneQuestion[Any]]) -> Callable[..., None]:
    fields = fields_for(kind)
    common_options = CommonOptions(defaults=kind.defaults, helps=kind.option_help, only=kind.common)

    def command(*, full: bool = False, **typed: Any) -> None:
        distributed.check_alone(kind.name)
        common = common_options.read(typed)
        options = common.options()
        question = kind(**{field.name: field.read(typed[field.name]) for field in fields})
        _check(question, options)
        if not kind.printed:
            require_folder(options.out, json=common.json, command=kind.name)
        _run(question, options, as_json=common.json, full=full)

    command.__doc__, command.__name__ = kind.__doc__, kind.name
    first = kind.positional()
    return with_parameters(
        command,
        [
            *sorted((field.parameter() for field in fields), key=lambda one: one.name not in first),
            *([keyword("full", Full, False)] if kind.layout is Layout.RECORDED else []),
            *common_options.parameters(),
        ],
    )


def _check(question: StandaloneQuestion[Any], options: Options) -> None:
    """Refuse mistyped names before heavy modules are imported."""
    question.check_folder(options)
    models = [getattr(question, name) for name in question.models]
    check_checkpoints([str(model) for model in models if model is not None])
    check_traces([path for name in question.recordings for path in several(getattr(question, name))])
    check_data(getattr(question, "data", None), split=options.split)
    check_view(getattr(question, "view", None))
    check_folder(options.out, overwrite=options.overwrite)


def _run(question: StandaloneQuestion[Any], options: Options, *, as_json: bool, full: bool) -> None:
    """Ask the question with a progress bar, and print its result, or what its finished folder holds."""
    from moeprobe.cli.front.screen import Bar
    from moeprobe.cli.front.show import show

    def compute() -> Any:
        with Bar(question.unit) as bar:
            return question.ask(options, bar)

    # A table of values is also printed of a run that is finished.
    names = options.names if question.renames else None
    result = result_of(compute, names=names) if question.layout.is_table else compute()
    show(question, result, out=options.out, as_json=as_json, full=full)
