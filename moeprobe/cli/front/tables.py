"""Results and comparisons on the screen: tables of the leading metrics that fit the window. A CSV holds every line."""

import dataclasses
import math
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

import pandas as pd
from rich.cells import cell_len
from rich.table import Column, Table

from moeprobe.cli.front.screen import console
from moeprobe.inputs.modality import ORDINARY, Modality, modality_of, modality_of_row
from moeprobe.judging import tables as judged_tables
from moeprobe.metrics.registry import find, output_along_severity, routing_along_severity
from moeprobe.metrics.stats.bootstrap import NUM_RESAMPLES, PERCENTILE
from moeprobe.results.layouts import cells
from moeprobe.results.layouts.along_severity import (
    BY_REGION,
    REGION_COLUMNS,
    noise_floor,
    regional,
    severity_table,
)
from moeprobe.results.layouts.cells import severity_heading
from moeprobe.results.layouts.side_by_side import side_by_side_table
from moeprobe.results.numbers import ATTRIBUTION, attribution, end, no_intervals
from moeprobe.results.tables import (
    FLOORS,
    agreement_of,
    deciding_match,
    kappa_symbol,
    modality_of_table,
    set_match_of,
)

if TYPE_CHECKING:
    from moeprobe.results.folder import Result
    from moeprobe.studies.compare import Comparison


def side_by_side(
    result: "Result", *, title: str, only: Collection[tuple[str, str]] | None = None
) -> list[Table | str]:
    """Return one table: a line per layer and metric, a column per checkpoint, the differences last; then what it omits.

    Numbers about single experts are too many for a screen. ``only`` are (metric, null), of patches, tokens of texts and
    the output; None = the leading metrics of all tokens.
    """
    result = result.without_single_experts()
    table, comparison = result.table, result.comparison
    first, *other_models = dict.fromkeys(table["checkpoint"])
    agreement = agreement_of(table)
    columns = zip(table["metric"], table["null"], strict=True)
    selected = pd.Series(
        [
            find(name).read_first(null, first=agreement) if only is None else (name, null) in only
            for name, null in columns
        ],
        index=table.index,
    )
    if only is not None:
        selected &= table["tokens"].isin([*ORDINARY, ""])
    layout = side_by_side_table(
        table[selected],
        comparison,
        [(name, first) for name in other_models] if comparison is not None and len(comparison) else [],
        caption=title,
        modality=modality_of_table(table, data=result.sidecar.request.data),
        severities=False,
    )
    stacked = console().width < 42 + 26 * (2 * len(other_models) + 1)
    rendered = on_screen(layout, stacked=stacked)
    return [*rendered, layout.note] if layout.note else [*rendered]


def along_severity(result: "Result", *, title: str) -> list[Table]:
    """Return a table per layer and one of the output: a line per checkpoint and severity."""
    result = result.without_single_experts()
    floor = _floor_table(result)
    result = dataclasses.replace(result, table=result.table[~result.table["view"].isin(FLOORS)])
    patches = result.table[result.table["tokens"].isin(ORDINARY)]
    tables: list[Table] = []
    first = agreement_of(result.table)
    columns = routing_along_severity(
        first,
        modality_of(result.table["tokens"]),
        sets=set_match_of(result.table),
        symbol=kappa_symbol(result.table, first),
    )
    for layer, rows in patches.groupby("layer", sort=False):
        tables += severity_tables(
            result, rows, columns, f"{title}: {layer}, {modality_of(rows['tokens']).tokens}"
        )
    tables += _by_region(result, title=title)
    output = result.table[result.table["layer"] == ""]
    if len(output):
        tables += severity_tables(result, output, output_along_severity(), f"{title}: output")
    if output["metric"].isin([name for columns in ATTRIBUTION.values() for name, _, _ in columns]).any():
        gates = result.sidecar.request.replayed_gates or ""
        for name, columns in ATTRIBUTION.items():
            tables += severity_tables(result, output, columns, f"{title}: {attribution(name, gates)}")
    return [*tables, *floor]


def _floor_table(result: "Result") -> list[Table]:
    """Return a table of how far the clean images match themselves; none where that was not measured."""
    modality = modality_of(result.table["tokens"])
    floor = noise_floor(result.table, dtype=result.sidecar.floor_dtype, modality=modality)
    if floor is None:
        return []
    images = int(result.table[result.table["view"].isin(FLOORS)]["images"].max())
    what = (
        f"{find(agreement_of(result.table)).full_label()} of {images} clean {modality.plural} with themselves"
    )
    floor = dataclasses.replace(floor, caption=f"{floor.caption}: {what}, {modality.tokens}")
    return on_screen(floor, stacked=console().width < _PLACE + 4 * _INTERVAL)


def _by_region(result: "Result", *, title: str) -> list[Table]:
    """Return a table per layer: kappa by what the patches show; none where that is not known."""
    match = deciding_match(result.table)
    comparison = None if result.comparison is None else regional(result.comparison, match)
    by_region = dataclasses.replace(result, table=regional(result.table, match), comparison=comparison)
    return [
        table
        for layer, rows in by_region.table.groupby("layer", sort=False)
        for table in severity_tables(by_region, rows, REGION_COLUMNS, f"{title}: {layer}, {BY_REGION}")
    ]


# Columns of characters that a checkpoint and a severity take, and a stacked interval.
_PLACE, _INTERVAL = 34, 21


def severity_tables(
    result: "Result", rows: pd.DataFrame, columns: tuple[tuple[str, str, str], ...], title: str
) -> list[Table]:
    """Return the columns that were measured, in as many tables as a narrow window takes."""
    measured = set(zip(rows["metric"], rows["null"], strict=True))
    columns = tuple(column for column in columns if column[:2] in measured)
    per_table = max(1, (console().width - _PLACE) // _INTERVAL)
    parts = [columns[start : start + per_table] for start in range(0, len(columns), per_table)]
    compared = result.comparison
    if compared is not None:
        compared = compared[compared["layer"].isin(set(rows["layer"]))]
        compared = compared[compared["tokens"].isin(set(rows["tokens"]))]
    modality = modality_of(rows["tokens"])
    layouts_by_part = [
        (part, severity_table(rows, compared, part, caption=title, modality=modality)) for part in parts
    ]
    return [
        table
        for part, layout in layouts_by_part
        if layout is not None
        for table in on_screen(layout, stacked=console().width < 40 + 25 * len(part))
    ]


# Tables of cells on the screen.


def on_screen(table: cells.Table, *, stacked: bool) -> list[Table]:
    """Return a table as one or several that fit the window; ``stacked`` puts intervals below their values.

    Where nothing was seen, the number of trials stands beside it, or below where a line would have to be folded for it.
    """
    width = console().width
    rich_table = _rich_table(table, stacked=stacked, counts_below=False)
    if not _fits_width(rich_table, width):
        rich_table = _rich_table(table, stacked=stacked, counts_below=True)
    return fit(rich_table, keys=table.keys, width=width)


def _rich_table(table: cells.Table, *, stacked: bool, counts_below: bool) -> Table:
    number = len(table.columns) - table.details
    rich_table = Table(title=table.caption, title_justify="left", title_style="bold")
    for column, heading in enumerate(table.columns[:number]):
        numeric = table.numeric_columns[column]
        rich_table.add_column(heading.replace(" − ", " −\n"), justify="right" if numeric else "left")
    previous = None
    for row in table.rows:
        keys = [cell.text for cell in row[: table.place]]
        if previous not in (None, keys):
            rich_table.add_section()
        shown_keys = ["" for _ in keys] if keys == previous else keys
        texts = (text(cell, stacked=stacked, counts_below=counts_below) for cell in row[table.place : number])
        rich_table.add_row(*shown_keys, *texts)
        previous = keys
    return rich_table


def text(cell: cells.TableCell, *, stacked: bool, counts_below: bool) -> str:
    """Return the text of a cell, with its interval and of how many nothing was seen.

    That is on a line of its own with ``counts_below``.
    """
    line = "\n" if stacked and cell.between.startswith("[") else " "
    value = line.join(part for part in (cell.screen or cell.text, cell.between) if part)
    return ("\n" if counts_below else line).join(part for part in (value, cell.count) if part)


# Tables that fit a window: names fold, numbers are never cut, and what still does not fit goes into another table.

# A name and its heading may be folded to this many characters, and a heading of numbers to fewer.
_NAME, _HEADING = 12, 8
# Width of a column in addition to its text: a space on either side and a border.
_AROUND = 3
# Parts of a name, each with what ends it.
_PARTS = re.compile(r"[^-_./]*[-_./]+|[^-_./]+")


def fit(table: Table, *, keys: int, width: int) -> list[Table]:
    """Return a table as one or several that fit ``width`` characters.

    Args:
        table: cells and headings are text.
        keys: how many columns, from the first one on, identify a line; they are in every part.
        width: of the window.
    """
    first, values = table.columns[:keys], table.columns[keys:]
    least = [
        *(min(_longest_word(column, heading=_NAME), _NAME) for column in first),
        *(_longest_word(column, heading=_HEADING) for column in values),
    ]
    space = width - 1
    parts: list[list[int]] = [[]]
    for number in range(keys, keys + len(values)):
        if parts[-1] and _total_width([*least[:keys], *(least[i] for i in [*parts[-1], number])]) > space:
            parts.append([])
        parts[-1].append(number)
    return [_part(table, [*range(keys), *columns], least, space) for columns in parts]


def _fits_width(table: Table, width: int) -> bool:
    """Whether all columns fit without a line of a cell being folded."""
    return _total_width([_longest_line(column, headed=False) for column in table.columns]) < width


def _part(table: Table, columns: Sequence[int], least: Sequence[int], space: int) -> Table:
    """Return some columns of a table, as wide as needed or possible, the narrowest growing first."""
    widths = {number: least[number] for number in columns}
    for headed in (False, True):  # what is in the cells first
        wanted_widths = {number: _longest_line(table.columns[number], headed=headed) for number in columns}
        while _total_width(list(widths.values())) < space:
            growing = [number for number in columns if widths[number] < wanted_widths[number]]
            if not growing:
                break
            widths[min(growing, key=widths.__getitem__)] += 1
    part = Table(title=table.title, title_justify=table.title_justify, title_style=table.title_style)
    for number, width in widths.items():
        column = table.columns[number]
        header = break_words(str(column.header), width)
        part.add_column(header, justify=column.justify, overflow="fold", width=width)
    for line, texts in enumerate(zip(*(table.columns[number].cells for number in columns), strict=True)):
        cells = (break_words(str(text), width) for text, width in zip(texts, widths.values(), strict=True))
        part.add_row(*cells, end_section=table.rows[line].end_section)
    return part


def break_words(text: str, width: int) -> str:
    """Return a text whose words are broken after a hyphen, dot or slash where they are wider than a column."""
    return "".join(
        word if cell_len(word) <= width else _in_lines(_PARTS.findall(word), width)
        for word in re.split(r"(\s+)", text)
    )


def _in_lines(parts: list[str], width: int) -> str:
    lines = [""]
    for part in parts:
        if lines[-1] and cell_len(lines[-1] + part) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


def _total_width(widths: Sequence[int]) -> int:
    return sum(widths) + _AROUND * len(widths)


def _longest_word(column: Column, *, heading: int) -> int:
    """Return the width of a column's longest word; a word of its heading may be folded to ``heading`` characters."""
    words = [word for cell in column.cells for word in str(cell).split()]
    of_heading = [min(cell_len(word), heading) for word in str(column.header).split()]
    return max([*map(cell_len, words), *of_heading], default=1)


def _longest_line(column: Column, *, headed: bool) -> int:
    cells = [column.header, *column.cells] if headed else column.cells
    lines = [line for cell in cells for line in str(cell).splitlines()]
    return max(map(cell_len, lines), default=1)


# A comparison on the screen: its tables, what they rest on, and what fails.

# Comparisons that fail a gate; more are counted.
_MOST_FAILURES = 10
# In a narrower window intervals stand below their values, and images and trials in reports alone.
_STACKED = 120


def comparison_tables(table: pd.DataFrame, *, extra: str | None = None, full: bool = True) -> list[Table]:
    """Return a table per metric; without ``full``, for the leading metrics alone."""
    narrow = console().width < _STACKED
    return [
        part
        for layout in judged_tables.tables(table, extra=extra)
        if full or not layout.folded
        for part in on_screen(dataclasses.replace(layout, details=2 if narrow else 0), stacked=narrow)
    ]


def comparison_overview(comparison: "Comparison", *, extra: str | None = None) -> list[Table]:
    """Return the table that a comparison opens with: a line per metric."""
    layout = judged_tables.overview(comparison.table, trainings=comparison.trainings, extra=extra)
    narrow = console().width < _STACKED
    return on_screen(layout, stacked=narrow) if layout.rows else []


def comparison_footing(comparison: "Comparison") -> str:
    """Return what the numbers rest on, a line for each."""
    request, table = comparison.sidecar.request, comparison.table
    probed = request.probe
    low, high = min(table["images"]), max(table["images"])
    images = f"{high:,}" if low == high else f"{low:,}–{high:,}"
    modality = modality_of_table(table)
    units = modality.units
    parts = [
        f"{modality.format_count(images)} of {probed.data} {probed.split}".rstrip(),
        f"view {probed.view_name}",
        f"seed {probed.seed}",
        f"{len(table):,} differences of {table['metric'].nunique()} metrics in all",
    ]
    parts = ["; ".join(parts)]
    look = comparison.sidecar.look
    if look is not None:
        parts.append(f"look {look[0]} of {look[1]}: intervals hold in all {look[1]} at once (Bonferroni)")
    if table["sim_low"].notna().any():
        parts += [
            "[low, high]: simultaneous 95 % interval over all layers and severities of a metric "
            f"({_how_together(table, units, looks=1 if look is None else look[1])}, paired)",
            f"p: paired t test over {units}, Holm-corrected",
            f"same: inside ±{request['margin']:g}",
            f"detectable: the minimum difference that these {units} detect at 80 % power",
        ]
    else:
        parts.append(no_intervals(units))
    alone = [
        name
        for name in comparison.sidecar.checkpoints
        if name not in {*table["checkpoint"], *table["reference"]}
    ]
    if alone:
        parts.append(f"not compared (no partner with the same training seed or layers): {', '.join(alone)}")
    return "\n".join(f"{part}." for part in parts)


def _how_together(table: pd.DataFrame, units: str, *, looks: int) -> str:
    """Return by what the intervals of a family hold together."""
    from moeprobe.metrics.stats.families import reads_resamples  # here, since it imports SciPy

    if not reads_resamples(looks, NUM_RESAMPLES):
        return f"t and Šidák's rule over {units}"
    # Differences that are linearized have no resamples, but as many sets of random signs.
    of_resamples = (table["interval"] == PERCENTILE).any()
    what = f"bootstrap resamples of {units}" if of_resamples else f"random signs of the influences of {units}"
    return f"max-|t| over {NUM_RESAMPLES:,} {what}"


def _why(row: pd.Series) -> str:
    if row["verdict"] in ("higher", "lower"):
        return "chance is all but 1, or another one for the reference has another number of experts"
    return modality_of_row(row).translate(row["verdict"])


def _location(row: pd.Series, modality: Modality) -> str:
    """Return where a difference was measured: layer, tokens, null, severity."""
    parts = [
        row["layer"],
        judged_tables.tokens_of(row["tokens"], modality),
        f"null {row['null']}" if row["null"] else "",
        "" if pd.isna(row["severity"]) else f"{severity_heading([row['metric']])} {row['severity']:g}",
    ]
    return ", ".join(part for part in parts if part)


def gate_outcome(comparison: "Comparison", metric: str, allowed: float | None = None) -> str:
    """Return the outcome of --fail-if-worse, or of --fail-unless-no-worse-than with ``allowed``.

    A sentence, and a line for each of the first comparisons that failed.
    """
    rows = comparison.failures
    flags = f"--fail-if-worse {metric}"
    if allowed is not None:
        flags += f" --fail-unless-no-worse-than {allowed:g}"
    if rows.empty:
        what = "it is worse nowhere" if allowed is None else f"it is worse by {allowed:g} nowhere"
        return f"{flags}: passed; {what}."
    total = int((comparison.table["metric"] == metric).sum())
    lines = [f"{flags}: failed in {len(rows)} of {total} comparison{'' if total == 1 else 's'}."]
    for _, row in rows.head(_MOST_FAILURES).iterrows():
        position = _location(row, modality_of(comparison.table["tokens"]))
        what = f"worse by {abs(row['value']):.3f}"
        if allowed is not None and not math.isnan(row["sim_low"]):
            low, high = (end(row[name], signed=True) for name in ("sim_low", "sim_high"))
            what = f"may be worse by {allowed:g} [{low}, {high}]"
        elif row["judgement"] != "worse":
            what = "collapsed" if row["collapsed"] == "checkpoint" else f"cannot be judged ({_why(row)})"
        lines.append(f"  {row['checkpoint']} {what}" + (f" ({position})" if position else ""))
    if len(rows) > _MOST_FAILURES:
        lines.append(f"  … and {len(rows) - _MOST_FAILURES} more; --json lists all.")
    return "\n".join(lines)
