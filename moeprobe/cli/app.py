"""The application and its commands."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from moeprobe import __version__
from moeprobe.cli.commands import (
    analyze_trace,
    audit,
    check_trace,
    compare,
    correspond,
    curves,
    demo,
    doctor,
    drift,
    explain,
    import_experts,
    import_trace,
    inspect,
    listing,
    merge,
    mismatch,
    paper,
    report,
    tradeoff,
    train,
    vmoe,
)
from moeprobe.cli.commands.probe_command import probe_command
from moeprobe.cli.front.environment import USER_ERROR, say, system_error
from moeprobe.cli.front.finished import print_finished
from moeprobe.errors import FinishedError, UserError
from moeprobe.probes import registry
from moeprobe.probes.base import Panel, panel_of
from moeprobe.runtime.catalog import use_plugins
from moeprobe.runtime.distributed import OtherFailedError
from moeprobe.runtime.signals.ending import Ending

INTERRUPTED = 130


class Group(TyperGroup):
    """Prints errors that a user can correct as one sentence; maps Ctrl-C, SIGTERM and SIGHUP to their exit codes."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; end the process where it fails."""
        as_json = "--json" in ctx.args  # before the command takes its arguments
        with Ending() as ending:
            try:
                return super().invoke(ctx)
            except FinishedError as error:
                print_finished(error.folder, as_json=as_json)
            except UserError as error:
                if not isinstance(error, OtherFailedError):
                    say(error)
                sys.exit(USER_ERROR)
            except KeyboardInterrupt as error:
                with contextlib.suppress(OSError):  # the terminal may be gone
                    typer.echo("Interrupted." if ending.number is None else f"{error}.", err=True)
                    for note in getattr(error, "__notes__", ()):
                        typer.echo(note, err=True)
                sys.exit(INTERRUPTED if ending.number is None else 128 + ending.number)
            except Exception as error:
                if isinstance(error, OSError) and ending.number is not None:
                    # A progress bar on a terminal that is gone cannot be taken down.
                    sys.exit(128 + ending.number)
                sentence = _correctable(error)
                if sentence is None:
                    raise
                say(sentence)
                sys.exit(USER_ERROR)


def _correctable(error: Exception) -> UserError | None:
    """Return what to say of an error that is no bug of ours, wherever it is raised; None if it may be one."""
    from moeprobe.inputs.lost_workers import lost_workers
    from moeprobe.runtime.plugin_errors import blamed

    lost = lost_workers(error) if isinstance(error, RuntimeError) else None
    return lost or blamed(error) or _without_memory(error) or system_error(error)


def _without_memory(error: Exception) -> UserError | None:
    """Return what to say where memory ran out."""
    from moeprobe.runtime import memory

    if memory.ran_out(error):
        return UserError(
            "Memory ran out; use a smaller --batch-size (in training batch_size=N), or a device with more."
        )
    return None


app = typer.Typer(
    name="moeprobe",
    cls=Group,
    help="How far can the routing of a mixture-of-experts model be trusted? Train, probe and compare.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"moeprobe {__version__}")
        raise typer.Exit


def _plugins(files: list[Path] | None) -> None:
    # ``main`` has read the option before, so that there are commands for probes; this is for callers of ``app``.
    try:
        use_plugins(files or [])
    except UserError as error:
        say(error)
        raise typer.Exit(USER_ERROR) from error


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
    plugins: Annotated[
        list[Path] | None,
        typer.Option(
            callback=_plugins,
            is_eager=True,
            metavar="FILE.py",
            help="A Python file with plug-ins (views, routers, ...) for this command; may be given several times. "
            "The environment variable MOEPROBE_PLUGINS names files too. Their code is run: name only files you trust.",
        ),
    ] = None,
) -> None:
    pass


_probes = registry.probes()
# What no probe is, under its heading; in each heading the probes come first.
_others: dict[Panel, dict[str, Callable[..., None]]] = {
    Panel.STUDIES: {
        "audit": audit.audit,
        "demo": demo.demo,
        "train": train.train,
        "tradeoff": tradeoff.tradeoff,
        "curves": curves.curves,
        "compare": compare.compare,
        "paper": paper.paper,
        "report": report.report,
        "merge": merge.merge,
    },
    Panel.PROBES: {"correspond": correspond.correspond},
    Panel.STRESS: {},
    Panel.TRACES: {
        "analyze-trace": analyze_trace.analyze_trace,
        "drift": drift.drift,
        "mismatch": mismatch.mismatch,
        "check-trace": check_trace.check_trace,
    },
    Panel.FILES: {"inspect": inspect.inspect, "list": listing.listing, "doctor": doctor.doctor},
}
for _panel in Panel:
    for _probe in _probes:
        if panel_of(_probe) is _panel:
            app.command(_probe.name, rich_help_panel=_panel)(probe_command(_probe))
    for _name, _command in _others[_panel].items():
        app.command(_name, rich_help_panel=_panel)(_command)
# Options are names to be explained.
app.command("explain", rich_help_panel=Panel.FILES, context_settings={"ignore_unknown_options": True})(
    explain.explain
)
importing = typer.Typer(
    no_args_is_help=True, help="Convert another program's checkpoint or log to one of moeprobe."
)
importing.command("vmoe", rich_help_panel=Panel.FILES)(vmoe.import_vmoe)
importing.command("swin-moe", rich_help_panel=Panel.FILES)(vmoe.import_swin_moe)
importing.command("trace", rich_help_panel=Panel.TRACES)(import_trace.import_trace)
importing.command("routed-experts", rich_help_panel=Panel.TRACES)(import_experts.import_routed_experts)
app.add_typer(importing, name="import", rich_help_panel=Panel.FILES)
exporting = typer.Typer(no_args_is_help=True, help="Write a checkpoint in another program's format.")
exporting.command("vmoe", rich_help_panel=Panel.FILES)(vmoe.export_vmoe)
app.add_typer(exporting, name="export", rich_help_panel=Panel.FILES)
_names = Counter(command.name for command in app.registered_commands)
_names.update(group.name for group in app.registered_groups)
for _probe in _probes:
    if _names[_probe.name] > 1:
        raise UserError(
            f"The probe {_probe.__name__} of a plug-in is called {_probe.name!r}, as another command is; give it "
            "another name."
        )
