"""A metric is one file: dropped into the catalog, it is found wherever metrics are named; nothing else is touched."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import moeprobe
from tests.commands import Trained

DOCS = Path(__file__).parents[2] / "docs"
TOY = '''"""How sure is the router of few tokens?"""

import numpy as np

from moeprobe.metrics.base import LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.bootstrap import Share

TOY_SURE = Metric(
    "toy_sure",
    about="share of the tokens whose highest gate is above 0.3",
    label="sure tokens",
    better="more",
    rank=5,
    headline=True,
)


class Toy(LayerAnalysis):
    """Share of the tokens of which a toy is sure."""

    measures = (TOY_SURE,)
    joins = ("match-ratio",)
    signature = "toy_tokens"

    def applies(self, layer):
        """Whether gates are a distribution."""
        return layer.gates_sum_to_one

    def sums(self, pair):
        """Return tokens, and sure ones, per image."""
        sure = (pair.view.gates.amax(-1) > 0.3) & pair.view.valid
        return {"patch": {"toy_tokens": pair.view.valid.sum(1), "toy_sure": sure.sum(1)}}

    def estimators(self, columns, *, aligned):
        """Return the share."""
        tokens = columns["toy_tokens"]
        return [TOY_SURE.raw(Share(columns["toy_sure"].astype(np.float64), tokens.astype(np.float64)), tokens)]
'''
_RUN = """
import json, sys
from typer.testing import CliRunner
from moeprobe.cli.app import app
for line in json.load(sys.stdin):
    result = CliRunner().invoke(app, line)
    print(json.dumps([result.exit_code, result.output]), flush=True)
sys.path.insert(0, sys.argv[1])
from writers import metrics
print(json.dumps([0, "".join(metrics.pages().values())]))
"""


def test_a_metric_is_one_file(tmp_path: Path, trained: Trained) -> None:
    package = tmp_path / "moeprobe"
    shutil.copytree(Path(moeprobe.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "metrics/toy.py").write_text(TOY)
    run, page = str(tmp_path / "run"), str(tmp_path / "page")
    commands = {
        "listed": ["list", "metrics"],
        "analyses": ["list", "analyses"],
        "explained": ["explain", "toy_sure"],
        "run": ["match-ratio", *map(str, trained.values()), "--limit", "24", "--full", "--out", run],
        "compared": ["compare", run, "--full", "--fail-if-worse", "toy_sure", "--margin", "0.5"],
        "mistyped": ["explain", "toy_sur"],
        "reported": ["report", run, "--out", page],
    }
    process = subprocess.run(
        [sys.executable, "-c", _RUN, str(DOCS)],
        input=json.dumps([*commands.values()]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        check=True,
    )
    said = dict(zip([*commands, "docs"], map(json.loads, process.stdout.splitlines()), strict=True))
    codes = {name: code for name, (code, _) in said.items()}
    assert codes == dict.fromkeys(said, 0) | {"mistyped": 2, "compared": codes["compared"]}, said
    assert codes["compared"] in (0, 3)
    for name, texts in {
        "listed": ["toy_sure", "whose highest gate is above 0.3"],
        "analyses": ["of which a toy is sure"],
        "explained": [
            "sure tokens",
            "Share of the tokens whose highest",
            "more",
            "the analysis toy",
            "match-ratio",
        ],
        "run": ["sure tokens"],
        "compared": ["sure tokens (toy_sure, patches)", "--fail-if-worse toy_sure"],
        "mistyped": ["Did you mean 'toy_sure'?"],
        "docs": ["| `toy_sure` | share of the tokens"],
    }.items():
        for text in texts:
            assert text in said[name][1], (name, text, said[name][1])
    assert "toy_sure" in (tmp_path / "run/table.csv").read_text()
    assert json.loads((tmp_path / "run/run.json").read_text())["analyses"][-1] == "toy"
    assert (
        "Sure tokens" in (tmp_path / "page/report.html").read_text()
        or "sure tokens" in (tmp_path / "page/report.html").read_text()
    )


@pytest.mark.parametrize("metric", ["churn", "toy_sure"])
def test_without_the_file_there_is_no_such_metric(metric: str) -> None:
    from moeprobe.metrics import registry

    assert registry.find(metric).declared == (metric == "churn")
