"""MNIST and its kin: torchvision reads the same images, damaged files are one sentence, downloads need a word."""

import gzip
import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from torchvision import datasets

from moeprobe.errors import UserError
from moeprobe.inputs.data.emnist import Emnist
from moeprobe.inputs.data.fashion_mnist import FashionMnist
from moeprobe.inputs.data.kmnist import Kmnist
from moeprobe.inputs.data.mnist import Mnist
from moeprobe.inputs.data.readers import mnist
from moeprobe.runtime.hub import downloads
from tests.inputs.data import making

# Ours, torchvision's, its arguments, and the beginnings of the files' names.
FAMILY = [
    (Mnist, datasets.MNIST, {}, ("train", "t10k")),
    (FashionMnist, datasets.FashionMNIST, {}, ("train", "t10k")),
    (Kmnist, datasets.KMNIST, {}, ("train", "t10k")),
    (Emnist, datasets.EMNIST, {"split": "balanced"}, ("emnist-balanced-train", "emnist-balanced-test")),
]


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look nowhere but below the test's own folder."""
    monkeypatch.setattr(mnist, "ROOTS", (tmp_path / "cache",))
    monkeypatch.setattr(mnist, "DOWNLOADED", tmp_path / "cache")
    monkeypatch.setattr(FashionMnist, "packaged", (tmp_path / "packaged",))


@pytest.mark.parametrize(("ours", "theirs", "keywords", "stems"), FAMILY, ids=lambda value: str(value)[:24])
def test_torchvision_reads_the_same_images_labels_and_class_names(
    tmp_path: Path,
    ours: type[mnist.MnistFiles],
    theirs: type,
    keywords: dict[str, str],
    stems: tuple[str, str],
) -> None:
    raw = tmp_path / ours.published / "raw"
    making.mnist(raw, stems=stems, num_labels=10, packed=False)
    location = str(tmp_path)
    train, val, test = (ours(split=split, location=location) for split in ("train", "val", "test"))
    assert (len(train), len(val), len(test)) == (44, 4, 20)  # a twelfth of 48
    for half, data in (("train", [*map(train.example, range(44)), *map(val.example, range(4))]), ("test", [
        *map(test.example, range(20))
    ])):  # fmt: skip
        reference = theirs(location, train=half == "train", **keywords)
        assert len(reference) == len(data)
        assert ours.published != "EMNIST" or reference.classes == list(ours.names)
        for row, example in enumerate(data):
            image, label = reference[row]
            # torchvision leaves EMNIST's images as they are stored, on their side.
            pixels = np.asarray(image).T if ours is Emnist else np.asarray(image)
            assert np.array_equal(np.asarray(example.image), np.repeat(pixels[..., None], 3, axis=2))
            assert (example.image_id, example.label) == (f"{half}/{row:05d}", label)


def test_the_class_names_are_as_many_as_torchvisions() -> None:
    for ours, theirs in ((Mnist, datasets.MNIST), (FashionMnist, datasets.FashionMNIST)):
        assert len(ours.names) == len(theirs.classes)
    assert [name.lower() for name in datasets.FashionMNIST.classes] == [
        {"t-shirt": "t-shirt/top"}.get(name, name) for name in FashionMnist.names
    ]
    assert list(Kmnist.names) == datasets.KMNIST.classes


def test_without_a_location_it_is_looked_for_where_packages_put_it(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"usual places: install it .* or fetch it with .* or write fashion_mnist:PATH"
    ):
        FashionMnist(split="test")
    making.mnist(tmp_path / "packaged")
    assert len(FashionMnist(split="test")) == 20


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Serve a folder on this machine, and let torchvision take it for the publisher's."""
    folder = tmp_path / "mirror"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [f"http://127.0.0.1:{server.server_port}/"])
    yield folder
    server.shutdown()
    server.server_close()


def test_a_download_is_made_only_where_it_is_asked_for(
    tmp_path: Path, mirror: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = sorted(making.mnist(mirror).iterdir())
    hashes = [(file.name, hashlib.md5(file.read_bytes()).hexdigest()) for file in files]
    monkeypatch.setattr(datasets.FashionMNIST, "resources", hashes)
    with pytest.raises(UserError, match="not in the usual places"):
        FashionMnist(split="test")
    assert not (tmp_path / "cache").exists()
    with downloads():
        assert len(FashionMnist(split="test")) == 20
    assert len(FashionMnist(split="train")) == 44  # there from now on


def test_a_failed_download_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]  # nobody listens there once it is closed
    monkeypatch.setattr(datasets.FashionMNIST, "mirrors", [f"http://127.0.0.1:{port}/"])
    with downloads(), pytest.raises(UserError, match="'fashion_mnist' cannot be downloaded: "):
        FashionMnist(split="test")


def test_one_file_of_two(tmp_path: Path) -> None:
    making.mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match="only one of t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte"):
        Mnist(split="test", location=str(tmp_path))


_PIXELS, _LABELS = making.mnist_records(20, num_labels=10, seed=0)
_HEADER = bytes([0, 0, 8, 3])


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "no idx file"),
        (bytes([0, 0, 8, 1]) + making.idx(_PIXELS)[4:], "no idx file of bytes with 3 dimensions"),
        (bytes([0, 0, 13, 3]) + making.idx(_PIXELS)[4:], "no idx file of bytes"),
        (_HEADER + b"\0\0", "damaged or cut off"),
        (making.idx(_PIXELS)[:-1], "should hold 15680 bytes and holds 15679"),
        (making.idx(_PIXELS) + b"\0", "should hold 15680 bytes and holds more"),
        (_HEADER + struct.pack(">3I", 2**32 - 1, 28, 28), "more than any of its kind"),
        (making.idx(_PIXELS[:, :27]), "images of 27 x 28 pixels"),
        (making.idx(_PIXELS[:-1]), "19 images but .* 20 labels"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_file_of_images(tmp_path: Path, content: bytes, sentence: str, packed: bool) -> None:
    making.mnist(tmp_path, packed=packed)
    name = "t10k-images-idx3-ubyte"
    making.write(tmp_path / (f"{name}.gz" if packed else name), gzip.compress(content) if packed else content)
    with pytest.raises(UserError, match=sentence):
        Mnist(split="test", location=str(tmp_path))


# Without the time of packing: processes that test side by side must call their tests alike.
@pytest.mark.parametrize("content", [b"no gzip", gzip.compress(making.idx(_PIXELS), mtime=0)[:-20]])
def test_a_damaged_archive(tmp_path: Path, content: bytes) -> None:
    making.mnist(tmp_path)
    making.write(tmp_path / "t10k-images-idx3-ubyte.gz", content)
    with pytest.raises(
        UserError, match=r"t10k-images-idx3-ubyte\.gz' cannot be read: it is damaged or cut off"
    ):
        Mnist(split="test", location=str(tmp_path))


def test_an_archive_that_unpacks_to_more_is_not_unpacked(tmp_path: Path) -> None:
    packed = gzip.compress(making.idx(_LABELS) + bytes(200_000_000), compresslevel=1)
    path = making.write(tmp_path / "labels.gz", packed)
    with pytest.raises(UserError, match="should hold 20 bytes and holds more"):
        mnist.read(path, num_dimensions=1)


def test_a_label_outside_of_the_classes(tmp_path: Path) -> None:
    making.mnist(tmp_path)
    content = gzip.compress(making.idx(np.full(20, 10, dtype=np.uint8)))
    making.write(tmp_path / "t10k-labels-idx1-ubyte.gz", content)
    with pytest.raises(UserError, match=r"labels outside 0\.\.9"):
        Mnist(split="test", location=str(tmp_path))


def test_the_packaged_fashion_mnist_is_as_published() -> None:
    folder = Path("/usr/share/datasets/fashion-mnist")
    if not folder.is_dir():
        pytest.skip("the package dataset-fashion-mnist is not installed")
    test = FashionMnist(split="test", location=str(folder))
    assert (len(test), len(FashionMnist(split="train", location=str(folder)))) == (10_000, 55_000)
    assert np.bincount(test.labels()).tolist() == [1000] * 10
