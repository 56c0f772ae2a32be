"""Which of two models is better in a property: paired differences with intervals for all layers at once."""

from collections.abc import Mapping, Sequence

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.registry import analyses_of
from moeprobe.probes.base import Property
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results.differences import compare
from moeprobe.results.finished import Measured
from moeprobe.results.folder import Result
from moeprobe.results.sidecars import Request
from moeprobe.results.summaries import About
from moeprobe.results.verdicts import MARGIN, NO_DIFFERENCE, SAME
from moeprobe.studies.audit.judge import (
    COLLAPSED,
    PropertyNumbers,
    Row,
    mean_beside,
    property_numbers,
    verdicts,
)


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
