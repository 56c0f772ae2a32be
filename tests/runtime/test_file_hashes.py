"""Hashes that are remembered: never of a file that has changed since."""

import hashlib
import os
from pathlib import Path
from threading import Event

import pytest

from moeprobe.errors import UserError
from moeprobe.runtime import file_hashes
from moeprobe.runtime.file_hashes import Interrupted, hash_file, remembered_hash


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that counts as large and old, and a folder for caches of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(file_hashes, "LEAST_SIZE", 10)
    monkeypatch.setattr(file_hashes, "SETTLED_SECONDS", -1.0)
    path = tmp_path / "large"
    path.write_bytes(b"a" * 100)
    return path


def of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def test_a_file_is_read_once(large: Path) -> None:
    assert remembered_hash(large) is None
    assert hash_file(large) == of(b"a" * 100)
    # A stop that is set ends any reading.
    stop = Event()
    stop.set()
    assert hash_file(large, stop=stop) == of(b"a" * 100)


def test_a_link_to_it_is_the_same_file(large: Path, tmp_path: Path) -> None:
    hash_file(large)
    link = tmp_path / "link"
    link.symlink_to(large)
    assert remembered_hash(link) == of(b"a" * 100)


def test_another_content_of_the_same_size_and_time_is_read(large: Path) -> None:
    hash_file(large)
    before = large.stat()
    large.write_bytes(b"b" * 100)
    # What copying programs do: the time of the content is set back. The time of the status is not.
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert large.stat().st_mtime_ns == before.st_mtime_ns
    assert hash_file(large) == of(b"b" * 100)


def test_a_file_that_took_its_place_is_read(large: Path, tmp_path: Path) -> None:
    hash_file(large)
    other = tmp_path / "other"
    other.write_bytes(b"c" * 100)
    other.replace(large)
    assert hash_file(large) == of(b"c" * 100)


def test_a_young_file_is_not_remembered(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "SETTLED_SECONDS", 60.0)
    assert hash_file(large) == of(b"a" * 100)
    assert remembered_hash(large) is None


def test_a_small_file_leaves_no_trace(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_hashes, "LEAST_SIZE", 1000)
    hash_file(large)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("content", ["", "[]", '{"facts": []}', "{"])
def test_a_damaged_memory_is_ignored(large: Path, tmp_path: Path, content: str) -> None:
    hash_file(large)
    (entry,) = (tmp_path / "cache").rglob("*.json")
    entry.write_text(content, encoding="utf-8")
    assert remembered_hash(large) is None
    assert hash_file(large) == of(b"a" * 100)
    assert remembered_hash(large) == of(b"a" * 100)


def test_a_home_that_takes_no_files_only_costs_time(large: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way", encoding="utf-8")
    assert hash_file(large) == of(b"a" * 100)


def test_reading_ends_where_it_is_not_wanted(large: Path) -> None:
    stop = Event()
    stop.set()
    with pytest.raises(Interrupted):
        hash_file(large, stop=stop)


def test_a_missing_file_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Cannot read"):
        hash_file(tmp_path / "none")
