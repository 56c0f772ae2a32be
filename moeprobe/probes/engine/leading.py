"""The sentences that a result begins with, above its tables: in the terminal, and in a notebook."""

import itertools
from collections.abc import Collection, Sequence

from moeprobe.declarations import Layout
from moeprobe.declarations.headlines import Which
from moeprobe.judging.headlines import (
    HeadlineValues,
    RunTables,
    beside_sentence,
    conclusions_of,
    headlines_of,
    sentences_of,
)
from moeprobe.results.folder import Result


def leading_sentences(
    result: Result, layout: Layout, headlines: Sequence[HeadlineValues] | None = None
) -> list[str]:
    """Return the sentences before the tables of a result that ``layout`` prints; they name checkpoints as these do.

    Args:
        result: its tables.
        layout: how it is printed.
        headlines: its measured headlines, where they are known already.
    """
    run = run_tables(result)
    with_experts = RunTables(sidecar=result.sidecar, table=result.table, comparison=result.comparison)
    if headlines is None:
        headlines = measured_headlines(run)
    match layout:
        case (
            Layout.SIDE_BY_SIDE
            | Layout.IN_FULL
            | Layout.SELECTED_KEYS
            | Layout.REUSE
            | Layout.PREFETCH
            | Layout.BATCHES
            | Layout.COVERAGE
            | Layout.LOAD_OVER_TIME
        ):
            return [*_of_first(run, headlines, without=zeros(headlines)), *conclusions_of(with_experts)]
        case Layout.ALONG_SEVERITY | Layout.FEW_SHOTS:
            return _of_first(run, headlines)
        case Layout.BY_VIEW | Layout.ALIGNED:
            return conclusions_of(with_experts)
        case Layout.MEANS:
            return [*_of_first(run, headlines), *conclusions_of(with_experts)]
        case _:
            return []


def run_tables(result: Result) -> RunTables:
    """Return the tables of a result, without the numbers about single experts."""
    result = result.without_single_experts()
    return RunTables(sidecar=result.sidecar, table=result.table, comparison=result.comparison)


def measured_headlines(run: RunTables) -> list[HeadlineValues]:
    """Return the headlines of a run that it has numbers of."""
    return [headline for headline in headlines_of(run) if headline.rows[headline.which]]


def zeros(headlines: Sequence[HeadlineValues]) -> set[Which]:
    """Return the headlines that are 0 exactly, wherever and however often they were measured."""
    rows: dict[Which, list[float]] = {}
    for headline in headlines:
        # Not by the interval, which leaves open what other images may show, even where nothing can.
        rows.setdefault(headline.which, []).extend(row["value"] for row in headline.rows[headline.which])
    return {which for which, values in rows.items() if not any(values)}


def _of_first(
    run: RunTables, headlines: Sequence[HeadlineValues], *, without: Collection[Which] = ()
) -> list[str]:
    """Return the sentences of the first headline, and one on those that nothing is concluded without."""
    remaining = [headline for headline in headlines if headline.which not in without]
    beside = [*itertools.takewhile(lambda headline: headline.declared.beside, remaining[1:])]
    sentences = [sentence for headline in remaining[:1] for sentence in sentences_of(run, headline)]
    return [*sentences, *filter(None, [beside_sentence(beside)])]
