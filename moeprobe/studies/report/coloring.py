"""One color per checkpoint in a whole report, though each run gave them out for itself.

A run of B alone draws it in the first color, and a run of A and B in the second. What was first drawn holds; a figure
that shows a checkpoint in another color is shown as its SVG, in which the colors are exchanged.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from moeprobe.results.palette import COLORS
from moeprobe.studies.report.pictures import Picture
from moeprobe.studies.report.reading import Run
from moeprobe.studies.report.summary import Names

_STYLE = re.compile(rb'style="[^"]*"')
_COLOR = re.compile(rb"#[0-9a-f]{6}\b")


def in_one_color(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with every checkpoint in one color; ``Run.miscolored`` where a figure has no SVG for that."""
    names, given = Names(runs), dict[str, str]()
    found = []
    for run in runs:
        wanted = {name: color for name, color in run.colors.items() if names.of(run, name) not in given}
        for name, color in wanted.items():
            free = [other for other in COLORS if other not in given.values()]
            given[names.of(run, name)] = color if color in free or not free else free[0]
        found.append(_recolored(run, {name: given[names.of(run, name)] for name in run.colors}))
    return found


def _recolored(run: Run, colors: Mapping[str, str]) -> Run:
    changed = [name for name, color in colors.items() if color != run.colors[name]]
    if not changed:
        return run
    # Where two share a color, which of them a line belongs to cannot be seen.
    if len(set(run.colors.values())) < len(run.colors) or any(not it.svg for it in run.pictures):
        return dataclasses.replace(run, miscolored=changed)
    exchanged = {run.colors[name].lower(): color.lower() for name, color in colors.items()}
    return dataclasses.replace(run, pictures=[_exchanged(picture, exchanged) for picture in run.pictures])


def _exchanged(picture: Picture, colors: Mapping[str, str]) -> Picture:
    """Return a picture with some colors instead of others; as it is where it has none of them."""
    by_bytes = {old.encode(): new.encode() for old, new in colors.items()}

    def of_style(style: re.Match[bytes]) -> bytes:
        return _COLOR.sub(lambda found: by_bytes.get(found[0], found[0]), style[0])

    content = _STYLE.sub(of_style, picture.svg)
    if content == picture.svg:
        return picture
    stem = picture.name.rsplit(".", 1)[0]
    return Picture(f"{stem}.svg", content, "image/svg+xml", svg=content)
