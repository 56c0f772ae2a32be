"""A pipeline trained: interrupted, killed, resumed, replaced."""

import itertools
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.models.checkpoints.checkpoint import read_tensors
from moeprobe.models.training.loop import Trainer
from moeprobe.runtime.files import sha256
from tests.commands import refused, run, started, wait_for

SMALL = """
name: small
data: digits
model: {image_size: 16, num_experts: 4, router: dense}
views_per_image: 1
objective: {name: balanced, load_weight: 0.0}
schedule: {warmup_steps: 1}
batch_size: 8
evaluate_every: 4
pipeline:
  teach: {steps: 8}
  distil:
    model.router: softmax_token_choice
    model.top_k: 1
    initialise: {keep_head: true, fresh: ["*.router.*"]}
    freeze: ["*", "!*.router.*"]
    steps: 8
  unfreeze:
    model.router: softmax_token_choice
    model.top_k: 1
    initialise: {keep_head: true}
    steps: 4
"""
STAGES = ["teach", "distil", "unfreeze"]
LEFT = ("last.safetensors", "best.safetensors", "metrics.csv", "config.yaml", "last.json")


def interrupted(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def bytes_of(folder: Path) -> dict[str, bytes]:
    return {f"{stage}/{name}": (folder / stage / name).read_bytes() for stage in STAGES for name in LEFT}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``small.yaml`` and ``checkpoints/small/``, trained without interruption."""
    root = tmp_path_factory.mktemp("pipeline")
    (root / "small.yaml").write_text(SMALL, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        made = run("train", "--config", "small.yaml", "--device", "cpu")
        assert made.exit_code == 0, made.output
    for stage in STAGES:
        assert f"small-{stage}: " in made.stdout and f"Written to checkpoints/small/{stage}/" in made.stdout
    return root


@pytest.fixture
def copy(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(whole, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    return Path("checkpoints/small")


def test_each_stage_starts_from_the_one_before(whole: Path) -> None:
    folder = whole / "checkpoints" / "small"
    assert sorted(path.name for path in folder.iterdir()) == sorted(STAGES)
    teach, distil = (read_tensors(folder / stage / "last.safetensors")[0] for stage in STAGES[:2])
    differ = {name for name in teach if not teach[name].equal(distil[name])}
    assert differ == {name for name in teach if ".router." in name} and differ
    for before, stage in itertools.pairwise(STAGES):
        summary = json.loads((folder / stage / "finished.json").read_text())
        assert summary["started_from"] == {
            "path": f"checkpoints/small/{before}/last.safetensors",
            "sha256": sha256(folder / before / "last.safetensors"),
        }


@pytest.mark.slow
@pytest.mark.promise
def test_killed_in_the_middle_of_the_second_stage_it_goes_on_to_the_same_bytes(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small.yaml").write_text(SMALL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(api.__file__).parents[2])])}
    command = ("train", "--config", "small.yaml", "--device", "cpu")
    with started(*command, cwd=tmp_path, env=environment) as process:
        state = tmp_path / "checkpoints" / "small" / "distil" / "state.safetensors"
        wait_for(state, process)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    folder = tmp_path / "checkpoints" / "small"
    if not state.exists():
        pytest.skip("the stage was over before it could be killed")
    assert (folder / "teach" / "finished.json").exists() and not (folder / "unfreeze").exists()
    before = (folder / "teach" / "last.safetensors").stat().st_mtime_ns
    again = run(*command)
    assert again.exit_code == 0, again.output
    assert "small-teach" in again.stdout and "Finished already" in again.stdout
    assert (folder / "teach" / "last.safetensors").stat().st_mtime_ns == before
    assert bytes_of(folder) == bytes_of(whole / "checkpoints" / "small")


def test_a_finished_one_is_kept_or_replaced_on_request(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = run("train", "--config", "small.yaml", "--json")
    summary = json.loads(kept.stdout)
    assert summary["kept"] and list(summary["stages"]) == STAGES and summary["name"] == "small-unfreeze"
    # Killed while the first stage is replaced, nothing is left that was trained from what was there.
    monkeypatch.setattr(Trainer, "run", interrupted)
    assert run("train", "--config", "small.yaml", "--overwrite", "--device", "cpu").exit_code == 130
    assert not any((copy / stage / "last.safetensors").exists() for stage in STAGES)


def test_another_first_stage_is_noticed(copy: Path) -> None:
    weights = copy / "distil" / "last.safetensors"
    weights.write_bytes((copy / "teach" / "last.safetensors").read_bytes())
    with pytest.raises(UserError, match=r"unfreeze was trained from other weights than .*distil.* holds now"):
        api.train_pipeline("small.yaml", resume=True)
    said = refused("train", "--config", "small.yaml", "seed=4")
    assert "teach holds a finished run of another configuration; add --overwrite" in said


def test_other_files_are_left_alone(copy: Path) -> None:
    (copy / "mine.txt").write_text("mine")
    for extra in ("--resume", "--overwrite"):
        assert "holds mine.txt, which is no stage of small" in refused(
            "train", "--config", "small.yaml", extra
        )


def test_it_is_shown_and_listed(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(whole)
    shown = run("train", "--config", "small.yaml", "--show").stdout
    assert shown.count("---") == 2 and "checkpoint: checkpoints/small/distil" in shown
    assert "dense-to-sparse-digits" in run("list", "pipelines").stdout
