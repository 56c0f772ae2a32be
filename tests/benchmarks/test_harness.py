"""The harness of the benchmark, on work whose time is known."""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch

from benchmarks.speed import parts
from benchmarks.speed.measure import Clock, Measured, cpu_seconds, measure
from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import BEST, Contestant, DisagreementError, Race, Target
from benchmarks.speed.table import BENCH_COLUMNS, rows
from benchmarks.speed.values import check_values
from moeprobe.runtime.progress import Progress
from tests.benchmarks.commands import bench_command


def run_race(race: Race, *, rounds: int = 3) -> Measured:
    return measure(race, rounds=rounds, clock=Clock(0, lambda: None), watcher=Progress())


def metered(times: dict[str, Sequence[float]], **kwargs: object) -> Race:
    """A race whose contestants take what they are said to take: one for the values, one to warm up, then the rounds."""

    def work(name: str) -> Callable[[], float]:
        left = iter([0.0, 0.0, *times[name]])
        return lambda: next(left)

    roles = {"ours": "ours", "dense": "limit"}
    contestants = [Contestant(name, work(name), roles.get(name, "other")) for name in times]  # type: ignore[arg-type]
    return Race("race", contestants, None, meter=float, **kwargs)  # type: ignore[arg-type]


def test_rounds_are_interleaved_in_a_shuffled_order() -> None:
    calls: list[str] = []

    def calling(text: str) -> Callable[[], None]:
        return lambda: calls.append(text)

    contestants = [Contestant(name, calling(name), before=calling(f"<{name}")) for name in "abc"]
    measured = run_race(Race("race", contestants, tolerance=None))
    text = "".join(call for call in calls if "<" not in call)
    rounds = [text[start : start + 3] for start in range(0, len(text), 3)]
    assert {"".join(sorted(order)) for order in rounds} == {"abc"} and len(rounds) == 5
    # The values first, then one round that warms up.
    assert rounds[:2] == ["abc", "abc"] and len(set(rounds[2:])) > 1
    assert all(first == f"<{second}" for first, second in zip(calls[::2], calls[1::2], strict=True))
    assert {name: times.shape for name, times in measured.taken.items()} == dict.fromkeys("abc", (3,))


def test_the_clock_of_the_cpu_does_not_count_waiting() -> None:
    race = Race("race", [Contestant("sleeper", lambda: time.sleep(0.2))], tolerance=None)
    clocks = (Clock(0, lambda: None), Clock(0, lambda: None, cpu_seconds))
    wall, cpu = (measure(race, rounds=1, clock=clock, watcher=Progress()) for clock in clocks)
    assert wall.taken["sleeper"][0] >= 0.2 > 2 * cpu.taken["sleeper"][0]
    # Either way the CPU time stands beside.
    assert max(one.cpu["sleeper"][0] for one in (wall, cpu)) < 0.1


def test_the_time_of_child_processes_is_counted() -> None:
    busy = [sys.executable, "-c", "while __import__('time').process_time() < 0.2: pass"]
    race = Race("race", [Contestant("child", lambda: subprocess.run(busy, check=True))], tolerance=None)
    measured = run_race(race, rounds=1)
    assert measured.cpu["child"][0] >= 0.2
    [row] = rows(race, measured, part="toy", judge=True)
    assert row["cpu_seconds"] == measured.cpu["child"][0]


def test_short_work_is_repeated() -> None:
    calls: list[int] = []
    race = Race("race", [Contestant("short", lambda: calls.append(1))], tolerance=None)
    measure(race, rounds=1, clock=Clock(0.01, lambda: None), watcher=Progress())
    assert len(calls) > 10


@pytest.mark.parametrize("scale", [0.001, 1, 1000])
def test_how_often_does_not_depend_on_what_a_call_counts_for(scale: float) -> None:
    calls: list[int] = []
    clock = Clock(0.01, lambda: None, lambda: 0.004 * len(calls))  # a call takes 0.004 s
    race = Race("race", [Contestant("work", lambda: calls.append(1), scale=scale)], tolerance=None)
    measured = measure(race, rounds=1, clock=clock, watcher=Progress())
    assert len(calls) == 1 + 1 + 3
    assert measured.taken["work"] == pytest.approx(0.004 * scale)


def test_the_first_call_of_long_work_is_its_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.speed.measure.WARM_SECONDS", -1.0)
    calls: list[str] = []
    times = {"a": iter([5.0, 6.0, 7.0]), "b": iter([1.0, 2.0, 3.0])}

    def calling(name: str) -> Callable[[], float]:
        def work() -> float:
            calls.append(name)
            return next(times[name])

        return work

    contestants = [Contestant("a", calling("a")), Contestant("b", calling("b"), scale=10)]
    measured = run_race(Race("race", contestants, tolerance=None, meter=float))  # type: ignore[arg-type]
    # Once for the values, which is the first round, and once in each of the other two.
    assert [sorted(calls[start : start + 2]) for start in (0, 2, 4)] == [["a", "b"]] * 3
    assert {name: found.tolist() for name, found in measured.taken.items()} == {
        "a": [5, 6, 7],
        "b": [10, 20, 30],
    }


def test_ratios_are_those_within_a_round() -> None:
    """A machine that becomes ten times slower halfway changes no ratio."""
    race = metered(
        {"ours": [2, 20, 20], "slow": [9, 90, 90], "quick": [1, 10, 10], "dense": [0.5, 5, 5]},
        targets=[Target("ours", BEST, at_least=0.6), Target("ours", "dense", at_least=0.2)],
    )
    best, dense, *others = rows(race, run_race(race), part="toy", judge=True)
    assert best["against"] == "best: quick"
    assert [best[name] for name in ("ratio_quartile_low", "ratio", "ratio_quartile_high")] == [0.5, 0.5, 0.5]
    assert (best["target"], best["reached"]) == ("≥ 0.6", "no")
    assert (dense["against"], dense["ratio"], dense["reached"]) == ("dense", 0.25, "yes")
    assert best["median"] == dense["median"] == 20
    assert [row["against"] for row in others] == ["best: quick", "best: ours", "best: quick"]
    assert {row["target"] for row in others} == {row["reached"] for row in others} == {""}


def test_a_target_of_time_is_the_reverse() -> None:
    race = metered(
        {"ours": [2, 4], "torch": [10, 20]},
        targets=[Target("ours", "torch", at_most=0.2)],
        items=8,
        unit="MB",
    )
    ours, torch_row = rows(race, run_race(race, rounds=2), part="toy", judge=True)
    assert (ours["ratio"], ours["ratio_of"], ours["reached"], ours["unit"]) == (0.2, "time", "yes", "MB")
    assert ours["items_per_second"] == pytest.approx(8 / 3)
    assert (torch_row["ratio_of"], torch_row["ratio"]) == ("speed", 0.2)
    ones = {"ours": np.ones(2), "torch": np.ones(2)}
    (hasty, _) = rows(race, Measured(ones, ones), part="toy", judge=False)
    assert hasty["reached"] == ""


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (np.array([1.0, 2.0]), np.array([1.0, 2.5]), "differ by 0.25 of the largest value; 0.1 is allowed"),
        ({"output": 1.0}, {"output": np.nan}, "differ in output by inf"),
        ({"output": [np.zeros(2)]}, {"output": [np.zeros(3)]}, "differ in output.0 by inf"),
        (["one"], ["two"], "differ in 0 by inf"),
        ({"a": 1}, {"b": 1}, "return different things: b and a"),
    ],
)
def test_those_who_disagree_are_refused(first: object, second: object, said: str) -> None:
    contestants = [Contestant("first", lambda: first), Contestant("second", lambda: second)]
    with pytest.raises(DisagreementError, match=said):
        run_race(Race("race", contestants, tolerance=0.1))


def test_those_who_agree_and_limits_are_not_refused() -> None:
    values = [torch.tensor([1.0, torch.nan]).bfloat16(), np.array([1.05, np.nan]), np.zeros(7)]
    roles = ("ours", "other", "limit")
    contestants = [Contestant(role, lambda: None, role) for role in roles]  # type: ignore[arg-type]
    check_values(Race("race", contestants, tolerance=0.1), dict(zip(roles, values, strict=True)))


class Toy(Part):
    """A part of a test."""

    rounds = 4
    difference: ClassVar[float] = 0.0

    def races(self, settings: Settings) -> Iterator[Race]:
        contestants = [
            Contestant("one", lambda: 1.0, "ours"),
            Contestant("two", lambda: 1.0 + self.difference),
        ]
        yield Race("adding", contestants, 0.1, [Target("one", BEST, at_least=1e-9)])


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> type[Toy]:
    monkeypatch.setattr(parts, "names", lambda: ["toy"])
    monkeypatch.setattr(parts, "part", lambda name: {"toy": Toy}[name]())
    return Toy


def test_a_run_keeps_everyone_and_the_machine(toy: type[Toy], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = bench_command("--out", out, "--threads", 1)
    assert done.exit_code == 0, done.output
    assert "1 of 1 targets reached" in done.output and "1 threads" in done.output
    assert "two" in done.output and "│ two" not in done.output
    assert "│ two" in bench_command("toy", "--quick", "--full").output
    table = pd.read_csv(out / "table.csv", keep_default_na=False)
    assert list(table) == list(BENCH_COLUMNS)
    assert list(table["contestant"]) == ["one", "two"] and (table["rounds"] == toy.rounds).all()
    sidecar = json.loads((out / "table.json").read_text(encoding="utf-8"))
    assert sidecar["request"]["parts"] == ["toy"]
    assert sidecar["machine"]["torch"] == torch.__version__ and sidecar["machine"]["processor"]
    again = bench_command("toy", "--out", out, "--threads", 1)
    assert again.exit_code == 0 and "is finished" in again.output
    printed = json.loads(bench_command("toy", "--json", "--rounds", 5).output)
    assert printed["out"] is None and printed["table"][0]["rounds"] == 5


def test_a_disagreement_ends_with_1(toy: type[Toy], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toy, "difference", 1.0)
    failed = bench_command("toy", "--out", tmp_path / "out")
    assert failed.exit_code == 1
    assert failed.output.splitlines()[-1].startswith(
        "Error: adding: two and one differ by 1 of the largest value"
    )
    assert not (tmp_path / "out" / "table.csv").exists()


def test_what_is_mistyped_is_refused() -> None:
    assert "Did you mean 'layer'?" in bench_command("layr").output
    assert "--rounds must be at least 1" in bench_command("layer", "--rounds", 0).output
    assert "There is no clock 'cp'" in bench_command("layer", "--clock", "cp").output
    assert "There is no device 'gpu'" in bench_command("layer", "--device", "gpu").output
