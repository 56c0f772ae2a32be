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
from moeprobe.metrics.declaration import KAPPA, NumberName
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.families import Difference, Judged, difference_error, judge
from moeprobe.metrics.stats.linearized import multiplied
from moeprobe.results import verdicts
from moeprobe.results.stored import SumsStore
from moeprobe.results.summaries import About, row
from moeprobe.results.sums import Cell
from moeprobe.results.tables import FLOORS, frame
from moeprobe.results.values import Analyses, CellValues, Evaluator
from moeprobe.runtime import processes

Pair = tuple[str, str]

FAMILY = ["checkpoint", "reference", "tokens", "metric", "null"]
_EVEN = 1e-12


@dataclass(frozen=True)
class Compared:
    """One metric of one cell of one pair."""

    pair: Pair
    cell: Cell
    name: NumberName
    difference: Difference
    values: tuple[float, float]
    collapsed: str
    has_interval: bool
    not_finite: bool

    @property
    def family(self) -> tuple[object, ...]:
        """What it is judged with."""
        return (self.pair, self.cell.tokens, self.name)


def pairs(checkpoints: Sequence[str], *, groups: Mapping[str, str], seeds: Mapping[str, Any]) -> list[Pair]:
    """Return (checkpoint, reference) of every difference; the reference is the first checkpoint.

    Where the first checkpoint's group and another group both hold several training seeds, seed s of the one is paired
    with seed s of the other. In such groups, a checkpoint without a partner of its seed is in no pair.
    """
    first, *remaining = checkpoints
    members: dict[str, dict[Any, str]] = {}
    for name in checkpoints:
        members.setdefault(groups.get(name, ""), {}).setdefault(seeds.get(name), name)
    several = {group for group, by_seed in members.items() if group and len(by_seed) > 1}
    first_group = groups.get(first, "")
    if first_group not in several or len(several) < 2:
        return [(name, first) for name in remaining]
    matched = []
    for name in remaining:
        group = groups.get(name, "")
        reference = members[first_group].get(seeds.get(name)) if group in several else first
        if group != first_group and reference is not None:
            matched.append((name, reference))
    return matched


def compare(
    images: SumsStore,
    *,
    analyses: Analyses,
    run_info: About,
    selected_pairs: Sequence[Pair],
    margin: float,
    together: str | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> pd.DataFrame:
    """Return the differences of the ``selected_pairs``, a row each, with ``columns.COMPARISON_COLUMNS``.

    Args:
        images: sums per image of all checkpoints.
        analyses: what the sums are of.
        run_info: what all rows share.
        selected_pairs: (checkpoint, reference).
        margin: differences inside ± margin count as none, of shares (``registry.Form``).
        together: a metric whose cells are one family, whatever their pair, tokens and null.
        progress: called with the number of rows of sums done since the last call.

    Raises:
        UserError: two checkpoints were probed on different images.
    """
    comparisons = paired(
        images, analyses=analyses, run_info=run_info, selected_pairs=selected_pairs, progress=progress
    )
    return judged(comparisons, run_info=run_info, margin=margin, together=together)


def paired(
    images: SumsStore,
    *,
    analyses: Analyses,
    run_info: About,
    selected_pairs: Sequence[Pair],
    progress: Callable[[int], None] = lambda _: None,
) -> list[Compared]:
    """Return the differences of the ``selected_pairs``, not yet judged; arguments as for ``compare``.

    One site (layer, view, severity, tokens) is held at a time, in each of ``SumsStore.processes``; what stays is a
    value per resample.
    """
    # Numbers about single experts are another model's other experts: there is nothing to compare.
    value = Evaluator(analyses, aligned=run_info.aligned, seed=run_info.seed, influences=True, experts=False)
    # Floors are arithmetic, not routing.
    sites = [site for site in images.sites() if site[0].cell.view not in FLOORS]

    def compared(number: int) -> list[Compared]:
        valued = {stored.checkpoint: value(stored) for stored in sites[number]}
        return [
            comparison
            for pair in selected_pairs
            if pair[0] in valued and pair[1] in valued
            for comparison in _compare(pair, valued[pair[0]], valued[pair[1]], seed=run_info.seed)
        ]

    comparisons: list[Compared] = []
    spread = processes.spread(compared, len(sites), processes=images.processes)
    for site, differences in zip(sites, spread, strict=True):
        comparisons += differences
        progress(sum(cell.num_images for cell in site))
    layers = list(dict.fromkeys(item.cell.layer for item in comparisons))
    comparisons.sort(key=lambda item: (selected_pairs.index(item.pair), layers.index(item.cell.layer)))
    return comparisons


def judged(
    comparisons: Sequence[Compared], *, run_info: About, margin: float, together: str | None = None
) -> pd.DataFrame:
    """Return differences with what their families say of them; arguments as for ``compare``."""
    judgements = _judged(comparisons, together)
    return frame(
        [_row(run_info, item, judgements.get(id(item)), margin) for item in comparisons], judged=True
    )


def _judged(comparisons: Sequence[Compared], together: str | None) -> dict[int, Judged]:
    """Return each difference's family result, by ``id``; collapsed cells, and cells with too few images, have none."""
    families: dict[tuple[object, ...], list[Compared]] = {}
    for item in comparisons:
        if not item.collapsed and not item.not_finite:
            family = (together,) if item.name.metric == together else item.family
            families.setdefault(family, []).append(item)
    return {
        id(item): result
        for family in families.values()
        for item, result in zip(family, judge([member.difference for member in family]), strict=True)
    }


def _compare(pair: Pair, values: CellValues, reference: CellValues, *, seed: int) -> list[Compared]:
    if values.image_ids != reference.image_ids:
        raise UserError(
            f"{pair[0]} and {pair[1]} were probed on different images ({len(values.image_ids):,} and "
            f"{len(reference.image_ids):,}, {len({*values.image_ids} & {*reference.image_ids}):,} in common); "
            "probe the same."
        )
    names = [name for name in values.numbers if name in reference.numbers]
    errors = {
        name: difference_error(
            values.numbers[name],
            reference.numbers[name],
            values.influences[name] - reference.influences[name],
        )
        for name in names
    }
    finite_errors = [error for error in errors.values() if not np.isnan(error)]
    if finite_errors and not any(finite_errors):
        # Nothing else of the two differs in any image, so neither does what has no first-order error.
        errors = dict.fromkeys(errors, 0.0)
    resampled = multiplied([values.numbers[name].minus(reference.numbers[name]) for name in names], seed=seed)
    comparisons = []
    for name, replicates in zip(names, resampled, strict=True):
        collapsed = {"checkpoint": _collapsed(values, name), "reference": _collapsed(reference, name)}
        comparisons.append(
            Compared(
                pair=pair,
                cell=values.cell,
                name=name,
                difference=Difference(replicates, errors[name]),
                values=(values.numbers[name].point, reference.numbers[name].point),
                collapsed="both"
                if all(collapsed.values())
                else "".join(s for s, is_so in collapsed.items() if is_so),
                has_interval=_has_interval(values, name)
                and _has_interval(reference, name)
                and _comparable(values, reference, name),
                not_finite=values.not_finite or reference.not_finite,
            )
        )
    return comparisons


def _collapsed(values: CellValues, name: NumberName) -> bool:
    """Whether what the metric is about has collapsed: everything goes to one choice."""
    number = values.numbers[name]
    if values.not_finite:
        return False
    if find(name.metric).metric.collapsed_at_zero:
        return number.point < _EVEN
    kappa = _kappa(values, name) or number
    # Without a value a share of a mismatch has not collapsed: the mismatch is rounding.
    return any(
        np.isnan(replicates.point) and replicates.trials > 0 and replicates.undefined == "collapsed"
        for replicates in (number, kappa)
    )


def _has_interval(values: CellValues, name: NumberName) -> bool:
    """Whether its raw match may be called good or bad: its level beyond chance has an interval."""
    kappa = _kappa(values, name)
    return kappa is None or not kappa.interval().flag


def _comparable(values: CellValues, reference: CellValues, name: NumberName) -> bool:
    """Whether raw matches are comparable: with fewer experts chance alone is higher."""
    raw = _kappa(values, name) is not None and find(name.metric).kind != "kappa"
    return values.num_experts == reference.num_experts or not raw


def _kappa(values: CellValues, name: NumberName) -> Replicates | None:
    metric = find(name.metric).metric
    return values.numbers.get(NumberName(f"{metric.collapse_of or metric.name}{KAPPA}", "pooled"))


def _row(run_info: About, item: Compared, judged: Judged | None, margin: float) -> dict[str, Any]:
    checkpoint, reference = item.pair
    margin = margin if find(item.name.metric).has_margin else np.nan
    word = (
        verdicts.NOT_FINITE if item.not_finite else verdicts.verdict(item.difference, judged, margin=margin)
    )
    nothing = Judged(np.nan, np.nan, 0, np.nan, np.nan, np.nan)
    of_value = row(
        run_info, checkpoint, item.cell, item.name, item.difference.replicates, not_finite=item.not_finite
    )
    return of_value | {
        "reference": reference,
        "checkpoint_value": item.values[0],
        "reference_value": item.values[1],
        "se": item.difference.standard_error,
        **dataclasses.asdict(judged or nothing),
        "verdict": word,
        "judgement": verdicts.judgement(item.name.metric, word) if item.has_interval else "",
        "collapsed": item.collapsed,
        "margin": margin,
    }


def sentences(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per family of a comparison: what it is about, and what it comes to in one ``sentence``."""
    rows_of_families = []
    units = modality_of(table["tokens"]).plural
    for key, rows in table.groupby(FAMILY, sort=False):
        family = dict(zip(FAMILY, key, strict=True))
        lines = [_line(line) for _, line in rows.iterrows()]
        sentence = verdicts.sentence(
            lines,
            checkpoint=family["checkpoint"],
            reference=family["reference"],
            margin=rows["margin"].iloc[0],
            units=units,
            whole_numbers=find(family["metric"]).metric.unit == "whole",
        )
        rows_of_families.append(family | {"sentence": sentence})
    return pd.DataFrame(rows_of_families, columns=[*FAMILY, "sentence"])


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
