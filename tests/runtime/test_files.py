"""What is read is a regular file of a bounded size, and JSON that is no bomb."""

import errno
import json
import os
from pathlib import Path

import pytest

from moeprobe.errors import UserError
from moeprobe.runtime.files import check_regular, read_bytes, read_json, write_text


def test_json_of_a_regular_file_and_of_a_link_to_one_is_read(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(json.dumps({"a": ["é"]}), encoding="utf-8")
    (tmp_path / "link.json").symlink_to(path)

    assert read_json(path) == read_json(tmp_path / "link.json") == {"a": ["é"]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b"\xff\xfe", "not JSON"),
        (b"{", "not JSON"),
        (b"[" + b"1," * 600 + b"1]", "more than 1,000 bytes"),
    ],
)
def test_json_that_is_damaged_or_hostile_is_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "table.json"
    path.write_bytes(content)

    with pytest.raises(UserError, match=says) as raised:
        read_json(path, limit=200_000 if says.startswith("nested") else 1000)

    assert str(path) in str(raised.value)


def test_what_never_ends_is_not_read(tmp_path: Path) -> None:
    """A FIFO that nobody writes to waits for ever; a device gives for ever."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "zero").symlink_to("/dev/zero")

    for name in ("fifo", "zero", "."):
        with pytest.raises(UserError, match="regular file"):
            check_regular(tmp_path / name)
        with pytest.raises(UserError, match="regular file"):
            read_bytes(tmp_path / name, limit=10)
    with pytest.raises(UserError, match="No such file"):
        check_regular(tmp_path / "nothing")


@pytest.mark.parametrize("mask", [0o077, 0o022, 0o002])
def test_the_umask_says_who_may_read_a_file(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        write_text(tmp_path / "table.csv", "a\n")
    finally:
        os.umask(before)
    assert (tmp_path / "table.csv").stat().st_mode & 0o777 == 0o666 & ~mask


def test_a_file_that_cannot_be_closed_leaves_no_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sentence is that of the first error, though the temporary file cannot be removed at first either."""
    close, unlink = os.close, Path.unlink
    with monkeypatch.context() as failing:

        def fail(handle: int) -> None:
            close(handle)
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

        failing.setattr(os, "close", fail)
        with pytest.raises(UserError, match=r"Cannot write .*: Disk quota exceeded"):
            write_text(tmp_path / "table.csv", "a\n")
        assert list(tmp_path.iterdir()) == []

        def keep(path: Path, **_: object) -> None:
            unlink(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        failing.setattr(Path, "unlink", keep)
        with pytest.raises(UserError, match=r"Cannot write .*: Disk quota exceeded"):
            write_text(tmp_path / "table.csv", "a\n")
    assert list(tmp_path.iterdir()) == []
