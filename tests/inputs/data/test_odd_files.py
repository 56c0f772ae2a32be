"""Files that are none, endless folders, and names and lists that no data set has: one sentence, and no waiting."""

import os
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from moeprobe.errors import UserError
from moeprobe.inputs.data import webdataset
from moeprobe.inputs.data.flowers102 import Flowers102
from moeprobe.inputs.data.folder import Folder
from moeprobe.inputs.data.imagenet import Imagenet
from moeprobe.inputs.data.readers import images
from moeprobe.inputs.data.readers.naming import Files
from moeprobe.inputs.data.text import Text
from moeprobe.inputs.data.webdataset import Webdataset
from moeprobe.inputs.views.synonyms import Synonyms
from moeprobe.runtime.catalog import DATA
from tests.inputs.data.making import encoded, flowers102, image_folder, tar_shard, write


def test_a_fifo_is_no_image(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    with pytest.raises(UserError, match=r"a\.png: it is not a regular file"):
        Folder(split="test", location=str(tmp_path)).example(0)
    with pytest.raises(UserError, match=r"no image file .*a\.png"):
        Files([tmp_path / "a.png"])


def test_a_fifo_is_no_file_of_texts(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.txt")
    with pytest.raises(UserError, match=r"no file of texts .*a\.txt"):
        Text(split="test", location=str(tmp_path / "a.txt"))
    with pytest.raises(UserError, match=r"a\.txt: it is not a regular file"):
        Synonyms(location=str(tmp_path / "a.txt"))


@pytest.mark.parametrize("target", ["..", "../.."])
def test_a_link_out_of_a_folder_to_one_that_holds_it(tmp_path: Path, target: str) -> None:
    root = tmp_path / "outer/photos"
    write(root / "1.png", encoded(1))
    (root / "up").symlink_to(target)
    with pytest.raises(UserError, match=r"link .*photos/up.* leads to .*, which holds .*photos"):
        Folder(split="test", location=str(root))


def test_a_folder_that_is_mostly_something_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_OTHER_FILES", 30)
    for number in range(40):
        write(tmp_path / f"deep/{number:02d}.txt", b"")
    write(tmp_path / "deep/1.png", encoded(1))
    assert len(Folder(split="all", location=str(tmp_path))) == 1
    for number in range(40, 50):
        write(tmp_path / f"deep/{number:02d}.txt", b"")
    with pytest.raises(UserError, match=r"Only 1 of the first 51 files .* are images"):
        Folder(split="test", location=str(tmp_path))


def test_folders_below_one_another_more_than_python_calls_functions(tmp_path: Path) -> None:
    path = tmp_path
    for _ in range(1200):
        path /= "d"
        path.mkdir()
    write(path / "1.png", encoded(1))
    try:
        ids = Folder(split="all", location=str(tmp_path)).image_ids
    finally:
        (path / "1.png").unlink()
        os.removedirs(path)  # pytest's own way of removing folders is no longer than Python's stack
    assert ids == ["d/" * 1200 + "1.png"]


@pytest.mark.parametrize("name", [b"caf\xe9.png", b"caf\xe9/1.png"])
def test_a_name_that_is_not_utf_8(tmp_path: Path, name: bytes) -> None:
    write(Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)), encoded(1))
    with pytest.raises(UserError, match=r"name .*caf.* is not UTF-8; rename it") as caught:
        Folder(split="test", location=str(tmp_path))
    str(caught.value).encode()


@pytest.mark.parametrize(
    "name", ["folder", "imagenet", "flowers102", "cifar10", "webdataset", "text", "huggingface"]
)
@pytest.mark.parametrize(
    "location", ["x" * 10_000, "~no-such-user-here/photos", "a\0b"], ids=["long", "home", "null"]
)
def test_locations_that_no_file_has(name: str, location: str) -> None:
    if name == "huggingface":
        pytest.importorskip("datasets")
    suffix = ".txt" if name == "text" else ""
    with pytest.raises(UserError):
        DATA.get(name)(split="test", location=location + suffix)


def test_image_files_that_no_file_is_called() -> None:
    with pytest.raises(UserError, match="no image file"):
        Files(["x" * 10_000])


def test_a_list_of_flowers_with_an_image_twice(tmp_path: Path) -> None:
    flowers102(tmp_path)
    savemat(tmp_path / "setid.mat", {"trnid": [[3, 1, 3]]})
    with pytest.raises(UserError, match="names image 3 twice"):
        Flowers102(split="train", location=str(tmp_path))


@pytest.mark.parametrize(
    "labels",
    [np.arange(1, 13) + 1j, np.arange(1, 13) + 0.5, np.array(list("123456789012")), np.full(12, np.nan)],
    ids=["complex", "halves", "letters", "nan"],
)
def test_labels_of_flowers_that_are_no_whole_numbers(tmp_path: Path, labels: object) -> None:
    flowers102(tmp_path)
    savemat(tmp_path / "imagelabels.mat", {"labels": labels})
    with pytest.raises(UserError, match=r"labels.*imagelabels\.mat.* whole numbers"):
        Flowers102(split="train", location=str(tmp_path))


def test_a_list_of_flowers_that_unpacks_to_gigabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flowers102(tmp_path)
    savemat(tmp_path / "imagelabels.mat", {"labels": np.ones((1, 2_000_000), np.uint8)}, do_compression=True)
    monkeypatch.setattr("scipy.io.loadmat", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(UserError, match=r"shape \(1, 2000000\), too long"):
        Flowers102(split="train", location=str(tmp_path))


def test_a_list_of_classes_that_is_not_utf_8(tmp_path: Path) -> None:
    image_folder(tmp_path, splits=("train", "val"))
    (tmp_path / "LOC_synset_mapping.txt").write_bytes(b"cat caf\xe9\ndog d\n")
    with pytest.raises(UserError, match=r"LOC_synset_mapping\.txt.* UTF-8"):
        Imagenet(split="test", location=str(tmp_path))


@pytest.mark.parametrize(
    ("pattern", "sentence"),
    [
        ("{000000..999999999}.tar", "more than 100,000 shards"),
        ("{0..99}{0..99}{0..99}.tar", "more than 100,000 shards"),
        ("{a,b}" * 40 + ".tar", "at most 16 pairs of braces"),
        ("{0.." + "9" * 5000 + "}.tar", "no shard"),
        ("**x.tar", "no pattern of file names|no shards"),  # since Python 3.13 it is one
    ],
)
def test_patterns_without_end(tmp_path: Path, pattern: str, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        Webdataset(split="test", location=f"{tmp_path}/{pattern}")


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        ([("a.png", encoded(1)), ("a.cls", b"10000000000")], "must be an integer from 0 on, below 1,000,000"),
        ([("a.png", encoded(1)), ("a.json", b'{"label": true}')], "must be an integer .* not 'True'"),
        ([("a.png", encoded(1)), ("a.json", b"[" * 100_000)], r"label .*a\.json.* cannot be read"),
        ([("caf\udce9.png", encoded(1))], "not called in UTF-8"),
    ],
    ids=["endless classes", "truth", "nested", "name"],
)
def test_records_that_no_program_writes(
    tmp_path: Path, members: list[tuple[str, bytes]], sentence: str
) -> None:
    tar_shard(tmp_path / "x.tar", members)
    with pytest.raises(UserError, match=sentence) as caught:
        Webdataset(split="test", location=str(tmp_path / "x.tar"))
    str(caught.value).encode()


def test_a_label_of_many_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webdataset, "JSON_LIMIT", 100)
    tar_shard(tmp_path / "x.tar", [("a.png", encoded(1)), ("a.json", b'{"label": 1}' + b" " * 100)])
    with pytest.raises(UserError, match=r"a\.json.* has 112 bytes"):
        Webdataset(split="test", location=str(tmp_path / "x.tar"))
