"""The command line as a user meets it: results, files, exit codes."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from moeprobe.cli.commands.explain import KINDS
from moeprobe.results.tables import COLUMNS, FLOORS
from moeprobe.routing import other_dtype
from tests.commands import Trained, names_in, refused, run, sentence, shell


@pytest.mark.pictures
def test_match_ratio_writes_what_it_says(trained: Trained, tmp_path: Path) -> None:
    out = tmp_path / "match"
    result = run("match-ratio", *trained.values(), "--limit", 40, "--out", out)
    assert result.exit_code == 0, result.output
    assert names_in(out) == {
        "run.json", "table.csv", "table.json", "comparison.csv", "images.parquet", "figures",
    }  # fmt: skip
    assert sorted(path.name for path in (out / "figures").iterdir()) == ["match-ratio.png"]
    for name in ("table.csv", "table.json", "comparison.csv", "images.parquet", "figures/match-ratio.png"):
        assert name in result.output
    table = pd.read_csv(out / "table.csv")
    assert list(table.columns) == list(COLUMNS)
    assert set(table["checkpoint"]) == {"baseline", "prc"}
    assert set(table["layer"]) == {"blocks.1", "blocks.3"}
    assert set(table["tokens"]) == {"patch", "prefix"}
    # An expert may have no token of some image.
    assert (table.loc[table["expert"].isna(), "images"] == 40).all()
    sidecar = json.loads((out / "table.json").read_text())
    assert sidecar["request"]["view"]["name"] == "random_crop"
    assert set(sidecar["checkpoints"]) == {"baseline", "prc"}
    assert len(sidecar["checkpoints"]["prc"]["sha256"]) == 64
    # What the screen shows is what the file holds.
    row = table.query(
        "checkpoint == 'prc' and layer == 'blocks.3' and metric == 'top1_match_kappa' and null == 'pooled'"
        " and tokens == 'patch'"
    )
    assert (
        f"{row['value'].item():.3f} [{row['ci_low'].item():.3f}, {row['ci_high'].item():.3f}]"
        in result.output
    )


@pytest.mark.pictures
@pytest.mark.slow
@pytest.mark.promise
def test_the_same_command_twice_gives_the_same_bytes(trained: Trained, tmp_path: Path) -> None:
    files = {}
    for name, more in (("first", ()), ("again", ("--batch-size", 17))):
        arguments = ("noise-sweep", *trained.values(), "--limit", 30, "--sigmas", "0,0.2", "--svg", *more)
        assert run(*arguments, "--out", tmp_path / name / "noise").exit_code == 0
        files[name] = {
            path.relative_to(tmp_path / name): path.read_bytes()
            for path in (tmp_path / name).rglob("*")
            if path.suffix in (".csv", ".png", ".svg", ".parquet")
        }
    assert len(files["first"]) == 7
    # In another batch size the forward rounds otherwise in the last place; what counts does not change.
    first, again = (pd.read_csv(tmp_path / name / "noise" / "table.csv") for name in ("first", "again"))
    # All but the noise floor, which is about just that.
    same = [table[~table["view"].isin(FLOORS)] for table in (first, again)]
    pd.testing.assert_frame_equal(*same, rtol=1e-4, atol=1e-6)
    repeat = tmp_path / "repeat" / "noise"
    run("noise-sweep", *trained.values(), "--limit", 30, "--sigmas", "0,0.2", "--svg", "--out", repeat)
    for path, content in files["first"].items():
        assert (tmp_path / "repeat" / path).read_bytes() == content, path


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
        pytest.param(
            ("sweep", "--view", "randaugment", "--severities", "0,10"),
            marks=[pytest.mark.slow, pytest.mark.promise],
        ),
        ("match-ratio", "--view", "prc_crops"),
        pytest.param(("match-ratio", "--view", "randaugment"), marks=[pytest.mark.slow, pytest.mark.promise]),
    ],
)
def test_every_probe_runs(trained: Trained, command: tuple[str, ...]) -> None:
    result = run(command[0], trained["baseline"], trained["prc"], *command[1:], "--limit", 22)
    assert result.exit_code == 0, result.output
    assert "22 images of digits test; [low, high]: 95 % interval" in result.output
    assert "Nothing was written" in result.output


def test_eval_agrees_with_counting(trained: Trained) -> None:
    """Against the model run by hand, without the library's own batches, traces and tables."""
    import torch

    from moeprobe.inputs.data.digits import Digits
    from moeprobe.models.checkpoints import checkpoint

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


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.pictures
def test_overlay_of_own_files(trained: Trained, tmp_path: Path) -> None:
    picture = tmp_path / "mine.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 50, 3), dtype=np.uint8)).save(picture)
    out = tmp_path / "overlay"
    result = run("overlay", *trained.values(), "--file", picture, "--svg", "--out", out)
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (out / "figures").iterdir()) == [
        "overlay-blocks.1.png", "overlay-blocks.1.svg", "overlay-blocks.3.png", "overlay-blocks.3.svg",
    ]  # fmt: skip
    patches = pd.read_csv(out / "patches.csv")
    assert len(patches) == 2 * 2 * 16
    assert (patches["changed"] == (patches["clean_expert"] != patches["perturbed_expert"])).all()


def test_overlay_of_named_images(trained: Trained, tmp_path: Path) -> None:
    from moeprobe.inputs.data.digits import Digits

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


def test_unlabeled_folder_gives_routing_and_no_accuracy(trained: Trained, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(rng.integers(0, 255, (33, 45, 3), dtype=np.uint8)).save(tmp_path / f"{number}.png")
    result = run("noise-sweep", trained["prc"], "--data", f"folder:{tmp_path}", "--sigmas", "0,0.1", "--json")
    assert result.exit_code == 0, result.output
    table = pd.DataFrame(json.loads(result.stdout)["table"])
    assert "accuracy" not in set(table["metric"])
    assert {"top1_match", "prediction_agreement"} <= set(table["metric"])
    assert set(table["flag"]) <= {"few_images", "collapsed", "no_trials"}
    assert table["ci_low"].isna().all()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=[pytest.mark.slow, pytest.mark.promise])],
)
def test_an_interrupted_run_goes_on(
    number: int, code: int, trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moeprobe.probes.engine import loop

    arguments = ("confidence", *trained.values(), "--limit", 30)
    whole, out = tmp_path / "a" / "run", tmp_path / "b" / "run"
    monkeypatch.setattr(loop, "BLOCK_IMAGES", 16)
    run(*arguments, "--out", whole)
    real, calls = loop.measure_block, []

    def interrupted(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == 3:
            signal.raise_signal(number)
        return real(*args)

    monkeypatch.setattr(loop, "measure_block", interrupted)
    ended = run(*arguments, "--out", out)
    assert ended.exit_code == code
    assert f"Finished parts are in {out}" in ended.stderr
    assert not (out / "table.json").exists()
    assert run(*arguments, "--out", out).exit_code == 0
    assert len(calls) == 5, "four blocks in all, one of them begun twice"
    assert (out / "table.csv").read_bytes() == (whole / "table.csv").read_bytes()
    assert not (out / "parts").exists()


def test_list_alone_names_what_can_be_listed() -> None:
    lines = run("list").output.splitlines()
    assert [line.split()[2] for line in lines if line.startswith("moeprobe")] == [*KINDS]
    assert any(re.search(r"moeprobe list views +perturbations of images", line) for line in lines)
    assert "sweeps" in json.loads(run("list", "--json").stdout)


@pytest.mark.parametrize(
    "kind", ["routers", "views", "data", "analyses", "objectives", "adapters", "readers", "models", "configs"]
)
def test_list_names_everything_with_a_description(kind: str) -> None:
    found = json.loads(run("list", kind, "--json").stdout)
    assert found
    assert all(len(description) > 10 for description in found.values()), found
    listed = run("list", kind).output
    assert all(name in listed for name in found)


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
    printed = run("inspect", trained["prc"])
    assert "V-MoE" not in printed.stderr
    # On the screen keys are spelled as all other words, and shares have digits that mean something.
    assert "normalization" in printed.stdout and "initialize" in printed.stdout
    accuracy = found["training"]["val_accuracy"]
    assert f"val accuracy {accuracy:.4g}" in " ".join(printed.stdout.split())
    assert f"{accuracy}" not in printed.stdout or len(f"{accuracy}") <= 6


def test_doctor_finds_nothing_wrong() -> None:
    findings = json.loads(run("doctor", "--json").stdout)
    assert {finding["level"] for finding in findings} <= {"ok", "note"}
    assert "torch and torchvision" in {finding["subject"] for finding in findings}


@pytest.mark.parametrize("emulated", [True, False])
def test_doctor_says_where_bfloat16_is_emulated(emulated: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_dtype, "is_emulated", lambda _device: emulated)
    findings = json.loads(run("doctor", "--json").stdout)
    assert ("bfloat16" in {finding["subject"] for finding in findings}) is emulated


@pytest.mark.slow
def test_exit_codes_and_streams(trained: Trained) -> None:
    good = shell("eval", trained["prc"], "--limit", 20, "--json")
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)["table"]
    bad = shell("list", "nowhere")
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "nowhere" in sentence(bad)
    assert shell("eval", "--no-such-option").returncode == 2
    assert "nowhere" in refused("eval", "nowhere")


def test_a_closed_pipe_is_no_error() -> None:
    """Nobody reads, from the first line on."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "moeprobe", "list", "configs"]
    result = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (result.returncode, result.stderr) == (0, "")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import atexit, sys; sys.argv = ['moeprobe', '--help'];"
        "heavy = {'torch', 'timm', 'scipy', 'pandas', 'matplotlib', 'pyarrow', 'sklearn', 'transformers'};"
        "atexit.register(lambda: print(sorted(heavy & set(sys.modules)), file=sys.stderr));"
        "import moeprobe.__main__"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "match-ratio" in result.stdout
    assert result.stderr == "[]\n"


def test_package_runs_as_a_module() -> None:
    result = shell("--version")
    assert result.returncode == 0
    assert result.stdout.startswith("moeprobe 0.")
