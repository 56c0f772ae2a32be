"""From the table of a run to the verdicts on its properties: model by model, and on which of two models is better."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.declarations import CLEAN, Headline, Property, Rule
from moeprobe.declarations.headlines import Which
from moeprobe.inputs.modality import IMAGE, modality_of
from moeprobe.judging.headlines import resolve_headlines, select_rows, severity_of
from moeprobe.judging.scales import SCALES, Scale
from moeprobe.judging.selection import Extreme, widen_intervals
from moeprobe.judging.words import COLLAPSED, FamilyWord, collapse, is_side, word_of
from moeprobe.metrics.registry import find, tokens_choose
from moeprobe.metrics.stats.bootstrap import FEW_CARRIERS, MIN_IMAGES
from moeprobe.results.folder import Result
from moeprobe.results.numbers import few_carriers, interval, number
from moeprobe.results.tables import FLOORS, agreement_of, kappa_symbol

Row = dict[str, Any]
# A row per property and model, or per property and pair of models (those with a ``reference``).
COLUMNS = [
    "property", "title", "checkpoint", "reference", "verdict", "grade", "judgement", "symbol", "metric", "null", "view",
    "severity", "layer", "value", "ci_low", "ci_high", "images", "trials", "experts", "layers", "of_layers",
    "variants", "checkpoint_value", "reference_value", "first_layer", "first_value", "first_low",
    "first_high", "beside", "advice", "command", "run",
]  # fmt: skip
UNDECIDED = "More inputs decide between the two; give the audit more --minutes."
# No match is collapsed by a load that merely leans to one side.
_EVERYTHING = 1 - 1e-6


@dataclass(frozen=True)
class PropertyNumbers:
    """A property with the numbers that it is judged by.

    Attributes:
        declared: the property.
        headlines: its numbers, resolved for the routers of the run.
        rows: of the deciding number, for every layer, variant and model.
    """

    declared: Property
    headlines: list[Headline]
    rows: pd.DataFrame

    @property
    def which(self) -> Which:
        """Metric and null of the deciding number."""
        first = self.rows.iloc[0]
        return str(first["metric"]), str(first["null"])

    @property
    def simultaneous_rows(self) -> pd.DataFrame:
        """The rows with intervals that hold for all layers and variants of a model at once, where all are read.

        The worst of several numbers is the lowest by chance, too, so that its own interval covers the worst of the
        truths too rarely.
        """
        if self.declared.rule in (Rule.FIRST, Rule.HIGHEST):
            return self.rows
        return pd.concat([widen_intervals(rows) for _, rows in self.rows.groupby("checkpoint", sort=False)])


def property_numbers(item: Property, table: pd.DataFrame) -> PropertyNumbers | None:
    """Return the numbers of a property in a table; None where nothing of it was measured."""
    if item.companion and not tokens_choose(agreement_of(table)):
        return None  # chance of gates that are merely even is high, too
    headlines = resolve_headlines(item.numbers, table, modality_of(table["tokens"]))
    rows = pd.concat([_rows(table, which, deciding) for which, deciding in _deciding(item, headlines)])
    if item.views:
        rows = rows[rows["view"].isin(item.views)]
    return None if rows.empty else PropertyNumbers(item, headlines, rows)


def _deciding(item: Property, headlines: Sequence[Headline]) -> list[tuple[Which, Headline]]:
    """Return the numbers that decide: the primary one, which is κ of what processes a token, or its companion."""
    if item.rule is Rule.HIGHEST:
        return [(headline.which, headline) for headline in headlines]
    headline = headlines[0]
    if not item.companion:
        return [(headline.which, headline)]
    return [(which, headline) for noun, which in headline.companions if noun == item.companion]


def _rows(table: pd.DataFrame, which: Which, headline: Headline) -> pd.DataFrame:
    rows = select_rows(table, which)
    rows = rows[~rows["view"].isin(FLOORS)]
    if rows["view"].nunique() > 1:
        rows = rows[rows["view"] != CLEAN]  # of a run in several ways, what they are compared with
    severity = severity_of(rows, headline.at)
    return rows if severity is None else rows[rows["severity"] == severity]


def verdicts(
    numbers: PropertyNumbers,
    table: pd.DataFrame,
    *,
    run: str,
    classes: int | None,
    command: str,
    models: Sequence[str],
) -> list[Row]:
    """Return the verdict on each model, as rows with ``COLUMNS``.

    Args:
        numbers: the property with its numbers.
        table: of the run.
        run: folder of the run.
        classes: of the data; None where they have no labels.
        command: what gives more.
        models: names of the audited models, the reference first.
    """
    empty: Row = {"run": run, "command": command, "reference": "", "judgement": ""}
    empty |= dict.fromkeys(("checkpoint_value", "reference_value"), np.nan)
    return [
        _verdict(numbers, table, str(name), rows)
        | empty
        | ({"checkpoint": models[-1]} if numbers.declared.of_pair else {})
        | _advice(numbers.declared, SCALES[numbers.declared.scale], rows, classes)
        for name, rows in numbers.simultaneous_rows.groupby("checkpoint", sort=False)
        # What the first model does against itself is no verdict on it.
        if not (numbers.declared.of_pair and name in models[:-1])
    ]


def _verdict(numbers: PropertyNumbers, table: pd.DataFrame, name: str, rows: pd.DataFrame) -> Row:
    """Return what one model's number is, where it is worst and in the first layer."""
    item, scale = numbers.declared, SCALES[numbers.declared.scale]
    moving_rows, unmoved_layers = _split_unmoved(rows, scale)
    worst = _deciding_row(item, moving_rows, scale)
    first = rows[(rows["metric"] == worst["metric"]) & (rows["view"] == worst["view"])].iloc[0]
    keys = ["metric", "null", "view", "severity", "layer", "value", "ci_low", "ci_high", "images", "trials"]
    title = item.text_title if item.text_title and modality_of(table["tokens"]) is not IMAGE else item.title
    shares = table[(table["metric"] == "expert_share") & (table["layer"] == worst["layer"])]
    return {
        "property": item.name,
        "title": title,
        "checkpoint": name,
        "symbol": _symbol(scale, table, str(worst["metric"])),
        **{key: worst[key] for key in keys},
        "experts": int(shares[shares["checkpoint"] == name]["expert"].nunique()),
        "layers": int(moving_rows["layer"].nunique()) if worst["layer"] else 0,
        "variants": int(moving_rows["view"].nunique()),
        "of_layers": "first"
        if item.rule in (Rule.FIRST, Rule.HIGHEST)
        else "worst"
        if scale.best
        else "lowest",
        "first_layer": first["layer"],
        "first_value": first["value"],
        "first_low": first["ci_low"],
        "first_high": first["ci_high"],
        "beside": ", ".join(
            [
                *_beside(numbers, table, name, worst),
                *mean_beside(item, table[table["checkpoint"] == name], worst),
                *(_inseparable(moving_rows, worst, scale) if item.rule is Rule.WORST else []),
                *(f"exactly 0 in {layer}, where no flip moved the loss" for layer in unmoved_layers),
            ]
        ),
    }


def _symbol(scale: Scale, table: pd.DataFrame, metric: str) -> str:
    """Return what a number is called: as its scale says, but for κ as headlines call it."""
    form = find(metric)
    return kappa_symbol(table, form.metric.name) if form.kind == "kappa" else scale.symbol


def _inseparable(rows: pd.DataFrame, worst: pd.Series, scale: Scale) -> list[str]:
    """Return the other layers (with their variants) that may be the worst as well, as one text at most."""
    if worst["ci_low"] != worst["ci_low"] or not scale.best:
        return []
    several = rows["view"].nunique() > 1
    names = [f"{row.layer} {row.view}" if several else str(row.layer) for row in rows.itertuples()]
    selection = Extreme.of(rows, lowest=scale.best != "lowest", names=names, hold_together=True)
    return [f"not separated from it by these inputs: {selection.rivals_text}"] if selection.rivals else []


def _deciding_row(item: Property, rows: pd.DataFrame, scale: Scale) -> pd.Series:
    """Return the row that decides, by the rule of the property."""
    if item.rule is Rule.HIGHEST:
        return _highest(rows)
    return rows.iloc[0] if item.rule is Rule.FIRST else worst_row(rows, scale)


def worst_row(rows: pd.DataFrame, scale: Scale) -> pd.Series:
    """Return the row whose number is worst; a router that has collapsed is worse than any number."""
    # A collapsed router has no κ, so no value would find it.
    collapsed = rows[rows["flag"] == COLLAPSED]
    if len(collapsed):
        return collapsed.iloc[0]
    values = rows["value"].astype(float)
    # Without any value there is no worst: the first row says why.
    if values.isna().all():
        return rows.iloc[0]
    return rows.loc[values.idxmax() if scale.best == "lowest" else values.idxmin()]


def is_exactly_0(row: Mapping[Hashable, Any] | pd.Series) -> bool:
    """Return whether a number is 0 in every resample: nothing moved."""
    return bool(row["value"] == row["ci_low"] == row["ci_high"] == 0)


def _split_unmoved(rows: pd.DataFrame, scale: Scale) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows in which anything moved, and the other layers; all rows where none moved or it is not asked."""
    is_unmoved = rows.apply(is_exactly_0, axis=1) if scale.unmoved else pd.Series(False, index=rows.index)
    # If nothing moved anywhere, that is the finding.
    if is_unmoved.all():
        return rows, []
    return rows[~is_unmoved], list(dict.fromkeys(rows.loc[is_unmoved, "layer"]))


def mean_beside(
    item: Property,
    table: pd.DataFrame,
    shown_row: Mapping[Hashable, Any] | pd.Series,
    *,
    signed: bool = False,
) -> list[str]:
    """Return the mean over the views of a property in a layer, with its interval; none where there is none."""
    rows = select_rows(table, (str(shown_row["metric"]), str(shown_row["null"])))
    rows = rows[
        (rows["layer"] == shown_row["layer"]) & (rows["view"] == item.mean_view) & rows["severity"].isna()
    ]
    if not item.mean_view or rows.empty:
        return []
    row = {str(key): value for key, value in rows.iloc[0].to_dict().items()}
    return [f"mean over {len(item.views)} views {interval(row, signed=signed)}"]


def _highest(rows: pd.DataFrame) -> pd.Series:
    first = rows[rows["layer"] == rows["layer"].iloc[0]]
    return first.loc[first["value"].astype(float).idxmax()]


def _advice(item: Property, scale: Scale, rows: pd.DataFrame, classes: int | None) -> Row:
    """Return the verdict in words, its grade, and what to do next."""
    if item.rule is Rule.HIGHEST:
        return _named_by_highest(item, scale, rows)
    if item.rule is Rule.VARIANTS:
        return _named_by_variants(item, scale, rows)
    rows, _ = _split_unmoved(rows, scale)
    # On a scale of chance, 1 is the accuracy of guessing.
    worst, unit = _deciding_row(item, rows, scale), 1 / classes if scale.of_chance and classes else 1.0
    if worst["flag"] == COLLAPSED:
        return {"verdict": COLLAPSED, "grade": "poor", "advice": item.advice.get(COLLAPSED, "")}
    bands = bands_of(worst, scale, unit=unit)
    if not bands or (scale.of_chance and not classes):
        few = f": fewer than {MIN_IMAGES} inputs" if worst["images"] < MIN_IMAGES else ""
        if worst["flag"] == FEW_CARRIERS:
            few = f": {few_carriers({str(key): value for key, value in worst.items()})}"
        return {"verdict": f"no verdict{few}", "grade": "", "advice": ""}
    nothing_happened = (worst["value"] == 1 and scale.unchanged) or (is_exactly_0(worst) and scale.unmoved)
    if nothing_happened:
        return {"verdict": nothing_happened, "grade": "good", "advice": ""}
    words = [scale.words[band] for band in bands]
    # The worse of two bands gives the advice. If only the interval reaches into it, the number is undecided.
    advice = next((item.advice[word] for word in reversed(words) if word in item.advice), "")
    if advice and len(words) > 1 and scale.bands(worst["value"], worst["value"], unit=unit) == bands[:1]:
        advice = UNDECIDED
    return {"verdict": scale.word(bands), "grade": scale.grade(bands), "advice": advice}


def bands_of(row: pd.Series, scale: Scale, *, unit: float = 1.0) -> list[int]:
    """Return the bands of a number, by its interval or, without one, by itself; none where there is no number."""
    value, low, high = (float(row[key]) for key in ("value", "ci_low", "ci_high"))
    if value != value or row["images"] < MIN_IMAGES or row["flag"] == FEW_CARRIERS:
        return []
    form = find(str(row["metric"]))
    # A count of experts is what these inputs show, and no share of them.
    if low != low or form.metric.unit == "whole" or (form.kind == "chance" and value > _EVERYTHING):
        low = high = value
    return scale.bands(low, high, unit=unit)


def _named_by_highest(item: Property, scale: Scale, rows: pd.DataFrame) -> Row:
    """Return the name of the highest number, with every other one whose interval overlaps it."""
    highest = _highest(rows)
    nouns = {headline.metric: headline.noun for headline in item.numbers if isinstance(headline, Headline)}
    first = rows[(rows["layer"] == highest["layer"]) & (rows["value"] >= scale.edges[0])]
    # It was picked for its value, so intervals that hold for all of them decide; without one, the value is the bar.
    together = widen_intervals(first)
    is_highest = together["metric"] == highest["metric"]
    lowest_ends = together["ci_low"].fillna(together["value"])[is_highest]
    upper = together["ci_high"].fillna(together["value"])
    names = (
        [nouns[metric] for metric in first.loc[upper >= lowest_ends.max(), "metric"]]
        if is_highest.any()
        else []
    )
    verdict = " or ".join(dict.fromkeys(names)) or scale.words[0]
    return {"verdict": verdict, "grade": "", "advice": item.advice.get(verdict, "")}


def _named_by_variants(item: Property, scale: Scale, rows: pd.DataFrame) -> Row:
    """Return the variants that are in the best band, grouped by the last word of their names."""
    best = scale.words[-1 if scale.best == "highest" else 0]
    safe: dict[str, list[str]] = {}
    grades = []
    for view, of_view in rows.groupby("view", sort=False):
        part, _, form = str(view).rpartition(" ")
        bands = bands_of(worst_row(of_view, scale), scale)
        grades.append(scale.grade(bands) if bands else "poor")
        safe.setdefault(form, [])
        if grades[-1] == "good":
            safe[form].append(part or form)
    numbers = Counter(str(view).rpartition(" ")[2] for view in rows["view"].unique())
    texts = [
        f"{form} {'all' if len(parts) == numbers[form] else ', '.join(parts) or 'none'}"
        for form, parts in safe.items()
    ]
    grade = "good" if set(grades) == {"good"} else "poor" if "good" not in grades else "fair"
    return {"verdict": f"{best}: {'; '.join(texts)}", "grade": grade, "advice": item.advice.get(grade, "")}


def _beside(numbers: PropertyNumbers, table: pd.DataFrame, name: str, worst: pd.Series) -> list[str]:
    """Return the other numbers of the property in the worst layer, in a few words."""
    parts = []
    for headline in numbers.headlines:
        if headline.which == numbers.which and numbers.declared.rule is not Rule.HIGHEST:
            continue
        if numbers.declared.companion or headline.which == (worst["metric"], worst["null"]):
            continue
        rows = select_rows(table, headline.which)
        rows = rows[(rows["checkpoint"] == name) & (rows["layer"] == worst["layer"])]
        # Numbers of another view would be about another perturbation.
        rows = rows[rows["view"] == worst["view"]]
        if worst["severity"] == worst["severity"]:
            # Some numbers are of all severities together.
            rows = rows[rows["severity"].isna() | (rows["severity"] == worst["severity"])]
        if len(rows):
            parts.append(f"{headline.noun} {number(rows.iloc[0]['value'])}")
    return parts


# Which of two models is better: the family of the paired differences in all layers and variants.


def difference_row(numbers: PropertyNumbers, comparison: pd.DataFrame, values: Row) -> Row | None:
    """Return the difference of the second model from the first as a row with ``COLUMNS``.

    Its values and its difference are of one cell, see ``_shown_difference``. None where the models have no layer in
    common in which the property was measured.

    Args:
        numbers: the property with its numbers.
        comparison: the judged differences of the run.
        values: the verdict on the second model, of which the row takes the columns about the property.
    """
    names = list(dict.fromkeys(numbers.rows["checkpoint"]))
    table = select_rows(comparison, numbers.which)
    table = table[(table["checkpoint"] == names[-1]) & (table["reference"] == names[0])]
    cells = ["layer", "view", "severity"]
    measured = numbers.rows[cells].drop_duplicates()
    # Only cells in which the property was measured for both models.
    table = table.merge(measured, on=cells)
    if table.empty or len(names) != 2:
        return None
    # One word for the whole family, so that a sentence and a table never disagree.
    word = FamilyWord.of_rows(table.to_dict("records"))
    shown_row = _shown_difference(table, word, SCALES[numbers.declared.scale])
    first = table[table["view"] == shown_row["view"]].iloc[0]
    several_views = table["view"].nunique() > 1
    who = set(table["collapsed"]) - {""}
    text = collapse(who) if who else word.text("comparisons" if several_views else "layers")
    keys = [
        "metric",
        "null",
        *cells,
        "value",
        "images",
        "trials",
        "checkpoint_value",
        "reference_value",
    ]
    return values | {
        **{key: shown_row[key] for key in keys},
        "checkpoint": names[1],
        "reference": names[0],
        "ci_low": shown_row["sim_low"],
        "ci_high": shown_row["sim_high"],
        "verdict": text,
        "judgement": text,
        "grade": "",
        "first_layer": first["layer"],
        "first_value": first["value"],
        "first_low": first["sim_low"],
        "first_high": first["sim_high"],
        "layers": int(table["layer"].nunique()) if shown_row["layer"] else 0,
        "variants": int(table["view"].nunique()),
        "of_layers": "largest",
        "beside": ", ".join(mean_beside(numbers.declared, comparison, shown_row, signed=True)),
        "advice": "",
    }


def _shown_difference(table: pd.DataFrame, word: FamilyWord, scale: Scale) -> pd.Series:
    """Return the difference that is shown: the largest of those that name a side, else of those with the family's word.

    Of equal ones it is that where either model's value is worst, or lowest where neither end is good.
    """
    words = table.apply(word_of, axis=1)
    deciding = table[words.map(is_side)] if word.sides else table[words == word.word]
    rows = deciding if len(deciding) else table
    sizes = rows["value"].astype(float).abs()
    if sizes.isna().all():
        return rows.iloc[0]
    rows = rows[sizes == sizes.max()]
    sides = rows[["checkpoint_value", "reference_value"]].astype(float)
    worst = sides.max(axis=1) if scale.best == "lowest" else sides.min(axis=1)
    if worst.isna().all():
        return rows.iloc[0]
    return rows.loc[worst.idxmax() if scale.best == "lowest" else worst.idxmin()]


def judge_run(
    properties: Sequence[Property],
    result: Result,
    *,
    run: str,
    classes: int | None,
    commands: Mapping[str, str],
    models: Sequence[str],
) -> list[Row]:
    """Return the verdicts on the properties of a run: a row per model; then, of two models, on their difference."""
    measured = [
        numbers for item in properties if (numbers := property_numbers(item, result.table)) is not None
    ]
    rows: list[Row] = []
    for numbers in measured:
        item = numbers.declared
        of_models = verdicts(
            numbers, result.table, run=run, classes=classes, command=commands[item.name], models=models
        )
        rows += of_models
        if item.compared and result.comparison is not None:
            difference = difference_row(numbers, result.comparison, of_models[-1])
            rows += [] if difference is None else [difference]
    return rows
