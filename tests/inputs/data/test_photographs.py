"""Photographs with masks, on made-up stamps of the published names."""

import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.photographs import Photographs
from tests.inputs.data.making import stamps


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stamps(tmp_path_factory.mktemp("photographs"))


def test_the_mask_is_where_the_photograph_is_opaque(root: Path) -> None:
    """Of every stamp a quarter is one color, and the rest is see-through."""
    data = Photographs(split="all", location=str(root))
    for index in (0, 100, 172):
        example = data.example(index)
        pixels = np.asarray(example.image)
        assert example.mask is not None and example.mask.sum() == 4 * 6
        assert pixels.shape == (14, 14, 3)
        assert (pixels[example.mask] == (index, 255 - index, 7)).all()
        assert not (pixels[~example.mask] == (index, 255 - index, 7)).all(-1).any()


def test_pictures_of_one_thing_are_in_one_split_and_classes_keep_their_shares(root: Path) -> None:
    splits = {
        split: Photographs(split=split, location=str(root)) for split in ("train", "val", "test", "all")
    }
    things = {
        split: {re.split(r"[^a-z]", Path(name).stem.lower())[0] for name in data.image_ids}
        for split, data in splits.items()
    }
    # A cartoon of a strawberry would be named like its photograph: only the folder tells them apart.
    assert not things["train"] & things["test"] and not things["val"] & things["test"]
    of_class = Counter(splits["all"].labels().tolist())
    assert of_class.total() == 173 and len(of_class) == 7
    for label, number in Counter(splits["test"].labels().tolist()).items():
        assert 0.3 <= number / of_class[label] <= 0.7


def test_grounds_differ_and_a_ground_stays(root: Path) -> None:
    data = Photographs(split="all", location=str(root))
    first, second = (data.example(index) for index in (0, 1))
    corner = [np.asarray(example.image)[-1, -1] for example in (first, second, data.example(0))]
    assert (corner[0] == corner[2]).all() and (corner[0] != corner[1]).any()


def test_another_version_of_the_package_is_one_sentence(root: Path, tmp_path: Path) -> None:
    incomplete = stamps(tmp_path)
    (incomplete / "animals/birds/owl.png").unlink()
    with pytest.raises(UserError, match=r"lacks 1 of the 173 photographs, e\.g\. animals/birds/owl\.png"):
        Photographs(split="test", location=str(incomplete))


def test_without_the_package_a_sentence_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("moeprobe.inputs.data.photographs.PACKAGED", tmp_path / "nowhere")
    with pytest.raises(UserError, match="apt install tuxpaint-stamps-default"):
        Photographs(split="test")
