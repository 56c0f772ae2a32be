import itertools
from pathlib import Path

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.folder import Folder
from tests.inputs.data.making import encoded, image_folder, pixels, write


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


def names(root: Path, split: str, suffix: str = "") -> list[str]:
    return list(Folder(split=split, location=f"{root}{suffix}").image_ids)


def test_a_folder_without_val_takes_a_share_of_train(tmp_path: Path) -> None:
    files = [f"{label}/{number}.png" for label in ("cat", "dog") for number in range(100)]
    for file in files:
        write(tmp_path / "train" / file, encoded(1))
    write(tmp_path / "test/cat/1.png", encoded(2))
    train, val = names(tmp_path, "train"), names(tmp_path, "val")
    assert sorted(train + val) == sorted(f"train/{file}" for file in files)
    assert 8 <= len(val) <= 32, "a tenth of 200, by chance"
    data = Folder(split="val", location=str(tmp_path))
    assert data.split_note == "val is 0.1 of train/, by a hash of each path"
    assert [data.class_names[label] for label in data.labels()] == [name.split("/")[1] for name in val]  # type: ignore[index]
    assert data.example(0).image_id == val[0]
    assert names(tmp_path, "test") == ["test/cat/1.png"]
    # It stays where it is when others come, and a larger share takes in a smaller one.
    write(tmp_path / "train/cat/new.png", encoded(3))
    assert set(val) <= set(names(tmp_path, "val")) and set(train) <= set(names(tmp_path, "train"))
    more = names(tmp_path, "val", "?val_fraction=0.3")
    assert set(val) < set(more) and not set(more) & set(names(tmp_path, "train", "?val_fraction=0.3"))
    # With a folder of its own nothing is split.
    write(tmp_path / "val/cat/1.png", encoded(4))
    assert names(tmp_path, "val") == ["val/cat/1.png"] and len(names(tmp_path, "train")) == 201
    with pytest.raises(UserError, match="needs no share for val"):
        names(tmp_path, "val", "?val_fraction=0.3")


def test_classes_without_splits_are_split_by_a_hash(tmp_path: Path) -> None:
    files = [f"{label}/deep/er/{number}.png" for label in ("cat", "dog") for number in range(100)]
    for file in files:
        write(tmp_path / file, encoded(1))
    parts = {split: names(tmp_path, split) for split in ("train", "val", "test")}
    assert sorted(itertools.chain(*parts.values())) == sorted(files) == names(tmp_path, "all")
    assert 130 <= len(parts["train"]) <= 185
    assert names(tmp_path, "test", "?val_fraction=0.4") == parts["test"], "whatever the share for val"
    data = Folder(split="test", location=str(tmp_path))
    assert data.class_names == ("cat", "dog") and "test is 0.1 and val 0.1" in data.split_note
    for wrong in ("0", "0.95", "x", "nan"):
        with pytest.raises(UserError, match="val_fraction is a number above 0"):
            names(tmp_path, "test", f"?val_fraction={wrong}")


def test_too_few_images_to_split_are_a_sentence(tmp_path: Path) -> None:
    write(tmp_path / "cat/0.png", encoded(1))
    assert names(tmp_path, "all") == ["cat/0.png"]
    empty = 0
    for split in ("train", "val", "test"):
        try:
            assert names(tmp_path, split) == ["cat/0.png"]
        except UserError as error:
            sentence, empty = str(error), empty + 1
    assert empty == 2
    assert "None of the 1 images" in sentence and "train/, val/, test/" in sentence


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
    with pytest.raises(UserError, match=r"stray\.png.*next to.*cat"):
        Folder(split="test", location=str(tmp_path))


def test_an_empty_folder_and_a_missing_location(tmp_path: Path) -> None:
    write(tmp_path / "notes.txt", b"")
    with pytest.raises(UserError, match="no images"):
        Folder(split="test", location=str(tmp_path))
    with pytest.raises(UserError, match="folder:PATH"):
        Folder(split="test")


def test_a_damaged_file_is_named_when_it_is_read(tmp_path: Path) -> None:
    write(tmp_path / "cat/bad.jpg", encoded(1, "JPEG")[:-60])
    data = Folder(split="all", location=str(tmp_path))
    with pytest.raises(UserError, match=r"cat/bad\.jpg.*truncated"):
        data.example(0)
