"""The headline numbers of a run are the same whether it was just measured or read back."""

import pandas as pd

from moeprobe.declarations import headlines
from moeprobe.judging.headlines import RunTables, collect_headlines
from moeprobe.results.tables import frame
from tests.studies.report.making import Value, row, sidecar

KEY = ("", "", "fewshot_accuracy", "")


def run_of(table: pd.DataFrame) -> RunTables:
    return RunTables(sidecar=sidecar("fewshot", "a"), table=table, comparison=None)


def values_in(table: pd.DataFrame) -> list[float]:
    (headline,) = collect_headlines(run_of(table), (headlines.Headline("fewshot_accuracy"),))
    return [line["value"] for line in headline.rows[headline.which]]


def test_single_draws_are_no_headline() -> None:
    together: Value = (0.5, 0.4, 0.6)
    rows = [row("a", KEY, (0.1 * draw, 0.0, 1.0), draw=draw) for draw in (1, 2)]
    in_memory = frame([row("a", KEY, together), *rows])
    assert in_memory["draw"].tolist()[1:] == [1, 2]
    assert values_in(in_memory) == [0.5]
    read_back = in_memory.assign(draw=["", "1", "2"])
    assert values_in(read_back) == [0.5]


def test_a_run_without_a_table_has_no_headline() -> None:
    run = RunTables(sidecar=sidecar("evaluate", "a"), table=None, comparison=None)
    assert collect_headlines(run, (headlines.Headline("accuracy"),)) == []
