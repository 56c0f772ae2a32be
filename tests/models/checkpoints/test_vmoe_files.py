"""V-MoE's sharded format: against a writer of the test's own, for any way to cut."""

import tracemalloc
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from moeprobe.models.checkpoints.arrays import Chunk, StoredArray, StoredArrays, check_tiles
from moeprobe.models.checkpoints.vmoe_files import read_vmoe
from moeprobe.models.checkpoints.vmoe_write import existing_files, write_vmoe
from tests.golden import golden, golden_checkpoint
from tests.models.checkpoints import making
from tests.models.checkpoints.making import BFLOAT16

QUICK = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def same(found: NDArray[Any], expected: NDArray[Any]) -> bool:
    """Whether type, shape and every bit are the same."""
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


def boxes_of(stored: StoredArrays, name: str) -> tuple[Chunk, ...]:
    array = stored.arrays[name]
    assert isinstance(array, StoredArray)
    return array.chunks


def example() -> dict[str, Any]:
    """A state of training with everything: bfloat16, scalars, empty maps, names whose order is that of strings."""
    rng = np.random.default_rng(0)
    blocks = {f"block_{index}": rng.normal(size=(3, 2)).astype("f4") for index in (1, 2, 10)}
    return {
        "params": {**blocks, "cube": rng.normal(size=(4, 3, 2)).astype("f4")},
        "opt_state": {"0": {"mu": rng.integers(0, 1 << 16, (2, 5)).astype("<u2").view(BFLOAT16)}, "1": {}},
        "rngs": {"dropout": np.array([0, 7], dtype="u4")},
        "step": np.array(46_449, dtype="i4"),
    }


@pytest.mark.golden
@pytest.mark.parametrize("name", ["small_1shard", "small_4shards"])
def test_released_program_s_files(name: str, tmp_path: Path) -> None:
    expected = golden("model_small/params.npz")
    stored = read_vmoe(golden_checkpoint(name, tmp_path))
    assert set(stored.arrays) == set(expected)
    assert all(same(stored.arrays[key].read(), expected[key]) for key in expected)


@pytest.mark.parametrize("version", [True, False])
def test_a_state_of_training(tmp_path: Path, version: bool) -> None:
    tree = example()
    cube = "params/cube"
    halves = {cube: [((0, 4), (0, 3), (0, 1)), ((2, 4), (0, 3), (1, 2)), ((0, 2), (0, 3), (1, 2))]}
    index, shards = making.content(tree, shards=3, boxes=halves, pieces=2)
    if not version:
        del index["version"]
    stored = read_vmoe(making.write(tmp_path / "ckpt_7", index, shards))
    expected = {"/".join(path): array for path, array in making.leaves(tree).items()}
    assert set(stored.arrays) == set(expected)
    for name, array in expected.items():
        assert same(stored.arrays[name].read(), array), name
    assert stored.arrays["opt_state/0/mu"].dtype == "bfloat16"
    assert stored.arrays["step"].read() == 46_449


def test_any_of_its_files_names_a_checkpoint(tmp_path: Path) -> None:
    prefix = making.write(tmp_path / "ckpt.v1", *making.content({"a": np.arange(3.0)}))
    for name in ("ckpt.v1", "ckpt.v1.index", "ckpt.v1.data-00000-of-00001"):
        assert same(read_vmoe(prefix.with_name(name)).arrays["a"].read(), np.arange(3.0))


@QUICK
@given(data=st.data())
def test_arrays_cut_in_any_way_are_read_bit_by_bit(tmp_path: Path, data: st.DataObject) -> None:
    tree = {
        f"{name}/x": data.draw(making.arrays())
        for name in data.draw(st.sets(st.text(max_size=3), max_size=4))
    }
    tree = {name: array for name, array in tree.items() if name.count("/") == 1}
    boxes = {name: data.draw(making.cuttings(array)) for name, array in tree.items()}
    shards = data.draw(st.integers(1, 4))
    parts = making.content(
        making.nested(tree), shards=shards, boxes=boxes, pieces=data.draw(st.integers(1, 3))
    )
    stored = read_vmoe(making.write(tmp_path / "any", *parts))
    assert set(stored.arrays) == set(tree)
    for name, array in tree.items():
        assert same(stored.arrays[name].read(), array)


def test_chunks_that_no_row_of_cuts_gives() -> None:
    """A pinwheel: four boxes around a fifth."""
    wheel = [((0, 1), (0, 2)), ((0, 2), (2, 3)), ((2, 3), (1, 3)), ((1, 3), (0, 1)), ((1, 2), (1, 2))]
    assert check_tiles((3, 3), wheel) is None
    assert check_tiles((3, 3), wheel[:4]) == "its chunks do not add up to the array"
    # As many elements, and one twice.
    assert check_tiles((3, 3), [*wheel[:4], ((0, 1), (0, 1))]) == "two of its chunks overlap"


@QUICK
@given(data=st.data())
def test_tiles_are_what_a_count_per_element_says(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), max_size=3)))
    bounds = [st.tuples(st.integers(0, size), st.integers(0, size)).map(sorted).map(tuple) for size in shape]
    boxes = data.draw(st.lists(st.tuples(*bounds), max_size=4))
    if data.draw(st.booleans()):
        boxes = data.draw(making.cuttings(np.zeros(shape)))
    counts = np.zeros(shape, dtype=int)
    for box in boxes:
        making.region(counts, box)[...] += 1
    assert (check_tiles(shape, boxes) is None) == bool((counts == 1).all())


@settings(QUICK, max_examples=25)
@given(data=st.data())
def test_what_is_written_is_read_and_is_the_format(tmp_path: Path, data: st.DataObject) -> None:
    """Read by the product, and by the msgpack library from the description of the format alone."""
    shapes = {
        "Encoder/b_10/Moe/Mlp/Dense_0/kernel": (data.draw(st.integers(1, 5)), 3, 2),
        "Encoder/b_2/x": (4, 6),
        "s": (),
    }
    rng = np.random.default_rng(0)
    written = {name: rng.normal(size=shape).astype("<f4") for name, shape in shapes.items()}
    written["b"] = rng.integers(0, 1 << 16, 9).astype("<u2").view(BFLOAT16)
    shards, most = data.draw(st.integers(1, 7)), data.draw(st.sampled_from([4, 20, 1 << 20]))
    files = write_vmoe(
        tmp_path / "out",
        {name: (array.shape, array.dtype) for name, array in written.items()},
        written.__getitem__,
        shards=shards,
        most_chunk_bytes=most,
    )
    assert len(files) == shards + 1 and existing_files(tmp_path / "out") == sorted(files)
    stored = read_vmoe(tmp_path / "out")
    assert set(stored.arrays) == set(written)
    for name, array in written.items():
        assert same(stored.arrays[name].read(), array)
        assert all(
            np.prod([b - a for a, b in chunk.box]) * array.itemsize <= most
            for chunk in boxes_of(stored, name)
        )
    index = msgpack.unpackb(files[-1].read_bytes())
    assert (index["shard_count"], index["version"]) == (shards, "20220622")
    numbers = list(making.leaves(making.nested(written)))
    _, _, places = msgpack.unpackb(index["index"]["Encoder"]["b_10"]["Moe"]["Mlp"]["Dense_0"]["kernel"].data)
    assert len(set(places)) == min(shards, shapes["Encoder/b_10/Moe/Mlp/Dense_0/kernel"][0]) or most < 1 << 20
    for place, file in enumerate(files[:-1]):
        shard = msgpack.unpackb(file.read_bytes())
        assert shard.pop(making.MARK) is True
        for number, chunks in shard.items():
            array = written["/".join(numbers[int(number)])]
            for pieces, where in chunks:
                assert where.code == 6
                box = [msgpack.unpackb(bounds)[:2] for bounds in msgpack.unpackb(where.data)]
                raw = b"".join(msgpack.unpackb(piece.data)[2] for piece in pieces)
                assert raw == making.region(array, box).tobytes(), place


def test_shards_are_filled_evenly(tmp_path: Path) -> None:
    """Eight experts of equal size over four shards, then small ones: each to the shard that holds least."""
    shapes = {"block/Moe/Mlp/Dense_0/kernel": (8, 100), "x": (60,), "y": (50,), "z": (10,)}
    arrays = {name: np.zeros(shape, "<f4") for name, shape in shapes.items()}
    described = {name: (array.shape, array.dtype) for name, array in arrays.items()}
    write_vmoe(tmp_path / "c", described, arrays.__getitem__, shards=4)
    stored = read_vmoe(tmp_path / "c")
    kernel = boxes_of(stored, "block/Moe/Mlp/Dense_0/kernel")
    assert [(chunk.box[0], chunk.pieces[0].path.name[-14:-9]) for chunk in kernel] == [
        ((0, 2), "00000"), ((2, 4), "00001"), ((4, 6), "00002"), ((6, 8), "00003"),
    ]  # fmt: skip
    assert [boxes_of(stored, name)[0].pieces[0].path.name[-14:-9] for name in "xyz"] == [
        "00000",
        "00001",
        "00002",
    ]


def test_a_checkpoint_of_other_shards_is_replaced(tmp_path: Path) -> None:
    old, new = np.zeros(3, "<f4"), np.ones(5, "<f4")
    write_vmoe(tmp_path / "c", {"a": (old.shape, old.dtype)}, lambda _: old, shards=3)
    files = write_vmoe(tmp_path / "c", {"a": (new.shape, new.dtype)}, lambda _: new, shards=2)
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert same(read_vmoe(tmp_path / "c").arrays["a"].read(), new)


@pytest.mark.parametrize("axis", [0, 1])
def test_reading_takes_the_memory_of_the_arrays(tmp_path: Path, axis: int) -> None:
    """8 MiB in one array, in one chunk or in eight; what is beside it is one chunk at most."""
    array = np.random.default_rng(0).normal(size=(1024, 2048)).astype("f4")
    edges = range(0, array.shape[axis] + 1, array.shape[axis] // 8)
    boxes = [
        tuple((a, b) if at == axis else (0, array.shape[at]) for at in (0, 1)) for a, b in pairwise(edges)
    ]
    prefix = making.write(tmp_path / "big", *making.content({"a": array}, boxes={"a": boxes}))
    read_vmoe(prefix).arrays["a"].read()
    tracemalloc.start()
    found = read_vmoe(prefix).arrays["a"].read()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert same(found, array)
    assert peak < (1.05 if axis == 0 else 1.2) * array.nbytes
