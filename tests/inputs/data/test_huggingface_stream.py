from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

from moeprobe.errors import UserError
from moeprobe.inputs.data.huggingface import Huggingface
from moeprobe.inputs.data.huggingface_stream import HuggingfaceStream
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.probes.engine.run_spec import choose_images
from tests.inputs.data.making import hub_rows, parquet_files, pixels

datasets = pytest.importorskip("datasets")
_SHARDS = (5, 1, 70, 4)  # of which one is more than what is held at a time


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the library's cache in the test's folder, and off the network."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(parquet_files(tmp_path / "data", counts=_SHARDS, splits=("test",)))


def test_it_is_the_data_set_that_is_copied_and_copies_nothing(location: str, tmp_path: Path) -> None:
    stream = HuggingfaceStream(split="test", location=location)
    seen = [stream.example(index) for index in range(len(stream))]
    assert not list((tmp_path / "cache").rglob("*.arrow"))
    copied = Huggingface(split="test", location=location)
    assert stream.image_ids == copied.image_ids
    assert stream.class_names == copied.class_names
    assert np.array_equal(stream.labels(), copied.labels())
    for index, example in enumerate(seen):
        expected = copied.example(index)
        assert (example.image_id, example.label) == (expected.image_id, expected.label)
        assert example.image.tobytes() == expected.image.tobytes()


def test_a_run_takes_the_same_images_shard_by_shard(location: str) -> None:
    stream, copied = (kind(split="test", location=location) for kind in (HuggingfaceStream, Huggingface))
    for limit in (11, None):
        chosen = choose_images(stream, limit=limit, seed=0)
        assert sorted(chosen) == sorted(choose_images(copied, limit=limit, seed=0))
        shard = np.searchsorted(np.cumsum(_SHARDS), chosen, side="right")
        assert np.count_nonzero(np.diff(shard)) == len(set(shard)) - 1
        assert all(
            np.diff(one).min(initial=1) > 0 for one in (np.array(chosen)[shard == s] for s in set(shard))
        )


def test_images_in_their_order_read_each_shard_once(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = HuggingfaceStream(split="test", location=location)
    opened: list[int] = []
    read = HuggingfaceStream.shard_tables

    def noted(self: HuggingfaceStream, shard: Any, number: int) -> Iterator[Any]:
        opened.append(number)
        return read(self, shard, number)

    monkeypatch.setattr(HuggingfaceStream, "shard_tables", noted)
    for index in choose_images(stream, limit=None, seed=0):
        stream.example(index)
    assert sorted(opened) == [0, 1, 2, 3]
    opened.clear()
    for index in range(6, 60):  # the part of a process
        stream.example(index)
    assert opened == [2]


def test_loader_processes_that_are_copies_of_an_open_stream_find_their_images(location: str) -> None:
    stream = HuggingfaceStream(split="test", location=location)
    stream.example(10)
    items = _Pixels(stream)
    loaded = list(DataLoader(items, batch_size=3, num_workers=2, collate_fn=list))
    stream.example(79)
    wanted = [items[index] for index in range(len(stream))]
    assert [one for batch in loaded for one in batch] == wanted


class _Pixels(Dataset[bytes]):
    def __init__(self, data: HuggingfaceStream) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> bytes:
        return self._data.example(index).image.tobytes()


def test_a_saved_data_set_without_labels(tmp_path: Path) -> None:
    features = datasets.Features({"image": datasets.Image()})
    rows = datasets.Dataset.from_dict({"image": hub_rows(0, 5)["image"]}, features=features)
    rows.save_to_disk(tmp_path / "one", num_shards=2)
    stream = open_data(f"huggingface_stream:{tmp_path / 'one'}")
    assert stream.class_names is None and set(stream.labels()) == {-1}
    assert [np.array_equal(np.asarray(stream.example(k).image), pixels(k)) for k in (4, 0, 2)] == [True] * 3


def test_what_cannot_be_read_is_one_sentence(location: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="write huggingface_stream:PATH_OR_NAME"):
        HuggingfaceStream(split="test")
    with pytest.raises(UserError, match="choose one of test"):
        HuggingfaceStream(split="val", location=location)
    stream = HuggingfaceStream(split="test", location=location)
    shard = Path(location) / "test-00002-of-00004.parquet"
    shard.write_bytes(shard.read_bytes()[:3000])
    with pytest.raises(UserError, match=r"Shard 2 of .* cannot be read"):
        stream.example(40)
    with pytest.raises(UserError, match=r"cannot be (read|loaded)"):
        HuggingfaceStream(split="test", location=location)
    shard.unlink()
    with pytest.raises(UserError, match=r"Shard 2 of .* cannot be read"):
        stream.example(40)
