"""What holds for every data set of images of the catalog; a new one is tested the moment its file exists."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import ImageDataset, as_labels
from moeprobe.runtime.catalog import DATA
from tests.adapters.modalities import IMAGE_DATA
from tests.inputs.data.making import location_of


@pytest.fixture(scope="module", params=IMAGE_DATA)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str | None]:
    """Return the name of a data set and the location of a small instance with all of its splits."""
    folder: Path = tmp_path_factory.mktemp(request.param)
    return request.param, location_of(request.param, folder)


def _splits(made: tuple[str, str | None]) -> tuple[str, ...]:
    return DATA.get(made[0]).splits


def _open(made: tuple[str, str | None], split: str) -> ImageDataset:
    name, location = made
    return DATA.get(name)(split=split, location=location)


def test_examples_are_named_rgb_images_with_a_label_in_range(made: tuple[str, str | None]) -> None:
    for split in _splits(made):
        data = _open(made, split)
        assert len(data) == len(data.image_ids) > 0
        assert len(set(data.image_ids)) == len(data)
        for index in (0, len(data) // 2, len(data) - 1):
            example = data.example(index)
            assert example.image.mode == "RGB"
            assert type(example.image_id) is str
            assert example.image_id == data.image_ids[index]
            if data.num_classes is None:
                assert example.label is None
            else:
                assert type(example.label) is int and 0 <= example.label < data.num_classes
            if example.mask is not None:
                assert example.mask.dtype == np.bool_
                assert example.mask.shape == example.image.size[::-1]


def test_labels_are_those_of_the_examples(
    made: tuple[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for split in _splits(made):
        data = _open(made, split)
        chosen = range(0, len(data), max(1, len(data) // 20))
        expected = as_labels(data.example(index).label for index in chosen).tolist()
        with monkeypatch.context() as patched:
            patched.setattr(type(data), "example", None)  # known without an image being read
            labels = data.labels()
        assert labels.dtype == np.int64 and labels.shape == (len(data),)
        assert labels[chosen].tolist() == expected


def test_an_example_is_the_same_in_any_order_and_after_pickling(made: tuple[str, str | None]) -> None:
    data = _open(made, "test")
    last = len(data) - 1
    expected = {index: data.example(index) for index in (0, 1, last)}
    for copy in (_open(made, "test"), pickle.loads(pickle.dumps(data))):
        assert list(copy.image_ids) == list(data.image_ids)
        for index in (last, 0, 1):
            again = copy.example(index)
            assert again.image.tobytes() == expected[index].image.tobytes()
            assert (again.image_id, again.label) == (expected[index].image_id, expected[index].label)
            assert np.array_equal(again.mask, expected[index].mask)  # type: ignore[arg-type]


def test_splits_share_no_image_and_all_class_names(made: tuple[str, str | None]) -> None:
    splits = [_open(made, split) for split in _splits(made)]
    image_ids = [image_id for data in splits for image_id in data.image_ids]
    assert len(set(image_ids)) == len(image_ids)
    assert len({data.class_names for data in splits}) == 1


def test_an_unknown_split_is_one_sentence(made: tuple[str, str | None]) -> None:
    with pytest.raises(UserError, match=rf"holdout.*{', '.join(_splits(made))}"):
        _open(made, "holdout")


def test_a_wrong_location_is_one_sentence(made: tuple[str, str | None], tmp_path: Path) -> None:
    name, location = made
    if location is None:
        pytest.skip("built in: takes no location")
    _, mark, query = location.partition("?")
    with pytest.raises(UserError, match="no-such"):
        DATA.get(name)(split="test", location=f"{tmp_path / 'no-such'}{mark}{query}")
