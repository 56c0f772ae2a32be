"""A sweep of pipelines: every stage is trained once, the last one is measured, and a kill between stages loses none."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.studies import train as training

PIPELINE = """
data: digits
model: {image_size: 16, depth: 2, num_experts: 4, router: dense}
views_per_image: 1
objective: {name: balanced, load_weight: 0.0}
schedule: {warmup_steps: 1}
batch_size: 8
evaluate_every: 2
pipeline:
  teach: {steps: 2}
  unfreeze:
    model.router: softmax_token_choice
    model.top_k: 1
    initialise: {keep_head: true, fresh: ["*.router.*"]}
    steps: 4
"""
SWEEP = """
name: many
base: small.yaml
cells:
  - {label: whole}
  - {label: taught, stages: [teach]}
measure: {limit: 24, views: [], sigmas: [], shots: [], contagion: false}
"""
CELLS = ["whole-seed0", "taught-seed0"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.yaml").write_text(PIPELINE, encoding="utf-8")
    (tmp_path / "many.yaml").write_text(SWEEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("moeprobe.studies.tradeoff.run.draw_figures", lambda *_, **__: None)
    return tmp_path


@pytest.mark.slow
@pytest.mark.promise
def test_stages_are_trained_once_and_the_last_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = api.plan_tradeoff("many.yaml", out="out", device="cpu")
    assert [(cell.name, cell.state, cell.steps) for cell in plan.cells] == [
        (CELLS[0], "to train", 6),
        (CELLS[1], "to train", 2),
    ]
    train = training.train
    trained: list[str] = []

    def stopping(config: Any, **options: Any) -> Any:
        if config.name.endswith("unfreeze") and len(trained) == 1:
            raise KeyboardInterrupt
        trained.append(config.name)
        return train(config, **options)

    monkeypatch.setattr(training, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        api.tradeoff("many.yaml", out="out", device="cpu")
    first = folder / "checkpoints/many/whole-seed0/teach/last.safetensors"
    stamp = first.stat().st_mtime_ns
    between = api.plan_tradeoff("many.yaml", out="out", device="cpu").cells[0]
    assert (between.state, between.steps) == ("interrupted", 4)
    trained.append("")
    result = api.tradeoff("many.yaml", out="out", device="cpu")
    assert result.states == dict.fromkeys(CELLS, "trained") and first.stat().st_mtime_ns == stamp
    table = result.table[result.table["metric"] == "accuracy"]
    assert list(table["checkpoint"]) == CELLS and list(table["group"]) == ["whole", "taught"]
    assert list(table["router"]) == ["softmax_token_choice", "dense"]
    steps = result.table[result.table["metric"] == "training_steps"]
    assert list(steps["value"]) == [4, 2]  # of the last stage
    # Nothing is left to do, with or without the sweep.
    again = api.tradeoff("many.yaml", out="out", device="cpu")
    assert set(again.states.values()) == {"kept"}
    pd.testing.assert_frame_equal(api.tradeoff([], out="out", device="cpu").table, again.table)
    with pytest.raises(UserError, match="of another configuration"):
        api.tradeoff("many.yaml", out="other", overrides=["pipeline.unfreeze.steps=6"], device="cpu")
