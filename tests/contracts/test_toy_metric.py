"""A metric is one file: dropped into the catalog, it is found wherever metrics are named; nothing else is touched."""

import json
from pathlib import Path

import pytest

from tests.commands import Trained
from tests.contracts.dropped_in import run_with

TOY = '''"""How sure is the router of few tokens?"""

import numpy as np

from moeprobe.metrics.base import LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Share

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


@pytest.mark.slow
def test_a_metric_is_one_file(tmp_path: Path, trained: Trained) -> None:
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
    printed = run_with(tmp_path, "metrics/analyses/toy.py", TOY, commands, writer="metrics")
    codes = printed.codes
    assert codes == dict.fromkeys(codes, 0) | {"mistyped": 2, "compared": codes["compared"]}, printed
    assert codes["compared"] in (0, 3)
    printed.holds(
        {
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
            "compared": ["Sure tokens (toy_sure, patches)", "--fail-if-worse toy_sure"],
            "mistyped": ["Did you mean 'toy_sure'?"],
            "docs": ["| `toy_sure` | share of the tokens"],
        }
    )
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
