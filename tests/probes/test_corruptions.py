"""``corruptions`` against sweeps of single corruptions, and its means against resamples drawn here."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.inputs.corruptions import FAMILIES, MOVING, NAMES, STANDARD
from moeprobe.metrics.stats.bootstrap import NUM_RESAMPLES, Replicates, average
from moeprobe.probes.corruptions import Corruptions
from moeprobe.probes.corruptions.figure import draw
from moeprobe.probes.corruptions.measure import means_of
from moeprobe.results.folder import Result
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.values import CellValues, Evaluator
from moeprobe.runtime.seeds import generator
from tests.commands import Trained, refused, run

# Intervals are asserted.
pytestmark = pytest.mark.resamples


KINDS = ("fog", "zoom_blur", "spatter")
IMAGES = 20
KEYS = ["checkpoint", "layer", "tokens", "view", "severity", "metric", "null", "expert"]


@pytest.fixture(scope="module")
def measured(trained: Trained) -> Result:
    return api.corruptions(
        list(trained.values()), corruptions=KINDS, severities=(1, 5), baseline="baseline", limit=IMAGES
    )


@pytest.fixture(scope="module")
def table(measured: Result) -> pd.DataFrame:
    return measured.table


def rows(table: pd.DataFrame, **wanted: Any) -> pd.DataFrame:
    for column, value in wanted.items():
        table = table[table[column].isna() if value is None else table[column] == value]
    return table


def one(table: pd.DataFrame, metric: str, **wanted: Any) -> pd.Series:
    found = rows(table, metric=metric, **wanted)
    assert len(found) == 1
    return found.iloc[0]


def test_each_corruption_is_the_sweep_of_its_view(trained: Trained, table: pd.DataFrame) -> None:
    for name, view in (
        ("fog", "corruption,kind=fog"),
        ("zoom_blur_control", "corruption,kind=zoom_blur,moves=false"),
    ):
        swept = api.sweep(list(trained.values()), view=view, severities=[5], limit=IMAGES).table
        swept = swept.assign(view=name).set_index(KEYS)
        own = rows(table, view=name, severity=5).set_index(KEYS)
        assert len(own) > 30 and own.index.isin(swept.index).all()
        pd.testing.assert_frame_equal(
            own[["value", "ci_low", "ci_high", "trials"]],
            swept.loc[own.index, ["value", "ci_low", "ci_high", "trials"]],
        )


def test_the_clean_image_is_evaluated_once(trained: Trained, table: pd.DataFrame) -> None:
    clean = rows(table, view="clean", metric="accuracy").set_index("checkpoint")["value"]
    evaluated = api.evaluate(list(trained.values()), limit=IMAGES).table
    assert clean.to_dict() == rows(evaluated, metric="accuracy").set_index("checkpoint")["value"].to_dict()
    assert set(rows(table, view="clean")["layer"]) == {""}


def test_clean_images_are_run_once_and_every_cell_is_evaluated_once(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = api.load_model(trained["prc"])
    passes, cells = [], []
    trace, evaluate = type(model.model).trace, Evaluator.__call__

    def counted_trace(self: Any, batch: Any, **options: Any) -> Any:
        passes.append(len(batch))
        return trace(self, batch, **options)

    def counted_cell(self: Evaluator, stored: StoredCell) -> CellValues:
        cells.append(stored.cell)
        return evaluate(self, stored)

    monkeypatch.setattr(type(model.model), "trace", counted_trace)
    monkeypatch.setattr(Evaluator, "__call__", counted_cell)
    measured = api.corruptions(
        model, corruptions=["fog", "contrast"], severities=(1, 5), limit=4, batch_size=4
    )
    # One of another size asks what kind of routing there is.
    assert passes.count(4) == 1 + 2 * 2
    assert len(cells) == len(set(cells)) == len(list(measured.sums))


def test_a_mean_is_the_mean_of_its_rows(table: pd.DataFrame) -> None:
    """Spatter is none of the standard corruptions, and in no mean."""
    keys = {"checkpoint": "prc", "layer": "blocks.1", "tokens": "patch", "null": "pooled"}
    for metric, where in (("top1_match_kappa", keys), ("accuracy", {"checkpoint": "prc"})):

        def value(
            view: str, severity: float | None, metric: str = metric, where: dict[str, Any] = where
        ) -> float:
            return float(one(table, metric, view=view, severity=severity, **where)["value"])

        single = [value("fog", 1), value("fog", 5), value("zoom_blur", 1), value("zoom_blur", 5)]
        assert value("mean", None) == pytest.approx(np.mean(single))
        assert value("mean", 5) == pytest.approx(np.mean([value("fog", 5), value("zoom_blur", 5)]))
        assert value("fog", None) == pytest.approx(np.mean(single[:2])) == value("weather", None)
        assert value("blur", 1) == value("zoom_blur", 1)
        assert value("spatter", None) == pytest.approx(np.mean([value("spatter", 1), value("spatter", 5)]))


def test_intervals_are_those_of_resamples_of_images(measured: Result) -> None:
    """Accuracy and its difference, resampled here image by image with the run's draws."""
    sums = measured.sums.table().to_pandas()
    sums = sums[(sums["layer"] == "") & sums["view"].isin(["fog", "zoom_blur"])]
    correct = {
        name: group.groupby("image_id")["accuracy"].mean().sort_index().to_numpy()
        for name, group in sums.groupby("checkpoint")
    }
    draws = [
        generator(0, "bootstrap", draw=number).integers(IMAGES, size=IMAGES)
        for number in range(NUM_RESAMPLES)
    ]
    resampled = {
        name: np.array([of_images[draw].mean() for draw in draws]) for name, of_images in correct.items()
    }
    assert measured.comparison is not None
    difference = one(measured.comparison, "accuracy", view="mean", severity=None)
    by_hand = resampled["prc"] - resampled["baseline"]
    assert difference["value"] == pytest.approx(np.mean(correct["prc"] - correct["baseline"]))
    # Percentiles of few images reach a little further out.
    assert difference["ci_low"] == pytest.approx(np.quantile(by_hand, 0.0205), abs=0.02)
    assert difference["ci_high"] == pytest.approx(np.quantile(by_hand, 0.9795), abs=0.02)
    for name, values in resampled.items():
        row = one(measured.table, "accuracy", checkpoint=name, view="mean", severity=None)
        assert 0 <= row["ci_low"] <= row["value"] <= row["ci_high"] <= 1
        assert row["ci_high"] - row["ci_low"] == pytest.approx(4.1 * values.std(), rel=0.25)


def test_the_corruption_error_divides_by_the_errors_of_the_baseline(table: pd.DataFrame) -> None:
    def error(checkpoint: str, view: str) -> float:
        return 1 - float(one(table, "accuracy", checkpoint=checkpoint, view=view, severity=None)["value"])

    ratios = [error("prc", view) / error("baseline", view) for view in ("fog", "zoom_blur")]
    own = one(table, "corruption_error", checkpoint="prc", view="mean")
    assert own["value"] == pytest.approx(np.mean(ratios)) and own["ci_low"] < own["value"] < own["ci_high"]
    assert one(table, "corruption_error", checkpoint="prc", view="fog")["value"] == pytest.approx(ratios[0])
    baseline = one(table, "corruption_error", checkpoint="baseline", view="mean")
    assert baseline[["value", "ci_low", "ci_high"]].tolist() == pytest.approx([1, 1, 1])


def test_means_of_families_leave_extra_corruptions_out() -> None:
    means = {(mean.view, mean.severity): mean.parts for mean in means_of(NAMES, (1, 2))}
    assert {view for view, _ in means[("noise", 2)]} == set(FAMILIES["noise"])
    assert [view for view, _ in means[("mean", 1)]] == list(STANDARD)
    assert means_of(["spatter"], (1,))[0].parts == (("spatter", 1),)


def test_averages_ratios_and_complements() -> None:
    rng = np.random.default_rng(0)

    def replicates(point: float, influence: np.ndarray) -> Replicates:
        return Replicates(point, np.empty(0), images=50, trials=50, error=0.1, influence=influence)

    first, second = (rng.normal(size=50) for _ in range(2))
    mean = average([replicates(0.4, first), replicates(0.8, second)])
    assert mean.point == pytest.approx(0.6) and np.allclose(mean.influence, (first + second) / 2)  # type: ignore[arg-type]
    ratio = replicates(0.4, first).over(replicates(0.8, second))
    step = 1e-7
    moved = (0.4 + step * first) / (0.8 + step * second)
    assert np.allclose(ratio.influence, (moved - 0.5) / step, atol=1e-5)  # type: ignore[arg-type]
    assert ratio.error == pytest.approx(np.sqrt(50 / 49 * np.square(ratio.influence).sum()))  # type: ignore[arg-type]
    complement = replicates(0.4, first).complement()
    assert complement.point == 0.6 and np.array_equal(complement.influence, -first)  # type: ignore[arg-type]
    assert np.isnan(replicates(0.4, first).over(replicates(0.0, second)).interval().value)
    undefined = average([replicates(float("nan"), first), replicates(0.8, second)]).interval()
    assert np.isnan(undefined.value) and undefined.flag == "collapsed"


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_what_is_printed_and_drawn(trained: Trained, measured: Result, tmp_path: Path) -> None:
    [figure] = measured.plot().values()
    assert [axes.get_title() for axes in figure.axes[:3]] == ["blur", "weather", "mean"]
    conclusions = Corruptions.conclusions(measured.table)
    assert sum("with and without movement: zoom_blur" in line for line in conclusions) == 2
    assert any(line.startswith("prc, κ in blocks.1: lowest under") for line in conclusions)
    arguments = [
        "corruptions",
        trained["prc"],
        "--corruptions",
        "fog,contrast",
        "--severities",
        3,
        "--limit",
        20,
    ]
    result = run(*arguments, "--full", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "on average over corruptions and severities (20 images" in " ".join(result.stdout.split())
    assert {"clean", "weather", "digital", "mean", "fog", "contrast"} <= set(result.stdout.split())
    report = run("report", tmp_path / "out", "--out", tmp_path / "report")
    assert report.exit_code == 0, report.output
    [page] = (tmp_path / "report").glob("*.html")
    assert "Routing under the corruptions of ImageNet-C" in page.read_text(encoding="utf-8")


def test_a_single_severity_has_visible_intervals(measured: Result) -> None:
    """A band over one severity has no width: bars stand there, those of each checkpoint apart from the other's."""
    table = measured.table
    single = table[table["severity"].isna() | (table["severity"] == 5)]
    [figure] = draw(single, colors=measured.sidecar.colors).values()
    bars = figure.axes[-1].containers
    assert len(bars) == 2
    positions = set()
    for container in bars:
        [bar] = container[2]
        (x, low), (same, high) = bar.get_segments()[0]
        assert x == same and high > low
        positions.add(x)
    assert len(positions) == 2
    written = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
    assert "bars: 95 % over images" in written


def test_what_there_is_not_is_refused(trained: Trained) -> None:
    one_model = trained["prc"]
    assert "Did you mean 'frost'" in refused("corruptions", one_model, "--corruptions", "frist")
    assert "--corruptions takes each value once" in refused(
        "corruptions", one_model, "--corruptions", "fog,fog"
    )
    assert "whole numbers from 1 to 5; got 0" in refused("corruptions", one_model, "--severities", "0,1")
    assert "--baseline names one of prc; got 'x'" in refused("corruptions", one_model, "--baseline", "x")
    with pytest.raises(UserError, match="baseline divides errors, and there are no labels"):
        api.corruptions(one_model, data="shapes", corruptions=["fog"], baseline="prc", limit=2)


def test_variants_are_corruptions_then_their_controls() -> None:
    names = [name for name, _, _ in Corruptions().variants]
    assert names == [*NAMES, *(f"{kind}_control" for kind in MOVING)]
    assert [name for name, _, _ in Corruptions(controls=False).variants] == list(NAMES)
