"""What ``train`` does to its folder: nothing to files that are not its own, and nothing while another trains there."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.models import config
from moeprobe.models.checkpoints.importing import check_folder
from moeprobe.runtime.records import RECORD, scan
from moeprobe.studies.train import FAMILY
from tests.commands import Trained, refused, run

SHORT = ("steps=2", "epochs=null", "schedule.warmup_steps=1", "evaluate_every=1", "name=a")
TRAIN = ("train", "--config", "digits-baseline", "--device", "cpu")


def tree(path: Path) -> dict[str, bytes]:
    return {
        item.relative_to(path).as_posix(): item.read_bytes() for item in path.rglob("*") if item.is_file()
    }


@pytest.fixture
def finished(trained: Trained, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained["baseline"], tmp_path / "run"))


def test_a_configuration_beside_other_files_does_not_make_a_run_folder(tmp_path: Path) -> None:
    exp = tmp_path / "exp"
    exp.mkdir()
    (exp / "config.yaml").write_text("data: digits\nsteps: 2\n")
    (exp / "results.txt").write_text("mine")
    before = tree(exp)
    for more in ((), ("--overwrite",), ("--resume",)):
        config = ("--config", exp / "config.yaml")
        assert "not a run folder of moeprobe" in refused("train", *config, "--folder", exp, *more)
    assert tree(exp) == before


def test_a_repository_is_not_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path) -> None:
    """Not even one that began as the folder of a run."""
    subprocess.run(["git", "init", "--quiet", str(finished)], check=True)
    monkeypatch.chdir(finished)
    before = tree(finished)
    assert ".git/" in refused(*TRAIN, *SHORT, "--folder", ".", "--overwrite")
    shutil.rmtree(finished / ".git")
    assert "the working directory" in refused(*TRAIN, *SHORT, "--folder", ".", "--overwrite")
    assert tree(finished) == {name: held for name, held in before.items() if not name.startswith(".git")}


@pytest.mark.parametrize("recorded", [True, False])
def test_overwrite_replaces_a_run_and_nothing_else(finished: Path, recorded: bool) -> None:
    if not recorded:
        (finished / RECORD).unlink()
    (finished / "mine.txt").write_text("mine")
    before = tree(finished)
    assert "leave one of them out" in refused(*TRAIN, *SHORT, "--folder", finished, "--overwrite", "--resume")
    assert "did not write: mine.txt" in refused(*TRAIN, *SHORT, "--folder", finished, "--overwrite")
    assert tree(finished) == before
    (finished / "mine.txt").unlink()
    # Nothing is given up for a run that cannot begin.
    refused(*TRAIN, *SHORT, "data=nowhere", "--folder", finished, "--overwrite")
    assert tree(finished) == {name: held for name, held in before.items() if name != "mine.txt"}
    api.train("digits-baseline", overrides=SHORT, folder=finished, device="cpu", overwrite=True)
    assert scan(finished, FAMILY).foreign == ()
    assert (finished / "config.yaml").read_bytes() != before["config.yaml"]


def test_weights_of_another_program_are_nobodys_to_replace(tmp_path: Path) -> None:
    """In a folder without a record, whatever its files are called."""
    save_file({"weight": torch.zeros(1)}, tmp_path / "last.safetensors", metadata={"format": "pt"})
    for name in ("config.yaml", "metrics.csv", "training.png"):
        (tmp_path / name).write_text("mine")
    before = tree(tmp_path)
    for more in (("--overwrite",), ("--resume",), ()):
        assert "not a run folder of moeprobe" in refused(*TRAIN, *SHORT, "--folder", tmp_path, *more)
    with pytest.raises(UserError, match="did not write"):
        check_folder(tmp_path, Path("source"), overwrite=True)
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    "start",
    [
        "initialise.checkpoint={}",
        "initialise.checkpoint={}/best.safetensors",
        "model.upcycle={{name: vit_tiny_patch16_224, file: {}/last.safetensors}}",
    ],
)
def test_a_run_does_not_replace_the_weights_that_it_starts_from(finished: Path, start: str) -> None:
    linked = finished.with_name("link")
    linked.symlink_to(finished)
    settings = (*SHORT, start.format(linked))
    before = tree(finished)
    sentence = refused(*TRAIN, *settings, "--folder", finished, "--overwrite")
    assert "which this run would replace; copy it out of" in sentence
    assert tree(finished) == before
    # The same where such a run was begun and has no state yet.
    (finished / "finished.json").unlink()
    (finished / "config.yaml").write_text(config.dump(config.load("digits-baseline", settings)))
    before = tree(finished)
    assert "which this run would replace" in refused(*TRAIN, *settings, "--folder", finished)
    assert tree(finished) == before


def test_a_second_training_in_a_folder_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    tried: list[str] = []

    def same(_: object) -> None:
        for other in () if tried else ((), ("seed=7",)):
            settings = (*SHORT, *other)
            with pytest.raises(UserError, match="in use") as raised:
                api.train("digits-baseline", overrides=settings, folder=tmp_path / "a", device="cpu")
            tried.append(str(raised.value))

    api.train("digits-baseline", overrides=SHORT, folder=tmp_path / "a", device="cpu", report=same)
    assert f"in use by process {os.getpid()} on " in tried[0]


@pytest.mark.pictures
def test_a_training_stays_in_its_folder_when_the_working_directory_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    api.train(
        "digits-baseline",
        overrides=SHORT,
        folder="run",
        device="cpu",
        report=lambda _: os.chdir(tmp_path / "elsewhere"),
    )
    assert {path.name for path in tmp_path.iterdir()} == {"run", "elsewhere"}
    assert {"last.safetensors", "training.png", "finished.json"} < set(tree(tmp_path / "run"))
    assert tree(tmp_path / "elsewhere") == {}


def test_a_folder_that_is_removed_during_a_training_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="was removed or emptied"):
        api.train(
            "digits-baseline",
            overrides=SHORT,
            folder=tmp_path / "a",
            device="cpu",
            report=lambda _: shutil.rmtree(tmp_path / "a", ignore_errors=True),
        )
    assert not (tmp_path / "a").exists()


def test_what_is_refused_leaves_no_folder(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    for command in (
        ("noise-sweep", trained["baseline"], "--sigmas=-1"),
        ("match-ratio", trained["baseline"], "--layers", "nowhere"),
        ("eval", trained["baseline"], "--limit", 0),
        ("tradeoff", trained["baseline"], "measure.views=[nowhere]"),
    ):
        result = run(*command, "--out", out)
        assert result.exit_code == 2, (command, result.output)
        assert not out.parent.exists(), command
    for place in ("/dev/null", trained["baseline"] / "config.yaml"):
        for more in ((), ("--dry-run",)):
            assert "is a file" in refused("tradeoff", trained["baseline"], "--out", place, *more)
