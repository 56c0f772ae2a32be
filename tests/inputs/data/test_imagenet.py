from pathlib import Path

import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.imagenet import Imagenet, _is_val
from tests.inputs.data.making import encoded, imagenet, write


def test_val_is_cut_from_train_and_test_is_the_official_val(tmp_path: Path) -> None:
    imagenet(tmp_path)
    train, val, test = (Imagenet(split=split, location=str(tmp_path)) for split in ("train", "val", "test"))
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("train/*/*")}
    assert {*train.image_ids, *val.image_ids} == files
    assert len(train) + len(val) == len(files) == 300
    assert 0 < len(val) < 10  # 1 % of them
    assert sorted(test.image_ids) == sorted(
        p.relative_to(tmp_path).as_posix() for p in tmp_path.glob("val/*/*")
    )
    assert test.class_names == ("n01440764", "n02012849")
    assert all(
        data.example(index).label == int("n02012849" in data.image_ids[index])
        for data in (train, val, test)
        for index in (0, len(data) - 1)
    )


def test_one_per_cent_is_held_out_and_stays_so() -> None:
    names = [f"n{wnid:08d}_{number}.JPEG" for wnid in range(100) for number in range(500)]
    held_out = [name for name in names if _is_val(name)]
    assert 0.0085 < len(held_out) / len(names) < 0.0115  # three standard errors
    # Written down (BLAKE2b of the name, first 8 bytes, big-endian, divisible by 100): an image may never change
    # its split between versions.
    assert held_out[:3] == ["n00000000_20.JPEG", "n00000000_109.JPEG", "n00000000_167.JPEG"]


def test_the_mapping_names_and_numbers_all_classes(tmp_path: Path) -> None:
    write(tmp_path / "val/n03126707/a.JPEG", encoded(1, "JPEG"))
    lines = ["n03126707 crane", "n01440764 tench, Tinca tinca", "n02012849 crane"]
    write(tmp_path / "LOC_synset_mapping.txt", "\n".join(lines).encode())
    data = Imagenet(split="test", location=str(tmp_path))
    assert data.class_names == ("tench, Tinca tinca", "crane (n02012849)", "crane (n03126707)")
    assert data.example(0).label == 2


def test_a_missing_part_and_an_unknown_class(tmp_path: Path) -> None:
    imagenet(tmp_path, per_class=1)
    write(tmp_path / "val/n99999999/a.JPEG", b"")
    with pytest.raises(UserError, match=r"n99999999.*none of the 2 classes"):
        Imagenet(split="test", location=str(tmp_path))
    (tmp_path / "train").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"no folder.*train"):
        Imagenet(split="train", location=str(tmp_path))
