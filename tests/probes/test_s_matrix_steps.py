"""The steps from two views of a patch to S, against the sums that S is made of."""

import numpy as np
import pytest
from matplotlib.patches import Rectangle

from moeprobe import api
from moeprobe.probes.s_matrix import SMatrix, measure
from moeprobe.probes.s_matrix.figure import draw_steps
from moeprobe.probes.s_matrix.measure import SMatrixMeasurement
from tests.commands import Trained
from tests.results.drawn import words


@pytest.mark.parametrize(
    ("view", "smaller"),
    [
        ("random_crop", "first view"),
        ("random_crop,first_area=[0.9,1.0]", "second view"),
        ("prc_crops", "first view"),
    ],
)
def test_the_products_of_all_pairs_of_an_image_are_its_part_of_s(
    trained: Trained, view: str, smaller: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = [api.load_model(path) for path in trained.values()]
    options = api.Options(limit=3)
    measured = SMatrixMeasurement(SMatrix(view=view), models, "digits", options)
    images = api.s_matrix(models, view=view, data="digits", options=options).images.to_pandas()
    images = images[images["layer"] == "blocks.1"].set_index(["checkpoint", "image_id"])
    first_views = set()
    for index in measured.spec.indices:
        example = measured.spec.dataset.example(index)
        sums = {model.name: np.zeros((8, 8)) for model in models}
        (first, *_) = measure.steps_of(measured.spec, models, example)
        for patch in np.flatnonzero(first.pairs.partner >= 0):
            monkeypatch.setattr(measure, "nearest_to_center", lambda _, patch=patch: int(patch))
            for one in measure.steps_of(measured.spec, models, example):
                assert one.layer == "blocks.1"
                sums[one.checkpoint] += one.product
        monkeypatch.undo()
        first_views.add(first.pairs.names[0])
        for name, own in sums.items():
            expected = images.loc[(name, example.image_id), "gate_products"].reshape(8, 8)
            np.testing.assert_allclose(own, expected, atol=1e-5)
    assert smaller in first_views


def test_the_pair_nearest_to_the_center_is_drawn(trained: Trained) -> None:
    models = [api.load_model(path) for path in trained.values()]
    result = api.s_matrix(models, data="digits", limit=4)
    figures = result.plot()
    assert set(figures) == {"s-matrix", "s-matrix-steps"}
    measured = SMatrixMeasurement(SMatrix(), models, "digits", api.Options(limit=4))
    example = measured.spec.dataset.example(measured.spec.indices[0])
    found = measure.steps_of(measured.spec, models, example)
    for one in found:
        pairs = one.pairs
        distances = {
            patch: np.hypot(*(pairs.grid.centers()[patch, :2] - 16))
            for patch in range(16)
            if pairs.partner[patch] >= 0
        }
        assert distances[one.patch] == min(distances.values())
        assert all(abs(gates.sum() - 1) < 1e-5 for gates in one.gates)
    figure = figures["s-matrix-steps"]
    said = " ".join(words(figure).split())
    assert example.image_id in said and "S rests on 4 images" in said
    assert figure.axes[0].get_ylabel() == "baseline, blocks.1"
    bars = [bar.get_height() for bar in figure.axes[2].patches if isinstance(bar, Rectangle)]
    assert bars == pytest.approx([*found[0].gates[0], *found[0].gates[1]])
    matrices = [np.asarray(axes.get_images()[0].get_array()) for axes in figure.axes[3:5]]
    np.testing.assert_allclose(matrices[0], found[0].product)
    entries = result.table.query("metric == 's' and checkpoint == 'baseline' and layer == 'blocks.1'")
    np.testing.assert_allclose(matrices[1].ravel(), entries["value"].to_numpy(float))


def test_without_pairs_there_is_nothing_to_draw(trained: Trained) -> None:
    assert draw_steps([], api.s_matrix([api.load_model(trained["prc"])], limit=2).table) == {}
