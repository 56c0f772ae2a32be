"""The application and its commands."""

import contextlib
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from moeprobe import __version__
from moeprobe.cli.commands import (
    audit,
    check_trace,
    compare,
    demo,
    doctor,
    explain,
    import_routing,
    inspect,
    paper,
    plan,
    runs,
    tails,
    tradeoff,
    train,
    upcycle,
    vmoe,
)
from moeprobe.cli.commands.probe_command import probe_command
from moeprobe.cli.commands.standalone_command import standalone_command
from moeprobe.cli.front.environment import INTERRUPTED, USER_ERROR, say, system_error
from moeprobe.cli.front.finished import print_finished
from moeprobe.cli.front.options import EPILOG, Command, CommandGroup, TraceGroup, defer
from moeprobe.declarations import Panel, registry
from moeprobe.declarations.question import panel_of
from moeprobe.errors import FinishedError, UserError
from moeprobe.runtime import processes
from moeprobe.runtime.catalog import blame, use_plugins
from moeprobe.runtime.distributed import OtherFailedError
from moeprobe.runtime.object_stores import listed_once
from moeprobe.runtime.signals import Ending


class MainGroup(CommandGroup):
    """Prints errors that a user can correct as one sentence; maps Ctrl-C, SIGTERM and SIGHUP to their exit codes."""

    def invoke(self, ctx: Any) -> None:
        """Run the command; end the process where it fails."""
        as_json = "--json" in ctx.args  # before the command takes its arguments
        with listed_once(), Ending() as ending:
            try:
                try:
                    super().invoke(ctx)
                except FinishedError as error:
                    print_finished(error.folder, as_json=as_json)
                ending.raise_again()
            except UserError as error:
                ending.settle()
                if not isinstance(error, OtherFailedError):
                    say(error)
                sys.exit(ending.exit_code(USER_ERROR))
            except KeyboardInterrupt as error:
                ending.settle()
                with contextlib.suppress(OSError):  # the terminal may be gone
                    typer.echo(f"{str(error) or 'Interrupted'}.", err=True)
                    for note in getattr(error, "__notes__", ()):
                        typer.echo(note, err=True)
                sys.exit(ending.exit_code(INTERRUPTED))
            except Exception as error:
                ending.settle()
                # A progress bar on a terminal that is gone cannot be taken down.
                if ending.number is not None and isinstance(error, OSError | typer.Exit):
                    sys.exit(ending.exit_code(USER_ERROR))
                sentence = _correctable(error)
                if sentence is None:
                    raise
                say(sentence)
                sys.exit(ending.exit_code(USER_ERROR))


def _correctable(error: Exception) -> UserError | None:
    """Return what to say of an error that is no bug of ours, wherever it is raised; None if it may be one."""
    lost = processes.lost_workers(error) if isinstance(error, RuntimeError) else None
    if sentence := lost or blame(error):
        return sentence
    if processes.ran_out(error):
        return UserError(
            "Memory ran out; use a smaller --batch-size (in training batch_size=N), or a device with more."
        )
    return system_error(error)


app = typer.Typer(
    name="moeprobe",
    cls=MainGroup,
    help="How far can the routing of a mixture-of-experts model be trusted? Train, probe and compare.",
    epilog=EPILOG,
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


_probes, _standalone = registry.probes(), registry.standalone()
# Commands that are not made of declarations, by heading. Probes come before them, other questions after them.
_written_commands: dict[Panel, dict[str, Callable[..., None]]] = {
    Panel.START: {
        "demo": demo.demo,
        "audit": audit.audit,
        "doctor": doctor.doctor,
        "explain": explain.explain,
        "inspect": inspect.inspect,
        "list": explain.listing,
    },
    Panel.PROBES: {},
    Panel.COMPARE: {
        "compare": compare.compare,
        "plan": plan.plan,
        "tails": tails.tails,
        "report": runs.report,
        "paper": paper.paper,
        "merge": runs.merge,
    },
    Panel.TRAIN: {
        "train": train.train,
        "upcycle": upcycle.upcycle,
        "tradeoff": tradeoff.tradeoff,
        "curves": runs.curves,
    },
    Panel.STRESS: {},
    Panel.TRACES: {
        "trace import": import_routing.import_routing,
        "trace check": check_trace.check_trace,
    },
    Panel.FILES: {
        "import vmoe": vmoe.import_vmoe,
        "import swin-moe": vmoe.import_swin_moe,
        "export vmoe": vmoe.export_vmoe,
    },
}
_groups = {
    "trace": typer.Typer(
        cls=TraceGroup,
        no_args_is_help=True,
        help="Record which experts tokens choose, or import what a server chose; check and compare it.",
    ),
    "import": typer.Typer(
        cls=CommandGroup,
        no_args_is_help=True,
        help="Convert another program's checkpoint to one of moeprobe.",
    ),
    "export": typer.Typer(
        cls=CommandGroup, no_args_is_help=True, help="Write a checkpoint in another program's format."
    ),
}
_panels = {"trace": Panel.TRACES, "import": Panel.FILES, "export": Panel.FILES}
# ``explain`` takes the names of options, such as --limit, as arguments.
_settings = {"explain": {"ignore_unknown_options": True}}


def _register(name: str, command: Callable[..., None], panel: Panel) -> None:
    """Make a function a command; the first word of two is its group."""
    group, _, inner = name.partition(" ")
    parent, word = (_groups[group], inner) if inner and group in _groups else (app, name)
    parent.command(
        word, cls=Command, rich_help_panel=panel, epilog=EPILOG, context_settings=_settings.get(name)
    )(command if hasattr(command, "make") else defer(lambda: command, docstring=command.__doc__))


for _panel in Panel:
    for _probe in _probes:
        if panel_of(_probe) is _panel:
            _register(_probe.name, probe_command(_probe), _panel)
    for _name, _command in _written_commands[_panel].items():
        _register(_name, _command, _panel)
    for _question in _standalone:
        if panel_of(_question) is _panel:
            _register(_question.name, standalone_command(_question), _panel)
for _name, _group in _groups.items():
    app.add_typer(_group, name=_name, rich_help_panel=_panels[_name])
_names = Counter(command.name for command in app.registered_commands)
_names.update(_groups.keys())
_names.update(
    f"{_name} {command.name}" for _name, _group in _groups.items() for command in _group.registered_commands
)
for _declared in (*_probes, *_standalone):
    if _names[_declared.name] > 1:
        raise UserError(
            f"The probe {_declared.__name__} of a plug-in is called {_declared.name!r}, as another command is; give it "
            "another name."
        )
