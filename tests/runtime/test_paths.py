"""Runs and checkpoints of one name are told apart by the shortest ends of their paths."""

from pathlib import Path

from moeprobe.runtime.short_paths import shortest_ends

PATHS = [Path("/x/a/run"), Path("/y/a/run"), Path("/y/b/run"), Path("/y/b/other")]


def test_all_of_one_length() -> None:
    assert shortest_ends(PATHS) == ["x/a/run", "y/a/run", "y/b/run", "y/b/other"]
    assert shortest_ends(PATHS[2:]) == ["run", "other"]
    assert shortest_ends(PATHS[2:], least=2) == ["b/run", "b/other"]


def test_each_as_short_as_it_can_be() -> None:
    assert shortest_ends(PATHS, each=True) == ["x/a/run", "y/a/run", "b/run", "other"]


def test_equal_and_short_paths_come_to_an_end() -> None:
    assert shortest_ends([Path("a/b"), Path("a/b")]) == ["a/b", "a/b"]
    assert shortest_ends([Path("b"), Path("a/b")]) == ["b", "a/b"]
    assert shortest_ends([]) == []
