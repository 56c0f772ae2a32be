"""Paired differences of two checkpoints, from the values of their cells to the words that their families allow.

A family is one metric (with its null) of one kind of tokens for one pair of checkpoints: its cells are the layers,
views and severities of a run. Means over views are families of their own, and so is each single draw. Every run judges
its differences so, and ``compare`` does; whatever is said of a cell anywhere follows from this one interval. A metric
that decides whether a comparison passes is one family in all, since any of its cells may fail it. Training seeds are
never pooled: a pair of checkpoints is a pair of seeds.
"""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.errors import UserError
from moeprobe.judging import words
from moeprobe.judging.excluded import Excluded, images_to_equivalence
from moeprobe.metrics.declaration import KAPPA, NumberName
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.families import Difference, DifferenceFamily, Evidence, Judged, difference_error
from moeprobe.metrics.stats.linearized import multiply_influences
from moeprobe.metrics.stats.statistic import Array
from moeprobe.metrics.stats.two_way import TwoWay
from moeprobe.results.stored import SumsStore
from moeprobe.results.summaries import About, row
from moeprobe.results.sums import Cell
from moeprobe.results.tables import FLOORS, frame, modality_of_table
from moeprobe.results.values import Analyses, CellValues, Evaluator
from moeprobe.runtime import processes

Pair = tuple[str, str]
Row = dict[str, Any]

FAMILY = ["checkpoint", "reference", "tokens", "metric", "null"]
# What a comparison says of each family: ``words.sentence``, and ``Excluded`` in numbers.
VERDICT_COLUMNS = ["sentence", "excluded_loss", "equivalent", "images_to_equivalence"]
_EVEN = 1e-12
_NOTHING = Judged(np.nan, np.nan, 0, np.nan, np.nan, np.nan)


@dataclass(frozen=True)
class Compared:
    """One metric of one cell of one pair, not yet judged.

    Attributes:
        row: its line in ``comparison.csv``, without what its family says.
        family: what it is judged with.
        evidence: the difference without its resamples.
        deviations: of the resamples from the difference, in standard errors ``(R,)``; None = there are none.
        collapsed: who sends everything to one choice: checkpoint, reference, both or nobody (empty).
        has_interval: whether higher and lower may be called better and worse.
        not_finite: whether a side lost images.
    """

    row: Row
    family: Hashable
    evidence: Evidence
    deviations: Array | None
    collapsed: str
    has_interval: bool
    not_finite: bool


def pairs(checkpoints: Sequence[str], *, groups: Mapping[str, str], seeds: Mapping[str, Any]) -> list[Pair]:
    """Return (checkpoint, reference) of every difference; the reference is the first checkpoint.

    Where the first checkpoint's group and another group both hold several training seeds, seed s of the one is paired
    with seed s of the other. In such groups, a checkpoint without a partner of its seed is in no pair.
    """
    first, *remaining = checkpoints
    # The first checkpoint of a seed stands for its group's seed.
    members: dict[str, dict[Any, str]] = {}
    for name in checkpoints:
        members.setdefault(groups.get(name, ""), {}).setdefault(seeds.get(name), name)
    several = {group for group, by_seed in members.items() if group and len(by_seed) > 1}
    first_group = groups.get(first, "")
    # Pairing by seed needs two groups that both have several seeds.
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
    margin: float = words.MARGIN,
    together: str | None = None,
    looks: int = 1,
    progress: Callable[[int], None] = lambda _: None,
) -> pd.DataFrame:
    """Return the differences of the ``selected_pairs``, a row each, with ``columns.COMPARISON_COLUMNS``.

    One site (layer, view, severity, tokens) is held at a time, in each of ``SumsStore.processes``.

    Args:
        images: sums per image of all checkpoints.
        analyses: what the sums are of.
        run_info: what all rows share.
        selected_pairs: (checkpoint, reference).
        margin: differences inside ± margin count as none, of shares (``registry.Form``).
        together: a metric whose cells are one family, whatever their pair, tokens and null.
        looks: of a series of comparisons, in all of which the intervals are to hold.
        progress: called with the number of rows of sums done since the last call.

    Raises:
        UserError: two checkpoints were probed on different images.
    """
    value = Evaluator.for_differences(
        analyses, aligned=run_info.aligned, seed=run_info.seed, unit_of=run_info.unit_of
    )
    # Floors are arithmetic, not routing.
    sites = [site for site in images.sites() if site[0].cell.view not in FLOORS]

    def comparisons(number: int) -> list[Compared]:
        valued = {stored.checkpoint: value(stored) for stored in sites[number]}
        return [
            comparison
            for pair in selected_pairs
            if pair[0] in valued and pair[1] in valued
            for comparison in compare_values(valued[pair[0]], valued[pair[1]], run_info)
        ]

    judging = Judging(margin=margin, together=together, looks=looks)
    # Sites are independent, so processes may share them; results come back in order.
    spread = processes.spread(comparisons, len(sites), processes=images.processes)
    for site, differences in zip(sites, spread, strict=True):
        judging.add(differences)
        progress(sum(cell.num_images for cell in site))
    rows = judging.rows()
    layers = list(dict.fromkeys(row["layer"] for row in rows))
    # Sites come in the order of the sums; readers want all layers of a pair together.
    rows.sort(
        key=lambda row: (
            selected_pairs.index((row["checkpoint"], row["reference"])),
            layers.index(row["layer"]),
        )
    )
    return frame(rows, judged=True)


class Judging:
    """Differences of a run, added site by site and judged together at the end.

    Args:
        margin: differences inside ± margin count as none, of shares.
        together: a metric whose cells are one family, whatever their pair, tokens and null.
        looks: as of ``compare``.
    """

    def __init__(self, *, margin: float = words.MARGIN, together: str | None = None, looks: int = 1) -> None:
        self._margin, self._together, self._looks = margin, together, looks
        self._families: dict[Hashable, DifferenceFamily] = {}
        # Each with its family and its place there; None = in no family.
        self._compared: list[tuple[Compared, tuple[Hashable, int] | None]] = []

    def add(self, comparisons: Iterable[Compared]) -> None:
        """Add comparisons; collapsed cells, and cells that lost images, are in no family."""
        for item in comparisons:
            position = None
            if not item.collapsed and not item.not_finite:
                # The metric of the gate is one family over all pairs, since any of its cells may fail it.
                key = self._together if item.row["metric"] == self._together else item.family
                family = self._families.setdefault(key, DifferenceFamily())
                position = key, family.add(item.evidence, item.deviations)
            # Deviations are large, and the family has kept what it needs of them.
            self._compared.append((dataclasses.replace(item, deviations=None), position))

    def rows(self) -> list[Row]:
        """Return the rows in the order in which they were added, with what their families say of them."""
        judged = {key: family.judge(looks=self._looks) for key, family in self._families.items()}
        return [
            self._row(item, None if position is None else judged[position[0]][position[1]])
            for item, position in self._compared
        ]

    def _row(self, item: Compared, judged: Judged | None) -> Row:
        metric = item.row["metric"]
        # Only shares have a margin: other units have no common scale.
        margin = self._margin if find(metric).has_margin else np.nan
        word = words.NOT_FINITE if item.not_finite else words.verdict(item.evidence, judged, margin=margin)
        return item.row | {
            **dataclasses.asdict(judged or _NOTHING),
            "verdict": word,
            "judgement": words.judgement(metric, word) if item.has_interval else "",
            "collapsed": item.collapsed,
            "margin": margin,
        }


def compare_values(
    values: CellValues, reference: CellValues, run_info: About, *, combined: bool = False
) -> list[Compared]:
    """Return the differences of the values of a cell from the reference's, number by number.

    Args:
        values: of the checkpoint, with influences.
        reference: of the other one.
        run_info: what all rows share.
        combined: whether they are means over views, which are judged apart.

    Raises:
        UserError: the two were probed on different images.
    """
    check_same_images(values, reference)
    # Expert e of one model is no relative of expert e of another.
    names = [name for name in values.numbers if name in reference.numbers and name.expert is None]
    differences = {name: values.numbers[name].minus(reference.numbers[name]) for name in names}
    errors = {name: _error(name, values, reference, differences[name]) for name in names}
    finite_errors = [error for error in errors.values() if not np.isnan(error)]
    if finite_errors and not any(finite_errors):
        # Nothing else of the two differs in any image, so neither does what has no first-order error.
        errors = dict.fromkeys(errors, 0.0)
    # The same signs for all numbers of a cell keep their correlation.
    resampled = multiply_influences([*differences.values()], seed=run_info.seed)
    return [
        _compare_values(
            values, reference, run_info, name, Difference(replicates, errors[name]), combined=combined
        )
        for name, replicates in zip(names, resampled, strict=True)
    ]


def _compare_values(
    values: CellValues,
    reference: CellValues,
    run_info: About,
    name: NumberName,
    difference: Difference,
    *,
    combined: bool,
) -> Compared:
    cell, not_finite = values.cell, values.not_finite or reference.not_finite
    collapsed = {"checkpoint": has_collapsed(values, name), "reference": has_collapsed(reference, name)}
    line = row(run_info, values.checkpoint, cell, name, difference.replicates, not_finite=not_finite)
    return Compared(
        row=line
        | {
            "reference": reference.checkpoint,
            "checkpoint_value": values.numbers[name].point,
            "reference_value": reference.numbers[name].point,
            "se": difference.standard_error,
        },
        family=_family(values, reference, name, combined=combined),
        evidence=Evidence.of(difference),
        deviations=difference.deviations(),
        collapsed="both"
        if all(collapsed.values())
        else "".join(side for side, is_so in collapsed.items() if is_so),
        has_interval=has_interval(values, name)
        and has_interval(reference, name)
        and are_comparable(values, reference, name),
        not_finite=not_finite,
    )


def _family(
    values: CellValues, reference: CellValues, name: NumberName, *, combined: bool
) -> tuple[Hashable, ...]:
    """Return what the family of a difference is known by."""
    cell: Cell = values.cell
    # A sentence about a mean over views reads those of one name, in all layers and at all severities.
    return (
        values.checkpoint,
        reference.checkpoint,
        cell.tokens,
        name,
        cell.draw,
        cell.view if combined else "",
    )


def _error(name: NumberName, values: CellValues, reference: CellValues, difference: Replicates) -> float:
    """Return the standard error of a difference: by the delta method or, of resampled means over views, of resamples.

    The influences of a mean are kept with its number alone, and that where it is linearized.
    """
    if difference.crossed is not None:
        return TwoWay.of(difference.crossed).error
    influence = difference.influence
    if name in values.influences and name in reference.influences:
        influence = values.influences[name] - reference.influences[name]
    if influence is not None:
        return difference_error(values.numbers[name], reference.numbers[name], influence)
    resampled_values = difference.values[~np.isnan(difference.values)]
    # One resample has no spread.
    if len(resampled_values) < 2 or difference.images < 2:
        return np.nan
    return float(np.hypot(resampled_values.std() / np.sqrt(1 - 1 / difference.images), difference.grain))


def check_same_images(values: CellValues, reference: CellValues) -> None:
    """Raise ``UserError`` unless two checkpoints were probed on the same images."""
    if values.image_ids != reference.image_ids:
        raise UserError(
            f"{values.checkpoint} and {reference.checkpoint} were probed on different images "
            f"({len(values.image_ids):,} and {len(reference.image_ids):,}, "
            f"{len({*values.image_ids} & {*reference.image_ids}):,} in common), so that no difference is paired; probe "
            "both on the same (leave out what one of them cannot read)."
        )


def has_collapsed(values: CellValues, name: NumberName) -> bool:
    """Whether what the metric is about has collapsed: everything goes to one choice."""
    # Lost images may be the reason why a number is undefined.
    number = values.numbers[name]
    if values.not_finite:
        return False
    # Some metrics are 0 where the router has collapsed, and not undefined.
    if find(name.metric).metric.collapsed_at_zero:
        return number.point < _EVEN
    kappa = _kappa(values, name) or number
    # Without a value a share of a mismatch has not collapsed: the mismatch is rounding.
    return any(
        np.isnan(replicates.point) and replicates.trials > 0 and replicates.undefined == "collapsed"
        for replicates in (number, kappa)
    )


def has_interval(values: CellValues, name: NumberName) -> bool:
    """Whether its raw match may be called good or bad: its level beyond chance has an interval."""
    kappa = _kappa(values, name)
    return kappa is None or not kappa.interval().flag


def are_comparable(values: CellValues, reference: CellValues, name: NumberName) -> bool:
    """Whether raw matches are comparable: with fewer experts chance alone is higher."""
    raw = _kappa(values, name) is not None and find(name.metric).kind != "kappa"
    return values.num_experts == reference.num_experts or not raw


def _kappa(values: CellValues, name: NumberName) -> Replicates | None:
    metric = find(name.metric).metric
    return values.numbers.get(NumberName(f"{metric.collapse_of or metric.name}{KAPPA}", "pooled"))


def sentences(table: pd.DataFrame, *, equivalent_within: float | None = None) -> pd.DataFrame:
    """Return one row per family of a comparison: what it is about, what it comes to, and what it excludes.

    Args:
        table: the judged differences.
        equivalent_within: the margin of equivalence, which shares alone have; None = nothing is said of it.
    """
    rows_of_families = []
    units = modality_of_table(table).units
    families: dict[tuple[Any, ...], list[dict[Hashable, Any]]] = {}
    # All rows at once: pandas takes as long for the few rows of each family.
    for line in table.to_dict("records"):
        families.setdefault(tuple(line[name] for name in FAMILY), []).append(line)
    for key, rows in families.items():
        within = equivalent_within if find(rows[0]["metric"]).has_margin else None
        excluded = Excluded.of(rows)
        rows_of_families.append(
            dict(zip(FAMILY, key, strict=True))
            | {
                "sentence": words.sentence(
                    rows, margin=rows[0]["margin"], units=units, equivalent_within=within
                ),
                # Json has no NaN.
                "excluded_loss": excluded.loss if excluded.loss == excluded.loss else None,
                "equivalent": None if within is None else excluded.is_equivalent(within),
                "images_to_equivalence": None if within is None else images_to_equivalence(rows, within),
            }
        )
    return pd.DataFrame(rows_of_families, columns=[*FAMILY, *VERDICT_COLUMNS], dtype=object)
