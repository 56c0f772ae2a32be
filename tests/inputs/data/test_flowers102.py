from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from moeprobe.errors import UserError
from moeprobe.inputs.data.flowers102 import Flowers102
from tests.inputs.data.making import flowers102


def test_the_official_lists_are_the_splits(tmp_path: Path) -> None:
    flowers102(tmp_path)
    train, val, test = (Flowers102(split=split, location=str(tmp_path)) for split in ("train", "val", "test"))
    assert train.image_ids == ["jpg/image_00003.jpg", "jpg/image_00001.jpg", "jpg/image_00007.jpg"]
    assert val.image_ids == ["jpg/image_00002.jpg", "jpg/image_00012.jpg"]
    assert len(test) == 7
    # Image n has the published label 8 n, counted from 1.
    assert [train.example(index).label for index in range(3)] == [23, 7, 55]
    assert train.num_classes == 102
    assert train.class_names is not None
    assert train.class_names[23] == "24"
    with Image.open(tmp_path / "jpg/image_00012.jpg") as image:
        assert np.array_equal(np.asarray(val.example(1).image), np.asarray(image))


def _damage_image_count(root: Path) -> None:
    (root / "jpg/image_00012.jpg").unlink()


def _damage_list(root: Path) -> None:
    savemat(root / "setid.mat", {"trnid": [[1, 13]]})


def _damage_labels(root: Path) -> None:
    savemat(root / "imagelabels.mat", {"labels": [[0] * 12]})


def _damage_file(root: Path) -> None:
    path = root / "setid.mat"
    path.write_bytes(path.read_bytes()[:140])


def _damage_missing(root: Path) -> None:
    (root / "imagelabels.mat").unlink()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_damage_image_count, "11 images in jpg but 12 labels"),
        (_damage_list, r"setid\.mat.*1\.\.12"),
        (_damage_labels, r"imagelabels\.mat.*1\.\.102"),
        (_damage_file, r"setid\.mat.*trnid"),
        (_damage_missing, r"no file.*imagelabels\.mat"),
    ],
)
def test_lists_and_images_must_agree(tmp_path: Path, damage: object, sentence: str) -> None:
    flowers102(tmp_path)
    assert callable(damage)
    damage(tmp_path)
    with pytest.raises(UserError, match=sentence):
        Flowers102(split="train", location=str(tmp_path))
