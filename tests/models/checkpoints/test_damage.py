"""Files that are truncated, mixed up or made to hurt: a sentence, and no more memory than the files are large."""

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.vmoe_files import read_vmoe
from tests.models.checkpoints import making
from tests.models.checkpoints.making import MARK, chunk, leaf, ndarray, slices

A = np.arange(24, dtype="f4").reshape(4, 6)
HALVES = [((0, 2), (0, 6)), ((2, 4), (0, 6))]
Parts = tuple[dict[str, Any], list[dict[str, Any]]]


def parts() -> Parts:
    """Two arrays in two shards, the second array cut in halves."""
    return making.content({"a": np.ones(3, "f4"), "b": A}, shards=2, boxes={"b": HALVES})


def read_all(path: Path) -> None:
    for array in read_vmoe(path).arrays.values():
        array.read()


def refusal(path: Path) -> str:
    """Read all of what must be refused; returns the sentence."""
    with pytest.raises(UserError) as caught:
        read_all(path)
    sentence = str(caught.value)
    assert sentence.endswith(".") and "\n" not in sentence and sentence.isprintable(), sentence
    return sentence


def put(index: Any = None, **changes: Any) -> Callable[[Parts], None]:
    """Change keys of the index file, or leaves of the index."""

    def change(content: Parts) -> None:
        content[0].update(changes)
        content[0]["index"].update(index or {})

    return change


def shard(number: int, content: Any) -> Callable[[Parts], None]:
    """Change keys of a data shard."""
    return lambda parts: parts[1][number].update(content)


def describe(
    *, dtype: Any = "float32", shape: Any = A.shape, boxes: Any = HALVES, shards: Any = (1, 0)
) -> Any:
    """Change what the index says of the array b."""
    return put({"b": leaf(shape, dtype, boxes, shards)})


def piece(*content: Any) -> Callable[[Parts], None]:
    """Change the piece of the array a."""
    return shard(0, {"0": [[[ndarray(*content)], msgpack.ExtType(6, slices([(0, 3)]))]]})


THREE = np.ones(3, "f4").tobytes()
DAMAGE: dict[str, tuple[Callable[[Parts], Any], str]] = {
    "no shard count": (lambda parts: parts[0].pop("shard_count"), "lacks shard_count"),
    "no index": (lambda parts: parts[0].pop("index"), "lacks shard_count or index"),
    "shard count is text": (put(shard_count="2"), "a string is found where a whole number is expected"),
    "shard count is true": (put(shard_count=True), "a boolean is found where"),
    "shard count is negative": (put(shard_count=-1), "-1 is out of range"),
    "shard count is none": (put(shard_count=0), "beyond the 0"),
    "too few shards": (put(shard_count=3), "asks for 3 data shards, and there is no"),
    "a billion shards": (put(shard_count=10**9), "asks for 1,000,000,000 data shards"),
    "another version": (put(version="20300101"), "version '20300101'; moeprobe reads version 20220622"),
    "version is a number": (put(version=1), "a whole number is found where a string is expected"),
    "unknown key": (put(more=1), "the key 'more' is not known"),
    "index is a list": (lambda parts: parts[0].update(index=[1]), "a list is found where"),
    "leaf is a number": (put({"a": 1}), "a whole number is found where an extension object is expected"),
    "leaf has another code": (put({"a": msgpack.ExtType(7, b"")}), "code 7 is found where code 8 is expected"),
    "leaf is empty": (put({"a": msgpack.ExtType(8, b"")}), "1 bytes should follow"),
    "one name by two ways": (put({"x": {"y": leaf((), "float32", [()], [0])}, "x/y": leaf((), "float32", [()], [0])}),
                             "names 'x/y' twice"),
    "shape is negative": (describe(shape=(-4, 6)), "-4 is out of range"),
    "shape is huge": (describe(shape=(1 << 40, 6)), "do not add up|is there twice or not in the index|has 48 bytes"),
    "shape is impossible": (describe(shape=(1 << 62, 1 << 62)), "impossible shape"),
    "shape of nothing is impossible": (describe(shape=(0, 1 << 62, 1 << 62)), "impossible shape"),
    "many axes": (describe(shape=(1,) * 33), "has 33 axes"),
    "type is unknown": (describe(dtype="float8_e4m3"), "the type 'float8_e4m3', which is not read"),
    "type is an object's": (describe(dtype="O"), "the type 'O'"),
    "type is another": (describe(dtype="int32"), "another type, shape or size"),
    "type is shorter": (describe(dtype="float16"), "another type, shape or size"),
    "unknown attributes": (put({"b": leaf(A.shape, "float32", HALVES, (1, 0), {"x": 1})}), "attributes"),
    "fewer shards than boxes": (describe(shards=(1,)), "1 items where it should have 2"),
    "shard beyond the last": (describe(shards=(1, 2)), "in a shard beyond the 2"),
    "chunks in each other's shard": (describe(shards=(0, 1)), "is there twice or not in the index"),
    "box outside": (describe(boxes=[((0, 2), (0, 6)), ((2, 5), (0, 6))]), "is no contiguous part of an axis of 4"),
    "box backwards": (describe(boxes=[((2, 0), (0, 6)), ((2, 4), (0, 6))]), "is no contiguous part of an axis"),
    "box with steps": (put({"b": leaf(A.shape, "float32", [[(0, 4, 2), (0, 6, None)]], [0])}), "[0:4:2] is no"),
    "box of one axis": (describe(boxes=[((0, 2),), ((2, 4),)]), "1 items where it should have 2"),
    "box twice in the index": (describe(boxes=[HALVES[0], HALVES[0]], shards=(1, 1)), "do not add up|not in the index"),
    "missing chunk": (lambda parts: parts[1][0].pop("1"), "is missing"),
    "chunk twice": (lambda parts: parts[1][0]["1"].append(parts[1][0]["1"][0]), "there twice or not in the index"),
    "chunk too many": (shard(0, {"1": [chunk(A[2:], HALVES[1]), chunk(A[:2], HALVES[0])]}), "not in the index"),
    "chunks overlap": (
        lambda parts: (
            describe(boxes=[HALVES[0], ((1, 3), (0, 6))])(parts),
            shard(0, {"1": [chunk(A[1:3], ((1, 3), (0, 6)))]})(parts),
        ),
        "two of its chunks overlap",
    ),
    "chunks leave a hole": (
        lambda parts: (
            describe(boxes=[HALVES[0], ((3, 4), (0, 6))])(parts),
            shard(0, {"1": [chunk(A[3:], ((3, 4), (0, 6)))]})(parts),
        ),
        "do not add up to the array",
    ),
    "no mark": (lambda parts: parts[1][1].pop(MARK), "is no data shard"),
    "mark is false": (shard(1, {MARK: False}), "is no data shard"),
    "number of no array": (shard(0, {"2": []}), "'2' is no number of an array"),
    "number is negative": (shard(0, {"-1": []}), "'-1' is no number"),
    "number is another spelling": (shard(0, {"01": []}), "'01' is no number"),
    "number is foreign": (shard(0, {"١": []}), "is no number"),
    "number has a path in it": (shard(0, {"../../0": []}), "is no number"),
    "chunks are a map": (shard(0, {"0": {}}), "a map is found where a list is expected"),
    "chunk is short": (piece([2], "float32", THREE[:8]), "has 8 bytes"),
    "piece has another type": (piece([3], "int32", THREE), "another type, shape or size"),
    "piece has axes": (piece([1, 3], "float32", THREE), "another type, shape or size"),
    "piece is shorter than it says": (piece([3], "float32", THREE[:8]), "another type, shape or size"),
    "piece is longer than it says": (piece([3], "float32", THREE + THREE), "another type, shape or size"),
    "piece is text": (piece([3], "float32", "x" * 12), "a string is found where a run of bytes is expected"),
    "piece has another code": (shard(0, {"0": [[[msgpack.ExtType(3, b"")], msgpack.ExtType(6, b"")]]}), "code 3"),
    "escape sequences": (put({"\x1b[31mred\n": msgpack.ExtType(9, b"")}), "code 9"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(tmp_path: Path, name: str) -> None:
    content = parts()
    read_vmoe(making.write(tmp_path / "c", *content))
    change, words = DAMAGE[name]
    change(content)
    sentence = refusal(making.write(tmp_path / "c", *content))
    assert any(part in sentence for part in words.split("|")), sentence


RAW = {
    "empty": b"",
    "a list of four thousand million": b"\xdd\xff\xff\xff\xff",
    "a map of as many": b"\xdf\xff\xff\xff\xff" + b"\xa1a" * 1000,
    "bytes of as many": b"\xc6\xff\xff\xff\xff",
    "a key of as many": b"\x81\xdb\xff\xff\xff\xff",
    "a long key": b"\x81\xdb\x00\x10\x00\x00" + b"x" * (1 << 20),
    "an extension of as many": b"\x81\xa5index\x81\xa1a\xc9\xff\xff\xff\xff\x08",
    "lists in lists": b"\x91" * 1_000_000,
    "maps in maps": b"\x81\xa5index" + b"\x81\xa1a" * 300_000,
    "a byte that begins nothing": b"\x81\xa1a\xc1",
    "a key that is no UTF-8": b"\x81\xa2\xff\xfe\x01",
    "a key that is a number": b"\x81\x01\x01",
    "a key twice": b"\x82\xabshard_count\x01\xabshard_count\x01",
    "more at the end": making.pack({"shard_count": 1, "index": {}}) + b"\x00",
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(100),
}


@pytest.mark.parametrize("name", RAW)
@pytest.mark.parametrize("where", ["index", "shard", "flax"])
def test_bytes_that_are_no_checkpoint(tmp_path: Path, name: str, where: str) -> None:
    """Nor does any of it take more memory than the file is long, and some for the sentence."""
    prefix = tmp_path / "c"
    if where == "flax":
        prefix.write_bytes(RAW[name])
    else:
        making.write(prefix, *making.content({"a": np.ones(3, "f4")}))
        (
            prefix.with_name("c.index") if where == "index" else prefix.with_name("c.data-00000-of-00001")
        ).write_bytes(RAW[name])
    tracemalloc.start()
    refusal(prefix)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400_000 + len(RAW[name])


def test_a_large_claim_takes_no_memory(tmp_path: Path) -> None:
    """A terabyte in the index, in boxes that add up, and a few bytes in the shard."""
    boxes = [((start << 38, (start + 1) << 38),) for start in range(4)]
    content = parts()
    content[0]["index"]["b"] = leaf((1 << 40,), "float32", boxes, (0, 0, 0, 1))
    prefix = making.write(tmp_path / "c", *content)
    tracemalloc.start()
    refusal(prefix)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400_000


def test_every_length_of_truncation(tmp_path: Path) -> None:
    prefix = making.write(tmp_path / "c", *parts())
    for file in sorted(tmp_path.iterdir()):
        content = file.read_bytes()
        for length in range(len(content)):
            file.write_bytes(content[:length])
            refusal(prefix)
        file.write_bytes(content)
    assert set(read_vmoe(prefix).arrays) == {"a", "b"}


def test_shards_of_another_checkpoint(tmp_path: Path) -> None:
    prefix = making.write(tmp_path / "c", *parts())
    other = making.write(tmp_path / "d", *making.content({"a": np.ones(3, "f4"), "b": A}, shards=2))
    for shard_ in ("data-00000-of-00002", "data-00001-of-00002"):
        Path(f"{prefix}.{shard_}").write_bytes(Path(f"{other}.{shard_}").read_bytes())
    refusal(prefix)


def test_a_file_that_shrinks_after_it_was_looked_at(tmp_path: Path) -> None:
    prefix = making.write(tmp_path / "c", *parts())
    stored = read_vmoe(prefix)
    for file in tmp_path.glob("*.data*"):
        file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(UserError, match=r"is truncated: it ends at byte"):
        stored.arrays["b"].read()


def test_what_is_not_there(tmp_path: Path) -> None:
    assert "There is no checkpoint" in refusal(tmp_path / "nothing")
    assert "is a folder; checkpoints that Orbax wrote in it: none." in refusal(tmp_path)
    making.write(tmp_path / "c", *parts())
    (tmp_path / "c.data-00001-of-00002").unlink()
    assert "there is no" in refusal(tmp_path / "c")
    (tmp_path / "c.index").unlink()
    assert "There is no checkpoint" in refusal(tmp_path / "c.data-00000-of-00002")
