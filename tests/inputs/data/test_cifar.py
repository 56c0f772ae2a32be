import os
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.base import ImageDataset
from moeprobe.inputs.data.cifar10 import Cifar10
from moeprobe.inputs.data.cifar100 import Cifar100
from moeprobe.inputs.data.readers.cifar import read_pickle
from tests.inputs.data import making

# Maker, data set, folder, number of training files, labels, class names.
VERSIONS: dict[str, tuple[Callable[..., Path], type[ImageDataset], str, int, int, tuple[str, ...]]] = {
    "10 python": (making.cifar10_python, Cifar10, "cifar-10-batches-py", 5, 10, making.CIFAR10_NAMES),
    "10 binary": (making.cifar10_binary, Cifar10, "cifar-10-batches-bin", 5, 10, making.CIFAR10_NAMES),
    "100 python": (making.cifar100_python, Cifar100, "cifar-100-python", 1, 100, making.CIFAR100_NAMES),
    "100 binary": (making.cifar100_binary, Cifar100, "cifar-100-binary", 1, 100, making.CIFAR100_NAMES),
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("inside", [False, True], ids=["parent", "folder itself"])
def test_either_version_gives_the_published_records(tmp_path: Path, version: str, inside: bool) -> None:
    make, kind, folder, num_files, num_labels, names = VERSIONS[version]
    make(tmp_path)
    location = str(tmp_path / folder if inside else tmp_path)
    per_file = 100 // num_files
    batches = [
        making.cifar_records(per_file, num_labels=num_labels, seed=seed) for seed in range(num_files + 1)
    ]
    train, val, test = (kind(split=split, location=location) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (98, 2, per_file)  # 98 % of 100
    assert val.image_ids == ["train/00098", "train/00099"]
    for data, index, file, row in (
        (train, 1, 0, 1),
        (val, 1, num_files - 1, per_file - 1),
        (test, 7, num_files, 7),
    ):
        records, labels = batches[file]
        example = data.example(index)
        # x runs fastest, then y, then the color plane.
        loop = [
            [[records[row][c * 1024 + y * 32 + x] for c in range(3)] for x in range(32)] for y in range(32)
        ]
        assert np.array_equal(np.asarray(example.image), np.array(loop))
        assert example.label == labels[row]
        assert data.class_names == names
    assert test.image_ids[7] == "test/00007"


def test_without_the_file_of_names_classes_are_numbers(tmp_path: Path) -> None:
    making.cifar10_binary(tmp_path)
    (tmp_path / "cifar-10-batches-bin/batches.meta.txt").unlink()
    data = Cifar10(split="test", location=str(tmp_path))
    assert data.class_names == tuple("0123456789")


@pytest.mark.parametrize(
    ("make", "name"),
    [(making.cifar10_python, "batches.meta"), (making.cifar10_binary, "batches.meta.txt")],
)
def test_names_of_classes_that_are_no_text(tmp_path: Path, make: Callable[[Path], Path], name: str) -> None:
    [path] = make(tmp_path).rglob(name)
    path.write_bytes(path.read_bytes().replace(making.CIFAR10_NAMES[0].encode(), b"\xff" * 8))
    with pytest.raises(UserError, match=rf"The names in '.*{name}' are not UTF-8"):
        Cifar10(split="test", location=str(tmp_path))


class _Attack:
    """Pickled as a call: ``os.system`` would leave a file behind."""

    def __init__(self, function: Callable, *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple:
        return self.call


@pytest.mark.parametrize("place", ["data", "labels", "new key"])
def test_a_malicious_pickle_is_named_and_nothing_of_it_runs(tmp_path: Path, place: str) -> None:
    making.cifar10_python(tmp_path)
    mark = tmp_path / "mark"
    data, labels = making.cifar_records(20, num_labels=10, seed=0)
    batch = {"data": data, "labels": labels, place: _Attack(os.system, f"touch {mark}")}
    path = making.write(tmp_path / "cifar-10-batches-py/data_batch_3", making.python2_pickle(batch))
    assert b"system" in path.read_bytes()
    with pytest.raises(UserError, match=r"data_batch_3.*asks for \w+\.system"):
        Cifar10(split="train", location=str(tmp_path))
    assert not mark.exists()
    pickle.loads(path.read_bytes(), encoding="bytes")  # the attack is real: the ordinary reader falls for it
    assert mark.exists()


@pytest.mark.parametrize(
    "value",
    [
        np.array([{"any": "object"}], dtype=object),
        np.ones(3, dtype=[("a", "u1"), ("b", "O")]),
        np.arange(3.0),
        np.float64(1),
        frozenset,
        getattr,
        np.load,
    ],
    ids=["object array", "record array", "float array", "scalar", "class", "builtin", "numpy function"],
)
def test_only_arrays_of_bytes_and_plain_containers_are_admitted(tmp_path: Path, value: object) -> None:
    path = making.write(tmp_path / "batch", making.python2_pickle({"data": value}))
    with pytest.raises(UserError, match="batch"):
        read_pickle(path)


def test_an_array_in_columns_order_is_read_right(tmp_path: Path) -> None:
    values = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    read = read_pickle(making.write(tmp_path / "batch", making.python2_pickle({"data": values})))
    assert isinstance(read, dict)
    assert np.array_equal(read[b"data"], values)


def _fewer_labels(root: Path) -> None:
    data, labels = making.cifar_records(20, num_labels=10, seed=1)
    content = making.python2_pickle({"data": data, "labels": labels[:-1]})
    making.write(root / "cifar-10-batches-py/data_batch_2", content)


def _no_batch(root: Path) -> None:
    (root / "cifar-10-batches-py/data_batch_2").unlink()


def _cut(root: Path) -> None:
    path = root / "cifar-10-batches-py/data_batch_2"
    path.write_bytes(path.read_bytes()[:-40000])


def _other_pickle(root: Path) -> None:
    making.write(root / "cifar-10-batches-py/data_batch_2", making.python2_pickle(["not", "a", "batch"]))


def _label_10(root: Path) -> None:
    data, _ = making.cifar_records(20, num_labels=10, seed=1)
    content = making.python2_pickle({"data": data, "labels": [10] * 20})
    making.write(root / "cifar-10-batches-py/data_batch_2", content)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (_fewer_labels, "data_batch_2.*20 images but 19 labels"),
        (_no_batch, "no file.*data_batch_2"),
        (_cut, "data_batch_2.*damaged"),
        (_other_pickle, "data_batch_2.*holds no 'data'"),
        (_label_10, r"labels outside 0\.\.9"),
    ],
)
def test_damaged_python_files(tmp_path: Path, damage: Callable[[Path], None], sentence: str) -> None:
    making.cifar10_python(tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=sentence):
        Cifar10(split="train", location=str(tmp_path))


@pytest.mark.parametrize("size", [0, 3074 * 3 - 1, 3073 * 3])
def test_a_binary_file_of_odd_size(tmp_path: Path, size: int) -> None:
    making.cifar100_binary(tmp_path)
    making.write(tmp_path / "cifar-100-binary/test.bin", bytes(size))
    with pytest.raises(UserError, match=rf"test\.bin.*{size} bytes.*3074"):
        Cifar100(split="test", location=str(tmp_path))


def test_a_folder_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cifar-10-batches-bin or cifar-10-batches-py"):
        Cifar10(split="test", location=str(tmp_path))


@pytest.mark.parametrize("make", [making.cifar100_python, making.cifar100_binary])
def test_coarse_labels_are_superclasses(make: Callable[..., Path], tmp_path: Path) -> None:
    make(tmp_path, num=1500)
    for split in ("train", "val", "test"):
        assert Cifar100(split=split, location=str(tmp_path)).superclasses == [
            label // 5 for label in range(100)
        ]


def test_without_images_of_every_class_there_are_no_superclasses(tmp_path: Path) -> None:
    making.cifar100_binary(tmp_path, num=50)
    assert Cifar100(split="test", location=str(tmp_path)).superclasses is None


def test_a_class_in_two_superclasses_is_refused(tmp_path: Path) -> None:
    making.cifar100_binary(tmp_path, num=1500)
    path = tmp_path / "cifar-100-binary/test.bin"
    content = bytearray(path.read_bytes())
    content[0] += 1
    path.write_bytes(bytes(content))
    with pytest.raises(UserError, match=rf"images of class {content[1]} in two superclasses; it is damaged"):
        Cifar100(split="test", location=str(tmp_path))


def test_python_files_without_coarse_labels_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = making.python2_pickle
    monkeypatch.setattr(
        making,
        "python2_pickle",
        lambda content: written({key: value for key, value in content.items() if key != "coarse_labels"}),
    )
    making.cifar100_python(tmp_path, num=1500)
    assert Cifar100(split="test", location=str(tmp_path)).superclasses is None
