"""``moeprobe inspect``."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from moeprobe.cli.front.early import check_checkpoints
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.options import Download
from moeprobe.errors import UserError

if TYPE_CHECKING:
    from rich.table import Table


# How keys of checkpoints are spelled that stay as they are in files.
_SPELLED = {"normalisation": "normalization", "initialise": "initialize"}


def inspect(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT...",
            help="A run folder, a .safetensors file, hf:PATH_OR_NAME, or py:package.module:factory@settings.yaml; "
            "with --routers several, such as before and after a training.",
        ),
    ],
    download: Download = False,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="For hf: models, load the weights too: which gates are used, and do experts follow them?",
        ),
    ] = False,
    routers: Annotated[
        bool,
        typer.Option(
            "--routers",
            help="Describe the routers by their weights: lengths, parallel and zero rows, rank, biases; beside "
            "untrained routers of their shape.",
        ),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Describe a checkpoint: architecture, size, cost per image, MoE layers, normalization, provenance.

    Example: `moeprobe inspect checkpoints/demo-prc`
    """
    from rich.table import Table

    from moeprobe.cli.front.screen import console

    check_checkpoints(checkpoints)
    if routers:
        from moeprobe.adapters.inspect_routers import inspect_routers
        from moeprobe.cli.front.router_table import show_routers

        if check:
            raise UserError("--check is about passes of the model; leave it out with --routers.")
        routers_of_all = inspect_routers(checkpoints)
        if json:
            print_json(routers_of_all)
            return
        for part in show_routers(routers_of_all):
            console().print(part, soft_wrap=isinstance(part, str))
        return
    if len(checkpoints) > 1:
        raise UserError("inspect describes one checkpoint; several are put side by side with --routers.")
    from moeprobe.adapters.inspection import inspect_checkpoint

    inspection = inspect_checkpoint(checkpoints[0], check=check)
    if json:
        print_json(inspection)
        return
    screen = console()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for key, value in inspection.items():
        if key != "layers":
            table.add_row(_label(key), _text(value))
    screen.print(table)
    screen.print(
        _layers(inspection["layers"]) if inspection["layers"] else "No MoE layers: the model is dense."
    )


def _layers(layers: list[dict[str, Any]]) -> "Table":
    """Return a table with a column for each kind of layer: layers that differ in nothing share one."""
    from rich.table import Table

    kinds: dict[tuple[str, ...], list[str]] = {}
    for layer in layers:
        kinds.setdefault(tuple(_text(value) for key, value in layer.items() if key != "layer"), []).append(
            layer["layer"]
        )
    table = Table(title="MoE layers", title_justify="left")
    table.add_column("")
    for names in kinds.values():
        table.add_column(", ".join(names), justify="right")
    fields = [_label(key) for key in layers[0] if key != "layer"]
    for field, *values in zip(fields, *kinds, strict=True):
        table.add_row(field, *values)
    return table


def _label(key: str) -> str:
    return _SPELLED.get(key, key).replace("_", " ")


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{_label(key)} {_text(part)}" for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(part) for part in value)
    return str(value)
