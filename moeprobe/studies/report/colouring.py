"""One colour per checkpoint in a whole report, though each run gave them out for itself.

A run of B alone draws it in the first colour, and a run of A and B in the second. What was first drawn holds; a figure
that shows a checkpoint in another colour is shown as its SVG, in which the colours are exchanged.
"""

import dataclasses
import re
from collections.abc import Mapping, Sequence

from moeprobe.results.palette import COLOURS
from moeprobe.studies.report.reading import Picture, Run
from moeprobe.studies.report.summary import Names

_STYLE = re.compile(rb'style="[^"]*"')
_COLOUR = re.compile(rb"#[0-9a-f]{6}\b")


def in_one_colour(runs: Sequence[Run]) -> list[Run]:
    """Return the runs with every checkpoint in one colour; ``Run.miscoloured`` where a figure has no SVG for that."""
    names, given = Names(runs), dict[str, str]()
    found = []
    for run in runs:
        wanted = {name: colour for name, colour in run.colours.items() if names.of(run, name) not in given}
        for name, colour in wanted.items():
            free = [other for other in COLOURS if other not in given.values()]
            given[names.of(run, name)] = colour if colour in free or not free else free[0]
        found.append(_recoloured(run, {name: given[names.of(run, name)] for name in run.colours}))
    return found


def _recoloured(run: Run, colours: Mapping[str, str]) -> Run:
    changed = [name for name, colour in colours.items() if colour != run.colours[name]]
    if not changed:
        return run
    # Where two share a colour, which of them a line belongs to cannot be seen.
    if len(set(run.colours.values())) < len(run.colours) or any(not it.svg for it in run.pictures):
        return dataclasses.replace(run, miscoloured=changed)
    exchanged = {run.colours[name].lower(): colour.lower() for name, colour in colours.items()}
    return dataclasses.replace(run, pictures=[_exchanged(picture, exchanged) for picture in run.pictures])


def _exchanged(picture: Picture, colours: Mapping[str, str]) -> Picture:
    """Return a picture with some colours instead of others; as it is where it has none of them."""
    by_bytes = {old.encode(): new.encode() for old, new in colours.items()}

    def of_style(style: re.Match[bytes]) -> bytes:
        return _COLOUR.sub(lambda found: by_bytes.get(found[0], found[0]), style[0])

    content = _STYLE.sub(of_style, picture.svg)
    if content == picture.svg:
        return picture
    stem = picture.name.rsplit(".", 1)[0]
    return Picture(f"{stem}.svg", content, "image/svg+xml", svg=content)
