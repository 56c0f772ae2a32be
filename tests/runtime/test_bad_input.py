"""Wrong input gets one sentence and exit code 2, odd images are handled, and nothing is lost or half-written."""

import errno
import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.commands import Trained, refused, run
from tests.conftest import OVERRIDES


def test_missing_checkpoint(tmp_path: Path) -> None:
    assert "There is no checkpoint" in refused("match-ratio", tmp_path / "none")
    assert "no last.safetensors" in refused("match-ratio", tmp_path)


def test_truncated_and_foreign_checkpoints(trained: Trained, tmp_path: Path) -> None:
    content = (trained["prc"] / "last.safetensors").read_bytes()
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(content[: len(content) // 2])
    assert "not a safetensors file, or is truncated" in refused("eval", cut)
    foreign = tmp_path / "foreign.safetensors"
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3)}, foreign)
    assert "not one that moeprobe wrote" in refused("eval", foreign)
    pickled = tmp_path / "model.pt"
    torch.save({"a": 1}, pickled)
    assert "is a file of another program" in refused("inspect", pickled)


def test_unknown_names_get_a_suggestion(trained: Trained) -> None:
    assert "There are: blocks.1, blocks.3" in refused(
        "confidence", trained["prc"], "--layers", "blocks.2"
    ).replace("there are", "There are")
    assert "Did you mean 'digits'?" in refused("confidence", trained["prc"], "--data", "digit")
    assert "Did you mean 'gaussian_noise'?" in refused("sweep", trained["prc"], "--view", "gausian_noise")
    assert "no split 'dev'" in refused("confidence", trained["prc"], "--split", "dev")
    assert "Did you mean 'views'?" in refused("list", "view")
    assert "no device" in refused("eval", trained["prc"], "--device", "tpu")


def test_digits_lie_nowhere_else(trained: Trained) -> None:
    assert "omit :folder" in refused("confidence", trained["prc"], "--data", "digits:folder")


def test_views_that_do_not_fit(trained: Trained) -> None:
    assert "moeprobe sweep --view gaussian_noise" in refused(
        "match-ratio", trained["prc"], "--view", "gaussian_noise"
    )
    assert "moeprobe match-ratio --view random_crop" in refused(
        "sweep", trained["prc"], "--view", "random_crop"
    )
    assert "takes standard deviations from 0 to 10" in refused(
        "noise-sweep", trained["prc"], "--sigmas", "0,-0.1"
    )
    assert "takes numbers" in refused("noise-sweep", trained["prc"], "--sigmas", "0,lots")
    assert "named twice" in refused("noise-sweep", trained["prc"], "--sigmas", "0.1,0.1")


def test_the_same_checkpoint_twice(trained: Trained) -> None:
    assert "named twice" in refused("eval", trained["prc"], trained["prc"])


def test_best_and_last_of_one_run_are_told_apart(trained: Trained) -> None:
    files = (trained["prc"] / "last.safetensors", trained["prc"] / "best.safetensors")
    table = pd.DataFrame(json.loads(run("eval", *files, "--limit", 20, "--json").stdout)["table"])
    assert set(table["checkpoint"]) == {"prc/last", "prc/best"}


@pytest.mark.parametrize("content", [b"", b"no image at all", None])
def test_unreadable_images_are_named_or_skipped(
    trained: Trained, tmp_path: Path, content: bytes | None
) -> None:
    rng = np.random.default_rng(0)
    for number in range(22):
        Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(
            tmp_path / f"{number:02d}.png"
        )
    whole = (tmp_path / "00.png").read_bytes()
    (tmp_path / "bad.png").write_bytes(whole[: len(whole) // 2] if content is None else content)
    data = f"folder:{tmp_path}"
    said = refused("confidence", trained["prc"], "--data", data)
    assert "bad.png" in said and "skip such files with --skip-bad-images" in said
    result = run("confidence", trained["prc"], "--data", data, "--skip-bad-images", "--json")
    found = json.loads(result.stdout)
    assert found["sidecar"]["skipped_images"] == ["bad.png"]
    assert {row["images"] for row in found["table"]} == {22}
    shown = run("confidence", trained["prc"], "--data", data, "--skip-bad-images")
    assert "1 unreadable image skipped: bad.png" in shown.output


def test_odd_images_are_probed(trained: Trained, tmp_path: Path) -> None:
    """Gray, palette, CMYK, RGBA, 16 bits, rotated by EXIF, and smaller than a patch."""
    rng = np.random.default_rng(0)
    pixels = Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8))
    pixels.convert("L").save(tmp_path / "gray.png")
    pixels.convert("P").save(tmp_path / "palette.png")
    pixels.convert("CMYK").save(tmp_path / "cmyk.jpg")
    pixels.convert("RGBA").save(tmp_path / "rgba.png")
    Image.fromarray(rng.integers(0, 65535, (20, 30), dtype=np.uint16)).save(tmp_path / "deep.png")
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels.save(tmp_path / "rotated.jpg", exif=exif)
    pixels.resize((3, 2)).save(tmp_path / "tiny.png")
    for command in (("match-ratio",), ("sweep", "--view", "affine"), ("noise-sweep", "--sigmas", "0,0.1")):
        result = run(command[0], trained["prc"], *command[1:], "--data", f"folder:{tmp_path}", "--json")
        assert result.exit_code == 0, result.output
        # An expert may have no token of some image.
        table = json.loads(result.stdout)["table"]
        assert {row["images"] for row in table if row["expert"] is None} == {7}


def test_empty_folder(trained: Trained, tmp_path: Path) -> None:
    assert "folder" in refused("confidence", trained["prc"], "--data", f"folder:{tmp_path}")
    assert "folder:PATH" in refused("confidence", trained["prc"], "--data", "folder")


def test_output_folders_are_not_lost(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("eval", trained["prc"], "--limit", 20, "--out", out).exit_code == 0
    before = (out / "table.csv").read_bytes()
    assert "is finished" in run("eval", trained["prc"], "--limit", 20, "--out", out).output
    assert "--overwrite" in refused("eval", trained["prc"], "--limit", 21, "--out", out)
    assert (out / "table.csv").read_bytes() == before
    assert run("eval", trained["prc"], "--limit", 21, "--out", out, "--overwrite").exit_code == 0
    assert (out / "table.csv").read_bytes() != before
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("years of work")
    assert "not a folder of moeprobe" in refused("eval", trained["prc"], "--out", mine, "--overwrite")
    assert (mine / "thesis.tex").read_text() == "years of work"


def test_a_folder_that_cannot_be_written(trained: Trained) -> None:
    assert "Cannot write" in refused("eval", trained["prc"], "--limit", 20, "--out", "/proc/moeprobe/run")


def test_a_full_disk_leaves_nothing_half_written(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"
    real = os.fsync
    calls = []

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused("confidence", trained["prc"], "--limit", 20, "--out", out)
    assert not (out / "table.json").exists(), "an unfinished run must not look finished"
    assert not list(out.rglob("*.tmp"))
    monkeypatch.setattr(os, "fsync", real)
    assert run("confidence", trained["prc"], "--limit", 20, "--out", out).exit_code == 0


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("model.topk=2",), "Did you mean 'model.top_k'?"),
        (("model.top_k=9", "model.num_experts=8"), "between 1 and the 8 experts"),
        (("model.image_size=33",), "use a multiple of 8"),
        (("batch_size=many",), "batch_size"),
        (("objective.name=prk",), "Did you mean 'prc'?"),
        (("objective.speed=3",), "no parameter of the objective 'prc' called 'speed'"),
        (("view.name=gaussian_noise",), "makes no random views"),
        (("nonsense",), "key=value"),
        (("steps=5", "epochs=3"), "In the configuration: give either epochs or steps"),
        (("data.name=imagenet:/nowhere",), "no folder"),
        (("model.layers=[9]",), "blocks 0 to 3"),
        (("optimizer.name=wonder",), "optimizer 'wonder'"),
        (("model.name=vmoe_tinny",), "There is no model"),
    ],
)
def test_wrong_configurations(tmp_path: Path, overrides: tuple[str, ...], words: str) -> None:
    folder = tmp_path / "run"
    assert words in refused("train", "--config", "digits-prc", "--folder", folder, *overrides)
    assert not folder.exists() or not list(folder.glob("*.safetensors"))


def test_wrong_configuration_files(tmp_path: Path) -> None:
    assert "Did you mean 'digits-prc'?" in refused("train", "--config", "digit-prc")
    broken = tmp_path / "broken.yaml"
    broken.write_text("name: [unclosed")
    assert "as YAML" in refused("train", "--config", broken)
    broken.write_text("- a\n- list\n")
    assert "mapping" in refused("train", "--config", broken)
    broken.write_text("epochs: 1\nmodel: 7\n")
    assert "model" in refused("train", "--config", broken)


def test_finished_training_is_not_replaced(trained: Trained) -> None:
    before = (trained["prc"] / "last.safetensors").read_bytes()
    again = run("train", "--config", "digits-prc", "--folder", trained["prc"], *OVERRIDES, "name=prc")
    assert again.exit_code == 0, again.output
    assert "Finished already: nothing was trained" in again.stdout
    assert (trained["prc"] / "last.safetensors").read_bytes() == before


def test_finished_training_of_something_else_is_said_to_be_that(trained: Trained) -> None:
    said = refused("train", "--config", "digits-prc", "--folder", trained["prc"], "seed=7")
    assert "finished run of another configuration" in said


def test_an_image_where_a_checkpoint_should_stand(trained: Trained, tmp_path: Path) -> None:
    said = refused("overlay", trained["prc"], tmp_path / "mine.png", "--out", tmp_path / "out")
    assert "mine.png is an image, not a checkpoint" in said and "--file" in said


def test_there_is_nothing_to_evaluate_without_labels(trained: Trained, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(tmp_path / "0.png")
    assert "has no labels" in refused("eval", trained["prc"], "--data", f"folder:{tmp_path}")
    assert "has other classes than the model" in refused("eval", trained["prc"], "--data", "shapes")


def test_the_class_null_needs_classes_and_matches(trained: Trained, tmp_path: Path) -> None:
    Image.fromarray(np.zeros((32, 32, 3), dtype=np.uint8)).save(tmp_path / "0.png")
    data = ("--data", f"folder:{tmp_path}", "--class-null")
    assert "has no labels" in refused("match-ratio", trained["prc"], *data)
    assert "is about matches" in refused("confidence", trained["prc"], "--class-null")
    # Classes that the model does not know are classes all the same.
    arguments = ("match-ratio", trained["prc"], "--data", "shapes", "--limit", 30, "--class-null", "--json")
    rows = json.loads(run(*arguments).stdout)["table"]
    chance = [row for row in rows if row["metric"] == "top1_match_chance" and row["tokens"] == "patch"]
    values = {row["null"]: row["value"] for row in chance}
    assert values["class"] != values["pooled"]


def test_a_wrong_configuration_does_not_cost_the_earlier_run(trained: Trained) -> None:
    before = (trained["prc"] / "last.safetensors").read_bytes()
    arguments = ("train", "--config", "digits-prc", "--folder", trained["prc"], "--overwrite")
    assert "use a multiple of 8" in refused(*arguments, "model.image_size=33")
    assert "view 'random_crop'" in refused(*arguments, "view.first_area=small")
    assert (trained["prc"] / "last.safetensors").read_bytes() == before


def test_a_folder_of_ones_own_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    sentence = refused("train", "--config", "digits-prc", "--folder", tmp_path, "--overwrite")
    assert "not a run folder" in sentence
    assert (tmp_path / "thesis.tex").exists()
