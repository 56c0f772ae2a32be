"""Checkpoints side by side: with one expert per token a number is shown once."""

from typing import Any

import pandas as pd
import pytest

from moeprobe.cli.front import tables
from moeprobe.inputs.modality import IMAGE
from moeprobe.metrics.registry import find
from moeprobe.results.folder import Result
from moeprobe.results.layouts.side_by_side import repetitions, side_by_side_table
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.tables import frame
from tests.cli.test_summary_output import match
from tests.results.layouts.rendering import on_page, on_screen
from tests.studies.report.making import row

_SAME = {"set_jaccard": 0.4, "weight_cosine": 0.4 + 1e-8, "weight_distance": 0.6, "churn": 0.6}


def measured(top_k: dict[str, int], **values: float) -> pd.DataFrame:
    rows: list[dict[str, Any]] = []
    for name, k in top_k.items():
        for metric, value in {"top1_match": 0.4, **_SAME, "unweighted": 0.4, **values}.items():
            for end, null in (("", ""), ("_kappa", "image")):
                key = ("blocks.1", "patch", f"{metric}{end}", null)
                rows.append(row(name, key, (value, value, value), top_k=k, view="crop"))
    return frame(rows)


def test_what_repeats_the_match_is_left_out_and_named() -> None:
    table = measured({"a": 1, "b": 1})
    assert repetitions(table) == list(_SAME)
    layout = side_by_side_table(table, None, [], caption="", modality=IMAGE)
    names = [line[2].text for line in layout.rows]
    assert [name.strip() for name in names if "κ" not in name] == ["top-1 match", "pairs without weights"]
    assert len(names) == 4 and all(find(name).metric.label in layout.note for name in _SAME)
    found = Result(table, None, match(1).images, Sidecar({"request": {"data": "digits"}}))
    *screen, note = tables.side_by_side(found, title="t")
    assert note == layout.note and len(screen) == 1
    page = on_page([layout])
    assert [line[-1] for line in on_screen(screen)] == [line[-3] for line in page]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("top_k", "values", "left"),
    [
        ({"a": 2}, {}, []),
        ({"a": 1, "b": 2}, {}, []),
        # Some tokens found no room, so the weights say more than the choice.
        ({"a": 1}, {"weight_cosine": 0.39, "weight_distance": 0.61}, ["set_jaccard", "churn"]),
    ],
)  # fmt: skip
def test_what_says_more_stays(top_k: dict[str, int], values: dict[str, float], left: list[str]) -> None:
    assert repetitions(measured(top_k, **values)) == left
