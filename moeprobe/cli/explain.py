"""``moeprobe explain``."""

from typing import Annotated

import typer


def explain(
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
    import json as json_module
    from dataclasses import asdict

    from rich.text import Text

    from moeprobe.cli.meanings import explanations, names
    from moeprobe.cli.screen import console
    from moeprobe.errors import UserError
    from moeprobe.runtime.catalog import did_you_mean

    name = " ".join(words)
    meanings = list(explanations(name))
    if not meanings:
        raise UserError(
            f"Nothing is called {name!r}.{did_you_mean(name, names())} moeprobe list names plug-ins and metrics, "
            "moeprobe --help commands."
        )
    if json:
        print(json_module.dumps([asdict(one) for one in meanings], ensure_ascii=False))
        return
    screen = console()
    for number, one in enumerate(meanings):
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
