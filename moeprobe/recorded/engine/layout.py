"""How recorded routing is shown: traces side by side, or as the steps of a view; figures are drawn elsewhere."""

import dataclasses
from typing import Any

from moeprobe.declarations import Layout
from moeprobe.probes.engine.leading import leading_sentences
from moeprobe.results.folder import Result
from moeprobe.results.palette import colors
from moeprobe.results.sidecars import Sidecar


def label_traces(result: Result) -> Result:
    """Return a result whose checkpoints are called by what each trace shows, so that each has a column of its own."""
    names = {
        (trace["checkpoint"], trace["view"], trace["severity"]): trace["label"]
        for trace in result.sidecar.traces
    }

    def label_of(row: Any) -> str:
        severity = row["severity"]
        return names[row["checkpoint"], row["view"], None if severity != severity else severity]

    of_each = {label: name for (name, _, _), label in names.items()}
    if len(names) == len(set(of_each.values())):
        return result
    rows = result.table[["checkpoint", "view", "severity"]].to_dict("records")
    table = result.table.assign(checkpoint=[label_of(row) for row in rows])
    sidecar = Sidecar(result.sidecar | {"colours": colors(list(of_each))})
    return dataclasses.replace(result, table=table, comparison=None, sidecar=sidecar)


def along_a_severity(result: Result) -> bool:
    """Whether the traces with a severity are the steps of one view, each once per checkpoint."""
    steps = [trace for trace in result.sidecar.traces if trace["severity"] is not None]
    severities, views = ({step[key] for step in steps} for key in ("severity", "view"))
    steps_seen = {(step["checkpoint"], step["severity"]) for step in steps}
    return len(severities) > 1 and len(views) == 1 and len(steps_seen) == len(steps)


def steps_alone(result: Result) -> Result:
    """Return a result without the rows that have no severity."""
    tables = [
        None if table is None else table[table["severity"].notna()]
        for table in (result.table, result.comparison)
    ]
    return dataclasses.replace(result, table=tables[0], comparison=tables[1])


def leading_sentences_of(result: Result) -> list[str]:
    """Return the sentences before the tables of recorded routing."""
    if along_a_severity(result):
        return leading_sentences(steps_alone(result), Layout.ALONG_SEVERITY)
    return leading_sentences(label_traces(result), Layout.SIDE_BY_SIDE)
