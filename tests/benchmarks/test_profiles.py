"""Profiles of probes count what the innermost room of a stack works for."""

import time
from collections.abc import Callable

import pytest

from benchmarks import profiles
from benchmarks.speed.parts.sweep import TINY


def _placed(path: str, source: str, **names: object) -> Callable[[], object]:
    """Return the function ``work`` of a source that lies in this file."""
    found: dict[str, object] = dict(names)
    exec(compile(source, path, "exec"), found)
    work = found["work"]
    assert callable(work)
    return work


def test_looks_are_counted_for_the_innermost_room() -> None:
    wait = "def work():\n    sleep({})"
    draw = _placed("/x/moeprobe/inputs/drawn.py", wait.format(0.6), sleep=time.sleep)
    paint = _placed("/x/moeprobe/results/figures/lines.py", wait.format(0.2), sleep=time.sleep)
    engine = "def work():\n    draw(); paint()"
    looks = profiles.look_at(_placed("/x/moeprobe/metrics/sums.py", engine, draw=draw, paint=paint))
    assert looks[profiles.VIEWS] / looks.total() == pytest.approx(0.75, abs=0.1)
    assert looks[profiles.FIGURES] / looks.total() == pytest.approx(0.25, abs=0.1)


def test_a_library_works_for_the_room_that_calls_it() -> None:
    resize = _placed("/x/torch/nn/functional.py", "def work():\n    sleep(0.1)", sleep=time.sleep)
    draw = _placed("/x/moeprobe/inputs/drawn.py", "def work():\n    resize()", resize=resize)
    assert set(profiles.look_at(draw)) == {profiles.VIEWS}
    assert set(profiles.look_at(resize)) == {profiles.PASSES}


def test_a_stack_without_a_room_is_the_rest() -> None:
    looks = profiles.look_at(lambda: time.sleep(0.1))
    assert set(looks) == {profiles.REST}


def test_shares_of_a_probe_add_up() -> None:
    # On a busy machine, the few passes of one run may fall between two looks.
    for _ in range(10):
        row = profiles.profile(["confidence"], TINY).loc[0]
        assert row["images"] == TINY.images and row["seconds"] > 0
        assert sum(row[kind] for kind in profiles.KINDS) == pytest.approx(1, abs=0.003)
        if row[profiles.PASSES] > 0:
            return
    pytest.fail("No look of ten runs found a pass.")
