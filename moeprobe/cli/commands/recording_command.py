"""A command for each question to recordings, made of its declaration."""

from collections.abc import Callable
from typing import Any

from moeprobe.cli.front.early import check_checkpoints, check_folder, check_traces, result_of
from moeprobe.cli.front.options import (
    CommonOptions,
    Full,
    deferred,
    fields_for,
    keyword,
    with_parameters,
)
from moeprobe.declarations import Layout
from moeprobe.declarations.options import Options
from moeprobe.declarations.recording_probe import RecordingProbe
from moeprobe.runtime.arguments import several


def recording_command(kind: type[RecordingProbe[Any]]) -> Callable[..., None]:
    """Return the command of a question to recordings: its files, its own fields, then the common options it takes."""
    return deferred(lambda: _with_options(kind), docstring=kind.__doc__)


def _with_options(kind: type[RecordingProbe[Any]]) -> Callable[..., None]:
    fields = fields_for(kind)
    common_options = CommonOptions(defaults=kind.defaults, helps=kind.option_help, only=kind.common)

    def command(*, full: bool = False, **typed: Any) -> None:
        common = common_options.read(typed)
        probe = kind(**{field.name: field.read(typed[field.name]) for field in fields})
        check_checkpoints([str(getattr(probe, name)) for name in kind.models])
        check_traces([path for name in kind.recordings for path in several(getattr(probe, name))])
        options = common.options()
        check_folder(options.out, overwrite=options.overwrite)
        _run(probe, options, as_json=common.json, full=full)

    command.__doc__, command.__name__ = kind.__doc__, kind.name
    return with_parameters(
        command,
        [
            *sorted(
                (field.parameter() for field in fields),
                key=lambda parameter: parameter.name not in kind.positional(),
            ),
            *([keyword("full", Full, False)] if kind.layout is Layout.RECORDED else []),
            *common_options.parameters(),
        ],
    )


def _run(probe: RecordingProbe[Any], options: Options, *, as_json: bool, full: bool) -> None:
    """Ask the question with a progress bar, and print its result, or what its finished folder holds."""
    from moeprobe.cli.front.screen import Bar
    from moeprobe.cli.front.show import show
    from moeprobe.recorded.engine.work import run

    def compute() -> Any:
        with Bar(probe.unit) as bar:
            return run(probe, options=options, watcher=bar)

    result = result_of(compute, names=options.names if probe.renames else None)
    show(probe, result, out=options.out, as_json=as_json, full=full)
