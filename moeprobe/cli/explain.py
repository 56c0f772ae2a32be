"""``moeprobe explain``."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from moeprobe.metrics.registry import Form
    from moeprobe.runtime.catalog import Catalog


@dataclass(frozen=True)
class Explanation:
    """What one name means in one place.

    Attributes:
        name: as it was asked for.
        kind: what it is there, e.g. ``metric`` or ``column``.
        title: what it is called elsewhere, or its first sentence.
        text: what it means.
        facts: more about it, fact -> value.
        parameters: what it takes, name -> default and meaning.
    """

    name: str
    kind: str
    title: str
    text: str
    facts: dict[str, str] = field(default_factory=dict)
    parameters: dict[str, str] = field(default_factory=dict)


def explain(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A metric, with or without _chance or _kappa; a chance level; a column of tables; a word of the "
            "column flag; a view, router, data set, objective, analysis or adapter; a command.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a name means that tables, options or lists use; all of its meanings, where it has several.

    Example: `moeprobe explain top1_match_kappa`
    """
    import json as json_module

    from rich.text import Text

    from moeprobe.cli.screen import console
    from moeprobe.errors import UserError
    from moeprobe.runtime.catalog import did_you_mean

    found = list(explanations(name))
    if not found:
        raise UserError(
            f"Nothing is called {name!r}.{did_you_mean(name, names())} moeprobe list names plug-ins and metrics, "
            "moeprobe --help commands."
        )
    if json:
        print(json_module.dumps([asdict(one) for one in found], ensure_ascii=False))
        return
    screen = console()
    for number, one in enumerate(found):
        if number:
            screen.print()
        screen.print(Text(one.name, style="bold").append(f", {one.kind}", style="dim"))
        for text in (one.title, one.text):
            if text:
                screen.print(Text(text))
        for facts in (one.facts, one.parameters):
            _print_facts(facts)


def _print_facts(facts: dict[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from moeprobe.cli.screen import console

    if facts:
        table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for fact, value in facts.items():
            table.add_row(Text(fact), Text(value))
        console().print(table)


def explanations(name: str) -> Iterator[Explanation]:
    """Yield what a name means: as a metric, in tables, as a plug-in, as a command. Only the last two bring torch."""
    from moeprobe.metrics import registry
    from moeprobe.metrics.declaration import NULLS
    from moeprobe.results.columns import COLUMNS, COMPARISON_COLUMNS, FLAGS, TRADEOFF_COLUMNS

    yield from _metrics(name)
    if name in NULLS:
        kappa = registry.kappa(name)
        yield Explanation(name, "chance level", f"Chance is {NULLS[name].about}.", "", {"called": kappa})
    tables = {
        "tables": COLUMNS,
        "moeprobe compare": COMPARISON_COLUMNS,
        "moeprobe tradeoff": TRADEOFF_COLUMNS,
    }
    for of, columns in tables.items():
        if name in columns:
            yield Explanation(name, f"column of {of}", "", columns[name])
    if name in FLAGS:
        yield Explanation(name, "word of the column flag", "", FLAGS[name])
    for plugins in _catalogs():
        if name in plugins.names():
            yield _plugin(name, plugins)
    commands = _commands()
    if name in commands:
        yield _command(name, commands[name])


def names() -> list[str]:
    """Return all that can be explained; of metrics with chance levels the value alone."""
    from moeprobe.metrics import registry
    from moeprobe.metrics.declaration import NULLS
    from moeprobe.results.columns import COLUMNS, COMPARISON_COLUMNS, FLAGS, TRADEOFF_COLUMNS

    plugins = [name for catalog in _catalogs() for name in catalog.names()]
    tables = (*COLUMNS, *COMPARISON_COLUMNS, *TRADEOFF_COLUMNS, *FLAGS)
    return list(dict.fromkeys([*registry.names(), *NULLS, *tables, *plugins, *_commands()]))


def _metrics(name: str) -> Iterator[Explanation]:
    """Yield the metric of a name, which a family may also be asked for as it is written."""
    from moeprobe.metrics import registry
    from moeprobe.metrics.declaration import MetricFamily

    families = {one.name: one for one in registry.declared() if isinstance(one, MetricFamily)}
    form = registry.find(families[name].representative.name if name in families else name)
    if form.declared:
        kind = f"metrics, such as {form.name}" if name in families else "metric"
        yield Explanation(name, kind, _called(form), _about(form), _facts(form))


def _called(form: "Form") -> str:
    """Return what tables call a metric."""
    return form.full_label("pooled" if form.kind != "raw" else "").strip()


def _about(form: "Form") -> str:
    """Return what the number of a column is, and of κ and chance what they are of."""
    metric = form.metric
    # Where less is better, κ is 1 where nothing moves all the same.
    kappa = "1 − value / chance" if metric.better == "less" else "(value − chance) / (1 − chance)"
    steps = {
        "kappa": f"κ = {kappa}: 1 where nothing changes, 0 where the value is what chance reaches. The value is: ",
        "chance": "What the value would be by chance. The value is: ",
        "raw": "",
    }
    return _sentence(steps[form.kind] + metric.about)


def _facts(form: "Form") -> dict[str, str]:
    """Return side, unit, chance levels and who computes a metric."""
    from moeprobe.metrics import registry
    from moeprobe.metrics.declaration import NULLS
    from moeprobe.probes.registry import measuring

    metric = form.metric
    facts = {
        "better": {1: "more", -1: "less", 0: "neither"}[form.direction],
        "unit": "share" if form.kind == "kappa" else metric.unit,
    }
    if metric.nulls:
        facts["chance levels"] = "\n".join(f"{name}: {NULLS[name].about}" for name in metric.nulls)
    analyses = registry.analyses_of(metric.name)
    if analyses:
        facts["computed by"] = ", ".join(f"the analysis {name}" for name in analyses)
        facts["measured by"] = ", ".join(measuring(metric.name))
    return {name: text for name, text in facts.items() if text not in ("", "other")}


def _catalogs() -> tuple["Catalog", ...]:
    from moeprobe.runtime import catalog

    return (
        catalog.VIEWS,
        catalog.ROUTERS,
        catalog.DATA,
        catalog.OBJECTIVES,
        catalog.ANALYSES,
        catalog.ADAPTERS,
    )


def _plugin(name: str, plugins: "Catalog") -> Explanation:
    """Return what a plug-in's docstring says, and its parameters with their defaults."""
    import inspect

    plugin = plugins.get(name)
    title, _, text = (inspect.getdoc(plugin) or "").replace("``", "").partition("\n")
    # Data sets and adapters are opened, not made with parameters.
    taken = (
        inspect.signature(plugin).parameters.values()
        if plugins.kind in ("view", "router", "objective")
        else ()
    )
    parameters = {
        one.name: "given by the model" if one.default is one.empty else f"default {one.default}"
        for one in taken
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }
    facts = {}
    if hasattr(plugin, "severities"):
        facts["severity"] = (
            f"{plugin.unit}; its own steps: {', '.join(f'{step:g}' for step in plugin.severities)}"
        )
    measured = [one.name for one in getattr(plugin, "measures", ())]
    if measured:
        facts["metrics"] = ", ".join(measured)
    return Explanation(name, plugins.kind, title, text.strip(), facts, parameters)


def _commands() -> dict[str, Any]:
    """Return the commands by name, those of groups as they are typed."""
    from typer.main import get_command

    from moeprobe.cli.app import app

    found: dict[str, Any] = {}
    for name, command in get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {})
        found |= {f"{name} {one}": each for one, each in inner.items()} if inner else {name: command}
    return found


def _command(name: str, command: Any) -> Explanation:
    """Return what a command's help says."""
    title, _, text = (command.help or "").partition("\n")
    parameters = {
        one.opts[0] if one.param_type_name == "option" else one.metavar or one.name: one.help or ""
        for one in command.params
        if one.name != "help"
    }
    return Explanation(name, "command", title, text.replace("`", "").strip(), {}, parameters)


def _sentence(text: str) -> str:
    """Return a text with a capital and a full stop."""
    from moeprobe.results.phrases import sentence_case

    return f"{sentence_case(text).rstrip('.')}."
