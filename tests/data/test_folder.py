from pathlib import Path

import numpy as np
import pytest

from moeprobe.data.folder import Folder
from moeprobe.errors import UserError
from tests.data.making import encoded, image_folder, pixels, write


def test_split_folders_give_paths_labels_and_pixels(tmp_path: Path) -> None:
    image_folder(tmp_path, splits=("train", "validation", "test"))
    data = Folder(split="val", location=str(tmp_path))
    assert data.image_ids == [
        f"validation/{name}/{number}.png" for name in ("cat", "dog") for number in (0, 1)
    ]
    assert [data.example(index).label for index in range(4)] == [0, 0, 1, 1]
    assert np.array_equal(np.asarray(data.example(3).image), pixels(100 + 10 + 1))


def test_a_class_has_one_number_in_every_split(tmp_path: Path) -> None:
    image_folder(tmp_path, splits=("train",))
    write(tmp_path / "test/dog/x.png", encoded(1))
    write(tmp_path / "test/eel/y.png", encoded(2))
    test = Folder(split="test", location=str(tmp_path))
    assert (
        test.class_names == Folder(split="train", location=str(tmp_path)).class_names == ("cat", "dog", "eel")
    )
    assert [test.example(index).label for index in range(2)] == [1, 2]


def test_classes_without_splits_are_the_test_split_only(tmp_path: Path) -> None:
    for split in ("cat", "dog"):
        write(tmp_path / split / "deep/er/1.png", encoded(1))
    data = Folder(split="test", location=str(tmp_path))
    assert data.image_ids == ["cat/deep/er/1.png", "dog/deep/er/1.png"]
    assert data.class_names == ("cat", "dog")
    with pytest.raises(UserError, match="no split 'train' here; choose one of test"):
        Folder(split="train", location=str(tmp_path))


@pytest.mark.parametrize("inside", ["", "test/"])
def test_loose_images_have_no_labels(tmp_path: Path, inside: str) -> None:
    image_folder(tmp_path / "elsewhere")
    root = tmp_path / "loose"
    write(root / f"{inside}2.png", encoded(2))
    write(root / f"{inside}1.png", encoded(1))
    if inside:
        image_folder(root, splits=("train",))
    data = Folder(split="test", location=str(root))
    assert data.image_ids == [f"{inside}1.png", f"{inside}2.png"]
    assert data.class_names is None
    assert data.num_classes is None
    assert data.example(1).label is None
    assert data.labels().tolist() == [-1, -1]
    assert np.array_equal(np.asarray(data.example(1).image), pixels(2))


def test_an_image_beside_class_folders_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "cat/1.png", encoded(1))
    write(tmp_path / "stray.png", encoded(1))
    with pytest.raises(UserError, match=r"stray\.png.*beside.*cat"):
        Folder(split="test", location=str(tmp_path))


def test_an_empty_folder_and_a_missing_location(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", b"")
    with pytest.raises(UserError, match="no images"):
        Folder(split="test", location=str(tmp_path))
    with pytest.raises(UserError, match="folder:PATH"):
        Folder(split="test")


def test_a_damaged_file_is_named_when_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "cat/bad.jpg", encoded(1, "JPEG")[:-60])
    data = Folder(split="test", location=str(tmp_path))
    with pytest.raises(UserError, match=r"cat/bad\.jpg.*truncated"):
        data.example(0)
