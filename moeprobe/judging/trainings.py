"""Claims about trainings: from the differences of several pairs of seeds to other seeds and other images.

A pair of checkpoints says nothing of other trainings. Where two groups were trained with the same three or more seeds,
their mean difference has an interval over seeds and images at once (``two_way.TwoWay``). The comparisons of a metric
are one family, as those of a single pair are. Its intervals hold together (Šidák 1967), and give the word.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.judging import words
from moeprobe.judging.differences import are_comparable, check_same_images, has_collapsed, has_interval
from moeprobe.judging.excluded import Excluded
from moeprobe.judging.summarize import Combine, group_by_layer
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.metrics.stats.training_pairs import FEWEST
from moeprobe.metrics.stats.two_way import TwoWay
from moeprobe.results.columns import TRAININGS_COLUMNS, TRAININGS_NUMBERS
from moeprobe.results.csv_files import read_values
from moeprobe.results.own_files import not_as_written
from moeprobe.results.stored import SumsStore
from moeprobe.results.summaries import About
from moeprobe.results.tables import FLOORS
from moeprobe.results.values import Analyses, CellValues, Evaluator

Pair = tuple[str, str]
Row = dict[str, Any]
FAMILY = ["checkpoint", "reference", "tokens", "metric", "null"]
# Column with the view of a mean over views, until families are judged; empty for all other rows.
_OF_MEAN = "of_mean"
# The file of a comparison that holds these claims.
TRAININGS = "trainings.csv"


def groups_of_pairs(pairs: Sequence[Pair], groups: Mapping[str, str]) -> dict[Pair, list[Pair]]:
    """Return (group, reference group) -> pairs of their trainings, where there are three or more.

    Pairs that share a training are not independent, so their groups are left out.
    """
    by_groups: dict[Pair, list[Pair]] = {}
    for checkpoint, reference in pairs:
        key = groups.get(checkpoint, ""), groups.get(reference, "")
        if all(key) and key[0] != key[1]:
            by_groups.setdefault(key, []).append((checkpoint, reference))
    return {
        key: members
        for key, members in by_groups.items()
        if len(members) >= FEWEST
        and all(len(set(side)) == len(members) for side in zip(*members, strict=True))
    }


def group_of_hand_pairs(pairs: Sequence[Pair], groups: Mapping[str, str]) -> dict[Pair, list[Pair]]:
    """Return the one group that pairs given by hand make, as ``groups_of_pairs`` does; empty of fewer than three.

    It is called as their groups are, where each side has one of its own, and after its checkpoints otherwise.
    """
    sides = list(zip(*pairs, strict=True))
    labels = [{groups.get(name, "") for name in side} for side in sides]
    if all(len(of_side) == 1 and all(of_side) for of_side in labels) and labels[0] != labels[1]:
        key = min(labels[0]), min(labels[1])
    else:
        key = _list_names(sides[0]), _list_names(sides[1])
    return {key: list(pairs)} if len(pairs) >= FEWEST else {}


def _list_names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= FEWEST else f"{names[0]} and {len(names) - 1} more"


def compare_trainings(
    images: SumsStore,
    *,
    analyses: Analyses,
    run_info: About,
    pairs: Mapping[Pair, Sequence[Pair]],
    margin: float = words.MARGIN,
    combine: Combine | None = None,
) -> pd.DataFrame:
    """Return the mean difference of each group of pairs, a row for each number of each cell.

    Args:
        images: sums per image of all checkpoints.
        analyses: what the sums are of.
        run_info: what all rows share.
        pairs: as ``groups_of_pairs`` returns them.
        margin: differences inside ± margin count as none, of shares.
        combine: makes means of the values of each layer, as in ``summarize``, with the influence of each image; their
            rows come last, and those of each view are a family of their own.
    """
    value = Evaluator.for_differences(
        analyses, aligned=run_info.aligned, seed=run_info.seed, unit_of=run_info.unit_of
    )
    rows: list[Row] = []
    means: list[Row] = []
    # Floors are arithmetic, not routing.
    sites = [site for site in images.sites() if site[0].cell.view not in FLOORS] if pairs else []
    for piece in [[site] for site in sites] if combine is None else group_by_layer(sites):
        valued = [[value(stored) for stored in site] for site in piece]
        for of_site in valued:
            rows += _rows_of_groups(pairs, of_site)
        for of_mean in () if combine is None else combine(valued):
            means += [row | {_OF_MEAN: row["view"]} for row in _rows_of_groups(pairs, of_mean)]
    rows = [{_OF_MEAN: ""} | row for row in rows + means]
    return _judge(pd.DataFrame(rows), margin) if rows else pd.DataFrame()


def _rows_of_groups(pairs: Mapping[Pair, Sequence[Pair]], site: Sequence[CellValues]) -> list[Row]:
    """Return the rows of one site, or of one mean, of all groups of pairs."""
    valued = {values.checkpoint: values for values in site}
    return [
        row
        for groups, members in pairs.items()
        # A layer that one of the trainings lacks is none of all of them.
        if all({*member} <= {*valued} for member in members)
        for row in _rows(
            groups, [(valued[checkpoint], valued[reference]) for checkpoint, reference in members]
        )
    ]


def _rows(groups: Pair, members: Sequence[tuple[CellValues, CellValues]]) -> list[Row]:
    cell = members[0][0].cell
    sides = [side for pair in members for side in pair]
    for side in sides:
        check_same_images(sides[0], side)
    # What lost images, or sends everything to one choice, makes no claim.
    names = [
        name
        for name in sides[0].numbers
        if all(
            name in side.numbers and not side.not_finite and not has_collapsed(side, name) for side in sides
        )
    ]
    shared: Row = {"checkpoint": groups[0], "reference": groups[1], "layer": cell.layer, "view": cell.view}
    shared |= {"severity": cell.severity, "tokens": cell.tokens, "trainings": len(members)}
    rows = []
    for name in names:
        differences = [_difference(name, *pair) for pair in members]
        if any(difference is None for difference in differences):
            continue
        estimate = TwoWay.of(np.array(differences))
        # Where no image differs, none tells how many would.
        if estimate.error == 0:
            continue
        spreads = {"spread": estimate.spread, "image_spread": estimate.image_spread}
        spreads["residual_spread"] = estimate.residual_spread
        is_comparable = all(has_interval(side, name) for side in sides) and all(
            are_comparable(*pair, name) for pair in members
        )
        rows.append(
            shared
            | {"metric": name.metric, "null": name.null, "value": estimate.value, "error": estimate.error}
            | {"freedom": estimate.freedom, **spreads, "images": members[0][0].num_units}
            | {"is_comparable": is_comparable}
        )
    return rows


def _difference(name: NumberName, values: CellValues, reference: CellValues) -> Any:
    """Return the paired difference of two trainings for each image ``(n,)``; None where it has no interval."""
    sides = values.numbers[name], reference.numbers[name]
    influences = [
        side.influences.get(name, number.influence)
        for side, number in zip((values, reference), sides, strict=True)
    ]
    first, second = influences
    if first is None or second is None or sides[0].minus(sides[1]).interval().flag:
        return None
    # A number that does not follow from shares of images may have no first-order error.
    if np.isnan(first).any() or np.isnan(second).any():
        return None
    # n times its influence is by how much an image itself differs from the mean.
    return sides[0].point - sides[1].point + len(first) * (first - second)


def _judge(table: pd.DataFrame, margin: float) -> pd.DataFrame:
    """Return the rows with intervals that hold for a whole family, and with their words."""
    judged = []
    for _, family in table.groupby([*FAMILY, _OF_MEAN], sort=False):
        # Each interval is wide enough that all of the family hold at once.
        confidence = CONFIDENCE ** (1 / len(family))
        for row in family.to_dict("records"):
            estimate = estimate_of(row)
            ci_low, ci_high = estimate.ends()
            low, high = estimate.ends(confidence)
            width = margin if find(row["metric"]).has_margin else np.nan
            word = words.word_of_interval(low, high, margin=width)
            # Raw matches of other numbers of experts, or of a router near collapse, have other chance levels.
            side = words.judgement(row["metric"], word) if row.pop("is_comparable") else ""
            ends = {"ci_low": ci_low, "ci_high": ci_high, "sim_low": low, "sim_high": high}
            judged.append(row | ends | {"verdict": word, "judgement": side, "margin": width})
    return pd.DataFrame(judged, columns=list(TRAININGS_COLUMNS))


def estimate_of(row: Mapping[Any, Any]) -> TwoWay:
    """Return the estimate that a row of claims is of."""
    return TwoWay(**{field.name: float(row[field.name]) for field in dataclasses.fields(TwoWay)})


def read_claims(path: Path, *, content: bytes | None = None) -> pd.DataFrame:
    """Return the claims of a comparison's file, numbers as numbers; ``content`` is what it holds, where it was read.

    Raises:
        UserError: it cannot be read, or is not as a comparison writes it.
    """
    table = read_values(path, content=content, numbers=TRAININGS_NUMBERS)
    if missing := TRAININGS_COLUMNS.keys() - set(table):
        raise not_as_written(path, f"it lacks {', '.join(sorted(missing))}")
    return table


def sentences(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per family with its sentence, and columns as ``differences.sentences`` has."""
    rows_of_families = []
    for key, family in table.groupby(FAMILY, sort=False) if len(table) else ():
        # No number of images (or units) is planned, and so none named: more trainings may be what it takes.
        rows = family.assign(se=np.nan, detectable=np.nan, collapsed="").to_dict("records")
        trainings = int(rows[0]["trainings"])
        reference = f"{rows[0]['reference']} ({trainings} pairs of trainings)"
        sentence = words.sentence(
            [row | {"reference": reference} for row in rows],
            margin=rows[0]["margin"],
        )
        loss = Excluded.of(rows).loss
        rows_of_families.append(
            dict(zip(FAMILY, key, strict=True))
            | {"sentence": sentence, "excluded_loss": loss, "trainings": trainings}
        )
    return pd.DataFrame(rows_of_families, dtype=object)
