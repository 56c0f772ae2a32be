"""Writes V-MoE's checkpoints with the msgpack library alone, straight from the description of the format."""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

MARK = "__msgpack_array_chunk_a87ca2__"
BFLOAT16 = np.dtype([("bfloat16", "<u2")])

Box = tuple[tuple[int, int], ...]
Tree = Mapping[str, Any]


def pack(value: Any) -> bytes:
    packed = msgpack.packb(value, use_bin_type=True)
    assert packed is not None
    return packed


def type_name(dtype: np.dtype[Any]) -> str:
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def slices(box: Sequence[tuple[Any, ...]]) -> bytes:
    return pack([pack([*bounds, None][:3]) for bounds in box])


def leaf(
    shape: Any, dtype: Any, boxes: Sequence[Any], shards: Any, attributes: Any = None
) -> msgpack.ExtType:
    about = pack([list(shape), dtype, False, attributes or {}])
    return msgpack.ExtType(8, pack([about, [slices(box) for box in boxes], list(shards)]))


def ndarray(shape: Any, dtype: Any, content: Any) -> msgpack.ExtType:
    return msgpack.ExtType(1, pack([list(shape), dtype, content]))


def chunk(part: NDArray[Any], box: Sequence[Any], *, pieces: int = 1) -> list[Any]:
    """A list of flat pieces, and the box."""
    subs = [
        ndarray(flat.shape, type_name(flat.dtype), flat.tobytes())
        for flat in np.array_split(part.ravel(), pieces)
    ]
    return [subs, msgpack.ExtType(6, slices(box))]


def leaves(tree: Tree, above: tuple[str, ...] = ()) -> dict[tuple[str, ...], NDArray[Any]]:
    """The arrays in the order of their numbers."""
    found: dict[tuple[str, ...], NDArray[Any]] = {}
    for key in sorted(tree):
        below = tree[key]
        found |= leaves(below, (*above, key)) if isinstance(below, Mapping) else {(*above, key): below}
    return found


def nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        *levels, last = name.split("/")
        place = tree
        for level in levels:
            place = place.setdefault(level, {})
        place[last] = value
    return tree


def whole(array: NDArray[Any]) -> Box:
    return tuple((0, size) for size in array.shape)


def region(array: NDArray[Any], box: Sequence[Sequence[int]]) -> NDArray[Any]:
    where: tuple[Any, ...] = (*(slice(*bounds) for bounds in box), ...)
    return array[where]


def content(
    tree: Tree, *, shards: int = 1, boxes: Mapping[str, Sequence[Box]] | None = None, pieces: int = 1
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The index and the shards before they are packed; chunks go to the shards in turn."""
    turn = itertools.cycle(range(shards))
    data: list[dict[str, Any]] = [{MARK: True} for _ in range(shards)]
    index: dict[str, Any] = {}
    for number, (path, array) in enumerate(leaves(tree).items()):
        cut = (boxes or {}).get("/".join(path), [whole(array)])
        places = [next(turn) for _ in cut]
        for box, place in zip(cut, places, strict=True):
            part = region(array, box)
            data[place].setdefault(str(number), []).append(chunk(part, box, pieces=pieces))
        index["/".join(path)] = leaf(array.shape, type_name(array.dtype), cut, places)
    return {"shard_count": shards, "index": _with_empty(tree, nested(index)), "version": "20220622"}, data


def _with_empty(tree: Tree, index: dict[str, Any]) -> dict[str, Any]:
    for key, below in tree.items():
        if isinstance(below, Mapping):
            index[key] = _with_empty(below, index.get(key, {}))
    # Numbers belong to sorted keys, whatever their order in the file.
    return dict(reversed(index.items()))


def write(prefix: Path, index: Any, shards: Sequence[Any]) -> Path:
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.index").write_bytes(pack(index))
    for number, shard in enumerate(shards):
        Path(f"{prefix}.data-{number:05d}-of-{len(shards):05d}").write_bytes(pack(shard))
    return prefix


def flax(tree: Tree) -> bytes:
    """A plain flax msgpack file."""

    def packed(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: packed(below) for key, below in value.items()}
        if isinstance(value, np.ndarray):
            return ndarray(value.shape, type_name(value.dtype), value.tobytes())
        return value

    return pack(packed(tree))


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    """Any bits, of any type that a checkpoint holds."""
    dtype: np.dtype[Any] = draw(
        st.sampled_from([np.dtype("<f4"), np.dtype("<f2"), np.dtype("<i4"), np.dtype("u1"), BFLOAT16])
    )
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    count = int(np.prod(shape)) * dtype.itemsize
    seed = draw(st.integers(0, 2**16))
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8).view(dtype).reshape(shape)


@st.composite
def cuttings(draw: st.DrawFn, array: NDArray[Any]) -> list[Box]:
    """Boxes that tile an array, made by cutting again and again along any axis, in any order."""
    done = [whole(array)]
    for _ in range(draw(st.integers(0, 6))):
        box = done.pop(draw(st.integers(0, len(done) - 1)))
        axes = [axis for axis, (start, stop) in enumerate(box) if stop - start > 1]
        if not axes:
            done.append(box)
            continue
        axis = draw(st.sampled_from(axes))
        start, stop = box[axis]
        at = draw(st.integers(start + 1, stop - 1))
        done += [(*box[:axis], bounds, *box[axis + 1 :]) for bounds in ((start, at), (at, stop))]
    return draw(st.permutations(done))
