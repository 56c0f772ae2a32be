"""Small instances of every data set, written on the spot in the formats in which they are published.

``MAKERS[name](folder)`` writes one below ``folder``, with the splits train, val and test, and returns its location.
"""

import gzip
import io
import json
import pickle
import struct
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image
from scipy.io import savemat

from moeprobe.inputs.data.photographs import photograph_names
from moeprobe.runtime.catalog import DATA

CIFAR10_NAMES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CIFAR100_NAMES = tuple(f"fine_{label:02d}" for label in range(100))


def location_of(name: str, folder: Path) -> str | None:
    """Return the location of a small instance of data set ``name``, made below ``folder``."""
    assert name in MAKERS, f"data set {name!r} has no maker: add one to MAKERS in tests/inputs/data/making.py"
    return MAKERS[name](folder)


def pixels(seed: int, *, height: int = 12, width: int = 16) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, size=(height, width, 3), dtype=np.uint8)


def encoded(seed: int, format: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels(seed)).save(buffer, format)
    return buffer.getvalue()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


class Python2Pickler(pickle._Pickler):
    """Writes what Python 2's cPickle wrote: a ``str`` is a byte string, with opcodes that Python 3 only reads."""

    dispatch: ClassVar[dict[type, Callable[..., None]]] = dict(pickle._Pickler.dispatch)

    def save_string(self, value: bytes | str) -> None:
        raw = value.encode() if isinstance(value, str) else value
        header = b"U" + bytes([len(raw)]) if len(raw) < 256 else b"T" + struct.pack("<i", len(raw))
        self.write(header + raw)  # type: ignore[attr-defined]
        self.memoize(value)  # type: ignore[attr-defined]

    dispatch[bytes] = save_string
    dispatch[str] = save_string


def python2_pickle(value: object) -> bytes:
    buffer = io.BytesIO()
    Python2Pickler(buffer, protocol=2).dump(value)
    # The NumPy of 2009 called its module so.
    return buffer.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def cifar_records(num: int, *, num_labels: int, seed: int) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(seed)
    data = random.integers(0, 256, size=(num, 3072), dtype=np.uint8)
    return data, [int(label) for label in random.integers(0, num_labels, size=num)]


def cifar10_python(folder: Path, *, per_batch: int = 20) -> Path:
    root = folder / "cifar-10-batches-py"
    for number, batch in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        data, labels = cifar_records(per_batch, num_labels=10, seed=number)
        names = [f"image_{row:04d}.png" for row in range(per_batch)]
        content = {"data": data, "labels": labels, "batch_label": batch, "filenames": names}
        write(root / batch, python2_pickle(content))
    meta = {"num_cases_per_batch": per_batch, "label_names": list(CIFAR10_NAMES), "num_vis": 3072}
    write(root / "batches.meta", python2_pickle(meta))
    return folder


def cifar10_binary(folder: Path, *, per_batch: int = 20) -> Path:
    root = folder / "cifar-10-batches-bin"
    for number, batch in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        data, labels = cifar_records(per_batch, num_labels=10, seed=number)
        write(
            root / f"{batch}.bin",
            b"".join(bytes([label]) + row.tobytes() for row, label in zip(data, labels, strict=True)),
        )
    write(root / "batches.meta.txt", ("\n".join(CIFAR10_NAMES) + "\n\n").encode())
    return folder


def cifar100_python(folder: Path, *, num: int = 100) -> Path:
    root = folder / "cifar-100-python"
    for seed, part in enumerate(("train", "test")):
        data, fine = cifar_records(num, num_labels=100, seed=seed)
        content = {
            "filenames": [f"image_{row:04d}.png" for row in range(num)],
            "batch_label": f"{part} batch 1 of 1",
            "fine_labels": fine,
            "coarse_labels": [label // 5 for label in fine],
            "data": data,
        }
        write(root / part, python2_pickle(content))
    meta = {
        "fine_label_names": list(CIFAR100_NAMES),
        "coarse_label_names": [f"coarse_{k}" for k in range(20)],
    }
    write(root / "meta", python2_pickle(meta))
    return folder


def cifar100_binary(folder: Path, *, num: int = 100) -> Path:
    root = folder / "cifar-100-binary"
    for seed, part in enumerate(("train", "test")):
        data, fine = cifar_records(num, num_labels=100, seed=seed)
        records = (bytes([label // 5, label]) + row.tobytes() for row, label in zip(data, fine, strict=True))
        write(root / f"{part}.bin", b"".join(records))
    write(root / "fine_label_names.txt", ("\n".join(CIFAR100_NAMES) + "\n").encode())
    return folder


def idx(values: np.ndarray) -> bytes:
    """Return an array of bytes in the idx format."""
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def mnist_records(num: int, *, num_labels: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    pixels = random.integers(0, 256, size=(num, 28, 28), dtype=np.uint8)
    return pixels, random.integers(0, num_labels, size=num, dtype=np.uint8)


def mnist(
    folder: Path, *, stems: Sequence[str] = ("train", "t10k"), num_labels: int = 10, packed: bool = True
) -> Path:
    """Write 48 training and 20 test images; ``stems`` begin the names of the files."""
    for seed, (stem, num) in enumerate(zip(stems, (48, 20), strict=True)):
        for kind, values in zip(
            ("images-idx3", "labels-idx1"), mnist_records(num, num_labels=num_labels, seed=seed), strict=True
        ):
            name = f"{stem}-{kind}-ubyte"
            content = idx(values)
            write(folder / (f"{name}.gz" if packed else name), gzip.compress(content) if packed else content)
    return folder


def emnist(folder: Path) -> Path:
    return mnist(folder, stems=("emnist-balanced-train", "emnist-balanced-test"), num_labels=47)


def flowers102(folder: Path, *, num: int = 12) -> Path:
    labels = np.arange(1, num + 1, dtype=np.uint8) * 8  # up to 96
    for number in range(1, num + 1):
        write(folder / f"jpg/image_{number:05d}.jpg", encoded(number, "JPEG"))
    savemat(folder / "imagelabels.mat", {"labels": labels[None, :]})
    lists = {"trnid": [[3, 1, 7]], "valid": [[2, 12]], "tstid": [[4, 5, 6, 8, 9, 10, 11]]}
    savemat(folder / "setid.mat", {key: np.array(value, dtype=np.uint16) for key, value in lists.items()})
    return folder


def imagenet(folder: Path, *, per_class: int = 150) -> Path:
    content = encoded(0, "JPEG")
    for wnid in ("n01440764", "n02012849"):
        for number in range(per_class):
            write(folder / f"train/{wnid}/{wnid}_{number}.JPEG", content)
        for number in range(2):
            write(folder / f"val/{wnid}/ILSVRC2012_val_{wnid[-2:]}{number:06d}.JPEG", encoded(number, "JPEG"))
    return folder


def image_folder(folder: Path, *, splits: Sequence[str] = ("train", "val", "test")) -> Path:
    for seed, split in enumerate(splits):
        for label, name in enumerate(("cat", "dog")):
            for number in range(2):
                write(folder / split / name / f"{number}.png", encoded(100 * seed + 10 * label + number))
    return folder


def tar_shard(path: Path, members: Sequence[tuple[str, bytes]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def webdataset(folder: Path) -> Path:
    for seed, split in enumerate(("train", "val", "test")):
        for shard in range(2):
            members: list[tuple[str, bytes]] = []
            for key in range(3):
                members.append((f"{key:04d}.png", encoded(100 * seed + 10 * shard + key)))
                members.append((f"{key:04d}.cls", b"%d\n" % key))
                members.append((f"{key:04d}.json", json.dumps({"caption": "none"}).encode()))
            tar_shard(folder / f"{split}-{shard:06d}.tar", members)
    return folder


def hub_rows(seed: int, num: int = 4) -> dict[str, list]:
    images = [{"bytes": encoded(seed + row), "path": None} for row in range(num)]
    return {"image": images, "label": [row % 3 for row in range(num)]}


def huggingface(folder: Path) -> Path:
    from datasets import ClassLabel, Dataset, DatasetDict, Features
    from datasets import Image as ImageFeature

    features = Features({"image": ImageFeature(), "label": ClassLabel(names=["ant", "bee", "cow"])})
    parts = {
        split: Dataset.from_dict(hub_rows(100 * seed), features=features)
        for seed, split in enumerate(("train", "validation", "test"))
    }
    DatasetDict(parts).save_to_disk(folder)
    return folder


def parquet_files(
    folder: Path, *, counts: Sequence[int] = (3, 2), splits: Sequence[str] = ("train", "val", "test")
) -> Path:
    """Write parquet files of so many images each, as they lie on the hub, with a column that nobody asked for."""
    from datasets import ClassLabel, Dataset, Features, Value
    from datasets import Image as ImageFeature

    features = Features(
        {
            "caption": Value("string"),
            "image": ImageFeature(),
            "label": ClassLabel(names=["ant", "bee", "cow"]),
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    for seed, split in enumerate(splits):
        for number, count in enumerate(counts):
            rows = hub_rows(100 * seed + 10 * number, count) | {"caption": ["none"] * count}
            name = f"{split}-{number:05d}-of-{len(counts):05d}.parquet"
            Dataset.from_dict(rows, features=features).to_parquet(folder / name)
    return folder


def imagenet_c(folder: Path, *, kind: str = "snow", family: str = "") -> Path:
    for severity in range(1, 6):
        for label, wnid in enumerate(("n01440764", "n02012849")):
            for number in range(2):
                name = f"ILSVRC2012_val_{number:08d}.JPEG"
                content = encoded(100 * severity + 10 * label + number, "JPEG")
                write(folder / family / kind / str(severity) / wnid / name, content)
    return folder


def cifar10_c(folder: Path, *, kind: str = "snow", num: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    np.save(folder / f"{kind}.npy", rng.integers(0, 256, (5 * num, 32, 32, 3), dtype=np.uint8))
    np.save(folder / "labels.npy", np.tile(np.arange(num, dtype=np.uint8) % 10, 5))
    return folder


def frames(folder: Path, *, clips: Sequence[str] = ("a", "b"), num: int = 11) -> Path:
    for seed, clip in enumerate(clips):
        for number in range(num):
            write(folder / clip / f"frame_{number}.png", encoded(100 * seed + number))
    return folder


def stamps(folder: Path) -> Path:
    """Write a square of one color, cut out as a quarter of 12 x 8 pixels, under the name of every photograph."""
    root = folder / "stamps"
    for number, name in enumerate(photograph_names()):
        pixels = np.zeros((8, 12, 4), dtype=np.uint8)
        pixels[:4, :6] = (number, 255 - number, 7, 255)
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return root


def pairs(folder: Path) -> Path:
    """Four pairs of 24 x 16 pixels; the second picture is the first one, moved by two pixels to the left."""
    root = folder / "pairs"
    for number in range(4):
        scene = np.random.default_rng(number).integers(0, 256, (16, 26, 3), dtype=np.uint8)
        pair = root / f"pair{number}"
        pair.mkdir(parents=True)
        Image.fromarray(scene[:, :24]).save(pair / "first.png")
        Image.fromarray(scene[:, 2:]).save(pair / "second.png")
        np.save(pair / "disparity.npy", np.full((16, 24), 2.0, dtype=np.float32))
    return root


MAKERS: dict[str, Callable[[Path], str | None]] = {
    "checkerboard": lambda folder: "4x3",
    "cifar10": lambda folder: str(cifar10_python(folder)),
    "cifar100": lambda folder: str(cifar100_binary(folder)),
    "cifar10_c": lambda folder: f"{cifar10_c(folder)}?corruption=snow&severity=3",
    "digits": lambda folder: None,
    "emnist": lambda folder: str(emnist(folder)),
    "fashion_mnist": lambda folder: str(mnist(folder)),
    "flowers102": lambda folder: str(flowers102(folder)),
    "folder": lambda folder: str(image_folder(folder)),
    "frames": lambda folder: str(frames(folder)),
    "huggingface": lambda folder: str(huggingface(folder)),
    "huggingface_stream": lambda folder: str(parquet_files(folder)),
    "imagenet": lambda folder: str(imagenet(folder)),
    "imagenet_c": lambda folder: f"{imagenet_c(folder)}?corruption=snow&severity=3",
    "imagenet_p": lambda folder: str(frames(folder, clips=("n01440764/v1", "n02012849/v2"))),
    "kmnist": lambda folder: str(mnist(folder)),
    "mnist": lambda folder: str(mnist(folder, packed=False)),
    "picture_pairs": lambda folder: str(pairs(folder)),
    "photographs": lambda folder: str(stamps(folder)),
    "shapes": lambda folder: "32",
    "webdataset": lambda folder: str(webdataset(folder)),
}

assert set(MAKERS) <= set(DATA.names()), "a maker without a data set"
