"""The life cycle that all runs have: computed, tables, figures, and last the mark that the folder is finished."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from moeprobe.declarations.options import Options
from moeprobe.errors import FinishedError
from moeprobe.probes.engine.run import Work
from moeprobe.results.folder import OutputFolder
from moeprobe.results.sidecars import Sidecar, provenance
from moeprobe.runtime.files import write_text
from moeprobe.runtime.progress import Progress


@dataclass
class Answer:
    sidecar: Sidecar


class Counting(Work[Answer]):
    """Notes what is done, and what lies in the folder by then."""

    def __init__(self, options: Options, *, broken: bool = False) -> None:
        self.options, self.broken = options, broken
        self.request = {"kind": "count", "seed": options.seed}
        self.steps: list[tuple[str, list[str]]] = []

    def note(self, step: str, folder: OutputFolder | None) -> None:
        files = [] if folder is None else sorted(path.name for path in folder.path.glob("[a-z]*.*"))
        self.steps.append((step, files))

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Answer:
        self.note("compute", folder)
        return Answer(self.make_sidecar(wall_seconds=self.seconds, device="cpu", colors={}, extra=1))

    def write(self, result: Answer, folder: OutputFolder) -> Answer:
        self.note("write", folder)
        write_text(folder.path / "table.csv", "a\n")
        return result

    def finish(self, result: Answer, folder: OutputFolder | None) -> Answer:
        self.note("finish", folder)
        return Answer(Sidecar(result.sidecar | {"notes": []}))

    def draw(self, result: Answer, folder: OutputFolder, progress: Progress) -> None:
        self.note("draw", folder)
        if self.broken:
            raise RuntimeError("no font")


def test_the_tables_come_before_the_figures_and_the_mark_is_last(tmp_path: Path) -> None:
    work = Counting(Options(out=tmp_path / "out"))
    work.execute(Progress())
    assert work.steps == [
        ("compute", ["run.json"]),
        ("write", ["run.json"]),
        ("finish", ["run.json", "table.csv"]),
        ("draw", ["run.json", "table.csv"]),
    ]
    sidecar = json.loads((tmp_path / "out" / "table.json").read_text())
    keys = ["request", "command", "colours", "wall_seconds", "device", "extra", *provenance(), "notes"]
    assert list(sidecar) == keys
    with pytest.raises(FinishedError):
        Counting(Options(out=tmp_path / "out")).execute(Progress())


def test_a_figure_that_cannot_be_drawn_costs_no_table(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        Counting(Options(out=tmp_path / "out"), broken=True).execute(Progress())
    assert (tmp_path / "out" / "table.csv").exists()
    assert not (tmp_path / "out" / "table.json").exists()


def test_without_a_folder_nothing_is_written_or_drawn() -> None:
    work = Counting(Options())
    assert work.execute(Progress()).sidecar["notes"] == []
    assert [step for step, _ in work.steps] == ["compute", "finish"]
