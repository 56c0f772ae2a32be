"""The short tables of a run: the leading metrics, as on the screen. Every line stands in the run's CSVs."""

import dataclasses

import pandas as pd

from moeprobe.declarations import Layout
from moeprobe.declarations.registry import of_kind
from moeprobe.inputs.modality import AROUND, MEDIA, PREFIX, Modality, modality_of
from moeprobe.judging import tables as judged_tables
from moeprobe.metrics.registry import find, output_along_severity, routing_along_severity
from moeprobe.metrics.watched_load import BATCH
from moeprobe.results.layouts.agreement import aligned_tables
from moeprobe.results.layouts.along_severity import (
    BY_REGION,
    REGION_COLUMNS,
    Columns,
    few_shots_table,
    noise_floor,
    regional,
    severity_table,
)
from moeprobe.results.layouts.by_view import by_view_table, means_table
from moeprobe.results.layouts.cells import Table, TableCell, counts, severity
from moeprobe.results.layouts.side_by_side import side_by_side_table
from moeprobe.results.layouts.tails import tails_table
from moeprobe.results.numbers import ATTRIBUTION, attribution, sentence_case
from moeprobe.results.tables import (
    FLOORS,
    agreement_of,
    deciding_match,
    is_pooled,
    kappa_symbol,
    set_match_of,
)
from moeprobe.studies.report.reading import Run
from moeprobe.studies.report.summary import changed_column

_DETAILS = ("expert", "expert_b", "class", "draw")
# The caption of the tables that are read first.
_CAPTION = "What was measured"


def short_tables(run: Run) -> list[Table]:
    """Return the short tables of a run; none where it has no values."""
    table, comparison = overall(run.table), overall(run.comparison)
    tables: list[Table] = []
    if table is not None:
        table, zeros = _without_zeros(table)
        tables += _of_layout(run, table, comparison)
        if zeros and tables:
            note = f"Left out, since 0 for every checkpoint: {', '.join(zeros)}. table.csv has them."
            tables[-1] = dataclasses.replace(tables[-1], note=f"{tables[-1].note} {note}".strip())
    if run.comparison is not None and run.kind == "compare":
        tables += judged_tables.tables(run.comparison, extra=run.gate)
    if run.overlay is not None:
        tables += _changed_patches(run.overlay, run.modality)
    if run.tails is not None:
        tables.append(tails_table(run.tails.table, run.tails.modality, folded=True))
    return tables


def overall(table: pd.DataFrame | None) -> pd.DataFrame | None:
    """Return the leading metrics, without single experts, classes, draws and the noise floor; None for no rows."""
    if table is None:
        return None
    first = agreement_of(table)
    metrics = zip(table["metric"], table["null"], strict=True)
    keep = pd.Series(
        [find(name).read_first(null, first=first) for name, null in metrics], index=table.index, dtype=bool
    )
    if "view" in table:
        keep &= ~table["view"].isin(FLOORS)
    # The course over batches of requests is in the figure: there may be thousands of them.
    along = [find(name).metric.severity == BATCH for name in table["metric"]]
    keep &= ~(pd.Series(along, index=table.index, dtype=bool) & table["severity"].notna())
    for column in _DETAILS:
        if column in table:
            keep &= is_pooled(table[column])
    return table[keep] if keep.any() else None


def _without_zeros(table: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return a table without the metrics that are 0 in every row of a layer, and what these are.

    A table of nothing else stays as it is.
    """
    keys = ["metric", "null", "layer", "tokens"]
    is_zero = (table["value"] == 0).groupby([table[key] for key in keys], sort=False).transform("all")
    if is_zero.all():
        return table, []
    metrics: dict[str, list[str]] = {}
    modality = modality_of(table["tokens"])
    for metric, null, layer, tokens in table.loc[is_zero, keys].drop_duplicates().values:
        where = f"{layer} {tokens}" if tokens in (*AROUND, *MEDIA) else layer
        metrics.setdefault(find(metric).full_label(null, modality).strip(), []).append(where)
    labels = [
        f"{label} ({', '.join(dict.fromkeys(filter(None, layers)))})" if any(layers) else label
        for label, layers in metrics.items()
    ]
    return table[~is_zero], labels


def _of_layout(run: Run, table: pd.DataFrame, comparison: pd.DataFrame | None) -> list[Table]:
    """Return the tables in the layout of a run's kind; some layouts choose among all rows by themselves."""
    assert run.table is not None
    kind = of_kind(run.kind)
    match None if kind is None else kind.layout:
        case Layout.ALONG_SEVERITY:
            return _sweep(run, table, comparison)
        case Layout.FEW_SHOTS:
            few_shots = few_shots_table(run.table, run.comparison, modality=run.modality)
            if few_shots is not None:
                return [few_shots]
        case Layout.BY_VIEW:
            return [by_view_table(run.table, caption=_CAPTION)]
        case Layout.MEANS:
            return [means_table(run.table, run.comparison, caption=_CAPTION, full=True)]
        case Layout.ALIGNED:
            return aligned_tables(run.table, caption=_CAPTION)
    return _side_by_side(table, comparison, run.modality)


def _side_by_side(table: pd.DataFrame, comparison: pd.DataFrame | None, modality: Modality) -> list[Table]:
    """Return two tables: patches and output, then tokens around them."""
    pairs = (
        []
        if comparison is None
        else list(dict.fromkeys(zip(comparison["checkpoint"], comparison["reference"], strict=True)))
    )
    around = table["tokens"].isin(AROUND)
    has_prefix = (table.loc[around, "tokens"] == PREFIX).all()
    of_around = f"the prefix ({modality.prefix}) token" if has_prefix else "tokens around the picture"
    parts = (
        (table[~around], _CAPTION, False),
        (table[around], f"The same for {of_around}", True),
    )
    return [
        side_by_side_table(rows, comparison, pairs, modality=modality, caption=caption, folded=folded)
        for rows, caption, folded in parts
        if len(rows)
    ]


def _sweep(run: Run, table: pd.DataFrame, comparison: pd.DataFrame | None) -> list[Table]:
    """Return a table per layer, one of the output and one of what changes it: a line per checkpoint and severity.

    The noise floor comes last.
    """
    gates, modality = run.settings.get("replayed_gates", "recomputed"), run.modality
    first = agreement_of(table)
    layers = [layer for layer in dict.fromkeys(table["layer"]) if layer]
    parts = [
        None if part is None else pd.concat([part, regional(part, deciding_match(table))])
        for part in (table, comparison)
    ]

    def along(caption: str, layer: str, tokens: str, columns: Columns) -> Table | None:
        values, compared = (
            None if part is None else part[(part["layer"] == layer) & (part["tokens"] == tokens)]
            for part in parts
        )
        assert values is not None
        return severity_table(values, compared, columns, caption=caption, modality=modality)

    routing = routing_along_severity(
        first, modality, sets=set_match_of(table), symbol=kappa_symbol(table, first)
    )
    assert run.table is not None
    tables = [
        *(along(f"{layer}, {modality.tokens}", layer, modality.token, routing) for layer in layers),
        *(along(f"{layer}, {BY_REGION}", layer, "region", REGION_COLUMNS) for layer in layers),
        along("Output of the model", "", "", output_along_severity()),
        *(
            along(sentence_case(attribution(name, gates)), "", "", columns)
            for name, columns in ATTRIBUTION.items()
        ),
        noise_floor(run.table, dtype=run.sidecar.floor_dtype, modality=modality),
    ]
    return [part for part in tables if part is not None]


def _changed_patches(patches: pd.DataFrame, modality: Modality) -> list[Table]:
    """Return how many patches or tokens of each image or text changed the expert that is drawn."""
    keys = [name for name in ("layer", "checkpoint", "image_id", "severity") if name in patches]
    if not {"layer", "checkpoint", "image_id", "changed", "compared"} <= set(patches.columns):
        return []
    rows, column = [], changed_column(patches)
    for key, part in patches.groupby(keys, sort=False):
        cells = [TableCell(text) for text in key[:3]]
        cells += [severity(float(key[3]))] if len(key) > 3 else []
        rows.append(
            [
                *cells,
                counts([(part[column] == "True").sum()]),
                counts([(part["compared"] == "True").sum()]),
            ]
        )
    columns = [modality.name if name == "image_id" else name for name in keys]
    note = (
        f"Pictures of single {modality.plural} only: without interval, and no conclusion about a checkpoint."
    )
    title = f"{modality.tokens.capitalize()} that changed their experts"
    return [Table(title, [*columns, "changed", "of"], rows, note)]
