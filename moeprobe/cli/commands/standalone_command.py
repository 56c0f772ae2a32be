"""A command for each question that names what it is about, made of its declaration."""

import contextlib
from collections.abc import Callable
from typing import Any

from moeprobe.cli.front.early import (
    check_checkpoints,
    check_data,
    check_folder,
    check_traces,
    check_view,
)
from moeprobe.cli.front.finished import print_shard, result_of
from moeprobe.cli.front.options import (
    CommonOptions,
    Full,
    ShardOption,
    defer,
    fields_for,
    keyword,
    require_folder,
    with_parameters,
)
from moeprobe.declarations import Layout
from moeprobe.declarations.options import Options
from moeprobe.declarations.question import StandaloneQuestion, check_fields
from moeprobe.errors import UserError
from moeprobe.probes.engine.shard import Shard
from moeprobe.runtime import distributed
from moeprobe.runtime.arguments import several
from moeprobe.runtime.progress import Progress


def standalone_command(kind: type[StandaloneQuestion[Any]]) -> Callable[..., None]:
    """Return the command of a question: what it is about, its own fields, then the common options that it takes."""
    check_fields(kind)
    return defer(lambda: _with_options(kind), docstring=kind.__doc__)


def _with_options(kind: type[StandaloneQuestion[Any]]) -> Callable[..., None]:
    fields = fields_for(kind)
    common_options = CommonOptions(defaults=kind.defaults, helps=kind.option_help, only=kind.common)

    def command(*, full: bool = False, **typed: Any) -> None:
        part = _shard_of(kind, typed.pop("shard", None))
        common = common_options.read(typed)
        options = common.options()
        question = kind(**{field.name: field.read(typed[field.name]) for field in fields})
        _check(question, options)
        if part is not None:
            _measure_shard(question, options, part, as_json=common.json)
            return
        if not kind.printed:
            require_folder(options.out, json=common.json, command=kind.name)
        _run(question, options, as_json=common.json, full=full)

    command.__doc__, command.__name__ = kind.__doc__, kind.name
    first = kind.positional()
    return with_parameters(
        command,
        [
            *sorted((field.parameter() for field in fields), key=lambda one: one.name not in first),
            *([keyword("shard", ShardOption, None)] if kind.splits else []),
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
    if distributed.rank() == 0:
        check_folder(options.out, overwrite=options.overwrite)


def _shard_of(kind: type[StandaloneQuestion[Any]], typed: str | None) -> Shard | None:
    """Return the shard that is typed; None = the question as a whole, which several processes may share.

    Raises:
        UserError: it is none, or several processes were started for a question that takes one, or that has a shard.
    """
    if not kind.splits or typed is None:
        if not kind.splits:
            distributed.check_alone(kind.name)
        return None
    if distributed.is_launched():
        raise UserError("Processes that torchrun starts take their own shards; leave --shard out.")
    return Shard.read(typed)


def _measure_shard(
    question: StandaloneQuestion[Any], options: Options, shard: Shard, *, as_json: bool
) -> None:
    """Measure a shard with a progress bar, and print where it is."""
    from moeprobe.cli.front.screen import Bar
    from moeprobe.probes.engine.merging import measure_shard

    with Bar(question.unit) as bar:
        measured = measure_shard(question, None, shard, data=None, options=options, watcher=bar)
    print_shard(measured, unit=question.unit, as_json=as_json)


def _run(question: StandaloneQuestion[Any], options: Options, *, as_json: bool, full: bool) -> None:
    """Ask the question with a progress bar, and print its result, or what its finished folder holds."""
    from moeprobe.cli.front.screen import Bar
    from moeprobe.cli.front.show import show

    first = distributed.rank() == 0

    def compute() -> Any:
        with contextlib.ExitStack() as stack:
            ranks = stack.enter_context(distributed.together()) if distributed.is_launched() else None
            watcher = stack.enter_context(Bar(question.unit)) if first else Progress()
            if ranks is None:
                return question.ask(options, watcher)
            from moeprobe.probes.engine.merging import run_together

            return run_together(question, None, data=None, options=options, ranks=ranks, watcher=watcher)

    # A table of values is also printed of a run that is finished.
    names = options.names if question.renames else None
    result = result_of(compute, names=names) if question.layout.is_table else compute()
    if first:
        show(question, result, out=options.out, as_json=as_json, full=full)
