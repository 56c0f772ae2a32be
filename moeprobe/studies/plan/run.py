"""From the errors of a pilot to numbers of images and of pairs of trainings, with the sentences that say them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import ORDINARY, Modality
from moeprobe.judging.tables import read_first
from moeprobe.judging.trainings import FAMILY, estimate_of
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.stats.families import POWER
from moeprobe.metrics.stats.planning import (
    detectable,
    images_needed,
    images_with_pairs,
    pairs_to_detect,
    upper_limits,
)
from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.metrics.stats.training_pairs import FEWEST
from moeprobe.results.columns import PLAN_COLUMNS, PLAN_TRAININGS_COLUMNS
from moeprobe.results.numbers import number, sentence_case
from moeprobe.results.tables import modality_of_table
from moeprobe.runtime.arguments import check_arguments, several
from moeprobe.runtime.catalog import did_you_mean
from moeprobe.runtime.files import write_csv
from moeprobe.runtime.table_folders import check_table_folder, family_of_table, table_folder
from moeprobe.studies.hand_pairs import HandPair
from moeprobe.studies.plan.pilots import location, read_pilot, worst_cells

_IMAGES, _TRAININGS = "plan.csv", "plan-trainings.csv"
_FAMILY = family_of_table("plan", PLAN_COLUMNS, files=(_TRAININGS,))
# Shares of simulated pilots of 20 to 100 images that plan enough: the table of docs/concepts/intervals.md.
_ENOUGH = "0.725 to 0.850"


@dataclass(frozen=True)
class ImagesPlan:
    """How many images, and pairs of trainings, show a difference.

    Attributes:
        table: a row per comparison of the pilot; the columns are ``columns.PLAN_COLUMNS``.
        families: of each metric that is read first, the row that needs most images.
        trainings: least detectable differences of pairs and images, of the metric that is read first; the columns are
            ``columns.PLAN_TRAININGS_COLUMNS``. Empty unless they were wanted.
        sentences: what it comes to.
        units: what was sampled.
        files: written files; empty where no folder was named.
    """

    table: pd.DataFrame
    families: pd.DataFrame
    trainings: pd.DataFrame
    sentences: Sequence[str]
    units: Modality
    files: tuple[Path, ...] = ()

    def __repr__(self) -> str:
        return f"ImagesPlan({self.sentences[0]!r})"


@check_arguments
def plan_images(
    runs: str | Path | Sequence[str | Path],
    *,
    difference: float,
    power: float = POWER,
    metric: str | None = None,
    trainings: bool = False,
    pairs: Sequence[HandPair] = (),
    out: str | Path | None = None,
    overwrite: bool = False,
) -> ImagesPlan:
    """Say how many images show a difference of two checkpoints, from a finished run as a pilot.

    Errors of a pilot are estimates, so upper limits take their place. In simulations, 0.725 to 0.850 of pilots then
    plan enough images.

    Args:
        runs: a finished run of two or more checkpoints, a comparison, runs as ``compare`` takes them, or a run of one
            checkpoint, whose values stand for two.
        difference: to be shown, in the metric's own unit.
        power: how often so many images are to show it.
        metric: the one metric to plan for; None = all shares, κ and gates.
        trainings: say how many pairs of trainings it takes, too; needs three or more pairs.
        pairs: as in ``compare``.
        out: folder for ``plan.csv``; None = nothing is written.
        overwrite: replace what an earlier plan left there.

    Raises:
        UserError: a run cannot be read, lacks the metric or has no error, or a number is out of its range.
    """
    if not (math.isfinite(difference) and difference > 0):
        raise UserError(f"{option('difference')} takes a number above 0; got {difference}.")
    if not 0 < power < 1:
        raise UserError(f"{option('power')} takes a number between 0 and 1; got {power}.")
    folder = None if out is None else Path(out)
    if folder is not None:
        check_table_folder(folder, _FAMILY, overwrite=overwrite)
    pilot = read_pilot(several(runs), pairs)
    rows = _plan_rows(_select(pilot.rows, metric), difference, power)
    families = worst_cells(read_first(_ordinary(rows), metric))
    if metric is not None:
        families = families[families["metric"] == metric]
    units = modality_of_table(rows, data=pilot.data)
    sentences = _sentences(families, units)
    over_trainings = pd.DataFrame(columns=list(PLAN_TRAININGS_COLUMNS))
    if trainings:
        claim, confidence = _claim(pilot.trainings, families.iloc[0], difference, power)
        over_trainings = _grid(claim, difference, confidence=confidence, power=power)
        sentences += _training_sentences(claim, difference, units, confidence=confidence, power=power)
    table = rows.assign(unit=units.unit).reindex(columns=list(PLAN_COLUMNS))
    plan = ImagesPlan(table, families, over_trainings, sentences, units)
    return plan if folder is None else replace(plan, files=_write(plan, folder, overwrite=overwrite))


def _select(rows: pd.DataFrame, metric: str | None) -> pd.DataFrame:
    """Return the comparisons to plan for: pooled draws, and one metric or all in shares."""
    rows = rows[rows["draw"].isna()] if "draw" in rows else rows
    names = list(dict.fromkeys(rows["metric"]))
    if metric is not None and metric not in names:
        raise UserError(
            f"The run has no metric {metric!r}.{did_you_mean(metric, names)} There are: {', '.join(names)}."
        )
    selected = [name for name in names if (find(name).has_margin if metric is None else name == metric)]
    if not selected:
        raise UserError(
            f"No metric of the run is a share; name one with {option('metric')}, whose unit the difference has: "
            f"{', '.join(names)}."
        )
    # A chance level is no finding.
    return rows[
        [name in selected and (metric is not None or find(name).kind != "chance") for name in rows["metric"]]
    ]


def _ordinary(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows about ordinary tokens and the output, which are read first; all where there are none."""
    is_ordinary = rows["tokens"].isin([*ORDINARY, ""])
    return rows[is_ordinary] if is_ordinary.any() else rows


def _plan_rows(rows: pd.DataFrame, difference: float, power: float) -> pd.DataFrame:
    """Return the rows with the images that each takes; NaN where it has no error."""
    needed = [
        max(
            images_needed(
                int(row["images"]), factor=row["factor"], error=row["se"], size=difference, power=power
            ),
            # Fewer have no interval.
            MIN_IMAGES,
        )
        if row["se"] > 0 and row["factor"] == row["factor"] and row["images"] > 1
        else np.nan
        for row in rows[["images", "factor", "se"]].to_dict("records")
    ]
    if all(value != value for value in needed):
        raise UserError(
            "Nothing in the run has a standard error: it takes 20 images, in some of which the checkpoints differ; "
            "probe more images first."
        )
    return rows.assign(difference=difference, power=power, images_needed=needed)


def _sentences(families: pd.DataFrame, units: Modality) -> list[str]:
    """Return how many images the first metric takes, and what the number rests on."""
    planned = families[families["images_needed"].notna()]
    if planned.empty:
        raise UserError(
            f"{families['metric'].iloc[0]} has no standard error in the run, so nothing can be planned for it."
        )
    row = planned.iloc[0]
    name = find(row["metric"]).full_label(row["null"], units)
    where = f"{location(row)} needs most. " if location(row) else ""
    sentences = [
        f"About {_round_up(row['images_needed'])} {units.units} show a difference of {row['difference']:g} in {name}, "
        f"with {row['power']:.0%} power; the run has {row['images']:,.0f}. {where}In simulations, "
        f"{_ENOUGH} of pilots plan enough."
    ]
    if not row["reference"]:
        sentences.append(
            f"The run has one value of it: two are planned as if measured on different {units.units}. A paired "
            "difference mostly takes fewer."
        )
    if row["effect"] > 1:
        sentences.append(
            f"{sentence_case(units.tokens)} of one {units.unit} are alike, and the plan counts it: "
            f"the variance is {row['effect']:.3g} times the variance for independent {units.tokens} (design effect)."
        )
    return sentences


def _round_up(count: float) -> str:
    """Return a count with two digits, rounded up: a plan is no more certain than that."""
    unit = 10 ** max(math.floor(math.log10(count)) - 1, 0)
    return f"{math.ceil(count / unit) * unit:,}"


def _claim(
    claims: pd.DataFrame, family: pd.Series, difference: float, power: float
) -> tuple[dict[str, Any], float]:
    """Return the comparison over trainings that takes most pairs, and the confidence of its interval alone."""
    if claims.empty:
        raise UserError(
            f"{option('trainings', True)} takes {FEWEST} or more pairs of trainings: give runs of two groups with as "
            "many seeds, or pairs A=B."
        )
    same = [claims[name] == family[name] for name in ("metric", "null", "tokens")]
    of_metric = claims[same[0] & same[1] & same[2]]
    if of_metric.empty:
        raise UserError(
            f"{family['metric']} has no interval over trainings; name a metric that has one with {option('metric')}: "
            f"{', '.join(dict.fromkeys(claims['metric']))}."
        )
    key = tuple(of_metric[FAMILY].iloc[0])
    members = [row for row in of_metric.to_dict("records") if tuple(row[name] for name in FAMILY) == key]
    confidence = CONFIDENCE ** (1 / len(members))
    return max(
        members,
        key=lambda row: detectable(
            _estimate(row), int(row["trainings"]), row["images"], confidence=confidence, power=power
        ),
    ), confidence


def _estimate(claim: dict[str, Any]) -> Any:
    return upper_limits(estimate_of(claim), int(claim["trainings"]), int(claim["images"]))


def _grid(claim: dict[str, Any], difference: float, *, confidence: float, power: float) -> pd.DataFrame:
    """Return what pairs of trainings and images detect: from the pilot's numbers up to the needed ones."""
    estimate, pairs, images = _estimate(claim), int(claim["trainings"]), int(claim["images"])
    enough = pairs_to_detect(estimate, images, difference, confidence=confidence, power=power) or 0
    numbers = sorted({pairs, 2 * pairs, 4 * pairs, max(enough, pairs)})
    shared = {name: claim[name] for name in PLAN_TRAININGS_COLUMNS if name in claim and name != "images"}
    lines = [
        shared
        | {"pairs": number_of_pairs, "images": size if math.isfinite(size) else np.nan, "power": power}
        | {
            "detectable": detectable(estimate, number_of_pairs, size, confidence=confidence, power=power),
        }
        for number_of_pairs in numbers
        for size in (images, 4 * images, math.inf)
    ]
    return pd.DataFrame(lines, columns=list(PLAN_TRAININGS_COLUMNS))


def _training_sentences(
    claim: dict[str, Any], difference: float, units: Modality, *, confidence: float, power: float
) -> list[str]:
    """Return whether trainings or images limit the difference that is shown for other trainings."""
    estimate, pairs, images = _estimate(claim), int(claim["trainings"]), int(claim["images"])
    more_images = images_with_pairs(estimate, pairs, difference, confidence=confidence, power=power)
    more_pairs = pairs_to_detect(estimate, images, difference, confidence=confidence, power=power)
    with_pairs = (
        f"no number of {units.units} shows it"
        if more_images is None
        else f"about {_round_up(max(more_images, MIN_IMAGES))} {units.units} show it"
    )
    with_images = (
        "no number of pairs shows it"
        if more_pairs is None
        else f"about {max(more_pairs, FEWEST):,} pairs show it"
    )
    return [
        f"For other trainings: with the {pairs} pairs of the run {with_pairs}, and with its {images:,} {units.units} "
        f"{with_images}. Differences of pairs vary by {number(claim['spread'])} between trainings (standard deviation)."
    ]


def _write(plan: ImagesPlan, folder: Path, *, overwrite: bool) -> tuple[Path, ...]:
    tables = {_IMAGES: plan.table} | ({_TRAININGS: plan.trainings} if len(plan.trainings) else {})
    with table_folder(folder, _FAMILY, overwrite=overwrite) as path:
        for name, table in tables.items():
            write_csv(path / name, table)
    return tuple(folder / name for name in tables)
