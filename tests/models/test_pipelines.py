"""Pipelines as files: what their stages come to, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from moeprobe.errors import UserError
from moeprobe.models import config, pipeline
from moeprobe.models.config import TrainConfig

CONTENT: dict[str, Any] = {
    "name": "two",
    "data": "digits",
    "epochs": 4,
    "seed": 3,
    "model": {"num_experts": 4, "router": "dense"},
    "pipeline": {
        "teach": {"objective": "variation"},
        "distil": {
            "model.router": "softmax_token_choice",
            "model.top_k": 1,
            "initialise": {"keep_head": True, "fresh": ["*.router.*"]},
            "steps": 7,
        },
        "unfreeze": {},
    },
}


def written(folder: Path, **changes: Any) -> str:
    path = folder / "two.yaml"
    path.write_text(yaml.safe_dump(CONTENT | changes, sort_keys=False), encoding="utf-8")
    return str(path)


def test_each_stage_is_what_all_share_with_its_own_changes(tmp_path: Path) -> None:
    found = pipeline.load(written(tmp_path))
    assert found.name == "two" and found.folder == Path("checkpoints/two")
    assert list(found.stages) == ["teach", "distil", "unfreeze"]
    teach, distil, unfreeze = found.stages.values()
    assert [one.name for one in found.stages.values()] == ["two-teach", "two-distil", "two-unfreeze"]
    assert {one.seed for one in found.stages.values()} == {3}
    assert teach.model.router_name == "dense" and teach.epochs == 4 and teach.initialise is None
    assert teach.objective.name == "variation" and distil.objective.name == "balanced"
    assert distil.model.num_experts == 4 and distil.model.top_k == 1 and distil.model.router_name != "dense"
    assert distil.steps == 7 and distil.epochs is None and unfreeze.epochs == 4
    assert distil.initialise is not None and unfreeze.initialise is not None
    assert distil.initialise.checkpoint == "checkpoints/two/teach" and distil.initialise.fresh == [
        "*.router.*"
    ]
    assert unfreeze.initialise.checkpoint == "checkpoints/two/distil" and not unfreeze.initialise.keep_head
    for one in found.stages.values():
        assert config.parse(yaml.safe_load(config.dump(one))) == one


def test_overrides_are_of_all_stages_or_of_one(tmp_path: Path) -> None:
    changes = ["seed=5", "name=own", "group=runs", "batch_size=8", "steps=2", "pipeline.distil.epochs=1"]
    found = pipeline.load(
        written(tmp_path), [*changes, "pipeline.teach.model.num_experts=2"], folder=tmp_path / "runs"
    )
    assert found.name == "own" and found.folder == tmp_path / "runs"
    teach, distil, unfreeze = found.stages.values()
    assert {one.seed for one in found.stages.values()} == {5} and unfreeze.batch_size == 8
    assert teach.name == "own-teach" and teach.group == "runs-teach"
    assert (teach.steps, distil.epochs, distil.steps, unfreeze.steps) == (2, 1, None, 2)
    assert (teach.model.num_experts, distil.model.num_experts) == (2, 4)
    assert distil.initialise is not None and distil.initialise.checkpoint == str(tmp_path / "runs" / "teach")


@pytest.mark.parametrize(
    ("changes", "overrides", "said"),
    [
        ({"pipeline": {}}, [], "pipeline: dictionary should have at least 1 item"),
        ({"pipeline": [1]}, [], "pipeline: input should be a valid dictionary"),
        (
            {"pipeline": {"a/b": {}}},
            [],
            "called by letters, digits, - and _, since it is a folder; got 'a/b'",
        ),
        ({"pipeline": {"a": {"name": "x"}}}, [], "In the stage a, name follows from the pipeline"),
        (
            {"pipeline": {"a": {}, "b": {"initialise": "x"}}},
            [],
            "In the stage b, initialise.checkpoint follows",
        ),
        ({"pipeline": {"a": {}, "b": {"initialise.checkpoint": "x"}}}, [], "initialise.checkpoint follows"),
        (
            {"pipeline": {"a": {"epoch": 3}}},
            [],
            "In the stage a of the pipeline 'two': There is no configuration key",
        ),
        ({"initialise": "x"}, [], r"a key of the first stage \(teach\); move it there"),
        ({}, ["pipeline.distill.epochs=3"], "There is no stage 'distill'. Did you mean 'distil'"),
        ({}, ["pipeline.distil=3"], r"names a key of it: pipeline.distil.epochs=5"),
    ],
)
def test_what_is_no_pipeline_is_refused(
    changes: dict[str, Any], overrides: list[str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=said):
        pipeline.load(written(tmp_path, **changes), overrides)


def test_the_first_stage_may_start_from_a_checkpoint(tmp_path: Path) -> None:
    found = pipeline.load(written(tmp_path, pipeline={"a": {"initialise": "x"}, "b": {}}))
    assert [one.initialise and one.initialise.checkpoint for one in found.stages.values()] == [
        "x",
        "checkpoints/two/a",
    ]


def test_where_one_training_is_wanted_a_pipeline_says_what_it_is(tmp_path: Path) -> None:
    assert pipeline.is_pipeline(written(tmp_path)) and not pipeline.is_pipeline("digits-baseline")
    with pytest.raises(
        UserError, match=r"two is a pipeline of trainings \(teach, distil, unfreeze\), and one"
    ):
        config.load(written(tmp_path))


@pytest.mark.parametrize("name", pipeline.names())
def test_those_that_come_with_it_say_what_they_are(name: str) -> None:
    found = pipeline.load(name)
    assert found.name == name and all(isinstance(stage, TrainConfig) for stage in found.stages.values())
    text = pipeline.path_of(name).read_text(encoding="utf-8")
    assert text.startswith("# ") and f"moeprobe train --config {name}" in text
