"""The table of ``make torture``: a run of a few rows leaves all others."""

from pathlib import Path

import pandas as pd

from benchmarks.torture.faults import Finding
from benchmarks.torture.table import write


def test_a_part_of_the_rows_replaces_these_alone(tmp_path: Path) -> None:
    write(tmp_path, [Finding("kill -9", "merge", times=3, codes={-9}), Finding("kill -9", "train", times=2)])
    write(tmp_path, [Finding("no HOME", "train", times=1), Finding("kill -9", "merge", times=30, again=0.5)])
    table = pd.read_csv(tmp_path / "faults.csv", dtype=str, keep_default_na=False)
    assert table[["fault", "command", "times", "again"]].to_numpy().tolist() == [
        ["kill -9", "train", "2", ""],
        ["no HOME", "train", "1", ""],
        ["kill -9", "merge", "30", "0.50"],
    ]
