"""What names mean: all that ``moeprobe explain`` knows, read from where each name is declared."""

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from moeprobe.inputs.modality import IMAGE, TEXT
from moeprobe.metrics import registry
from moeprobe.metrics.declaration import NULLS, MetricFamily
from moeprobe.results.columns import (
    COLUMNS,
    COMPARISON_COLUMNS,
    FLAGS,
    TRADEOFF_COLUMNS,
    TRAININGS_COLUMNS,
    VERDICTS,
)
from moeprobe.results.numbers import sentence_case
from moeprobe.results.terms import KAPPA_FORMULAS, KAPPA_RANGE, TERMS, GlossaryEntry
from moeprobe.runtime import catalog

# Words that say what is declared, by what they are called in an explanation.
_WORDS = {
    "column of tables": COLUMNS,
    "column of moeprobe compare": COMPARISON_COLUMNS,
    "column of moeprobe tradeoff": TRADEOFF_COLUMNS,
    "column of trainings.csv": {
        name: text
        for name, text in TRAININGS_COLUMNS.items()
        if name not in {**COLUMNS, **COMPARISON_COLUMNS}
    },
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
# A block, a module in it, or all layers by a number.
_LAYER = re.compile(r"[A-Za-z_]\w*(\.\w+)*\.\d+(\.\w+)*")
_OF_LAYERS = (
    "Layers are called as the model's modules are, and counted from 0: blocks.1 is the second block. Tables have those "
    "with a mixture of experts; moeprobe inspect CHECKPOINT lists them, and --layers chooses among them."
)
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


def explanations(name: str, program: Any) -> Iterator[Explanation]:
    """Yield what a name means: as a term, a metric, in tables, as a plug-in, as a command or option of one.

    Case and separators between words do not matter. Only plug-ins and commands bring torch.
    """
    for term in TERMS:
        if _among(name, (term.name, *term.also)):
            yield _term(term)
    yield from _metrics(name)
    for null, declared in NULLS.items():
        if _among(name, _called_null(null)):
            yield _null(null, declared.about)
    for kind, words in _WORDS.items():
        if match := _among(name, words):
            yield Explanation(match, kind, "", words[match].replace("`", ""))
    for plugins in _CATALOGS:
        if match := _among(name, plugins.names()):
            yield _plugin(match, plugins)
    commands = _commands(program)
    # Commands of groups by their last word too.
    inner = {command.split()[-1]: command for command in commands if " " in command}
    if match := _among(name, commands):
        yield _command(match, commands[match])
    elif match := _among(name, inner):
        yield _command(inner[match], commands[inner[match]])
    yield from _options(name, program)
    if _LAYER.fullmatch(name):
        yield Explanation(name, "name of a layer", "", _OF_LAYERS)


def names(program: Any) -> list[str]:
    """Return all that can be explained; of metrics with chance levels the value alone."""
    terms = [name for term in TERMS for name in (term.name, *term.also)]
    words = [name for kind in _WORDS.values() for name in kind]
    plugins = [name for each in _CATALOGS for name in each.names()]
    options = [
        flag
        for command in _callable(program).values()
        for parameter in command.params
        for flag in _flags(parameter)
    ]
    return list(
        dict.fromkeys([*registry.names(), *NULLS, *terms, *words, *plugins, *_commands(program), *options])
    )


@cache  # a name is compared with all that are known
def _plain(name: str) -> str:
    """Return a name without what does not matter in it."""
    return re.sub(r"[\W_]+", "_", name.casefold()).strip("_")


def _among(query: str, names: Iterable[str]) -> str | None:
    """Return the known name that is meant; None if it is none of them."""
    meant = _plain(query)
    return next((name for name in names if _plain(name) == meant), None) if meant else None


def _term(term: GlossaryEntry) -> Explanation:
    facts = {"also": ", ".join(term.also)} if term.also else {}
    return Explanation(term.name, "term", "", term.about, facts | {"more": f"docs/{term.page}"})


def _called_null(name: str) -> tuple[str, ...]:
    """Return what a chance level is called: by its name, and by the κ against it."""
    labels = (registry.kappa(name, modality) for modality in (IMAGE, TEXT))
    # The κ of no further name is the one of any.
    return (name, f"{name} null", f"{name} chance", *(label for label in labels if label != "κ"))


def _null(name: str, meaning: str) -> Explanation:
    """Return what chance is, and how tables call the κ against it."""
    called = registry.kappa(name)
    facts = {"called": called} if called != "κ" else {}
    usual = "" if facts else "It is the usual one: a κ without another name is about it."
    return Explanation(name, "chance level", f"Chance is {meaning}.", usual, facts)


def _metrics(query: str) -> Iterator[Explanation]:
    """Yield the metric of a name or a label, which a family may also be asked for as it is written."""
    families = {
        metric.name: metric.representative
        for metric in registry.all_declarations()
        if isinstance(metric, MetricFamily)
    }
    single = [metric for metric in registry.all_declarations() if not isinstance(metric, MetricFamily)]
    labels = {metric.label: metric for metric in (*families.values(), *single)}
    if family := _among(query, families):
        candidates = [families[family].name]
    elif label := _among(query, labels):
        candidates = [labels[label].name]
    else:
        candidates = [query, re.sub(r"[\s-]+", "_", query.strip().casefold())]
    form = next((form for form in map(registry.find, candidates) if form.declared), None)
    if form is not None:
        kind = f"metrics, such as {form.name}" if family else "metric"
        yield Explanation(family or form.name, kind, _name_in_tables(form), _meaning(form), _facts(form))


def _name_in_tables(form: registry.Form) -> str:
    """Return what tables call a metric."""
    return form.full_label("pooled" if form.kind != "raw" else "").strip()


def _meaning(form: registry.Form) -> str:
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
    from moeprobe.metrics.registry import measuring

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
    docstring = read(plugin.__doc__ or "")
    arguments = inspect.signature(plugin).parameters.values() if plugins.kind in _MADE else ()
    parameters = {
        argument.name: ". ".join(
            part
            for part in (
                "given by the model" if argument.default is argument.empty else f"default {argument.default}",
                sentence_case(docstring.arguments.get(argument.name, "")),
            )
            if part
        )
        for argument in arguments
        if argument.kind not in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)
    }
    facts = {}
    if hasattr(plugin, "severities"):
        facts["severity"] = (
            f"{plugin.unit}; its own steps: {', '.join(f'{step:g}' for step in plugin.severities)}"
        )
    measured = [metric.name for metric in getattr(plugin, "measures", ())]
    if measured:
        facts["metrics"] = ", ".join(measured)
    return Explanation(
        name, plugins.kind, docstring.title, docstring.text, facts, parameters or docstring.arguments
    )


def _commands(program: Any) -> dict[str, Any]:
    """Return the commands of a click program by name, a group's commands as typed."""
    commands: dict[str, Any] = {}
    for name, command in program.commands.items():
        inner = getattr(command, "commands", {})
        commands |= (
            {f"{name} {subcommand}": each for subcommand, each in inner.items()} if inner else {name: command}
        )
    return commands


def _callable(program: Any) -> dict[str, Any]:
    """Return all that has options: the program itself, and the commands."""
    return {"moeprobe": program, **_commands(program)}


def _command(name: str, command: Any) -> Explanation:
    """Return what a command's help says."""
    title, _, text = (command.help or "").partition("\n")
    parameters = {
        parameter.opts[0]
        if parameter.param_type_name == "option"
        else parameter.metavar or parameter.name: parameter.help or ""
        for parameter in command.params
        if parameter.name != "help"
    }
    return Explanation(name, "command", title, text.replace("`", "").strip(), {}, parameters)


def _flags(parameter: Any) -> list[str]:
    """Return how an option is typed; nothing for an argument, and for the help."""
    is_option = parameter.param_type_name == "option" and parameter.name != "help"
    return [flag for flag in parameter.opts if flag.startswith("--")] if is_option else []


def _options(query: str, program: Any) -> Iterator[Explanation]:
    """Yield what an option means: once for all commands whose help says the same of it."""
    commands: dict[tuple[str, str, str], list[str]] = {}
    for name, command in _callable(program).items():
        for parameter in command.params:
            if flag := _among(query, _flags(parameter)):
                default = "" if parameter.default in (None, False, "") else f"{parameter.default}"
                commands.setdefault((flag, parameter.help or "", default), []).append(name)
    for (flag, text, default), of in commands.items():
        facts = {"default": default} if default else {}
        who = ", ".join(of) if len(of) <= _MOST_COMMANDS else f"{len(of)} commands"
        if len(of) > _MOST_COMMANDS:
            facts["commands"] = ", ".join(of)
        yield Explanation(flag, f"option of {who}", "", text, facts)


def _sentence(text: str) -> str:
    """Return a text with a capital and a full stop."""
    return f"{sentence_case(text).rstrip('.')}."


_ARGUMENTS = "Args:"
_SECTIONS = (_ARGUMENTS, "Attributes:", "Returns:", "Yields:", "Raises:")


@dataclass(frozen=True)
class Docstring:
    """What a docstring says.

    Attributes:
        title: its first sentence.
        text: the paragraphs after it, without sections.
        arguments: what it takes, name -> meaning.
    """

    title: str
    text: str
    arguments: dict[str, str] = field(default_factory=dict)


def read(text: str) -> Docstring:
    """Return what a docstring says to a reader: its prose and its arguments, without marks of code."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text).replace("``", ""))
    paragraphs, arguments = [], dict[str, str]()
    for block in blocks:
        first, _, body = block.partition("\n")
        if first.strip() == _ARGUMENTS:
            for entry in re.split(r"\n(?=\S)", textwrap.dedent(body)):
                name, _, meaning = entry.partition(": ")
                arguments[name] = " ".join(meaning.split())
        elif first.strip() not in _SECTIONS:
            paragraphs.append(" ".join(block.split()))
    return Docstring(paragraphs[0] if paragraphs else "", "\n\n".join(paragraphs[1:]), arguments)
