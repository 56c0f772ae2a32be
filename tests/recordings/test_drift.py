"""A series of checkpoints of one training: routing of each against the first and the last."""

import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from scipy import stats

from moeprobe import api
from moeprobe.recorded.drift.layers import rows_of_layers
from moeprobe.recorded.drift.sentences import sentences, steps_of
from tests.commands import names_in, refused, run
from tests.recordings.serving import routing
from tests.recordings.test_expert_map import trace

STEPS = (0, 50, 200, 1000)
# Tokens of 600 whose experts are others than at the first step, more at each step; in the second layer twice as many.
CHANGED = (0, 30, 60, 120)


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("series")
    first, paths = routing(rows=600, layers=2), []
    order = np.random.default_rng(2).permutation(600)
    for step, changed in zip(STEPS, CHANGED, strict=True):
        ids = first.copy()
        for layer in (0, 1):
            some = order[: changed * (1 + layer)]
            ids[some, layer] = (ids[some, layer] + 1) % 8
        (folder / f"step-{step}").mkdir()
        paths.append(trace(folder / f"step-{step}" / "tokens.parquet", ids, 8))
    return paths


def value(table: pd.DataFrame, metric: str, view: str, layer: str, null: str = "") -> pd.Series:
    wanted = (table["metric"] == metric) & (table["view"] == view) & (table["layer"] == layer)
    wanted &= (table["tokens"] == "token") & (table["null"].fillna("") == null)
    [row] = table[wanted].to_dict("records")
    return pd.Series(row)


def test_each_is_held_against_both_ends(series: list[Path]) -> None:
    table = api.drift(series).table
    for number, step in enumerate(STEPS):
        for layer in (0, 1):
            of_layer = f"layers.{layer}"
            changed = [many * (1 + layer) / 600 for many in CHANGED]
            if number:
                view = f"step-{step}/tokens against the first"
                assert value(table, "choice_differs", view, of_layer)["value"] == pytest.approx(
                    changed[number]
                )
            if number < 3:
                view = f"step-{step}/tokens against the last"
                expected = changed[3] - changed[number]
                assert value(table, "choice_differs", view, of_layer)["value"] == pytest.approx(expected)
    assert len(set(table["view"])) == 6
    for reference, other in ((0, 2), (3, 1)):
        pair = api.analyze_trace([series[reference], series[other]]).table
        pair = pair[pair["checkpoint"].str.contains(f"step-{STEPS[other]}/")]
        name = f"step-{STEPS[other]}/tokens against the {'first' if reference == 0 else 'last'}"
        for metric, null in (("set_jaccard", ""), ("set_jaccard_kappa", "pooled"), ("tokens_touched", "")):
            where = "" if metric == "tokens_touched" else "layers.1"
            one = value(table, metric, name, where, null)
            two = value(pair.assign(view=name), metric, name, where, null)
            for column in ("value", "ci_low", "ci_high", "trials"):
                assert one[column] == two[column], (metric, column)


@pytest.mark.slow
@pytest.mark.promise
def test_checkpoints_that_read_images_drift_too(tmp_path: Path) -> None:
    """Their tokens are no sequence, so that nothing is said of all layers together."""
    from moeprobe.adapters.hooks import Hooks
    from tests.adapters import zoo

    paths = []
    for step in (0, 10):
        model = api.wrap(Hooks(zoo.vit(seed=step), **zoo.VIT), name=f"step-{step}")
        api.record([model], data="digits", limit=24, out=tmp_path / "t", overwrite=True)
        paths.append((tmp_path / "t" / f"step-{step}").rename(tmp_path / f"step-{step}") / "clean.parquet")
    result = run("trace", "drift", *paths)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "From the first checkpoint to step-10" in said and "pairs of token and layer" not in said


@pytest.mark.pictures
def test_the_command_draws_and_reports(series: list[Path], tmp_path: Path) -> None:
    result = run("trace", "drift", *series, "--out", tmp_path / "d")
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert (
        "Layers differ in how far they moved (p = 0.0005, all 2 at once); 2 of 2 moved more or less" in said
    )
    assert "the routing moved most in layers.1: κ 0." in said
    assert "It is separated from the next, layers.0 (κ 0." in said
    assert "The experts differ in 0.300" in said and "half of that is reached at step-200/tokens" in said
    assert names_in(tmp_path / "d") >= {"table.csv", "images.parquet", "figures", "run.json"}
    assert (tmp_path / "d" / "figures" / "drift.png").stat().st_size > 5000
    two = run("trace", "drift", series[0], series[-1]).output
    assert "The experts differ in" in " ".join(two.split()) and "half of that" not in two
    unchanged = [tmp_path / f"step-{number}" / "tokens.parquet" for number in range(3)]
    for copy in unchanged:
        copy.parent.mkdir()
        shutil.copy(series[0], copy)
    still = " ".join(run("trace", "drift", *unchanged).output.split())
    assert "The experts differ in 0.000" in still and "half of that" not in still
    report = run("report", tmp_path / "d", "--out", tmp_path / "page")
    assert report.exit_code == 0, report.output
    assert "Drift of routing" in (tmp_path / "page" / "report.md").read_text()
    assert "Name at least two traces" in refused("trace", "drift", series[0])
    assert "There is no" in refused("trace", "drift", series[0], tmp_path / "none.parquet")
    assert "was named twice" in refused("trace", "drift", series[0], series[0], "--out", tmp_path / "e")
    assert not (tmp_path / "e").exists()


def layers_moved(*ends: tuple[float, float, float], images: int = 30) -> str:
    """What is said of layers with these κ of the last checkpoint with the first."""
    table = pd.DataFrame(ends, columns=["value", "ci_low", "ci_high"])
    table = table.assign(
        checkpoint="m", layer=[f"layers.{number}" for number in range(len(ends))], view="b against the first",
        tokens="token", metric="top1_match_kappa", null="pooled", images=images, flag="", interval="percentile",
        trials=600,
    )  # fmt: skip
    [said] = sentences(pd.concat([table.assign(metric="top1_match", null=""), table]))
    return said


def test_the_layer_that_moved_most_is_picked_and_its_interval_knows_that() -> None:
    apart = (0.5, 0.45, 0.55), (0.8, 0.75, 0.85), (0.7, 0.65, 0.75)
    assert "layers.0: κ 0.500" in layers_moved(*apart)
    assert "from the next, layers.2 (κ 0.700 [0.650, 0.750]), and from all others" in layers_moved(*apart)
    # Their own intervals do not overlap; those that hold for all layers at once do.
    near = (0.5, 0.45, 0.55), (0.61, 0.56, 0.66)
    assert "not separated from layers.1: simultaneous" in layers_moved(*near)
    many = near[0], *[near[1]] * 5
    assert "not separated from layers.1, layers.2, layers.3 and 2 more" in layers_moved(*many)
    few = (0.5, np.nan, np.nan), (0.8, np.nan, np.nan)
    assert "separated" not in layers_moved(*few, images=5) and "separated" not in layers_moved(near[0])
    assert "not separated from layers.1" in layers_moved(near[0], (0.9, np.nan, np.nan))


@pytest.mark.parametrize(
    ("names", "steps"),
    [
        (["step-0/tokens", "step-50/tokens"], [0, 50]),
        (["v2/ckpt-100", "v2/ckpt-90", "v2/ckpt-120"], None),
        (["a", "b"], None),
        (["7b-sft1", "7b-sft2"], [1, 2]),
        (["base", "step-5"], None),
    ],
)
def test_steps_are_numbers_that_grow(names: list[str], steps: list[float] | None) -> None:
    assert steps_of(names) == steps


def lines_of(kappas: NDArray[np.float64], influences: NDArray[np.float64]) -> dict[tuple[str, str], float]:
    """The lines on layers with these κ and influences ``(n, L)``, by metric and layer."""
    rows = [
        {"layer": f"l{number}", "value": kappa, "interval": "percentile"}
        for number, kappa in enumerate(kappas)
    ]
    columns = {f"l{number}": influences[:, number] for number in range(len(kappas))}
    return {(line["metric"], line["layer"]): line["value"] for line in rows_of_layers(rows, columns, seed=0)}


def test_what_is_said_of_all_layers_is_what_a_loop_says() -> None:
    """Values of inputs that share noise between layers: t tests of the distance from the layers' mean, by scipy."""
    rng = np.random.default_rng(0)
    values = rng.standard_normal((60, 5)) + rng.standard_normal((60, 1)) + [0, 0, 0, 0, 1.5]
    lines = lines_of(values.mean(0), (values - values.mean(0)) / 60)
    off = values - values.mean(1, keepdims=True)
    expected = stats.false_discovery_control(stats.ttest_1samp(off, 0).pvalue)
    for number in range(5):
        assert lines["drift_layer_rate", f"l{number}"] == pytest.approx(expected[number])
    assert lines["drift_layers_differ_p", "all"] == pytest.approx(1 / 2001)
    among = [lines["drift_kappa_among", f"l{number}"] for number in range(5)]
    middle = values.mean()
    assert all(
        abs(shrunk - middle) < abs(mean - middle) for shrunk, mean in zip(among, values.mean(0), strict=True)
    )
    assert not lines_of(np.array([0.5]), values[:, :1]), "a single layer"


@pytest.mark.slow
@pytest.mark.promise
def test_layers_that_moved_as_far_seldom_seem_to_differ() -> None:
    rng = np.random.default_rng(1)
    seen = 0
    for _ in range(60):
        values = rng.standard_normal((40, 24)) + rng.standard_normal((40, 1))
        lines = lines_of(values.mean(0), (values - values.mean(0)) / 40)
        seen += lines["drift_layers_differ_p", "all"] <= 0.05
    assert seen / 60 <= 0.05 + 3 * 0.028
