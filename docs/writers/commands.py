"""The commands: help, options and example of each, as ``--help`` says them."""

import re
from collections import Counter
from typing import Any

from typer.main import get_command

from moeprobe.cli.app import app
from moeprobe.declarations import Panel
from writers.markdown import code, docstring, first_sentence, page, table

# The page of each heading of ``--help``, and its title.
PAGES = {
    Panel.START: ("start", "Commands to start with"),
    Panel.PROBES: ("probes", "Probe commands"),
    Panel.COMPARE: ("compare", "Commands that compare and report"),
    Panel.TRAIN: ("train", "Commands for training"),
    Panel.STRESS: ("stress", "Stress tests"),
    Panel.TRACES: ("traces", "Commands for recorded routing"),
    Panel.FILES: ("files", "Checkpoints of other programs"),
}
# Commands for servers and their trainers, which have a page of their own.
SERVERS = {"server", "trace mismatch", "trace indexer"}
_SERVERS_PAGE = ("servers", "Commands for servers")
# Commands that ask which experts are needed when, or how much data they need.
EXPERTS = {"trace locality", "prefetch", "trace prefetch", "trace batches", "coverage", "trace coverage"}
_EXPERTS_PAGE = ("experts", "Commands for experts in memory and calibration")
# An option is shared if it is the same in so many commands; a command takes the shared ones if it has so many of them.
_SAME_IN, _HAS = 9, 10
_SOURCE = "the help texts of the command line"

Option = tuple[str, str, str]


def pages() -> dict[str, str]:
    """Return the page of all commands, and one for each kind."""
    commands = flat(get_command(app).commands)  # type: ignore[attr-defined]
    counted = Counter(option for command in commands.values() for option in options(command))
    same = {option for option, number in counted.items() if number >= _SAME_IN}
    most = max(commands.values(), key=lambda command: len(same.intersection(options(command))))
    shared = [option for option in options(most) if option in same]
    kinds: dict[tuple[str, str], list[str]] = {
        kind: [] for kind in (*PAGES.values(), _SERVERS_PAGE, _EXPERTS_PAGE)
    }
    of_name = dict.fromkeys(SERVERS, _SERVERS_PAGE) | dict.fromkeys(EXPERTS, _EXPERTS_PAGE)
    for name, command in commands.items():
        kinds[of_name.get(name, PAGES[command.rich_help_panel])].append(name)
    written = {
        f"reference/commands-{kind}.md": page(
            title, _SOURCE, *(section(name, commands[name], shared) for name in names)
        )
        for (kind, title), names in kinds.items()
    }
    overview = [
        f"## {title}\n\n"
        + table(
            ["command", "what it does"],
            [
                [
                    f"[`{name}`](commands-{kind}.md#{name.replace(' ', '-')})",
                    first_sentence(commands[name].help),
                ]
                for name in names
            ],
        )
        for (kind, title), names in kinds.items()
    ]
    first = page(
        "Commands",
        _SOURCE,
        "Every command explains itself with `--help`. [Which command?](../guide/which-command.md) says which command "
        "answers what.",
        *overview,
        "## Shared options\n\nMost commands that take checkpoints have these:",
        table(["option", "meaning", "default"], map(cells, shared)),
    )
    return {"reference/commands.md": first, **written}


def flat(commands: dict[str, Any], above: str = "") -> dict[str, Any]:
    """Return commands by what is typed; those of a group by the group's name and theirs."""
    found: dict[str, Any] = {}
    for name, command in commands.items():
        inner = getattr(command, "commands", None)
        found |= {f"{above}{name}": command} if inner is None else flat(inner, f"{above}{name} ")
    return found


def section(name: str, command: Any, shared: list[Option]) -> str:
    """Return the section of a command: its help, how it is called, the options that are its own."""
    text, _, example = command.help.partition("Example: ")
    example = re.sub(r"`(.*)`", r"\1", " ".join(example.split()))
    has = [option for option in options(command) if option in shared]
    takes_shared = len(has) >= _HAS
    own = [option for option in options(command) if not (takes_shared and option in shared)]
    parts = [f"## {name}", docstring(text), f"```bash\n{example}\n```"]
    if own:
        parts.append(table(["option", "meaning", "default"], map(cells, own)))
    if takes_shared:
        names = {option[0] for option in options(command)}
        missing = [code(option[0]) for option in shared if option[0] not in names]
        without = f", except {', '.join(missing)}" if missing else ""
        parts.append(f"It takes the [shared options](commands.md#shared-options) too{without}.")
    return "\n\n".join(parts)


def options(command: Any) -> list[Option]:
    """Return the arguments and options of a command: what is typed, what it means, its default ("" = none)."""
    return [
        (typed(one), one.help or "", default(one))
        for one in command.params
        if one.name != "help" and not one.hidden
    ]


def typed(one: Any) -> str:
    """Return how an argument or option is typed."""
    if one.param_type_name == "argument":
        return one.metavar or one.name.upper()
    return ", ".join([*one.opts, *one.secondary_opts])


def default(one: Any) -> str:
    """Return the default of an option; "" where none is to be said."""
    if one.required:
        return "required"
    return "" if one.default is None or one.default is False or one.default == "" else f"{one.default}"


def cells(option: Option) -> list[str]:
    """Return an option as a row."""
    name, meaning, default = option
    return [code(name), docstring(meaning), default if default in ("", "required") else code(default)]
