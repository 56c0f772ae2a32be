"""``moeprobe inspect``."""

from typing import Annotated

import typer


def inspect(
    checkpoint: Annotated[str, typer.Argument(help="A run folder or a .safetensors file.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What a checkpoint is: architecture, size, cost per image, MoE layers, normalisation, provenance.

    Example: `moeprobe inspect checkpoints/demo-prc`
    """
    import json as json_module

    from rich.table import Table

    from moeprobe.cli._screen import console
    from moeprobe.inspection import inspect_checkpoint

    found = inspect_checkpoint(checkpoint)
    if json:
        print(json_module.dumps(found, ensure_ascii=False))
        return
    screen = console()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for key, value in found.items():
        if key != "layers":
            table.add_row(key.replace("_", " "), _text(value))
    screen.print(table)
    layers = Table(title="MoE layers", title_justify="left")
    for column in found["layers"][0]:
        layers.add_column(column.replace("_", " "))
    for layer in found["layers"]:
        layers.add_row(*[_text(value) for value in layer.values()])
    screen.print(layers)


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(part) for part in value)
    return str(value)
