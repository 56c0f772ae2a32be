import os
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.huggingface import Huggingface
from moeprobe.runtime.hub import downloads
from tests.inputs.data.making import hub_rows, huggingface, pixels

datasets = pytest.importorskip("datasets")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the library's cache in the test's folder, and off the network."""
    import huggingface_hub.constants

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def _features(**more: object) -> object:
    return datasets.Features({"image": datasets.Image(), **more})


def test_a_saved_dict_of_splits(tmp_path: Path) -> None:
    huggingface(tmp_path / "saved")
    data = Huggingface(split="val", location=str(tmp_path / "saved"))  # saved as "validation"
    assert data.image_ids == ["val/0", "val/1", "val/2", "val/3"]
    assert data.class_names == ("ant", "bee", "cow")
    assert [data.example(index).label for index in range(4)] == [0, 1, 2, 0]
    assert np.array_equal(np.asarray(data.example(2).image), pixels(102))


def test_a_folder_of_parquet_files(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    features = _features(label=datasets.ClassLabel(names=["ant", "bee", "cow"]))
    (tmp_path / "data").mkdir()
    for seed, split in enumerate(("train", "validation")):
        rows = datasets.Dataset.from_dict(hub_rows(10 * seed), features=features)
        rows.to_parquet(tmp_path / f"data/{split}-00000-of-00001.parquet")
    capfd.readouterr()
    data = Huggingface(split="val", location=str(tmp_path / "data"))
    assert capfd.readouterr().err == ""  # no progress bars where nobody watches
    assert data.class_names == ("ant", "bee", "cow")
    assert (data.example(1).label, data.example(1).image_id) == (1, "val/1")
    assert np.array_equal(np.asarray(data.example(3).image), pixels(13))
    with pytest.raises(UserError, match="no split 'test' here; choose one of train, val"):
        Huggingface(split="test", location=str(tmp_path / "data"))


def test_one_saved_dataset_without_labels_is_the_test_split(tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"image": hub_rows(0)["image"]}, features=_features())
    rows.save_to_disk(tmp_path / "one")
    data = Huggingface(split="test", location=str(tmp_path / "one"))
    assert data.class_names is None
    assert data.example(0).label is None
    assert set(data.labels()) == {-1}
    with pytest.raises(UserError, match="choose one of test"):
        Huggingface(split="train", location=str(tmp_path / "one"))


def _save(tmp_path: Path, rows: dict[str, list], features: object) -> str:
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "one")
    return str(tmp_path / "one")


def test_columns_are_found_by_type_and_then_by_name(tmp_path: Path) -> None:
    kinds = {
        "coarse_label": datasets.ClassLabel(names=["x", "y"]),
        "fine_label": datasets.ClassLabel(names=["a", "b", "c"]),
        "caption": datasets.Value("string"),
    }
    rows = {
        "image": hub_rows(0)["image"][:2],
        "coarse_label": [1, 1],
        "fine_label": [2, -1],
        "caption": ["", ""],
    }
    data = Huggingface(split="test", location=_save(tmp_path, rows, _features(**kinds)))
    assert data.class_names == ("a", "b", "c")
    assert data.labels().tolist() == [2, -1]
    assert data.example(0).label == 2
    assert data.example(1).label is None  # -1: hidden


def test_what_cannot_be_meant_is_one_sentence(tmp_path: Path) -> None:
    one = datasets.ClassLabel(names=["x"])
    rows = {"image": hub_rows(0)["image"][:1], "first": [0], "second": [0]}
    with pytest.raises(UserError, match="several columns of labels: first, second"):
        Huggingface(split="test", location=_save(tmp_path / "a", rows, _features(first=one, second=one)))
    text = datasets.Features({"text": datasets.Value("string")})
    with pytest.raises(UserError, match="no column of images; its columns are text"):
        Huggingface(split="test", location=_save(tmp_path / "b", {"text": ["no"]}, text))
    bad = _save(tmp_path / "c", {"image": [{"bytes": b"no image", "path": None}]}, _features())
    with pytest.raises(UserError, match=r"'test/0' of .*not an image"):
        Huggingface(split="test", location=bad).example(0)


def test_an_empty_and_a_damaged_folder(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty' cannot be loaded"):
        Huggingface(split="test", location=str(tmp_path / "empty"))
    location = huggingface(tmp_path / "saved")
    (location / "test/state.json").write_text("{")
    with pytest.raises(UserError, match="saved' cannot be loaded"):
        Huggingface(split="test", location=str(location))


def test_without_the_library_the_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install .* -e '\.\[huggingface\]'"):
        Huggingface(split="test", location="any")


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing", "x" * 10_000], ids=["owner", "name", "long"])
def test_no_hub_is_asked_unless_somebody_says_so(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    import huggingface_hub.constants

    with downloads(), pytest.raises(UserError, match="cannot be loaded") as caught:
        Huggingface(split="test", location=name)
    assert len(str(caught.value)) < 600
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the network was asked"))
    with pytest.raises(
        UserError, match=r"no data set of that name in the local cache; with api\.downloads\(\) the hub"
    ):
        Huggingface(split="test", location=name)


def test_a_fifo_among_parquet_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "test-0.parquet")
    with pytest.raises(UserError, match=r"test-0\.parquet: it is not a regular file"):
        Huggingface(split="test", location=str(tmp_path))
