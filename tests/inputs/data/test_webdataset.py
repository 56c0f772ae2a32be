import io
import json
import tarfile
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.webdataset import Webdataset
from tests.commands import PATIENCE
from tests.inputs.data.making import encoded, pixels, tar_shard, webdataset


def test_a_folder_gives_ids_labels_and_pixels_of_one_split(tmp_path: Path) -> None:
    webdataset(tmp_path)
    data = Webdataset(split="val", location=str(tmp_path))
    assert data.image_ids == [f"val-{shard:06d}/{key:04d}" for shard in range(2) for key in range(3)]
    assert data.class_names == ("0", "1", "2")
    for index in (5, 0, 3):
        example = data.example(index)
        assert example.label == index % 3
        assert np.array_equal(np.asarray(example.image), pixels(100 + 10 * (index // 3) + index % 3))


def test_folders_named_after_splits(tmp_path: Path) -> None:
    for split in ("train", "validation"):
        tar_shard(tmp_path / split / "000.tar", [("a.png", encoded(1))])
    train, val = (Webdataset(split=split, location=str(tmp_path)) for split in ("train", "val"))
    assert (train.image_ids, val.image_ids) == (["train/000/a"], ["val/000/a"])


@pytest.mark.parametrize(
    ("pattern", "keys"),
    [
        ("part-{008..010}.tar", "8 9 10"),
        ("part-{009,008}.tar", "9 8"),
        ("part-0*.tar", "8 9 10"),
        ("part-010.tar", "10"),
    ],
)
def test_patterns_name_shards_of_the_test_split(tmp_path: Path, pattern: str, keys: str) -> None:
    for number in (8, 9, 10):
        tar_shard(tmp_path / f"part-{number:03d}.tar", [(f"{number}.png", encoded(number))])
    data = Webdataset(split="test", location=str(tmp_path / pattern))
    assert [image_id.split("/")[1] for image_id in data.image_ids] == keys.split()
    assert data.class_names is None
    assert data.example(0).label is None
    with pytest.raises(UserError, match="no split 'train' here; choose one of test"):
        Webdataset(split="train", location=str(tmp_path / pattern))


def test_a_pattern_never_lends_training_images_to_another_split(tmp_path: Path) -> None:
    webdataset(tmp_path)
    pattern = str(tmp_path / "{train,val}-{000000..000001}.tar")
    assert len(Webdataset(split="train", location=pattern)) == 6
    with pytest.raises(UserError, match="no split 'test' here; choose one of train, val"):
        Webdataset(split="test", location=pattern)


def test_only_images_and_labels_of_a_record_are_read(tmp_path: Path) -> None:
    jpeg = encoded(3, "JPEG")
    members = [
        ("./x/a.one.png", encoded(9)),  # key x/a, extension one.png: another kind of picture
        ("./x/a.pickle", b"cos\nsystem\n(S'false'\ntR."),
        ("./x/a.json", json.dumps({"label": 4, "caption": "a.b"}).encode()),
        ("./x/a.JPG", jpeg),
        ("b.json", json.dumps({"label": 1}).encode()),
        ("b.cls", b" 2\n"),
        ("b.webp", encoded(5, "WEBP")),
        ("label_only.cls", b"7"),
    ]
    data = Webdataset(split="test", location=str(tar_shard(tmp_path / "s.tar", members)))
    assert data.image_ids == ["s/x/a", "s/b"]
    assert [data.example(index).label for index in range(2)] == [4, 2]
    assert data.class_names == ("0", "1", "2", "3", "4")
    with Image.open(io.BytesIO(jpeg)) as image:
        assert np.array_equal(np.asarray(data.example(0).image), np.asarray(image))


# Bytes of a shard of two records: header 512, image padded, header 512, label padded, ..., end marker.
@pytest.mark.parametrize("where", ["in a header", "in an image", "between records", "zero bytes"])
def test_a_truncated_shard_is_named(tmp_path: Path, where: str) -> None:
    path = tar_shard(tmp_path / "cut.tar", [("a.png", encoded(1)), ("b.png", encoded(2))])
    with tarfile.open(path) as tar:
        second = tar.getmember("b.png")
    cut = {
        "in a header": second.offset + 100,
        "in an image": second.offset_data + 10,
        "between records": second.offset,
        "zero bytes": 0,
    }[where]
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(UserError, match=r"cut\.tar.*truncated"):
        Webdataset(split="test", location=str(path))


def test_a_damaged_header_does_not_end_the_shard_silently(tmp_path: Path) -> None:
    path = tar_shard(tmp_path / "odd.tar", [("a.png", encoded(1)), ("b.png", encoded(2))])
    with tarfile.open(path) as tar:
        second = tar.getmember("b.png")
    content = bytearray(path.read_bytes())
    content[second.offset + 150] ^= 0xFF  # in the checksum
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"odd\.tar"):
        Webdataset(split="test", location=str(path))


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([("a.png", b""), ("a.jpg", b"")], "'a'.*two images"),
        ([("a.png", b""), ("a.cls", b"cat")], r"a\.cls"),
        ([("a.png", b""), ("a.cls", b"-1")], r"a\.cls.*from 0 on"),
        ([("a.png", b""), ("a.json", b'{"label": "cat"}')], r"a\.json.*'cat'"),
        ([("a.png", b""), ("a.json", b"[1]")], r"a\.json"),
        ([("a.txt", b"")], "no images"),
    ],
)
def test_records_that_make_no_sense(tmp_path: Path, members: list[tuple[str, bytes]], sentence: str) -> None:
    path = tar_shard(tmp_path / "s.tar", members)
    with pytest.raises(UserError, match=sentence):
        Webdataset(split="test", location=str(path))


def test_missing_shards_and_shards_of_one_name(tmp_path: Path) -> None:
    for folder in ("x", "y"):
        tar_shard(tmp_path / folder / "0.tar", [("a.png", encoded(1))])
    with pytest.raises(UserError, match=r"y/0\.tar.*both hold '0/a'|x/0\.tar.*both hold '0/a'"):
        Webdataset(split="test", location=str(tmp_path / "*/0.tar"))
    with pytest.raises(UserError, match=r"no shard.*1\.tar"):
        Webdataset(split="test", location=str(tmp_path / "x/{0..1}.tar"))
    with pytest.raises(UserError, match="no shards"):
        Webdataset(split="test", location=str(tmp_path))


def test_workers_forked_after_a_read_share_no_file_position(tmp_path: Path) -> None:
    members = [(f"{key}.png", encoded(key)) for key in range(40)]
    data = Webdataset(split="test", location=str(tar_shard(tmp_path / "s.tar", members)))
    data.example(0)
    fork = get_context("fork")
    workers = [fork.Process(target=_read_all, args=(data,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(timeout=PATIENCE)
    assert [worker.exitcode for worker in workers] == [0, 0]


def _read_all(data: Webdataset) -> None:
    """Read all images several times over; an exception is the worker's exit code."""
    for index in [*range(len(data))] * 20:
        assert np.array_equal(np.asarray(data.example(index).image), pixels(index))
