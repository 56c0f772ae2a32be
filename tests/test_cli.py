"""The command line as a user meets it: results, files, exit codes, one-sentence errors."""

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from typer.testing import CliRunner, Result

from moeprobe.cli._app import app
from moeprobe.tables import COLUMNS

Trained = dict[str, Path]


def run(*arguments: object) -> Result:
    """Run a command inside this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shell(*arguments: object, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, as a shell does."""
    command = [sys.executable, "-m", "moeprobe", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **kwargs)


def sentence(result: Result | subprocess.CompletedProcess[str]) -> str:
    """The one line of a user's error; anything else on standard error fails."""
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("Error: ")
    assert "Traceback" not in result.stderr
    return lines[0]


def refused(*arguments: object) -> str:
    """Run what must be refused; returns its sentence."""
    result = run(*arguments)
    assert result.exit_code == 2, (result.exit_code, result.output)
    return sentence(result)


# What works


def test_match_ratio_writes_what_it_says(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "match"
    result = run("match-ratio", *trained.values(), "--limit", 40, "--out", out)
    assert result.exit_code == 0, result.output
    assert {path.name for path in out.iterdir()} == {
        "run.json", "table.csv", "table.json", "comparison.csv", "images.parquet", "figures",
    }  # fmt: skip
    assert sorted(path.name for path in (out / "figures").iterdir()) == ["match-ratio.png", "match-ratio.svg"]
    for name in ("table.csv", "table.json", "comparison.csv", "images.parquet", "figures/match-ratio.png"):
        assert name in result.output
    table = pd.read_csv(out / "table.csv")
    assert list(table.columns) == list(COLUMNS)
    assert set(table["checkpoint"]) == {"baseline", "prc"}
    assert set(table["layer"]) == {"blocks.1", "blocks.3"}
    assert set(table["tokens"]) == {"patch", "prefix"}
    assert (table["images"] == 40).all()
    sidecar = json.loads((out / "table.json").read_text())
    assert sidecar["request"]["view"]["name"] == "random_crop"
    assert set(sidecar["checkpoints"]) == {"baseline", "prc"}
    assert len(sidecar["checkpoints"]["prc"]["sha256"]) == 64
    # What the screen shows is what the file holds.
    row = table.query(
        "checkpoint == 'prc' and layer == 'blocks.3' and metric == 'top1_match' and tokens == 'patch'"
    )
    assert (
        f"{row['value'].item():.3f} [{row['ci_low'].item():.3f}, {row['ci_high'].item():.3f}]"
        in result.output
    )


def test_the_same_command_twice_gives_the_same_bytes(trained: Trained, tmp_path: Path) -> None:
    files = {}
    for name, more in (("first", ()), ("again", ("--batch-size", 17))):
        arguments = ("noise-sweep", *trained.values(), "--limit", 30, "--sigmas", "0,0.2", *more)
        assert run(*arguments, "--out", tmp_path / name / "noise").exit_code == 0
        files[name] = {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.suffix in (".csv", ".png", ".svg", ".parquet")
        }
    assert len(files["first"]) == 7
    identical = [path for path, content in files["first"].items() if files["again"][path] == content]
    # In another batch size the forward rounds otherwise in the last place; what counts does not change.
    first, again = (pd.read_csv(tmp_path / name / "noise" / "table.csv") for name in ("first", "again"))
    pd.testing.assert_frame_equal(first, again, rtol=1e-4, atol=1e-6)
    repeat = tmp_path / "repeat" / "noise"
    run("noise-sweep", *trained.values(), "--limit", 30, "--sigmas", "0,0.2", "--out", repeat)
    for path, content in files["first"].items():
        assert (tmp_path / "repeat" / path).read_bytes() == content, path
    assert identical is not None


def test_noise_sweep_at_zero_is_the_clean_image(trained: Trained) -> None:
    result = run("noise-sweep", trained["prc"], "--limit", 25, "--sigmas", "0,0.3", "--json")
    table = pd.DataFrame(json.loads(result.stdout)["table"])
    at_zero = table[(table["severity"] == 0) & table["metric"].isin(["top1_match", "prediction_agreement"])]
    assert (at_zero["value"] == 1).all()
    noisy = table[(table["severity"] == 0.3) & (table["metric"] == "top1_match")]
    assert (noisy["value"] < 1).all()


@pytest.mark.parametrize(
    "command",
    [
        ("confidence",),
        ("eval",),
        ("sweep", "--view", "affine", "--severities", "0,1"),
        ("sweep", "--view", "randaugment", "--severities", "0,10"),
        ("match-ratio", "--view", "prc_crops"),
        ("match-ratio", "--view", "randaugment"),
    ],
)
def test_every_probe_runs(trained: Trained, command: tuple[str, ...]) -> None:
    result = run(command[0], trained["baseline"], trained["prc"], *command[1:], "--limit", 22)
    assert result.exit_code == 0, result.output
    assert "22 images of digits test" in result.output
    assert "Nothing was written" in result.output


def test_eval_agrees_with_counting(trained: Trained) -> None:
    """Against the model run by hand, without the library's own batches, traces and tables."""
    import torch

    from moeprobe.data.digits import Digits
    from moeprobe.training import checkpoint

    model, _ = checkpoint.load(trained["baseline"])
    data = Digits(split="test")
    images = np.stack(
        [np.asarray(data.example(i).image, dtype=np.float32) / 127.5 - 1 for i in range(len(data))]
    )
    labels = [data.example(i).label for i in range(len(data))]
    with torch.no_grad():
        scores = model.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    expected = float(np.mean(scores.argmax(1).numpy() == labels))
    table = pd.DataFrame(json.loads(run("eval", trained["baseline"], "--json").stdout)["table"])
    assert table.set_index("metric").loc["accuracy", "value"] == pytest.approx(expected, abs=1.5 / 360)


def test_overlay_of_own_files(trained: Trained, tmp_path: Path) -> None:
    picture = tmp_path / "mine.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(picture)
    out = tmp_path / "overlay"
    result = run("overlay", *trained.values(), "--file", picture, "--out", out)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (out / "figures").iterdir()) == [
        "overlay-blocks.1.png", "overlay-blocks.1.svg", "overlay-blocks.3.png", "overlay-blocks.3.svg",
    ]  # fmt: skip
    patches = pd.read_csv(out / "patches.csv")
    assert len(patches) == 2 * 2 * 16
    assert (patches["changed"] == (patches["clean_expert"] != patches["perturbed_expert"])).all()


def test_overlay_of_named_images(trained: Trained, tmp_path: Path) -> None:
    from moeprobe.data.digits import Digits

    name = Digits(split="test").image_ids[3]
    result = run("overlay", trained["prc"], "--images", name, "--json", "--layers", "blocks.3")
    patches = json.loads(result.stdout)["patches"]
    assert {patch["image_id"] for patch in patches} == {name}
    assert {patch["layer"] for patch in patches} == {"blocks.3"}


def test_dry_run_runs_nothing(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "never"
    result = run("noise-sweep", *trained.values(), "--dry-run", "--out", out, "--sigmas", "0,0.1,0.2")
    # One clean pass shared by all severities; sigma 0 is the clean pass itself.
    assert "2 checkpoints x 360 images x 3 forward passes" in result.output
    assert not out.exists()


def test_layers_limits_the_table(trained: Trained) -> None:
    result = run("confidence", trained["prc"], "--layers", "blocks.3", "--limit", 20, "--json")
    assert {row["layer"] for row in json.loads(result.stdout)["table"]} == {"blocks.3"}


def test_unlabelled_folder_gives_routing_and_no_accuracy(trained: Trained, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(rng.integers(0, 255, (33, 45, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    result = run("noise-sweep", trained["prc"], "--data", f"folder:{tmp_path}", "--sigmas", "0,0.1", "--json")
    assert result.exit_code == 0, result.output
    table = pd.DataFrame(json.loads(result.stdout)["table"])
    assert "accuracy" not in set(table["metric"])
    assert {"top1_match", "prediction_agreement"} <= set(table["metric"])
    assert set(table["flag"]) <= {"few_images", "collapsed"}
    assert table["ci_low"].isna().all()


def test_an_interrupted_run_goes_on(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moeprobe import sweeps

    arguments = ("confidence", *trained.values(), "--limit", 30)
    whole, out = tmp_path / "a" / "run", tmp_path / "b" / "run"
    monkeypatch.setattr(sweeps, "_BLOCK", 16)
    run(*arguments, "--out", whole)
    real, calls = sweeps._run_block, []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(sweeps, "_run_block", interrupted)
    assert run(*arguments, "--out", out).exit_code == 130
    assert not (out / "table.json").exists()
    assert run(*arguments, "--out", out).exit_code == 0
    assert len(calls) == 5, "four blocks in all, one of them begun twice"
    assert (out / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()
    assert not (out / "parts").exists()


@pytest.mark.parametrize(
    "kind", ["routers", "views", "data", "analyses", "objectives", "adapters", "models", "configs"]
)
def test_list_names_everything_with_a_description(kind: str) -> None:
    found = json.loads(run("list", kind, "--json").stdout)
    assert found
    assert all(len(description) > 10 for description in found.values()), found
    assert all(name in run("list", kind).output for name in found)


def test_inspect(trained: Trained) -> None:
    found = json.loads(run("inspect", trained["prc"], "--json").stdout)
    # 8 experts of 2·64·128 + 128 + 64 = 16,576 parameters in each of two layers, two of eight active.
    assert found["parameters"] - found["active_parameters"] == 2 * 6 * 16_576
    assert [layer["layer"] for layer in found["layers"]] == ["blocks.1", "blocks.3"]
    # Embedding 16·192·64, attention per block 17·(64·192 + 64·64) + 2·17·17·64, dense MLP 17·2·64·128, gate 17·64·8,
    # experts twice a dense MLP, head 640; two operations each.
    attention = 17 * (64 * 192 + 64 * 64) + 2 * 17 * 17 * 64
    mlp = 17 * 2 * 64 * 128
    exact = 2 * (16 * 192 * 64 + 4 * attention + 2 * mlp + 2 * (17 * 64 * 8 + 2 * mlp) + 640)
    assert found["flops_per_image"] == pytest.approx(exact, rel=0.01)
    assert "V-MoE" not in run("inspect", trained["prc"]).stderr


def test_doctor_finds_nothing_wrong() -> None:
    findings = json.loads(run("doctor", "--json").stdout)
    assert {finding["level"] for finding in findings} <= {"ok", "note"}
    assert "torch and torchvision" in {finding["subject"] for finding in findings}


# What is refused, in one sentence, with exit code 2


def test_missing_checkpoint(tmp_path: Path) -> None:
    assert "There is no checkpoint" in refused("match-ratio", tmp_path / "none")
    assert "no last.safetensors" in refused("match-ratio", tmp_path)


def test_truncated_and_foreign_checkpoints(trained: Trained, tmp_path: Path) -> None:
    content = (trained["prc"] / "last.safetensors").read_bytes()
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(content[: len(content) // 2])
    assert "truncated or no safetensors" in refused("eval", cut)
    foreign = tmp_path / "foreign.safetensors"
    import torch
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3)}, foreign)
    assert "not one that moeprobe wrote" in refused("eval", foreign)
    pickled = tmp_path / "model.pt"
    torch.save({"a": 1}, pickled)
    assert "no safetensors file" in refused("inspect", pickled)


def test_unknown_names_get_a_suggestion(trained: Trained) -> None:
    assert "There are: blocks.1, blocks.3" in refused(
        "confidence", trained["prc"], "--layers", "blocks.2"
    ).replace("there are", "There are")
    assert "Did you mean 'digits'?" in refused("confidence", trained["prc"], "--data", "digit")
    assert "Did you mean 'gaussian_noise'?" in refused("sweep", trained["prc"], "--view", "gausian_noise")
    assert "no split 'dev'" in refused("confidence", trained["prc"], "--split", "dev")
    assert "Did you mean 'views'?" in refused("list", "view")
    assert "no device" in refused("eval", trained["prc"], "--device", "tpu")


def test_views_that_do_not_fit(trained: Trained) -> None:
    assert "moeprobe sweep --view gaussian_noise" in refused(
        "match-ratio", trained["prc"], "--view", "gaussian_noise"
    )
    assert "moeprobe match-ratio --view random_crop" in refused(
        "sweep", trained["prc"], "--view", "random_crop"
    )
    assert "must be at least 0" in refused("noise-sweep", trained["prc"], "--sigmas", "0,-0.1")
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
    assert "bad.png" in refused("confidence", trained["prc"], "--data", data)
    result = run("confidence", trained["prc"], "--data", data, "--skip-bad-images", "--json")
    found = json.loads(result.stdout)
    assert found["sidecar"]["skipped_images"] == ["bad.png"]
    assert {row["images"] for row in found["table"]} == {22}
    shown = run("confidence", trained["prc"], "--data", data, "--skip-bad-images")
    assert "1 unreadable images skipped" in shown.output


def test_odd_images_are_probed(trained: Trained, tmp_path: Path) -> None:
    """Grey, palette, CMYK, RGBA, 16 bits, rotated by EXIF, and smaller than a patch."""
    rng = np.random.default_rng(0)
    pixels = Image.fromarray(rng.integers(0, 255, (20, 30, 3), dtype=np.uint8))
    pixels.convert("L").save(tmp_path / "grey.png")
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
        assert {row["images"] for row in json.loads(result.stdout)["table"]} == {7}


def test_empty_folder(trained: Trained, tmp_path: Path) -> None:
    assert "folder" in refused("confidence", trained["prc"], "--data", f"folder:{tmp_path}")
    assert "folder:PATH" in refused("confidence", trained["prc"], "--data", "folder")


def test_output_folders_are_not_lost(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run("eval", trained["prc"], "--limit", 20, "--out", out).exit_code == 0
    before = (out / "table.csv").read_bytes()
    assert "--overwrite" in refused("eval", trained["prc"], "--limit", 20, "--out", out)
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
        (("data.name=imagenet:/nowhere",), "no folder"),
        (("model.layers=[9]",), "blocks 0 to 3"),
        (("optimizer.name=wonder",), "optimiser 'wonder'"),
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


def test_nothing_to_resume(tmp_path: Path) -> None:
    folder = tmp_path / "x"
    assert "nothing to resume" in refused("train", "--config", "digits-prc", "--folder", folder, "--resume")


def test_finished_training_is_not_replaced(trained: Trained) -> None:
    before = (trained["prc"] / "last.safetensors").read_bytes()
    assert "finished run" in refused("train", "--config", "digits-prc", "--folder", trained["prc"])
    assert (trained["prc"] / "last.safetensors").read_bytes() == before


# As a shell sees it


def test_exit_codes_and_streams(trained: Trained) -> None:
    good = shell("eval", trained["prc"], "--limit", 20, "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["table"]
    bad = shell("eval", "nowhere")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "nowhere" in sentence(bad)
    assert shell("eval", "--no-such-option").returncode == 2


def test_a_closed_pipe_is_no_error(trained: Trained) -> None:
    command = f"{sys.executable} -m moeprobe match-ratio {trained['prc']} --limit 20 | head -n 1"
    result = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False
    )
    assert "Traceback" not in result.stderr
    assert result.returncode == 0, result.stderr


def test_help_is_quick() -> None:
    """A quarter of the time of importing torch, best of three of each, in turns."""
    times: dict[str, list[float]] = {"help": [], "torch": []}
    for _ in range(3):
        for name, code in (
            ("help", "import sys; sys.argv = ['moeprobe', '--help']; import moeprobe.__main__"),
            ("torch", "import torch"),
        ):
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
            times[name].append(time.perf_counter() - begun)
    assert min(times["help"]) < min(times["torch"]) / 4, times


def test_package_runs_as_a_module() -> None:
    result = shell("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("moeprobe 0.")
