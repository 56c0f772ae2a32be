"""One color and one name per checkpoint in a whole report, though each run gave them out for itself.

A run of B alone draws it in the first color, and a run of A and B in the second. What was first drawn holds; a figure
that shows a checkpoint in another color, or by another name, is drawn once more from the run's table.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moeprobe.declarations import Probe
from moeprobe.declarations.registry import of_kind
from moeprobe.errors import UserError
from moeprobe.results.folder import Result
from moeprobe.results.palette import COLORS
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.stored import SumsStore
from moeprobe.studies.report.pictures import Picture
from moeprobe.studies.report.reading import Run
from moeprobe.studies.report.summary import Names

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# What may be raised by a figure of a run that somebody changed, or another version wrote.
_UNDRAWN = (
    ArithmeticError, AttributeError, LookupError, NotImplementedError, RuntimeError, TypeError, UserError, ValueError,
)  # fmt: skip


def in_one_color(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with every checkpoint in one color; ``Run.miscolored`` where a figure cannot be drawn so."""
    names, colors = Names(runs), dict[str, str]()
    recolored = []
    for run in runs:
        new = {name: color for name, color in run.colors.items() if names.of(run, name) not in colors}
        for name, color in new.items():
            free = [color for color in COLORS if color not in colors.values()]
            colors[names.of(run, name)] = color if color in free or not free else free[0]
        recolored.append(_recolor(run, {name: colors[names.of(run, name)] for name in run.colors}))
    return recolored


def _recolor(run: Run, colors: Mapping[str, str]) -> Run:
    changed = [name for name, color in colors.items() if color != run.colors[name]]
    if not run.pictures or not (changed or run.misnamed):
        return run
    figures = redraw(run, colors)
    kind = of_kind(run.kind)
    colorless = () if kind is None or not issubclass(kind, Probe) else kind.colorless
    if figures.keys() != {picture.stem for picture in run.pictures} - set(colorless):
        return dataclasses.replace(run, miscolored=changed)
    from moeprobe.results.figures import render  # not before a figure is drawn: it brings matplotlib

    pictures = [
        picture
        if picture.stem in colorless
        else Picture(f"{picture.stem}.png", render(figures[picture.stem]), "image/png")
        for picture in run.pictures
    ]
    return dataclasses.replace(run, pictures=pictures, misnamed=False)


def redraw(run: Run, colors: Mapping[str, str]) -> "dict[str, Figure]":
    """Return the figures of a run in other colors, by name; none where they show more than its tables hold."""
    try:
        if run.kind == "compare" and run.comparison is not None:
            from moeprobe.results.figures.forest import draw

            return {"forest": draw(run.comparison, colors=colors)}
        kind = of_kind(run.kind)
        if run.table is None or kind is None or not issubclass(kind, Probe):
            return {}
        sidecar = Sidecar(run.sidecar | {"colours": dict(colors)})
        return _probe(kind, run.request).draw(Result(run.table, None, SumsStore(()), sidecar))
    except _UNDRAWN:
        return {}


def _probe(kind: type[Probe[Any]], request: Mapping[str, Any]) -> Probe[Any]:
    """Return the probe of a run, with what must be said of it."""
    required = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
    parameters = {name: request[name] for name in required}
    return kind(
        **{name: value["name"] if isinstance(value, dict) else value for name, value in parameters.items()}
    )
