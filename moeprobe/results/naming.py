"""What checkpoints are called on the screen, in figures and in reports; files keep the names of their folders."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from moeprobe.errors import UserError, option
from moeprobe.results.sidecars import Sidecar

if TYPE_CHECKING:
    from pandas import DataFrame

R = TypeVar("R")
# Of the sidecar: name of a checkpoint -> what it is called; and what else is listed by checkpoint there.
NAMES = "names"
# Only in memory: the names by which a sidecar that is shown calls its checkpoints.
_RENAMED = "renamed"
_BY_CHECKPOINT = ("checkpoints", "colours", "images_per_second")


def choose_names(names: Sequence[str] | None, checkpoints: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the entry of a sidecar about what checkpoints are called; empty where no names were chosen.

    Raises:
        UserError: there is not one different name for each.
    """
    if names is None:
        return {}
    if any(separator in name for name in names for separator in "/\\"):
        # Some figures are files of that name.
        raise UserError(f"{option('names')} takes names without slashes; got {', '.join(names)}.")
    if len(names) != len(checkpoints) or len({*names}) < len(names) or "" in names:
        raise UserError(
            f"{option('names')} takes a name for each of the {len(checkpoints)} checkpoints, all different; "
            f"got {', '.join(names)}."
        )
    return {NAMES: dict(zip(checkpoints, names, strict=True))}


def names_in(sidecar: Mapping[str, Any]) -> dict[str, str]:
    """Return what a sidecar calls its checkpoints; none where that is no different name for each."""
    names = sidecar.get(NAMES)
    if not isinstance(names, dict) or not all(isinstance(name, str) and name for name in names.values()):
        return {}
    unnamed = {*sidecar.get("checkpoints", {})} - names.keys()
    is_unique = len({*names.values()}) == len(names) and not unnamed & {*names.values()}
    return names if is_unique else {}


def rename_table(table: "DataFrame", names: Mapping[str, str]) -> "DataFrame":
    """Return a table with other names of checkpoints."""
    columns = [column for column in ("checkpoint", "reference") if column in table]
    return table.assign(
        **{column: table[column].map(lambda name: names.get(name, name)) for column in columns}
    )


def rename_sidecar(sidecar: Mapping[str, Any], names: Mapping[str, str]) -> Sidecar:
    """Return a sidecar with other names of checkpoints, and nothing left to rename."""
    renamed = {key: content for key, content in sidecar.items() if key != NAMES}
    for part in (renamed, request := dict(renamed.get("request", {}))):
        for key in _BY_CHECKPOINT:
            if isinstance(part.get(key), dict):
                part[key] = {names.get(name, name): content for name, content in part[key].items()}
    if "traces" in renamed:
        renamed["traces"] = [_renamed_trace(trace, names) for trace in sidecar["traces"]]
    return Sidecar(renamed | {"request": request, _RENAMED: dict(names)})


def _renamed_trace(trace: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return what a sidecar says of a trace; its label begins with the checkpoint's name."""
    name = names.get(trace["checkpoint"], trace["checkpoint"])
    return {**trace, "checkpoint": name, "label": f"{name}{trace['label'].removeprefix(trace['checkpoint'])}"}


def rename_items(items: Sequence[R], sidecar: Mapping[str, Any]) -> list[R]:
    """Return what a figure draws besides tables, each with a ``checkpoint``, called as the sidecar says or has said."""
    names = sidecar.get(_RENAMED) or names_in(sidecar)
    called: list[Any] = [*items]
    return [replace(item, checkpoint=names.get(item.checkpoint, item.checkpoint)) for item in called]


def with_names(result: R) -> R:
    """Return a result, or the tables of a run, with checkpoints as its sidecar calls them."""
    values: Any = result
    names = names_in(values.sidecar)
    if not names:
        return result
    tables = {
        name: rename_table(table, names)
        for name in ("table", "comparison")
        if (table := getattr(values, name, None)) is not None
    }
    renamed: R = replace(values, sidecar=rename_sidecar(values.sidecar, names), **tables)
    return renamed
