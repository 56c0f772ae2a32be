"""``moeprobe explain``."""

from typing import Annotated

import typer


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
    from moeprobe.cli.front.json_output import print_json
    from moeprobe.cli.front.screen import console
    from moeprobe.errors import UserError
    from moeprobe.runtime.catalog import did_you_mean
    from moeprobe.runtime.characters import quoted

    name, program = " ".join(words), context.find_root().command
    explained = list(explanations(name, program))
    if not explained:
        raise UserError(
            f"Nothing is called {quoted(name)}.{did_you_mean(name, names(program))} moeprobe list names "
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
