"""From the table of a run to the verdicts on its properties: model by model, and on which of two models is better."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import IMAGE, ORDINARY, modality_of
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.registry import analyses_of, find, tokens_choose
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.probes.base import CLEAN, Headline, Property, Rule
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results.differences import compare
from moeprobe.results.finished import Measured
from moeprobe.results.folder import Result
from moeprobe.results.headlines.collected import resolve_headlines, select_rows, severity_of
from moeprobe.results.headlines.declared import Which
from moeprobe.results.numbers import interval, number
from moeprobe.results.sidecars import Request
from moeprobe.results.summaries import About
from moeprobe.results.tables import FLOORS, agreement_of
from moeprobe.results.verdicts import MARGIN, NO_DIFFERENCE, SAME
from moeprobe.studies.audit.scales import SCALES, Scale

Row = dict[str, Any]
# A row per property and model, or per property and pair of models (those with a ``reference``).
COLUMNS = [
    "property", "title", "checkpoint", "reference", "verdict", "grade", "judgement", "symbol", "metric", "null", "view",
    "severity", "layer", "value", "ci_low", "ci_high", "images", "trials", "experts", "layers", "of_layers",
    "variants", "first_layer", "first_value", "first_low", "first_high", "beside", "advice", "command", "run",
]  # fmt: skip
COLLAPSED = "collapsed"
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
    """Return the numbers that decide: with several experts per token κ of their set, which is what processes it."""
    if item.rule is Rule.HIGHEST:
        return [(headline.which, headline) for headline in headlines]
    sets = [headline for headline in headlines if headline.beside and headline.null == "pooled"]
    headline = (sets or list(headlines))[0]
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
    return [
        _verdict(numbers, table, str(name), rows)
        | {"run": run, "command": command, "reference": "", "judgement": ""}
        | ({"checkpoint": models[-1]} if numbers.declared.of_pair else {})
        | _advice(numbers.declared, SCALES[numbers.declared.scale], rows, classes)
        for name, rows in numbers.rows.groupby("checkpoint", sort=False)
    ]


def _verdict(numbers: PropertyNumbers, table: pd.DataFrame, name: str, rows: pd.DataFrame) -> Row:
    """Return what one model's number is, where it is worst and in the first layer."""
    item, scale = numbers.declared, SCALES[numbers.declared.scale]
    moved, unmoved_layers = _split_unmoved(rows, scale)
    worst = _deciding_row(item, moved, scale)
    first = rows[(rows["metric"] == worst["metric"]) & (rows["view"] == worst["view"])].iloc[0]
    keys = ["metric", "null", "view", "severity", "layer", "value", "ci_low", "ci_high", "images", "trials"]
    title = item.text_title if item.text_title and modality_of(table["tokens"]) is not IMAGE else item.title
    shares = table[(table["metric"] == "expert_share") & (table["layer"] == worst["layer"])]
    return {
        "property": item.name,
        "title": title,
        "checkpoint": name,
        "symbol": scale.symbol,
        **{key: worst[key] for key in keys},
        "experts": int(shares[shares["checkpoint"] == name]["expert"].nunique()),
        "layers": int(moved["layer"].nunique()) if worst["layer"] else 0,
        "variants": int(moved["view"].nunique()),
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
                *(f"exactly 0 in {layer}, where no flip moved the loss" for layer in unmoved_layers),
            ]
        ),
    }


def _deciding_row(item: Property, rows: pd.DataFrame, scale: Scale) -> pd.Series:
    """Return the row that decides, by the rule of the property."""
    if item.rule is Rule.HIGHEST:
        return _highest(rows)
    return rows.iloc[0] if item.rule is Rule.FIRST else worst_row(rows, scale)


def worst_row(rows: pd.DataFrame, scale: Scale) -> pd.Series:
    """Return the row whose number is worst; a router that has collapsed is worse than any number."""
    collapsed = rows[rows["flag"] == COLLAPSED]
    if len(collapsed):
        return collapsed.iloc[0]
    values = rows["value"].astype(float)
    if values.isna().all():
        return rows.iloc[0]
    return rows.loc[values.idxmax() if scale.best == "lowest" else values.idxmin()]


def is_exactly_0(row: Mapping[Hashable, Any] | pd.Series) -> bool:
    """Return whether a number is 0 in every resample: nothing moved."""
    return bool(row["value"] == row["ci_low"] == row["ci_high"] == 0)


def _split_unmoved(rows: pd.DataFrame, scale: Scale) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows in which anything moved, and the other layers; all rows where none moved or it is not asked."""
    is_unmoved = rows.apply(is_exactly_0, axis=1) if scale.unmoved else pd.Series(False, index=rows.index)
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
    # Differences have intervals that hold for all layers at once; this one does not.
    alone = " (for this number alone)" if signed else ""
    return [f"mean over {len(item.views)} views {interval(row, signed=signed)}{alone}"]


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
    worst, unit = _deciding_row(item, rows, scale), 1 / classes if scale.of_chance and classes else 1.0
    if worst["flag"] == COLLAPSED:
        return {"verdict": COLLAPSED, "grade": "poor", "advice": item.advice.get(COLLAPSED, "")}
    bands = bands_of(worst, scale, unit=unit)
    if not bands or (scale.of_chance and not classes):
        few = f": fewer than {MIN_IMAGES} inputs" if worst["images"] < MIN_IMAGES else ""
        return {"verdict": f"no verdict{few}", "grade": "", "advice": ""}
    nothing_happened = (worst["value"] == 1 and scale.unchanged) or (is_exactly_0(worst) and scale.unmoved)
    if nothing_happened:
        return {"verdict": nothing_happened, "grade": "good", "advice": ""}
    words = [scale.words[band] for band in bands]
    # Of two bands the worse one says what to do, unless only the interval reaches into it.
    advice = next((item.advice[word] for word in reversed(words) if word in item.advice), "")
    if advice and len(words) > 1 and scale.bands(worst["value"], worst["value"], unit=unit) == bands[:1]:
        advice = UNDECIDED
    return {"verdict": scale.word(bands), "grade": scale.grade(bands), "advice": advice}


def bands_of(row: pd.Series, scale: Scale, *, unit: float = 1.0) -> list[int]:
    """Return the bands of a number, by its interval or, without one, by itself; none where there is no number."""
    value, low, high = (float(row[key]) for key in ("value", "ci_low", "ci_high"))
    if value != value or row["images"] < MIN_IMAGES:
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
    level = highest["ci_low"] if highest["ci_low"] == highest["ci_low"] else highest["value"]
    upper = first["ci_high"].fillna(first["value"])
    names = [nouns[metric] for metric in first.loc[upper >= level, "metric"]]
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
    numbers = {form: sum(str(view).endswith(f" {form}") for view in rows["view"].unique()) for form in safe}
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
        rows = rows[rows["view"] == worst["view"]]
        if worst["severity"] == worst["severity"]:
            # Some numbers are of all severities together.
            rows = rows[rows["severity"].isna() | (rows["severity"] == worst["severity"])]
        if len(rows):
            parts.append(f"{headline.noun} {number(rows.iloc[0]['value'])}")
    return parts


# Which of two models is better: paired differences with intervals for all layers at once.


def difference_row(
    numbers: PropertyNumbers, differences: pd.DataFrame, values: Row, comparison: pd.DataFrame
) -> Row | None:
    """Return the difference of the second model from the first as a row with ``judge.COLUMNS``.

    None where the models have no layer in common in which the property was measured.

    Args:
        numbers: the property with its numbers.
        differences: of the run, see ``differences_of``.
        values: the verdict on the second model, of which the row takes the columns about the property.
        comparison: all differences of the run, of which the mean over views stands beside.
    """
    metric, null = numbers.which
    table = differences[(differences["metric"] == metric) & (differences["null"] == null)]
    views, layers = set(numbers.rows["view"]), set(numbers.rows["layer"])
    table = table[table["view"].isin(views) & table["layer"].isin(layers)]
    names = list(dict.fromkeys(numbers.rows["checkpoint"]))
    if table.empty or len(names) != 2:
        return None
    shown_row = _largest(table)
    keys = ["metric", "null", "view", "severity", "layer", "value", "images", "trials"]
    first = table[table["view"] == shown_row["view"]].iloc[0]
    return values | {
        **{key: shown_row[key] for key in keys},
        "checkpoint": names[1],
        "reference": names[0],
        "ci_low": shown_row["sim_low"],
        "ci_high": shown_row["sim_high"],
        "verdict": _word(table),
        "judgement": _word(table),
        "grade": "",
        "first_layer": first["layer"],
        "first_value": first["value"],
        "first_low": first["sim_low"],
        "first_high": first["sim_high"],
        "layers": int(table["layer"].nunique()) if shown_row["layer"] else 0,
        "of_layers": "largest",
        "beside": ", ".join(mean_beside(numbers.declared, comparison, shown_row, signed=True)),
        "advice": "",
    }


def differences_of(properties: Sequence[PropertyNumbers], result: Result) -> pd.DataFrame:
    """Return the judged differences of the deciding numbers of a run alone, which costs no more than they."""
    names = list(dict.fromkeys(result.table["checkpoint"]))
    if len(names) != 2 or not properties:
        return pd.DataFrame()
    rows = pd.concat([numbers.rows for numbers in properties])
    request = Request({key: value for key, value in result.sidecar.request.items() if key != "checkpoints"})
    computing = {analysis for metric in rows["metric"].unique() for analysis in analyses_of(metric)}
    analyses = make_analyses([name for name in request.analyses if name in computing])
    views, severities, layers = set(rows["view"]), set(rows["severity"].dropna()), set(rows["layer"])
    sums = result.sums.pool_draws(lists=trial_lists(analyses)).select(
        lambda stored: (
            stored.cell.layer in layers
            and stored.cell.view in views
            and (not severities or stored.cell.severity in severities)
            and stored.cell.tokens in ("", *ORDINARY)
        )
    )
    measured = Measured(sums, request, result.sidecar.checkpoints, {})
    info = About.of_request(
        request,
        run=request.kind,
        aligned=measured.is_aligned,
        train_seeds=measured.training("seed"),
        groups=measured.training("group"),
    )
    return compare(
        sums, analyses=analyses, run_info=info, selected_pairs=[(names[1], names[0])], margin=MARGIN
    )


def _largest(table: pd.DataFrame) -> pd.Series:
    """Return the difference that is shown: the largest of those that decide, else the largest."""
    deciding = table[table["verdict"].isin(["higher", "lower"])]
    rows = deciding if len(deciding) else table
    sizes = rows["value"].astype(float).abs()
    return rows.iloc[0] if sizes.isna().all() else rows.loc[sizes.idxmax()]


def _word(table: pd.DataFrame) -> str:
    """Return what the differences of all layers come to."""
    if (table["verdict"] == "identical").all():
        return SAME
    who = set(table["collapsed"]) - {""}
    if who:
        return _of_collapse(who)
    column = "judgement" if table["judgement"].any() else "verdict"
    deciding = table[table[column].isin(["better", "worse", "higher", "lower"])]
    words, layers = sorted(set(deciding[column])), [rows["layer"].nunique() for rows in (deciding, table)]
    if words:
        extent = f" in {layers[0]} of {layers[1]} layers" if layers[0] < layers[1] else ""
        return " and ".join(words) + (" by layer" if len(words) > 1 else extent)
    return "no verdict" if table["sim_low"].isna().all() else NO_DIFFERENCE


def _of_collapse(who: set[str]) -> str:
    if who == {"checkpoint"}:
        return f"worse ({COLLAPSED})"
    return f"better (the other {COLLAPSED})" if who == {"reference"} else "both collapsed"


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
    differences = differences_of([numbers for numbers in measured if numbers.declared.compared], result)
    rows: list[Row] = []
    for numbers in measured:
        item = numbers.declared
        of_models = verdicts(
            numbers, result.table, run=run, classes=classes, command=commands[item.name], models=models
        )
        rows += of_models
        if item.compared and len(differences):
            assert result.comparison is not None
            difference = difference_row(numbers, differences, of_models[-1], result.comparison)
            rows += [] if difference is None else [difference]
    return rows
