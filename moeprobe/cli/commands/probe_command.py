"""A command for each probe, made of its declaration."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from moeprobe.cli.front.early import check_arguments, check_folder
from moeprobe.cli.front.finished import print_shard, result_of
from moeprobe.cli.front.options import (
    Checkpoints,
    Common,
    CommonOptions,
    Data,
    Full,
    ShardOption,
    defer,
    fields_for,
    keyword,
    require_folder,
    with_parameters,
)
from moeprobe.declarations import Layout, Probe
from moeprobe.declarations.question import check_fields
from moeprobe.errors import UserError
from moeprobe.inputs.modality import IMAGE
from moeprobe.probes.engine.shard import Shard
from moeprobe.runtime import distributed

# Layouts with a short form.
_SHORT = (Layout.SIDE_BY_SIDE, Layout.ALONG_SEVERITY, Layout.MEANS)


def probe_command(kind: type[Probe[Any]]) -> Callable[..., None]:
    """Return the command of a probe: CHECKPOINT..., --data, its own fields, then the options that all share.

    Raises:
        UserError: a field is called as one of these, or as what a declaration says of itself.
    """
    check_fields(kind)
    return defer(lambda: _with_options(kind), docstring=kind.__doc__)


def _with_options(kind: type[Probe[Any]]) -> Callable[..., None]:
    probe_fields = fields_for(kind)
    common_options = CommonOptions(defaults=kind.defaults, helps=kind.option_help)

    def command(
        *, checkpoints: list[str], data: str | None, shard: str | None, full: bool = False, **typed: Any
    ) -> None:
        common = common_options.read(typed)
        options = common.options()
        part = None if shard is None else Shard.read(shard)
        if part is not None and distributed.is_launched():
            raise UserError("Processes that torchrun starts take their own shards; leave --shard out.")
        check_arguments(typed | {"checkpoints": checkpoints, "data": data}, split=options.split)
        if not common.dry_run and distributed.rank() == 0:
            check_folder(options.out, overwrite=options.overwrite)
        probe = kind(**{field.name: field.read(typed[field.name]) for field in probe_fields})
        probe.check_options(options)
        if common.dry_run:
            _print_plan(probe, checkpoints, data, common, part)
            return
        if part is not None:
            _measure_shard(probe, checkpoints, data, common, part)
            return
        if not kind.printed:
            require_folder(options.out, json=common.json, command=kind.name)
        _run(probe, checkpoints, data, common, full=full)

    command.__doc__, command.__name__ = kind.__doc__, kind.name
    return with_parameters(
        command,
        [
            keyword("checkpoints", Checkpoints),
            keyword("data", Data, None),
            *(field.parameter() for field in probe_fields),
            keyword("shard", ShardOption, None),
            *([keyword("full", Full, False)] if kind.layout in _SHORT else []),
            *common_options.parameters(),
        ],
    )


def _run(probe: Probe[Any], checkpoints: list[str], data: str | None, common: Common, *, full: bool) -> None:
    """Run a probe with a progress bar, and print its result; of several processes the first does both."""
    from moeprobe.cli.front.screen import Bar
    from moeprobe.probes.engine.run import run
    from moeprobe.runtime.progress import Progress

    options, first = common.options(), distributed.rank() == 0

    def compute() -> Any:
        with contextlib.ExitStack() as stack:
            ranks = stack.enter_context(distributed.together()) if distributed.is_launched() else None
            watcher = stack.enter_context(Bar()) if first else Progress()
            stack.enter_context(_naming_finished_parts(options.out if probe.resumes and first else None))
            if ranks is None:
                return run(probe, checkpoints, data=data, options=options, watcher=watcher)
            from moeprobe.probes.engine.merging import run_together

            return run_together(probe, checkpoints, data=data, options=options, ranks=ranks, watcher=watcher)

    # A table of values is also printed of a run that is finished.
    result = result_of(compute, names=options.names) if probe.layout.is_table else compute()
    if first:
        from moeprobe.cli.front.show import show

        show(probe, result, out=options.out, as_json=common.json, full=full)


@contextlib.contextmanager
def _naming_finished_parts(out: Path | None) -> Iterator[None]:
    """Say at Ctrl-C that finished parts stay in a folder."""
    try:
        yield
    except KeyboardInterrupt as error:
        if out is not None:
            error.add_note(f"Finished parts are in {out}; the same command continues from there.")
        raise


def _measure_shard(
    probe: Probe[Any], checkpoints: list[str], data: str | None, common: Common, shard: Shard
) -> None:
    """Measure a shard with a progress bar, and print where it is."""
    from moeprobe.cli.front.screen import Bar
    from moeprobe.probes.engine.merging import measure_shard
    from moeprobe.probes.engine.origins import modality_of_data

    options = common.options()
    with Bar() as bar, _naming_finished_parts(options.out):
        measured = measure_shard(probe, checkpoints, shard, data=data, options=options, watcher=bar)
    modality = modality_of_data(measured.sidecar["asked"]["data"] or None) or IMAGE
    print_shard(measured, unit=modality.plural, as_json=common.json)


def _print_plan(
    probe: Probe[Any], checkpoints: list[str], data: str | None, common: Common, shard: Shard | None
) -> None:
    from moeprobe.probes.engine.run import plan

    timed = plan(probe, checkpoints, data=data, options=common.options(), shard=shard)
    from moeprobe.cli.front.show import print_plan

    print_plan(timed, as_json=common.json, least=probe.at_least, before=probe.ends_with)
