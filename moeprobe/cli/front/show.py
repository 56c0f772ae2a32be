"""The result of a probe on the screen, as its layout says: the verdict in words, then the headline of each layer."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.table import Table

from moeprobe.cli.front import tables
from moeprobe.cli.front.environment import print_json
from moeprobe.cli.front.screen import console, print_files, print_result, print_warnings
from moeprobe.cli.front.tables import fit, on_screen
from moeprobe.declarations import Layout, Probe
from moeprobe.declarations.headlines import Which
from moeprobe.declarations.question import Question
from moeprobe.inputs.modality import IMAGE, ORDINARY, modality_of
from moeprobe.judging.headlines import HeadlineValues, RunTables
from moeprobe.metrics import registry
from moeprobe.metrics.registry import output_along_severity
from moeprobe.probes.engine.leading import leading_sentences, measured_headlines, run_tables, zeros
from moeprobe.probes.engine.run import Plan
from moeprobe.recorded.engine.layout import along_a_severity, label_traces, steps_alone
from moeprobe.results.layouts import cells
from moeprobe.results.layouts.agreement import agreement_table, aligned_tables
from moeprobe.results.layouts.along_severity import few_shots_table
from moeprobe.results.layouts.by_view import by_view_table, means_table
from moeprobe.results.layouts.distinct_experts import asleep_table, distinct_experts_table
from moeprobe.results.layouts.expert_cache import expert_cache_table
from moeprobe.results.layouts.expert_coverage import coverage_table
from moeprobe.results.layouts.load_over_time import hot_experts_table, placements_table, watched_table
from moeprobe.results.layouts.prefetch import prefetch_table
from moeprobe.results.numbers import ATTRIBUTION, attribution
from moeprobe.results.sidecars import names_in, with_names
from moeprobe.results.tables import FLOORS, modality_of_table, records
from moeprobe.runtime.files import display_path
from moeprobe.runtime.placement import format_bytes

if TYPE_CHECKING:
    from moeprobe.probes.correspond.measure import CorrespondResult
    from moeprobe.probes.overlay.measure import OverlayResult
    from moeprobe.probes.trace.measure import Recorded
    from moeprobe.results.folder import Result
    from moeprobe.studies.server.result import ServerResult


def show(probe: Question[Any], result: Any, *, out: Path | None, as_json: bool, full: bool) -> None:
    """Print the result of a probe and its files, or everything as JSON."""
    if probe.layout is Layout.TRACES:
        print_traces(result, as_json=as_json)
    elif probe.layout is Layout.OVERLAYS:
        print_overlays(result, out=out, as_json=as_json)
    elif probe.layout is Layout.PAIRS:
        print_pairs(result, out=out, as_json=as_json)
    elif probe.layout is Layout.SERVER:
        print_server(result, as_json=as_json)
    else:
        print_result(
            result,
            out=out,
            as_json=as_json,
            show=_tables(probe, result, full=full),
            other_files=probe.other_files(),
        )
        if isinstance(probe, Probe) and probe.timed and not as_json:
            _print_rates(with_names(result))


def _tables(
    probe: Question[Any], result: "Result", *, full: bool
) -> "Callable[[Result], Sequence[Table | str]]":
    title = modality_of(result.table["tokens"]).translate(probe.heading(result.sidecar))
    layouts: dict[Layout, Callable[[Result], Sequence[Table | str]]] = {
        Layout.SIDE_BY_SIDE: partial(side_by_side, title=title, full=full),
        Layout.ALONG_SEVERITY: partial(along_severity, title=title, full=full),
        Layout.ALL: partial(tables.side_by_side, title=title),
        Layout.FEW_SHOTS: few_shots,
        Layout.BY_VIEW: partial(by_view, title=title),
        Layout.MEANS: partial(means, title=title, full=full),
        Layout.ALIGNED: partial(alignment, title=title),
        Layout.IN_FULL: partial(side_by_side, title=title, full=True),
        Layout.RECORDED: partial(recordings, title=title, full=full),
        Layout.SELECTED_KEYS: partial(selected_keys, title=title),
        Layout.REUSE: reuse_along_sequences,
        Layout.PREFETCH: prefetch,
        Layout.BATCHES: batches,
        Layout.COVERAGE: coverage,
        Layout.LOAD_OVER_TIME: load_over_time,
    }
    return layouts[probe.layout]


def _print_rates(result: "Result") -> None:
    for name, rate in result.sidecar["images_per_second"].items():
        console().print(f"{name}: {rate:,.0f} images/s on {result.sidecar['device']}", style="dim")


# Recorded traces on the screen: files, layers, sizes.


def print_traces(result: "Recorded", *, as_json: bool) -> None:
    """Print the size of the recording, the files, and the next command."""
    files = [str(path) for path in result.files]
    if as_json:
        content = {
            "files": files,
            "images": result.images,
            "layers": result.layers,
            "bytes": result.nbytes,
            "sidecar": result.sidecar,
        }
        print_json(content)
        return
    screen = console()
    rows = result.images * sum(len(layers) for layers in result.layers.values())
    views = len(files) // len(result.layers)
    for name, layers in result.layers.items():
        screen.print(f"{name}: {', '.join(layers)}", soft_wrap=True)
    skipped = len(result.sidecar.skipped_images)
    without = f" ({skipped} unreadable ones skipped)" if skipped else ""
    screen.print(
        f"{result.images:,} {result.inputs}{without}, {result.nbytes:,} bytes: "
        f"{result.nbytes / (rows * views):,.0f} per input and layer.",
        style="dim",
        soft_wrap=True,
    )
    print_warnings(screen, result.sidecar)
    # As they can be typed here; the run knows them by their absolute paths.
    files = [str(display_path(path)) for path in result.files]
    screen.print(f"Written: {', '.join(files)}", soft_wrap=True)
    of_server = Path(files[0]).stem == "tokens"  # the sequences of a server's responses
    following = (
        f"check SERVED.parquet --against {files[0]}" if of_server else f"analyze {' '.join(files[:views])}"
    )
    screen.print(f"Next: moeprobe trace {following}", soft_wrap=True)


def print_overlays(result: "OverlayResult", *, out: Path | None, as_json: bool) -> None:
    """Print the changed patches or tokens and the files, or all patches or tokens as JSON."""
    if as_json:
        print_json(
            {
                result.overlays[0].modality.tokens: records(result.table),
                "files": [str(path) for path in result.files],
            }
        )
        return
    screen = console()
    request = result.sidecar.request
    screen.print(*_changed_patches(result, request.view_name))
    inputs = result.overlays[0].modality.plural.capitalize()
    screen.print(
        f"{inputs} of {request['data']}. Pictures only. For numbers with intervals: moeprobe sweep.",
        style="dim",
        soft_wrap=True,
    )
    print_warnings(screen, result.sidecar)
    assert out is not None
    print_files(screen, out)


def print_pairs(result: "CorrespondResult", *, out: Path | None, as_json: bool) -> None:
    """Print how many patches of each image have a partner and the files, or all pairs as JSON."""
    if as_json:
        print_json({"pairs": records(result.table), "files": [str(path) for path in result.files]})
        return
    strength = "" if result.severity is None else f" at {result.severity:g}"
    table = Table(title=f"Corresponding patches, {result.view}{strength}", title_justify="left")
    for column in ("image", "view 1", "with a partner", "of", "met in view 2"):
        table.add_column(column)
    for item in result.pairs:
        first, second = (int(matched.sum()) for matched in item.matched)
        table.add_row(item.image_id, item.names[0], str(first), str(item.grid.num_patches), str(second))
    screen = console()
    experts_of = result.pairs[0].experts_of
    colors = f" Colors say whether both have the same expert in {experts_of}." if experts_of else ""
    screen.print(table)
    screen.print(
        f"Images of {result.data}. View 1 is the one that shows less of the image, else the clean or first one. Each "
        f"of its patches has a partner if its center is inside view 2.{colors}",
        style="dim",
        soft_wrap=True,
    )
    assert out is not None
    print_files(screen, out)


def print_server(result: "ServerResult", *, as_json: bool) -> None:
    """Print the verdict on a server and where its page is, or everything as JSON."""
    from moeprobe.studies.server.result import PAGE

    if as_json:
        content = {
            "server": result.server,
            "requests": result.requests,
            "sentences": result.sentences,
            "findings": [dataclasses.asdict(finding) for finding in result.checked.findings],
            "tables": {name: records(run.table) for name, run in result.runs.items()},
            "left_out": result.left_out,
            "sidecar": result.sidecar,
            "out": str(display_path(result.folder)),
        }
        print_json(content)
        return
    screen = console()
    verdict = f"{result.server}, {result.requests:,} requests: {result.sentences[0]}"
    screen.print(verdict, style="bold", soft_wrap=True)
    for line in result.details:
        screen.print(line, soft_wrap=True)
    screen.print(f"The page: {display_path(result.folder)}/{PAGE}", soft_wrap=True)


def _changed_patches(result: "OverlayResult", view: str) -> list[Table]:
    """Return how many of the compared patches or tokens changed: a line per layer, checkpoint and image or text."""
    modality = result.overlays[0].modality
    severities = list(dict.fromkeys(item.severity for item in result.overlays))
    has_sets = any(item.has_sets for item in result.overlays)
    changed = "set (+ only its first expert)" if has_sets else "expert"
    what = f"{modality.tokens.capitalize()} that changed their {changed}, {view} at severity"
    table = Table(title=what, title_justify="left")
    for column in ("layer", "checkpoint", modality.name):
        table.add_column(column)
    for severity in severities:
        table.add_column(f"{severity:g}", justify="right")
    lines: dict[tuple[str, str, str], list[str]] = {}
    names = names_in(result.sidecar)
    for item in result.overlays:
        key = (item.layer, names.get(item.checkpoint, item.checkpoint), item.image_id)
        cells = lines.setdefault(key, [])
        cells.append(item.short_count)
    for line, cells in lines.items():
        table.add_row(*line, *cells)
    return fit(table, keys=3, width=console().width)


def print_plan(plan: Plan, *, as_json: bool, least: bool = False, before: str = "the statistics") -> None:
    """Print the cost of a run ``before`` its last step; ``least``: the number of passes is a lower bound."""
    if as_json:
        is_known = not math.isnan(plan.seconds)
        print_json(dataclasses.asdict(plan) | ({} if is_known else {"seconds": None}))
        return
    bound = " at least" if least else ""
    inputs = dataclasses.replace(IMAGE, sampled=plan.unit)
    total = plan.checkpoints * plan.images * plan.passes
    duration = (
        ". The time is unknown until the model is loaded"
        if math.isnan(plan.seconds)
        else f", about {plan.seconds:,.1f} s before {before}, judging by {inputs.format_count(plan.timed_images)}"
    )
    console().print(
        f"{plan.checkpoints} checkpoint{'s' if plan.checkpoints != 1 else ''} x {inputs.format_count(plan.images)} "
        f"x {plan.passes} forward passes = {total:,} passes{bound}{duration}. Nothing was written."
    )
    for name, sizes in plan.weights.items():
        parts = ", ".join(f"{format_bytes(size)} on {device}" for device, size in sizes.items())
        console().print(f"Weights of {name}: {parts}.")


_MORE = "All metrics: --full."
# More layers than this are lines of a table, not columns.
_MOST_COLUMNS = 4
# In a narrower window intervals stand below their values.
_STACKED = 130
Printed = list[Table | str]


def _with_note(layout: cells.Table) -> Printed:
    """Return a table that fits the window, and the note on it."""
    notes = [layout.note] if layout.note else []
    return [*on_screen(layout, stacked=console().width < _STACKED), *notes]


def side_by_side(result: "Result", *, title: str, full: bool) -> Printed:
    """Return the output for checkpoints side by side; everything with ``full``."""
    run = run_tables(result)
    headlines = measured_headlines(run)
    sentences = leading_sentences(result, Layout.SIDE_BY_SIDE, headlines)
    if full or not headlines:
        return [*sentences, *tables.side_by_side(result, title=title)]
    agreeing = _agreeing(run, headlines)
    metrics = {headline.which for headline in headlines if headline not in agreeing} - zeros(headlines)
    parts: Printed = [*sentences, *_agreement(run, agreeing, title=title)]
    if metrics:
        parts += tables.side_by_side(result, title=title, only=metrics)
    return [*parts, _MORE]


def _agreeing(run: RunTables, headlines: list[HeadlineValues]) -> list[HeadlineValues]:
    """Return the headlines about agreement, whose match and chance stand beside κ; none where views differ."""
    if run.table is None or run.table["view"].nunique() > 1:
        return []
    return [
        headline
        for headline in headlines
        if headline.severity is None and registry.find(headline.declared.metric).kind == "kappa"
    ]


def _agreement(run: RunTables, headlines: list[HeadlineValues], *, title: str) -> list[Table]:
    """Return match, chance and κ of each layer side by side."""
    if run.table is None or not headlines:
        return []
    layout = agreement_table(
        run.table,
        run.comparison,
        list(dict.fromkeys(registry.find(headline.declared.metric).metric.name for headline in headlines)),
        caption=title,
        modality=run.modality,
    )
    return [] if layout is None else on_screen(layout, stacked=console().width < _STACKED)


def few_shots(result: "Result") -> Printed:
    """Return the output for few-shot accuracy: all of it."""
    layout = few_shots_table(result.table, result.comparison, modality=modality_of(result.table["tokens"]))
    if layout is None:
        return []
    return [*leading_sentences(result, Layout.FEW_SHOTS), *_with_note(layout)]


def by_view(result: "Result", *, title: str) -> Printed:
    """Return the output for variants of a run: sentences, and a line for each of them."""
    layout = by_view_table(result.table, caption=title)
    return [*leading_sentences(result, Layout.BY_VIEW), *_with_note(layout)]


def means(result: "Result", *, title: str, full: bool) -> Printed:
    """Return the output for means over corruptions: of families and all, with ``full`` of each."""
    layout = means_table(result.table, result.comparison, caption=title, full=full)
    parts: Printed = [*leading_sentences(result, Layout.MEANS), *_with_note(layout)]
    return parts if full else [*parts, "Each corruption: --full."]


def alignment(result: "Result", *, title: str) -> Printed:
    """Return the output for aligned trainings: sentences, and a line for each pair and set of them."""
    layouts = aligned_tables(result.table, caption=title)
    parts = [part for layout in layouts for part in _with_note(layout)]
    return [*leading_sentences(result, Layout.ALIGNED), *parts]


def recordings(result: "Result", *, title: str, full: bool) -> Printed:
    """Return the output for recordings: side by side, or along the severity of one view."""
    if along_a_severity(result):
        return along_severity(steps_alone(result), title=title, full=full)
    return side_by_side(label_traces(result), title=title, full=full)


def selected_keys(result: "Result", *, title: str) -> Printed:
    """Return the output for selected keys of indexers: sentences, and a line per layer."""
    from moeprobe.metrics.analyses.indexer import KEY_JACCARD

    layout = agreement_table(
        result.table[result.table["layer"] != ""],
        None,
        [KEY_JACCARD.name],
        caption=title,
        modality=modality_of_table(result.table, data=result.sidecar.request.data),
        nulls=("random", "recency"),
    )
    sentences = leading_sentences(result, Layout.SIDE_BY_SIDE)
    return [*sentences, *([] if layout is None else _with_note(layout))]


def reuse_along_sequences(result: "Result") -> Printed:
    """Return the output for reuse along sequences: sentences, a line per layer on reuse, and caches."""
    from moeprobe.metrics.analyses.next_token import NEXT_TOKEN_REUSE

    reuse = agreement_table(
        result.table,
        result.comparison,
        [NEXT_TOKEN_REUSE.name],
        caption="Reuse of a token's experts by the next token",
        modality=modality_of_table(result.table, data=result.sidecar.request.data),
        nulls=("pooled", "sequence"),
    )
    return _with_sentences(result, reuse, expert_cache_table(result.table))


def batches(result: "Result") -> Printed:
    """Return the output for batches: sentences, distinct experts by the number of tokens, and experts asleep."""
    return _with_sentences(result, distinct_experts_table(result.table), asleep_table(result.table))


def prefetch(result: "Result") -> Printed:
    """Return the output for experts loaded ahead: sentences, and a line per layer and predictor."""
    return _with_sentences(result, prefetch_table(result.table))


def coverage(result: "Result") -> Printed:
    """Return the output for the coverage of experts: sentences, and a line per source."""
    return _with_sentences(result, coverage_table(result.table))


def _with_sentences(result: "Result", *layouts: "cells.Table | None") -> Printed:
    """Return the sentences that a result begins with, then its tables."""
    parts: Printed = [*leading_sentences(result, Layout.SIDE_BY_SIDE)]
    for layout in layouts:
        parts += [] if layout is None else _with_note(layout)
    return parts


def load_over_time(result: "Result") -> Printed:
    """Return the output for load over time: sentences, a line per layer of hot experts, and one of its ranks."""
    rows = result.table[result.table["severity"].isna()]
    parts: Printed = [*leading_sentences(result, Layout.SIDE_BY_SIDE)]
    for layout in (watched_table(rows), hot_experts_table(rows), placements_table(rows)):
        if layout is not None:
            parts += _with_note(layout)
    return parts


def along_severity(result: "Result", *, title: str, full: bool) -> Printed:
    """Return the output for a sweep; everything with ``full``."""
    headlines = measured_headlines(run_tables(result))
    kappas = {
        headline.which: None
        for headline in headlines
        if registry.find(headline.declared.metric).kind == "kappa"
    }
    parts: Printed = [*leading_sentences(result, Layout.ALONG_SEVERITY, headlines)]
    if full or not kappas:
        return [*parts, *tables.along_severity(result, title=title)]
    result = result.without_single_experts()
    result = dataclasses.replace(result, table=result.table[~result.table["view"].isin(FLOORS)])
    modality = modality_of_table(result.table, data=result.sidecar.request.data)
    for which in kappas:
        label = registry.find(which[0]).full_label(which[1], modality)
        parts += _of_layers(result, which, f"{title}: {label}")
    output = _change_tables(result, lambda table: table[table["layer"] == ""])
    if len(output.table):
        columns = tuple(
            column for column in output_along_severity() if registry.find(column[0]).direction > 0
        )
        parts += tables.severity_tables(output, output.table, columns, f"{title}: output")
        parts += _attributions(output, title)
    return [*parts, _MORE]


def _of_layers(result: "Result", which: Which, title: str) -> list[Table | str]:
    """Return a number along the severities, a column per layer; of many layers at the strongest alone, a line each."""
    layers = [name for name in dict.fromkeys(result.table["layer"]) if name]
    if len(layers) <= _MOST_COLUMNS:
        by_layer = _change_tables(
            result, lambda table: table[_is(table, which)].assign(metric=table["layer"], layer="", null="")
        )
        columns = tuple((name, "", name) for name in layers)
        return [*tables.severity_tables(by_layer, by_layer.table, columns, title)]
    at = result.table["severity"].max()
    strongest = _change_tables(result, lambda table: table[table["severity"] == at], exact=False)
    return tables.side_by_side(strongest, title=f"{title}, at severity {at:g}, the strongest", only={which})


def _attributions(output: "Result", title: str) -> list[Table]:
    gates = output.sidecar.request.replayed_gates
    if not gates:
        return []
    return [
        table
        for name, columns in ATTRIBUTION.items()
        for attributed in [
            _change_tables(output, partial(_of_metrics, metrics=[metric for metric, _, _ in columns]))
        ]
        for table in tables.severity_tables(
            attributed, attributed.table, columns, f"{title}: {attribution(name, gates)}"
        )
    ]


def _of_metrics(table: pd.DataFrame, *, metrics: list[str]) -> pd.DataFrame:
    return table[table["metric"].isin(metrics)]


def _is(table: pd.DataFrame, which: Which) -> pd.Series:
    return (table["metric"] == which[0]) & (table["null"] == which[1]) & table["tokens"].isin(ORDINARY)


def _change_tables(
    result: "Result", change: Callable[[pd.DataFrame], pd.DataFrame], *, exact: bool = True
) -> "Result":
    """Return a result whose tables are changed; without the clean input where it is 0 or 1 exactly (``exact``)."""
    table = change(result.table)
    comparison = None if result.comparison is None else change(result.comparison)
    if exact and len(table):
        clean = table["severity"].min()
        clean_values = set(table[table["severity"] == clean]["value"])
        if clean_values in ({0.0}, {1.0}) and table["severity"].nunique() > 1:
            table = table[table["severity"] != clean]
            if comparison is not None:
                comparison = comparison[comparison["severity"] != clean]
    return dataclasses.replace(result, table=table, comparison=comparison)
