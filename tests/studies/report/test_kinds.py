"""What a report shows of every kind of run is what the screen and the figures show of it."""

from pathlib import Path

import pytest

from moeprobe import api
from moeprobe.cli.front import tables
from moeprobe.declarations import registry
from moeprobe.results.figures import forest
from moeprobe.results.tables import frame
from moeprobe.runtime.files import write_csv
from moeprobe.studies.report.reading import read_runs
from moeprobe.studies.report.summary import title_of
from tests.studies.report.making import row, write_run


@pytest.mark.parametrize("kind", [*(kind.kind for kind in registry.kinds()), "compare", "tradeoff", "bench"])
def test_every_kind_has_a_heading(kind: str, tmp_path: Path) -> None:
    (found,) = read_runs([write_run(tmp_path / "run", kind, pictures=())])
    assert title_of(found).split(":")[0] != kind.replace("-", " ").capitalize()


def test_a_comparison_shows_the_same_metrics_everywhere(tmp_path: Path) -> None:
    """Of routers where experts choose too: how many tokens are left without an expert."""
    metrics = (
        "set_jaccard_kappa",
        "set_jaccard",
        "accuracy",
        "gate_highest",
        "load_entropy",
        "unserved",
        "churn",
    )
    lines = [
        row("b", ("" if name == "accuracy" else "blocks.3", "" if name == "accuracy" else "patch", name, null), value)
        | {"reference": "a", "verdict": "higher", "judgement": "", "sim_low": 0.05, "sim_high": 0.2, "margin": 0.02,
           "detectable": 0.1, "collapsed": "", "checkpoint_value": 0.6, "reference_value": 0.5, "p_holm": 0.01}
        for name in metrics
        for null, value in [("pooled" if name.endswith("kappa") else "", (0.1, 0.05, 0.15))]
    ]  # fmt: skip
    table = frame(lines, judged=True)
    run = write_run(tmp_path / "run", "compare", pictures=())
    write_csv(run / "comparison.csv", table)
    (run / "table.csv").unlink()
    shown = api.report([run]).markdown.lower()
    assert "tokens without an expert" in shown and "churn" not in shown
    screen = " ".join(str(part.title) for part in tables.comparison_tables(table))
    drawn = [axes.get_title() for axes in forest.draw(table, colors={"b": "red"}).axes]
    for title in (title for title in drawn if title):
        name = title.removesuffix(" (pooled)")
        assert name in shown, name
    assert "unserved" in screen and "tokens without an expert" in drawn
