"""A few kilobytes that would unpack to gigabytes: refused by what their headers say, before they are unpacked."""

import gzip
import io
import json
import resource
import struct
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moeprobe.errors import UserError
from moeprobe.inputs.data.text import Text
from moeprobe.runtime import parquet
from tests.commands import refused
from tests.inputs.data import making
from tests.security.slots import CHECKPOINT, SETTINGS

GIB = 2**30


def sparse(path: Path, size: int) -> Path:
    """A file that says to have so many bytes and takes none on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    return path


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    lines = chunk(b"IDAT", zlib.compress(bytes(1000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + lines + chunk(b"IEND", b"")


@pytest.fixture(autouse=True)
def little_memory() -> Iterator[None]:
    """What a test holds is seen: the peak of the process may not grow by a gigabyte."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    yield
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < GIB // 1024, f"{grown / 1024:.0f} MB"


@pytest.mark.parametrize("size", [(100_000, 100_000), (2**31 - 1, 2**31 - 1), (9500, 9500)])
def test_an_image_of_enormous_size(size: tuple[int, int], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(*size))
    assert "a.png" in refused("confidence", CHECKPOINT, "--data", f"folder:{tmp_path}")
    assert "a.png" in refused("overlay", CHECKPOINT, "--file", tmp_path / "a.png", "--json")


def test_gzip_that_unpacks_to_more_than_it_says(tmp_path: Path) -> None:
    root = making.mnist(tmp_path)
    packed = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 20, 28, 28) + bytes(2**28))
    (root / "t10k-images-idx3-ubyte.gz").write_bytes(packed)
    assert "holds more" in refused("eval", CHECKPOINT, "--data", f"mnist:{root}")
    header = gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 2**32 - 1, 28, 28))
    (root / "t10k-images-idx3-ubyte.gz").write_bytes(header)
    assert "more than any of its kind" in refused("eval", CHECKPOINT, "--data", f"mnist:{root}")


def test_weights_that_are_packed(tmp_path: Path) -> None:
    import torch

    stream = io.BytesIO()
    torch.save({"a": torch.zeros(2**22)}, stream)
    with (
        zipfile.ZipFile(stream) as stored,
        zipfile.ZipFile(tmp_path / "a.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for name in stored.namelist():
            packed.writestr(name, stored.read(name))
    (tmp_path / "a.yaml").write_text(SETTINGS.format("a.pt"))
    said = refused("eval", f"py:torch.nn:Identity@{tmp_path / 'a.yaml'}", "--data", "digits")
    assert "they are packed" in said
    said = refused("import", "swin-moe", tmp_path / "a.pt", tmp_path / "out")
    assert "damaged or no file" in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "opcode", [b"Nr\xff\xff\xff\x7f.", b"Np9999999999\n.", b"\x8e" + bytes([255] * 7) + b"\x00."]
)
def test_a_pickle_that_asks_for_room(opcode: bytes, tmp_path: Path) -> None:
    root = making.cifar10_python(tmp_path)
    [batch] = root.rglob("test_batch")
    batch.write_bytes(b"\x80\x04" + opcode)
    assert "test_batch" in refused("eval", CHECKPOINT, "--data", f"cifar10:{root}")


@pytest.mark.parametrize("file", ["a.txt", "a.jsonl"])
def test_texts_without_end(file: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has more than .* bytes"):
        Text(split="test", location=str(sparse(tmp_path / file, 100 * GIB)))


def test_a_list_of_classes_without_end(tmp_path: Path) -> None:
    root = making.imagenet(tmp_path, per_class=1)
    sparse(root / "LOC_synset_mapping.txt", 100 * GIB)
    assert "has more than" in refused("eval", CHECKPOINT, "--data", f"imagenet:{root}")


def test_files_of_cifar_without_end(tmp_path: Path) -> None:
    root = making.cifar10_binary(tmp_path)
    [batch], [names] = root.rglob("test_batch.bin"), root.rglob("batches.meta.txt")
    sparse(batch, 3073 * 10**9)
    assert "more than any of CIFAR's files" in refused("eval", CHECKPOINT, "--data", f"cifar10:{root}")
    sparse(names, 100 * GIB)
    refused("eval", CHECKPOINT, "--data", f"cifar10:{root}")


def test_a_member_of_a_tar_without_end(tmp_path: Path) -> None:
    making.tar_shard(tmp_path / "test-0.tar", [("a.png", making.encoded(0))])
    content = bytearray((tmp_path / "test-0.tar").read_bytes())
    content[124:136] = b"%011o\0" % (2**32 - 1)
    content[148:156] = b"        "
    content[148:156] = b"%06o\0 " % sum(content[:512])
    (tmp_path / "test-0.tar").write_bytes(content)
    assert "too many for an image" in refused(
        "eval", CHECKPOINT, "--data", f"webdataset:{tmp_path / 'test-0.tar'}"
    )


@pytest.mark.parametrize("text", ["[" * 10**6, '{"a":' * 10**6, "9" * 10**6, '"' + "a" * (17 * 2**20) + '"'])
def test_json_that_is_deep_or_long(text: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for name in ("table.json", "shard.json", "cells.json"):
        (run / name).write_text(text)
        for line in (("report", run, "--out", tmp_path / "r"), ("merge", run, "--out", tmp_path / "m")):
            refused(*line)
        (run / name).unlink()
    (tmp_path / "a.json").write_text(text)
    (tmp_path / "a.jsonl").write_text(json.dumps({}))
    responses, config = tmp_path / "a.jsonl", tmp_path / "a.json"
    refused("trace", "import", responses, tmp_path / "o.parquet", "--model-config", config)


def test_yaml_whose_references_multiply(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join(10 * [f'*a{n - 1}'])}]" for n in range(1, 10)]
    (tmp_path / "a.yaml").write_text("\n".join(lines))
    assert "more than" in refused("train", "--config", tmp_path / "a.yaml")


def test_a_parquet_file_of_equal_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "MOST_VALUES", 10_000)
    monkeypatch.setattr(parquet, "MOST_ROWS", 15_000)
    path = tmp_path / "a.parquet"
    table = pa.table({"a": pa.array([0.0] * 20_000)})
    for size, whole, words in ((20_000, False, "in one row group"), (1_000, True, "rows, more than")):
        pq.write_table(table, path, row_group_size=size)
        with pytest.raises(UserError, match=words):
            parquet.check_parquet_size(path, pq.read_metadata(path), all_rows=whole)
    parquet.check_parquet_size(path, pq.read_metadata(path), all_rows=False)


def test_memory_that_runs_out_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("moeprobe.inputs.data.readers.images.walk_images", none)
    assert "Memory ran out" in refused("confidence", CHECKPOINT, "--data", f"folder:{tmp_path}")
