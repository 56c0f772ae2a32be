"""A training of a sweep that diverges is a cell that says so."""

import json
from pathlib import Path

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.results.figures.tradeoff import draw
from moeprobe.results.packed import read_pack
from tests.commands import run

SWEEP = """
base: digits-baseline
fixed:
  steps: 4
  schedule.warmup_steps: 0
  evaluate_every: 2
  batch_size: 8
  model.image_size: 16
  optimizer.clip_norm: null
cells:
  - optimizer.name: momentum
    optimizer.learning_rate: [0.001, 1.0e+20]
measure: {limit: 24, views: [], sigmas: [], shots: [], contagion: false}
"""
GOOD, BAD = "name-momentum-learning_rate-0.001-seed0", "name-momentum-learning_rate-1e-20-seed0"


def test_a_diverged_training_is_a_cell_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SWEEP, encoding="utf-8")
    made = run("tradeoff", "small.yaml", "--out", "out", "--device", "cpu")
    assert made.exit_code == 0, made.output
    assert "2 cells: 1 trained, 1 diverged" in made.stdout
    (line,) = [line for line in made.stdout.splitlines() if BAD in line]
    assert "diverged" in line
    words = dict.fromkeys(("layer", "tokens", "null", "view", "flag", "split"), str)
    table = pd.read_csv("out/table.csv", dtype=words).fillna(dict.fromkeys(words, ""))
    own = table[table["checkpoint"] == BAD].set_index("metric")
    assert 0 < own.loc["training_diverged", "value"] <= 4
    assert "accuracy" not in own.index and own.loc["training_diverged", "router"] == "softmax_token_choice"
    assert "training_diverged" not in set(table[table["checkpoint"] == GOOD]["metric"])
    # What is packed is enough for all that follows, and nothing is trained again.
    cells = read_pack(Path("out"))
    assert list(cells) == [GOOD, BAD] and not cells[BAD].runs
    again = json.loads(run("tradeoff", "small.yaml", "--out", "out", "--device", "cpu", "--json").stdout)
    assert again["states"] == {GOOD: "kept", BAD: "kept"}
    accuracy = draw(table)["tradeoff"].axes[0]
    assert "diverged (1)" in [text.get_text() for text in accuracy.texts]


def test_a_sweep_in_which_all_diverge_still_has_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(SWEEP.replace("[0.001, 1.0e+20]", "1.0e+20"), encoding="utf-8")
    result = api.tradeoff("small.yaml", out="out", device="cpu")
    assert set(result.states.values()) == {"diverged"}
    assert set(result.table["metric"]) >= {"training_diverged"} and "accuracy" not in set(
        result.table["metric"]
    )
