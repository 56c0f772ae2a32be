"""``moeprobe explain`` and ``moeprobe list``: what a name means, and which names there are."""

from typing import Annotated

import typer

from moeprobe.cli.front.environment import print_json


def explain(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME",
            help="A metric, with or without _chance or _kappa; a chance level; a column of tables; a word of the "
            "columns flag and verdict; a term such as kappa; a view, router, data set, objective, analysis or adapter; "
            "a command or one of its options, such as --limit. Case, - and _ do not matter.",
        ),
    ],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Explain a name from tables, options or lists; where it has several meanings, all of them.

    Example: `moeprobe explain top1_match_kappa`
    """
    from dataclasses import asdict

    from rich.text import Text

    from moeprobe.cli.front.glossary import explanations, names
    from moeprobe.cli.front.screen import console
    from moeprobe.errors import UserError
    from moeprobe.runtime.catalog import did_you_mean
    from moeprobe.runtime.characters import quote

    name, program = " ".join(words), context.find_root().command
    explained = list(explanations(name, program))
    if not explained:
        raise UserError(
            f"Nothing is called {quote(name)}.{did_you_mean(name, names(program))} moeprobe list names "
            "plug-ins and metrics, moeprobe --help commands."
        )
    if json:
        print_json([asdict(explanation) for explanation in explained])
        return
    screen = console()
    for number, explanation in enumerate(explained):
        if number:
            screen.print()
        screen.print(Text(explanation.name, style="bold").append(f", {explanation.kind}", style="dim"))
        for text in (explanation.title, explanation.text):
            if text:
                screen.print(Text(text))
        for facts in (explanation.facts, explanation.parameters):
            _print_facts(facts)


def _print_facts(facts: dict[str, str]) -> None:
    from rich.table import Table
    from rich.text import Text

    from moeprobe.cli.front.screen import console

    if facts:
        table = Table(show_header=False, box=None, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column(style="dim", no_wrap=True)
        table.add_column()
        for fact, value in facts.items():
            table.add_row(Text(fact), Text(value))
        console().print(table)


# ``moeprobe list``.

# What can be listed, and what each of these is.
KINDS = {
    "probes": "questions about checkpoints; each is a command",
    "routers": "how tokens and experts find each other: model.router=NAME in a training",
    "views": "perturbations of images and texts: --view NAME",
    "data": "data sets: --data NAME or NAME:LOCATION",
    "analyses": "what probes compute from the routing and the output",
    "metrics": "names of the column metric; moeprobe explain NAME says more",
    "objectives": "what a training adds to its loss: objective=NAME",
    "adapters": "they make a model readable for probes",
    "readers": "how servers return routed experts: --reader NAME of trace import",
    "models": "architectures that moeprobe train builds: model.name=NAME",
    "configs": "trainings that are ready to run: moeprobe train --config NAME",
    "pipelines": "trainings one after the other that are ready to run: moeprobe train --config NAME",
    "keys": "all keys of a training's configuration, with type, default and meaning",
    "sweeps": "grids of trainings that are ready to run: moeprobe tradeoff NAME",
}


def listing(
    kind: Annotated[str, typer.Argument(help=f"One of: {', '.join(KINDS)}; none lists these.")] = "",
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List what there is: plug-ins of all kinds, metrics, models, configurations with their keys, and sweeps.

    Example: `moeprobe list views`
    """
    from moeprobe.errors import UserError
    from moeprobe.runtime import catalog

    if not kind:
        if json:
            print_json([*KINDS])
        else:
            _print({f"moeprobe list {name}": description for name, description in KINDS.items()})
        return
    if kind not in KINDS:
        raise UserError(catalog.describe_unknown("list", kind, KINDS))
    if kind == "keys":
        _print_keys(as_json=json)
        return
    descriptions = _find(kind)
    if json:
        print_json(descriptions)
    else:
        _print(descriptions)


def _print(descriptions: dict[str, str]) -> None:
    """Print names with what they are."""
    from rich.table import Table

    from moeprobe.cli.front.screen import console

    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, description in descriptions.items():
        table.add_row(name, description)
    console().print(table)


def _print_keys(*, as_json: bool) -> None:
    """Print the keys of configurations of trainings: type, default, meaning."""
    import dataclasses

    from rich.table import Table

    from moeprobe.cli.front.screen import console
    from moeprobe.models.config import list_keys

    keys = list_keys()
    if as_json:
        print_json([dataclasses.asdict(key) for key in keys])
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("key", "type", "default", "meaning"):
        table.add_column(heading, style="bold" if heading == "key" else None, overflow="fold")
    for key in keys:
        table.add_row(key.name, key.type, key.default, key.meaning)
    screen = console()
    screen.print(table)
    screen.print(
        "In a model, null is the named model's own value. Written KEY=VALUE on the command line, as sections in YAML; "
        "moeprobe train --config NAME --show prints what they come to.",
        soft_wrap=True,
    )


def _find(kind: str) -> dict[str, str]:
    """Return name -> first line of the description."""
    from moeprobe.runtime import catalog

    if kind == "metrics":
        from moeprobe.metrics.registry import all_declarations  # not for the others: it brings scipy

        return {metric.name: metric.about for metric in all_declarations()}
    if kind == "probes":
        # By their commands.
        return {
            catalog.PROBES.get(name).name: catalog.PROBES.describe(name) for name in catalog.PROBES.names()
        }
    if kind in ("configs", "sweeps", "pipelines"):
        from moeprobe.models import config_files, grid, pipeline
        from moeprobe.runtime.yaml import first_sentence

        module = {"configs": config_files, "sweeps": grid, "pipelines": pipeline}[kind]
        return {name: first_sentence(module.path_of(name)) for name in module.names()}
    if kind == "models":
        from moeprobe.models.config_files import list_architectures

        return list_architectures()
    plugins = {
        "routers": catalog.ROUTERS,
        "views": catalog.VIEWS,
        "data": catalog.DATA,
        "analyses": catalog.ANALYSES,
        "objectives": catalog.OBJECTIVES,
        "adapters": catalog.ADAPTERS,
        "readers": catalog.READERS,
    }[kind]
    return {name: plugins.describe(name) for name in plugins.names()}
