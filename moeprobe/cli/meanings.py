"""What names mean: all that ``moeprobe explain`` knows, read from where each name is declared."""

import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from moeprobe.inputs.modality import IMAGE, TEXT
from moeprobe.metrics import registry
from moeprobe.metrics.declaration import NULLS, MetricFamily
from moeprobe.results.columns import (
    BENCH_COLUMNS,
    COLUMNS,
    COMPARISON_COLUMNS,
    FLAGS,
    TRADEOFF_COLUMNS,
    VERDICTS,
)
from moeprobe.results.phrases import sentence_case
from moeprobe.results.terms import KAPPA_FORMULAS, KAPPA_RANGE, TERMS, Term
from moeprobe.runtime import catalog, docstrings

# Words that say what is declared, by what they are called in an explanation.
_WORDS = {
    "column of tables": COLUMNS,
    "column of moeprobe compare": COMPARISON_COLUMNS,
    "column of moeprobe tradeoff": TRADEOFF_COLUMNS,
    "column of moeprobe bench": BENCH_COLUMNS,
    "word of the column flag": FLAGS,
    "word of the column verdict": VERDICTS,
}
_CATALOGS = (
    catalog.VIEWS,
    catalog.ROUTERS,
    catalog.DATA,
    catalog.OBJECTIVES,
    catalog.ANALYSES,
    catalog.ADAPTERS,
    catalog.READERS,
)
# What is made with parameters; data sets are opened.
_MADE = ("view", "router", "objective")
# More commands than this are counted, not named.
_MOST_COMMANDS = 4


@dataclass(frozen=True)
class Explanation:
    """What one name means in one place.

    Attributes:
        name: as it is written there.
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


def explanations(asked: str) -> Iterator[Explanation]:
    """Yield what a name means: as a term, a metric, in tables, as a plug-in, as a command or option of one.

    Case, and what is between words, does not matter. Only plug-ins and commands bring torch.
    """
    for term in TERMS:
        if _among(asked, (term.name, *term.also)):
            yield _term(term)
    yield from _metrics(asked)
    for null, declared in NULLS.items():
        if _among(asked, _called_null(null)):
            called = {"called": registry.kappa(null)}
            yield Explanation(null, "chance level", f"Chance is {declared.about}.", "", called)
    for kind, words in _WORDS.items():
        if name := _among(asked, words):
            yield Explanation(name, kind, "", words[name].replace("`", ""))
    for plugins in _CATALOGS:
        if name := _among(asked, plugins.names()):
            yield _plugin(name, plugins)
    commands = _commands()
    if name := _among(asked, commands):
        yield _command(name, commands[name])
    yield from _options(asked)


def names() -> list[str]:
    """Return all that can be explained; of metrics with chance levels the value alone."""
    terms = [name for term in TERMS for name in (term.name, *term.also)]
    words = [name for kind in _WORDS.values() for name in kind]
    plugins = [name for each in _CATALOGS for name in each.names()]
    options = [flag for command in _callable().values() for one in command.params for flag in _flags(one)]
    return list(dict.fromkeys([*registry.names(), *NULLS, *terms, *words, *plugins, *_commands(), *options]))


def _plain(name: str) -> str:
    """Return a name without what does not matter in it."""
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


def _among(asked: str, known: Iterable[str]) -> str | None:
    """Return the known name that is meant; None if it is none of them."""
    meant = _plain(asked)
    return next((name for name in known if _plain(name) == meant), None) if meant else None


def _term(term: Term) -> Explanation:
    facts = {"also": ", ".join(term.also)} if term.also else {}
    return Explanation(term.name, "term", "", term.about, facts | {"more": f"docs/{term.page}"})


def _called_null(name: str) -> tuple[str, ...]:
    """Return what a chance level is called: by its name, and by the κ against it."""
    labels = (registry.kappa(name, modality) for modality in (IMAGE, TEXT))
    # The κ of no further name is the one of any.
    return (name, f"{name} null", f"{name} chance", *(label for label in labels if label != "κ"))


def _metrics(asked: str) -> Iterator[Explanation]:
    """Yield the metric of a name or a label, which a family may also be asked for as it is written."""
    families = {one.name: one.representative for one in registry.declared() if isinstance(one, MetricFamily)}
    single = [one for one in registry.declared() if not isinstance(one, MetricFamily)]
    labels = {one.label: one for one in (*families.values(), *single)}
    if family := _among(asked, families):
        candidates = [families[family].name]
    elif label := _among(asked, labels):
        candidates = [labels[label].name]
    else:
        candidates = [asked, re.sub(r"[\s-]+", "_", asked.strip().casefold())]
    form = next((form for form in map(registry.find, candidates) if form.declared), None)
    if form is not None:
        kind = f"metrics, such as {form.name}" if family else "metric"
        yield Explanation(family or form.name, kind, _called(form), _about(form), _facts(form))


def _called(form: registry.Form) -> str:
    """Return what tables call a metric."""
    return form.full_label("pooled" if form.kind != "raw" else "").strip()


def _about(form: registry.Form) -> str:
    """Return what the number of a column is, and of κ and chance what they are of."""
    metric = form.metric
    steps = {
        "kappa": f"κ = {KAPPA_FORMULAS[metric.better == 'less']}: {KAPPA_RANGE}. The value is: ",
        "chance": "What the value would be by chance. The value is: ",
        "raw": "",
    }
    return _sentence(steps[form.kind] + metric.about)


def _facts(form: registry.Form) -> dict[str, str]:
    """Return side, unit, chance levels and who computes a metric."""
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


def _plugin(name: str, plugins: catalog.Catalog) -> Explanation:
    """Return what a plug-in's docstring says, and its parameters with their defaults and meanings."""
    plugin = plugins.get(name)
    docstring = docstrings.read(plugin.__doc__ or "")
    taken = inspect.signature(plugin).parameters.values() if plugins.kind in _MADE else ()
    parameters = {
        one.name: ". ".join(
            part
            for part in (
                "given by the model" if one.default is one.empty else f"default {one.default}",
                sentence_case(docstring.arguments.get(one.name, "")),
            )
            if part
        )
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
    return Explanation(
        name, plugins.kind, docstring.title, docstring.text, facts, parameters or docstring.arguments
    )


@cache
def _program() -> Any:
    """Return the program as click has it: made once, as that takes longer than many an answer."""
    from typer.main import get_command

    from moeprobe.cli.app import app

    return get_command(app)


def _commands() -> dict[str, Any]:
    """Return the commands by name, those of groups as they are typed."""
    commands: dict[str, Any] = {}
    for name, command in _program().commands.items():
        inner = getattr(command, "commands", {})
        commands |= {f"{name} {one}": each for one, each in inner.items()} if inner else {name: command}
    return commands


def _callable() -> dict[str, Any]:
    """Return all that has options: the program itself, and the commands."""
    return {"moeprobe": _program(), **_commands()}


def _command(name: str, command: Any) -> Explanation:
    """Return what a command's help says."""
    title, _, text = (command.help or "").partition("\n")
    parameters = {
        one.opts[0] if one.param_type_name == "option" else one.metavar or one.name: one.help or ""
        for one in command.params
        if one.name != "help"
    }
    return Explanation(name, "command", title, text.replace("`", "").strip(), {}, parameters)


def _flags(parameter: Any) -> list[str]:
    """Return how an option is typed; nothing for an argument, and for the help."""
    is_option = parameter.param_type_name == "option" and parameter.name != "help"
    return [flag for flag in parameter.opts if flag.startswith("--")] if is_option else []


def _options(asked: str) -> Iterator[Explanation]:
    """Yield what an option means: once for all commands whose help says the same of it."""
    commands: dict[tuple[str, str, str], list[str]] = {}
    for name, command in _callable().items():
        for one in command.params:
            if flag := _among(asked, _flags(one)):
                default = "" if one.default in (None, False, "") else f"{one.default}"
                commands.setdefault((flag, one.help or "", default), []).append(name)
    for (flag, text, default), of in commands.items():
        facts = {"default": default} if default else {}
        who = ", ".join(of) if len(of) <= _MOST_COMMANDS else f"{len(of)} commands"
        if len(of) > _MOST_COMMANDS:
            facts["commands"] = ", ".join(of)
        yield Explanation(flag, f"option of {who}", "", text, facts)


def _sentence(text: str) -> str:
    """Return a text with a capital and a full stop."""
    return f"{sentence_case(text).rstrip('.')}."
