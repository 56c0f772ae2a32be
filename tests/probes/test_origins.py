"""Probes take the data that a checkpoint was trained on, and doubt it on any other."""

import shutil
from pathlib import Path

import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.probes.engine.origins import Origin, data_of, find, is_trained_on
from tests.commands import Trained, refused, run


@pytest.mark.parametrize("command", ["confidence", "eval", "match-ratio"])
def test_what_was_trained_on_is_probed(project: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    result = run(command, "checkpoints/baseline", "checkpoints/prc")
    assert result.exit_code == 0, result.output
    assert "48 images of folder:photos test;" in result.output and "trained on folder:photos" in result.output
    assert "digits" not in result.output


def test_the_data_are_found_from_another_folder(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("confidence", project / "checkpoints" / "baseline", "--limit", 3)
    assert f"3 images of folder:{project.resolve() / 'photos'} test;" in result.output


def test_overlay_correspond_and_trace_say_whose_images_they_are(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    for command in ("overlay", "correspond"):
        result = run(command, "checkpoints/prc", "--count", 1, "--out", tmp_path / command)
        assert "Images of folder:photos" in result.output, result.output
    result = run("trace", "record", "checkpoints/prc", "--limit", 2, "--out", tmp_path / "traces")
    assert "2 images of folder:photos, " in result.output


def test_data_that_have_moved_are_asked_for(project: Path, tmp_path: Path) -> None:
    shutil.copytree(project / "checkpoints" / "prc", tmp_path / "elsewhere" / "a" / "b" / "c" / "prc")
    asked = refused("confidence", tmp_path / "elsewhere" / "a" / "b" / "c" / "prc")
    assert asked == (
        "Error: prc was trained on folder:photos, which was not found; name the data, e.g. --data folder:PATH."
    )


def test_checkpoints_of_different_data_are_not_mixed_silently(
    project: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    asked = refused("match-ratio", trained["baseline"], "checkpoints/prc")
    assert "was trained on digits and" in asked and "on folder:photos; name the data to probe both" in asked


def test_other_data_are_doubted_aloud(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    result = run("confidence", "checkpoints/prc", "--data", "digits", "--limit", 3)
    assert result.exit_code == 0
    warning = "Warning: prc was trained on folder:photos and is probed on digits, whose classes are others."
    assert warning in result.output
    assert "checkpoints trained on" not in result.output
    found = api.confidence(["checkpoints/prc"], data="digits", limit=3)
    assert found.sidecar["checkpoints"]["prc"]["warning"] in warning
    asked = refused("eval", "checkpoints/prc", "--data", "digits")
    assert "other classes than the model prc" in asked and "trained on folder:photos" in asked


@pytest.mark.parametrize(("split", "seen"), [("train", True), ("val", False)])
def test_images_of_the_training_are_doubted_aloud(
    project: Path, split: str, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    said = run("confidence", "checkpoints/prc", "--split", split, "--limit", 3).output
    warning = f"Warning: prc is probed on the split {split!r}, which holds images that it was trained on."
    assert (warning in said) == seen == ("Warning" in said), said
    other = run("confidence", "checkpoints/prc", "--data", "digits", "--split", "train", "--limit", 3).output
    assert "which holds images" not in other


def test_no_checkpoint_and_no_data_is_asked_for(tmp_path: Path) -> None:
    assert "Name the data" in refused("correspond", "--out", tmp_path / "c")


def test_names_that_mean_one_folder_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "checkpoints" / "x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    relative = Origin("x", "folder:photos", tmp_path / "checkpoints" / "x")
    absolute = Origin("y", f"folder:{tmp_path}/photos", None)
    assert data_of([relative, absolute], None) == "folder:photos"
    assert is_trained_on(relative, f"folder:{tmp_path}/photos")
    assert not is_trained_on(relative, "folder:checkpoints")


def test_a_resolution_and_a_name_on_a_hub_are_no_paths(tmp_path: Path) -> None:
    for data in ("shapes:48", "huggingface:someone/birds", "digits"):
        assert find(Origin("x", data, tmp_path)) == data
    with pytest.raises(UserError, match="was not found"):
        find(Origin("x", "imagenet:nowhere", tmp_path))


def test_shards_are_found_by_the_folder_of_their_pattern(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "p" / "shards").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    origin = Origin("x", "webdataset:shards/train-{000..003}.tar", tmp_path / "p" / "checkpoints" / "x")
    where = (tmp_path / "p").resolve()
    assert find(origin) == f"webdataset:{where}/shards/train-{{000..003}}.tar"
