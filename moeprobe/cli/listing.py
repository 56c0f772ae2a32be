"""``moeprobe list``."""

from pathlib import Path
from typing import Annotated

import typer

KINDS = ("routers", "views", "data", "analyses", "objectives", "adapters", "models", "configs", "sweeps")


def listing(
    kind: Annotated[str, typer.Argument(help=f"One of: {', '.join(KINDS)}.")],
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """What there is: routers, views, data sets, analyses, objectives, adapters, models, configurations, sweeps.

    Example: `moeprobe list views`
    """
    import json as json_module

    from rich.table import Table

    from moeprobe import catalog
    from moeprobe.cli._screen import console
    from moeprobe.errors import UserError

    if kind not in KINDS:
        raise UserError(catalog.unknown("list", kind, KINDS))
    found = _find(kind)
    if json:
        print(json_module.dumps(found, ensure_ascii=False))
        return
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, description in found.items():
        table.add_row(name, description)
    console().print(table)


def _find(kind: str) -> dict[str, str]:
    """Return name -> first line of the description."""
    from moeprobe import catalog, config, grids

    if kind == "configs":
        return {name: _first_comment(config.path_of(name)) for name in config.names()}
    if kind == "sweeps":
        return {name: _first_comment(grids.path_of(name)) for name in grids.names()}
    if kind == "models":
        import moeprobe.nn  # noqa: F401  (registers the models; must come before timm)

        from timm.models import list_models, model_entrypoint  # isort: skip

        return {name: (model_entrypoint(name).__doc__ or "").splitlines()[0] for name in list_models("vmoe*")}
    plugins = {
        "routers": catalog.ROUTERS,
        "views": catalog.VIEWS,
        "data": catalog.DATA,
        "analyses": catalog.ANALYSES,
        "objectives": catalog.OBJECTIVES,
        "adapters": catalog.ADAPTERS,
    }[kind]
    return {name: plugins.describe(name) for name in plugins.names()}


def _first_comment(path: Path) -> str:
    return path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
