"""From the sums per image of several checkpoints to paired differences with their verdicts.

A family is one metric (with its null) of one kind of tokens for one pair of checkpoints: its cells are the layers and
severities. A metric that decides whether a comparison passes is one family in all, since any of its cells may fail it.
Training seeds are never pooled: a pair of checkpoints is a pair of seeds.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.errors import UserError
from moeprobe.inputs.modality import modality_of
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.families import Difference, Judged, difference_error, judge
from moeprobe.metrics.stats.linearized import Name, multiplied
from moeprobe.metrics.stats.replicates import Replicates
from moeprobe.results import verdicts
from moeprobe.results.stored import Stored
from moeprobe.results.summaries import About, row
from moeprobe.results.sums import Cell
from moeprobe.results.tables import FLOORS, frame
from moeprobe.results.values import Analyses, Valuation, Values
from moeprobe.runtime import processes

Pair = tuple[str, str]

FAMILY = ["checkpoint", "reference", "tokens", "metric", "null"]
_EVEN = 1e-12


@dataclass(frozen=True)
class Compared:
    """One metric of one cell of one pair."""

    pair: Pair
    cell: Cell
    name: Name
    difference: Difference
    values: tuple[float, float]
    collapsed: str
    sound: bool
    not_finite: bool

    @property
    def family(self) -> tuple[object, ...]:
        """What it is judged with."""
        return (self.pair, self.cell.tokens, self.name)


def pairs(checkpoints: Sequence[str], *, groups: Mapping[str, str], seeds: Mapping[str, Any]) -> list[Pair]:
    """Return (checkpoint, reference) of every difference; the reference is the first checkpoint.

    Where the first checkpoint's group and another group both hold several training seeds, seed s of the one is paired
    with seed s of the other. In such groups, what has no partner of its seed is in no pair.
    """
    first, *others = checkpoints
    members: dict[str, dict[Any, str]] = {}
    for name in checkpoints:
        members.setdefault(groups.get(name, ""), {}).setdefault(seeds.get(name), name)
    several = {group for group, by_seed in members.items() if group and len(by_seed) > 1}
    own = groups.get(first, "")
    if own not in several or len(several) < 2:
        return [(name, first) for name in others]
    found = []
    for name in others:
        group = groups.get(name, "")
        reference = members[own].get(seeds.get(name)) if group in several else first
        if group != own and reference is not None:
            found.append((name, reference))
    return found


def compare(
    images: Stored,
    *,
    analyses: Analyses,
    about: About,
    wanted: Sequence[Pair],
    margin: float,
    together: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> pd.DataFrame:
    """Return the differences of the ``wanted`` pairs, a row each, with ``columns.COMPARISON_COLUMNS``.

    Args:
        images: sums per image of all checkpoints.
        analyses: what the sums are of.
        about: what all rows share.
        wanted: (checkpoint, reference).
        margin: differences inside ± margin count as none, of shares (``registry.Form``).
        together: a metric whose cells are one family, whatever their pair, tokens and null.
        progress: called with the number of rows of sums done since the last call.

    Raises:
        UserError: two checkpoints were probed on different images.
    """
    found = paired(images, analyses=analyses, about=about, wanted=wanted, progress=progress)
    return judged(found, about=about, margin=margin, together=together)


def paired(
    images: Stored,
    *,
    analyses: Analyses,
    about: About,
    wanted: Sequence[Pair],
    progress: Callable[[int], None] = lambda _: None,
) -> list[Compared]:
    """Return the differences of the ``wanted`` pairs, not yet judged; arguments as for ``compare``.

    One place (layer, view, severity, tokens) is held at a time, in each of ``Stored.processes``; what stays is a
    value per resample.
    """
    # Numbers about single experts are another model's other experts: there is nothing to compare.
    value = Valuation(analyses, aligned=about.aligned, seed=about.seed, influences=True, experts=False)
    # Floors are arithmetic, not routing.
    places = [place for place in images.places() if place[0].cell.view not in FLOORS]

    def compared(number: int) -> list[Compared]:
        valued = {stored.checkpoint: value(stored) for stored in places[number]}
        return [
            one
            for pair in wanted
            if pair[0] in valued and pair[1] in valued
            for one in _compare(pair, valued[pair[0]], valued[pair[1]], seed=about.seed)
        ]

    found: list[Compared] = []
    spread = processes.spread(compared, len(places), processes=images.processes)
    for place, differences in zip(places, spread, strict=True):
        found += differences
        progress(sum(one.num_images for one in place))
    layers = list(dict.fromkeys(item.cell.layer for item in found))
    found.sort(key=lambda item: (wanted.index(item.pair), layers.index(item.cell.layer)))
    return found


def judged(
    found: Sequence[Compared], *, about: About, margin: float, together: str | None = None
) -> pd.DataFrame:
    """Return differences with what their families say of them; arguments as for ``compare``."""
    known = _judged(found, together)
    return frame([_row(about, item, known.get(id(item)), margin) for item in found], judged=True)


def _judged(found: Sequence[Compared], together: str | None) -> dict[int, Judged]:
    """Return what its family says of each, by ``id``; what has collapsed, or lacks images, is compared with nothing."""
    families: dict[tuple[object, ...], list[Compared]] = {}
    for item in found:
        if not item.collapsed and not item.not_finite:
            family = (together,) if item.name[0] == together else item.family
            families.setdefault(family, []).append(item)
    return {
        id(item): result
        for family in families.values()
        for item, result in zip(family, judge([member.difference for member in family]), strict=True)
    }


def _compare(pair: Pair, one: Values, other: Values, *, seed: int) -> list[Compared]:
    if one.image_ids != other.image_ids:
        raise UserError(
            f"{pair[0]} and {pair[1]} were probed on different images ({len(one.image_ids):,} and "
            f"{len(other.image_ids):,}, {len({*one.image_ids} & {*other.image_ids}):,} in common); probe the same."
        )
    names = [name for name in one.numbers if name in other.numbers]
    errors = {
        name: difference_error(
            one.numbers[name], other.numbers[name], one.influences[name] - other.influences[name]
        )
        for name in names
    }
    known = [error for error in errors.values() if not np.isnan(error)]
    if known and not any(known):
        # Nothing else of the two differs in any image, so neither does what has no first-order error.
        errors = dict.fromkeys(errors, 0.0)
    resampled = multiplied([one.numbers[name].minus(other.numbers[name]) for name in names], seed=seed)
    found = []
    for name, replicates in zip(names, resampled, strict=True):
        collapsed = {"checkpoint": _collapsed(one, name), "reference": _collapsed(other, name)}
        found.append(
            Compared(
                pair=pair,
                cell=one.cell,
                name=name,
                difference=Difference(replicates, errors[name]),
                values=(one.numbers[name].point, other.numbers[name].point),
                collapsed="both"
                if all(collapsed.values())
                else "".join(s for s, is_so in collapsed.items() if is_so),
                sound=_sound(one, name) and _sound(other, name) and _comparable(one, other, name),
                not_finite=one.not_finite or other.not_finite,
            )
        )
    return found


def _collapsed(values: Values, name: Name) -> bool:
    """Whether what the metric is about has collapsed: everything goes to one choice."""
    number = values.numbers[name]
    if values.not_finite:
        return False
    if find(name[0]).metric.collapsed_at_zero:
        return number.point < _EVEN
    kappa = _kappa(values, name) or number
    return any(np.isnan(one.point) and one.trials > 0 for one in (number, kappa))


def _sound(values: Values, name: Name) -> bool:
    """Whether its raw match may be called good or bad: its level beyond chance has an interval."""
    kappa = _kappa(values, name)
    return kappa is None or not kappa.interval().flag


def _comparable(one: Values, other: Values, name: Name) -> bool:
    """Whether its raw match says what that of the other says: of fewer experts chance alone is higher."""
    raw = _kappa(one, name) is not None and find(name[0]).kind != "kappa"
    return one.num_experts == other.num_experts or not raw


def _kappa(values: Values, name: Name) -> Replicates | None:
    metric = find(name[0]).metric
    return values.numbers.get((f"{metric.collapse_of or metric.name}{KAPPA}", "pooled", None, None))


def _row(about: About, item: Compared, judged: Judged | None, margin: float) -> dict[str, Any]:
    checkpoint, reference = item.pair
    margin = margin if find(item.name[0]).has_margin else np.nan
    word = (
        verdicts.NOT_FINITE if item.not_finite else verdicts.verdict(item.difference, judged, margin=margin)
    )
    nothing = Judged(np.nan, np.nan, 0, np.nan, np.nan, np.nan)
    of_value = row(
        about, checkpoint, item.cell, item.name, item.difference.replicates, not_finite=item.not_finite
    )
    return of_value | {
        "reference": reference,
        "checkpoint_value": item.values[0],
        "reference_value": item.values[1],
        "se": item.difference.standard_error,
        **dataclasses.asdict(judged or nothing),
        "verdict": word,
        "judgement": verdicts.judgement(item.name[0], word) if item.sound else "",
        "collapsed": item.collapsed,
        "margin": margin,
    }


def sentences(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per family of a comparison: what it is about, and what it comes to in one ``sentence``."""
    found = []
    units = modality_of(table["tokens"]).plural
    for key, rows in table.groupby(FAMILY, sort=False):
        about = dict(zip(FAMILY, key, strict=True))
        lines = [_line(line) for _, line in rows.iterrows()]
        said = verdicts.sentence(
            lines,
            checkpoint=about["checkpoint"],
            reference=about["reference"],
            margin=rows["margin"].iloc[0],
            units=units,
            whole=find(about["metric"]).metric.unit == "whole",
        )
        found.append(about | {"sentence": said})
    return pd.DataFrame(found, columns=[*FAMILY, "sentence"])


def _line(line: pd.Series) -> verdicts.Line:
    who = {
        "checkpoint": line["checkpoint"],
        "reference": line["reference"],
        "both": f"{line['checkpoint']} and {line['reference']}",
    }
    return verdicts.Line(
        verdict=line["verdict"],
        judgement=line["judgement"],
        value=line["value"],
        low=line["sim_low"],
        high=line["sim_high"],
        detectable=line["detectable"],
        images=line["images"],
        collapsed=who.get(line["collapsed"], ""),
    )
