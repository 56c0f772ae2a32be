"""The report on aligned experts: which rows of a run its tables keep, and how they read."""

from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from reports.scripts import align_tables, regenerate_align

BASELINE, PRC = "digits-baseline-k2", "digits-prc-k2"


def rows(checkpoint: str, **numbers: float) -> list[dict[str, object]]:
    shared = {
        "data": "digits",
        "k": 2,
        "layer": "blocks.1",
        "null": "",
        "images": 360,
        "checkpoint": checkpoint,
    }
    return [
        shared
        | {"metric": name, "value": number, "ci_low": number - 0.1, "ci_high": number + 0.1}
        | {"model": regenerate_align.model_of(checkpoint)}
        for name, number in numbers.items()
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shares = dict.fromkeys(regenerate_align.SHARES, 0.25)
    table = pd.DataFrame(
        rows(BASELINE, **shares)
        + rows(PRC, **shares | {"share_data": 0.5})
        + rows(f"{PRC} − {BASELINE}", **shares)
        + [
            row
            for seed, fitted in enumerate([0.375, 0.25, 0.5])
            for row in rows(
                f"{PRC}-seed0 with seed{seed + 1}", **dict.fromkeys(regenerate_align.PAIRS, fitted)
            )
        ]
        + rows(BASELINE, joint_routing=0.75)
    )
    regenerate_align.shares_of(table).to_csv(tmp_path / "shares.csv", index=False)
    regenerate_align.pairs_of(table).to_csv(tmp_path / "pairs.csv", index=False)
    return tmp_path


def test_shares_have_intervals_and_differences_have_signs(folder: Path) -> None:
    _, _, baseline, prc, difference = align_tables.shares(folder)
    assert baseline.startswith("| `digits` | 2 | `blocks.1` | V-MoE | 0.25 [0.15, 0.35] |")
    assert prc.startswith("| `digits` | 2 | `blocks.1` | V-MoE with PRC | 0.50 [0.40, 0.60] | 0.25 ")
    assert difference.startswith("| `digits` | 2 | `blocks.1` | difference | +0.25 [+0.15, +0.35] |")


def test_pairs_are_the_lowest_and_the_highest(folder: Path) -> None:
    _, _, line = align_tables.pairs(folder)
    assert (
        line
        == f"| `digits` | 2 | `blocks.1` | V-MoE with PRC |{' 0.250 to 0.500 |' * (len(regenerate_align.PAIRS) - 1)}"
    )
    assert set(pd.read_csv(folder / "pairs.csv")["pairs"]) == {3}


def test_trainings_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(regenerate_align, "FOLDERS", (tmp_path,))
    for seed in range(3):
        (tmp_path / f"digits-baseline-k1-seed{seed}").mkdir()
        (tmp_path / f"digits-prc-k1-seed{seed}").mkdir()
    assert len(regenerate_align.checkpoints("digits", 1, 3)) == 6
    (tmp_path / "digits-prc-k1-seed2").rmdir()
    with pytest.raises(api.UserError, match=r"Train digits-prc-k1-seed2 first"):
        regenerate_align.checkpoints("digits", 1, 3)
