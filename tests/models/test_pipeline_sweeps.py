"""Sweeps whose base is a pipeline: what their cells are called, which stages they have, and what mistakes are."""

from pathlib import Path

import pytest

from moeprobe.errors import UserError
from moeprobe.models import grid

PIPELINE = """
data: digits
model: {image_size: 16, num_experts: 4, router: dense}
views_per_image: 1
objective: {name: balanced, load_weight: 0.0}
batch_size: 8
pipeline:
  teach: {steps: 8}
  unfreeze:
    model.router: softmax_token_choice
    model.top_k: 1
    initialise: {keep_head: true, fresh: ["*.router.*"]}
    steps: 4
"""
SWEEP = """
name: many
base: small.yaml
fixed: {batch_size: 4}
cells:
  - {label: moe, pipeline.unfreeze.steps: [2, 6]}
  - label: experts
    stages: [teach]
    fixed: {model.router: softmax_expert_choice}
seeds: [0, 3]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "small.yaml").write_text(PIPELINE, encoding="utf-8")
    (tmp_path / "many.yaml").write_text(SWEEP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_each_cell_is_a_pipeline_of_its_own(folder: Path) -> None:
    sweep = grid.load("many.yaml")
    names = [f"{one}-seed{seed}" for one in ("moe-steps-2", "moe-steps-6", "experts") for seed in (0, 3)]
    assert list(sweep.pipelines) == names
    assert [one.group for one in sweep.cells] == [name.rpartition("-seed")[0] for name in names]
    assert [one.seed for one in sweep.cells] == [0, 3] * 3
    last = sweep.pipelines["moe-steps-6-seed3"]
    assert list(last.stages) == ["teach", "unfreeze"] and last.folder == Path(
        "checkpoints/many/moe-steps-6-seed3"
    )
    assert [one.steps for one in last.stages.values()] == [8, 6]
    start = last.stages["unfreeze"].initialise
    assert start is not None and start.checkpoint == str(last.folder / "teach")
    assert {one.batch_size for one in last.stages.values()} == {4}
    few = sweep.pipelines["experts-seed0"]
    assert list(few.stages) == ["teach"]
    assert few.stages["teach"].model.router_name == "softmax_expert_choice"


def test_the_command_line_changes_stages_and_what_they_share(folder: Path) -> None:
    sweep = grid.load(
        "many.yaml",
        ["pipeline.teach.steps=2", "batch_size=2", "seeds=[1]"],
        checkpoints=Path("elsewhere"),
    )
    one = sweep.pipelines["moe-steps-2-seed1"]
    assert one.stages["teach"].steps == 2 and one.stages["unfreeze"].batch_size == 2
    assert one.folder == Path("elsewhere/many/moe-steps-2-seed1")


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("stages: [teach]", "stages: [teeth]", "There is no stage 'teeth'. Did you mean 'teach'?"),
        ("stages: [teach]", "stages: teach", "its stages a list of names"),
        ("label: experts", "label: moe-steps-2", "each needs its own values, or a label"),
        ("label: experts", "label: [a]", "the label of a cell is a word"),
        ("seeds: [0, 3]", "seeds: [0, 3]\nextra: 1", "extra"),
    ],
)
def test_mistakes_are_said(folder: Path, before: str, after: str, said: str) -> None:
    text = SWEEP.replace(before, after)
    assert text != SWEEP
    (folder / "many.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError) as raised:
        grid.load("many.yaml")
    assert said in str(raised.value)


def test_one_training_has_no_stages(folder: Path) -> None:
    text = "base: digits-baseline\ncells: [{label: a, stages: [teach]}]\n"
    (folder / "many.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match="digits-baseline is no pipeline, so its cells have no stages"):
        grid.load("many.yaml")


@pytest.mark.parametrize("name", ["thesis-digits", "manual-digits"])
def test_the_sweeps_that_come_along_have_their_stages(name: str) -> None:
    sweep = grid.load(name, ["seeds=[0]"])
    stages = {cell.rpartition("-seed")[0]: list(one.stages) for cell, one in sweep.pipelines.items()}
    if name == "manual-digits":
        assert stages == {"manual": ["experts", "gate"], "learned": ["experts"]}
        manual, learned = (list(one.stages.values()) for one in sweep.pipelines.values())
        assert sum(one.epochs or 0 for one in manual) == sum(one.epochs or 0 for one in learned)
        assert manual[0].route_by_class and not manual[1].route_by_class and not learned[0].route_by_class
        assert manual[1].freeze == ["*.experts.*"]
    else:
        whole, two = ["pretrain", "finetune", "distil", "unfreeze"], ["pretrain", "finetune"]
        assert [*stages.values()] == [whole] * 4 + [two] * 4
        kl = sweep.pipelines["moe-kl-seed0"].stages
        assert [one.kl_weight for one in kl.values()] == [0, 0, 1, 0]
