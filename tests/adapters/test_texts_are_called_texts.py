"""Where texts were read, nothing that is shown speaks of images."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprobe import api
from moeprobe.cli.front import tables
from moeprobe.inputs.modality import IMAGE, TEXT, modality_of, sources
from moeprobe.judging import differences
from moeprobe.metrics.registry import find, routing_along_severity
from moeprobe.probes.s_matrix import figure as s_matrix
from moeprobe.results.tables import frame
from tests.studies.report.making import Value, row, write_run

_TEXTS: dict[tuple[str, str, str, str], list[Value]] = {
    ("layers.1", "token", "top1_match", ""): [(0.41, 0.39, 0.43), (0.52, 0.5, 0.54)],
    ("layers.1", "token", "top1_match_chance", "pooled"): [(0.12, 0.11, 0.13), (0.13, 0.12, 0.14)],
    ("layers.1", "token", "top1_match_kappa", "pooled"): [(0.33, 0.31, 0.35), (0.45, 0.43, 0.47)],
    ("layers.1", "token", "top1_match_kappa", "image"): [(0.3, 0.28, 0.32), (0.4, 0.38, 0.42)],
    ("layers.1", "token", "gate_highest", ""): [(0.3, 0.28, 0.32), (0.4, 0.38, 0.42)],
    ("layers.1", "prefix", "top1_match", ""): [(1.0, 1.0, 1.0), (1.0, 1.0, 1.0)],
}


@pytest.mark.parametrize("kind", ["match-ratio", "sweep"])
def test_a_report_of_texts(kind: str, tmp_path: Path) -> None:
    request = {"data": "text:lines.txt", "view": {"name": "typos"}}
    run = write_run(tmp_path / "run", kind, values=_TEXTS, pictures=(), request=request)
    document = api.report([run])
    # Whole tables keep the names that the columns have in the files.
    shown = re.sub(
        r'<details class="whole">.*?</details>|<style>.*?</style>|<script>.*?</script>',
        "",
        document.html,
        flags=re.S,
    )
    assert "image" not in shown.lower()
    tables = document.markdown.lower().replace("within_image", "")
    assert "κ of top-1 match, within text" in tables or "κ, within text" in tables
    assert "image" not in tables and "360 texts" in tables


def test_names_of_chance_levels() -> None:
    assert find("top1_match_kappa").full_label("image", TEXT) == "κ of top-1 match, within text"
    assert find("top1_match_chance").full_label("image", IMAGE) == "chance of top-1 match, image"
    assert ("top1_match_kappa", "image", "κ, within text") in routing_along_severity("top1_match", TEXT)


def test_what_a_comparison_says_of_texts() -> None:
    key = ("layers.1", "token", "top1_match_kappa", "image")
    line = row("b", key, (0.1, -0.1, 0.3)) | {
        "reference": "a", "verdict": "no significant difference",
        "judgement": "", "sim_low": -0.2, "sim_high": 0.4, "margin": 0.02,
        "detectable": 0.25, "collapsed": "",
    }  # fmt: skip
    table = frame([line], judged=True)
    assert "360 texts detect" in differences.sentences(table)["sentence"].iloc[0]
    (shown,) = tables.comparison_tables(table.assign(metric="top1_match_kappa"), extra="top1_match_kappa")
    assert "within text" in str(shown.title)


def test_axes_of_a_matrix_of_texts() -> None:
    parts: dict[str, dict[str, Any]] = {
        "s": {"expert": 0, "expert_b": 0},
        "s_diagonal": {},
        "s_offdiagonal": {},
    }
    entries = [
        row("a", ("layers.1", "token", name, ""), (0.5, np.nan, np.nan), view="typos", **more)
        for name, more in parts.items()
    ]
    (figure,) = s_matrix.draw(frame(entries)).values()
    assert figure.axes[0].get_ylabel() == "expert, view 1"
    (figure,) = s_matrix.draw(frame(entries).assign(tokens="patch")).values()
    assert "covers less" in figure.axes[0].get_ylabel()


def test_requests_are_of_no_data_set() -> None:
    served = modality_of(["token"], data="requests")
    assert sources(1, served, data="requests", split="") == "1 request"
    assert sources(60, TEXT, data="text:lines.txt", split="test") == "60 texts of text:lines.txt test"
    assert sources(1, IMAGE, data="folder:x", split="") == "1 image of folder:x"
