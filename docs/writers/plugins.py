"""Views, data sets, routers, objectives, analyses, adapters and readers: the catalogs by their docstrings."""

import inspect
from collections.abc import Iterator
from typing import Any

from moeprobe.declarations import registry
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.runtime import catalog
from moeprobe.runtime.catalog import Catalog
from writers.markdown import code, first_sentence, inline, page, table

# What a router is given by the model it is built into; everything else is a parameter of its own.
_OF_THE_MODEL = {
    "self", "width", "num_experts", "top_k", "noise_std", "capacity", "eval_capacity", "capacity_factor",
}  # fmt: skip


def pages() -> dict[str, str]:
    """Return the page of all plug-ins but analyses, and that of analyses."""
    text = page(
        "Plug-ins",
        "the docstrings of the plug-ins",
        "Each is one file, and its name is the file's. `moeprobe list views` (routers, data, analyses, objectives, "
        "adapters, readers) prints these names too. How to add one: "
        "[adding a view, router or data set](../contributing/adding-a-view-router-data.md); from a file of your own: "
        "[plug-ins of your own](../guide/plugins.md). A page of their own have [analyses](analyses.md).",
        "## Views\n\nA view with *severities* is compared with the clean input, as `sweep` does; a view that makes "
        "*pairs* gives two random versions of it, as `match-ratio` compares them. Views of texts: "
        "[Language models](../guide/language-models.md).",
        table(["view", "makes", "what it does", "severity; its own steps", "parameters"], views()),
        "## Probes\n\nWhat can be asked of checkpoints. Options: [Probe commands](commands-probes.md).",
        table(["probe", "question", "analyses"], probes()),
        "## Data sets\n\n`--data NAME` or `--data NAME:LOCATION`; the layout of files is in [Data](../guide/data.md).",
        table(["data set", "what it is"], described(catalog.DATA)),
        "## Routers\n\n`model.router=NAME` and `model.router.PARAMETER=VALUE`; how they work is in "
        "[Routers](routers.md).",
        table(["router", "what it does", "parameters"], with_parameters(catalog.ROUTERS)),
        "## Objectives\n\n`objective=NAME` and `objective.PARAMETER=VALUE` in [training](../guide/training.md).",
        table(["objective", "what it adds to the loss", "parameters"], with_parameters(catalog.OBJECTIVES)),
        "## Adapters\n\nThey make a model traceable: our own, other programs', and `py:` and `hf:` "
        "([Your own model](../guide/own-model.md), [Language models](../guide/language-models.md)).",
        table(["adapter", "of what"], described(catalog.ADAPTERS)),
        "## Readers\n\n`moeprobe trace import --reader NAME`: what servers return, see "
        "[Recorded routing](../guide/recorded-routing.md#what-a-server-answers).",
        table(["reader", "what it reads"], described(catalog.READERS)),
    )
    analyses = page(
        "Analyses",
        "the docstrings of the plug-ins",
        "What [probes](plugins.md#probes) measure; the names in tables are [metrics](metrics.md). How to add one: "
        "[adding a metric or a probe](../contributing/adding-a-probe.md).",
        table(["analysis", "what it measures"], described(catalog.ANALYSES)),
    )
    return {"reference/plugins.md": text, "reference/analyses.md": analyses}


def described(plugins: Catalog) -> Iterator[list[str]]:
    """Return a row per plug-in: its name and the first line of its docstring."""
    for name in plugins.built_in():
        yield [code(name), inline(plugins.describe(name))]


def with_parameters(plugins: Catalog) -> Iterator[list[str]]:
    """Return rows with the parameters too."""
    for name, meaning in described(plugins):
        yield [name, meaning, parameters(plugins.get(name.strip("`")))]


def probes() -> Iterator[list[str]]:
    """Return a row per probe: its command, its question, what it measures."""
    for kind in registry.kinds():
        question = inspect.getdoc(kind) or ""
        yield [code(kind.name), first_sentence(question), ", ".join(map(code, kind.analyses))]


def views() -> Iterator[list[str]]:
    """Return a row per view."""
    for name, meaning in described(catalog.VIEWS):
        view = catalog.VIEWS.get(name.strip("`"))
        kinds = {"severities": SeverityView, "pairs": PairView}
        makes = " and ".join(kind for kind, base in kinds.items() if issubclass(view, base))
        steps = ""
        if issubclass(view, SeverityView):
            steps = f"{inline(view.unit)}; {', '.join(f'{step:g}' for step in view.severities)}"
        yield [name, f"{makes} of {view.modality.name}s", meaning, steps, parameters(view)]


def parameters(plugin: Any) -> str:
    """Return the parameters of a plug-in with their defaults."""
    given = inspect.signature(plugin.__init__).parameters.values()
    return ", ".join(
        code(one.name if one.default is one.empty else f"{one.name}={shown(one.default)}")
        for one in given
        if one.name not in _OF_THE_MODEL and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    )


def shown(value: object) -> str:
    """Return a default as it is typed in YAML; of a long list its beginning."""
    if isinstance(value, tuple):
        inner = [shown(one) for one in value]
        return f"[{', '.join([*inner[:3], '…'] if len(inner) > 3 else inner)}]"
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    return f"{value:.4g}" if isinstance(value, float) else str(value)
