"""The share of mutants that tests kill: by hand, and the committed tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks.mutants import Mutant, counts, files, share, survivors
from moeprobe.runtime.files import write_csv

FOLDER = Path(__file__).parents[2] / "reports" / "mutants"
FILES = ("moeprobe/judging/words.py", "moeprobe/judging/tables.py")


def drawn() -> tuple[list[Mutant], dict[str, bool]]:
    """Eight mutants of one file, of which one survives, and four of another, of which two do."""
    mutants = [
        Mutant(f"{file}-{number}", file, 10 + number, "text", f"-{number} → +{number}")
        for file, many in zip(FILES, (8, 4), strict=True)
        for number in range(many)
    ]
    left = {f"{FILES[0]}-3", f"{FILES[1]}-0", f"{FILES[1]}-2"}
    return mutants, {mutant.name: mutant.name not in left for mutant in mutants}


def test_the_share_weights_files_by_all_of_their_mutants() -> None:
    table = counts(*drawn(), dict(zip(FILES, (300, 100), strict=True)))
    assert table.to_numpy().tolist() == [[FILES[0], 300, 8, 7], [FILES[1], 100, 4, 2]]
    value, low, high = share(table)
    assert value == pytest.approx(0.75 * 7 / 8 + 0.25 * 1 / 2)
    # Wilson's interval with as many mutants as a simple random sample with this error would have, and t for 12.
    variance = 0.75**2 * 7 / 64 / 7 * (1 - 8 / 300) + 0.25**2 / 4 / 3 * (1 - 4 / 100)
    t = stats.t.isf(0.025, 11)
    reach = t**2 * variance / (value * (1 - value))
    half = np.sqrt(reach * (value * (1 - value) + reach / 4))
    assert (low, high) == pytest.approx(
        tuple((value + reach / 2 + side * half) / (1 + reach) for side in (-1, 1))
    )


def test_a_survivor_keeps_its_reason(tmp_path: Path) -> None:
    mutants, killed = drawn()
    first = survivors(mutants, killed, tmp_path / "none.csv")
    assert first["line"].tolist() == [13, 10, 12] and set(first["reason"]) == {""}
    write_csv(tmp_path / "survivors.csv", first.assign(reason=["equivalent: a", "", "open: b"], line=1))
    killed[f"{FILES[1]}-2"], killed[f"{FILES[1]}-1"] = True, False
    again = survivors(mutants, killed, tmp_path / "survivors.csv")
    assert again["reason"].tolist() == ["equivalent: a", "", ""] and again["line"].tolist() == [13, 10, 11]


def test_every_survivor_of_the_committed_sample_has_a_reason() -> None:
    table, left = pd.read_csv(FOLDER / "table.csv"), pd.read_csv(FOLDER / "survivors.csv")
    assert left["reason"].str.match(r"(equivalent|open): \w").all()
    numbers = left["file"].value_counts()
    assert (table["drawn"] - table["killed"] == table["file"].map(numbers).fillna(0)).all()
    assert table["drawn"].sum() >= 400 and set(table["file"]) <= set(files())
