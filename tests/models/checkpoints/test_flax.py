"""Plain flax msgpack files."""

from pathlib import Path

import msgpack
import pytest

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.vmoe_files import read_flax, read_vmoe
from tests.models.checkpoints import making
from tests.models.checkpoints.test_vmoe_files import example, same


def test_a_state_of_training(tmp_path: Path) -> None:
    tree = example() | {
        "epoch": 3,
        "note": "x",
        "nothing": None,
        "empty": {},
        "number": msgpack.ExtType(3, b"\x90"),
    }
    path = tmp_path / "state.msgpack"
    path.write_bytes(making.flax(tree))
    stored = read_vmoe(path)
    expected = {"/".join(where): array for where, array in making.leaves(example()).items()}
    assert set(stored.arrays) == set(expected)
    assert all(same(stored.arrays[name].read(), array) for name, array in expected.items())
    assert set(stored.others) == {"epoch", "note", "number"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (making.pack([1]), "a list is found where a map is expected"),
        (
            making.pack({"a": making.ndarray([2], "float32", b"1234")}),
            r"\(2,\) of float32 should have 8 bytes and has 4",
        ),
        (
            making.pack({"a": making.ndarray([1 << 40], "float32", b"1234")}),
            "should have 4,398,046,511,104 bytes",
        ),
        (making.pack({"a": making.ndarray([1], "float32", b"1234")}) + b"\xc0", "1 bytes follow the end"),
        (making.pack({"a/b": making.ndarray([0], "bool", b""), "a": {"b": 1}}), "names 'a/b' twice"),
        (
            making.pack({"a": making.ndarray([1], "complex256", b"")}),
            "the type 'complex256', which is not read",
        ),
    ],
)
def test_damage_is_named(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_flax(tmp_path / "x")


def test_every_length_of_truncation(tmp_path: Path) -> None:
    content = making.flax(example())
    for length in range(0, len(content), 3):
        (tmp_path / "x").write_bytes(content[:length])
        with pytest.raises(UserError):
            read_flax(tmp_path / "x")
