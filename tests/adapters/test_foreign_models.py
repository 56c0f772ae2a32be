"""Torch modules of other people's through the command line, as ``py:``, and what is said where it cannot be."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from safetensors.torch import save_file

from moeprobe import api
from moeprobe.adapters.hooks import Hooks
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.probes.engine.models import load_models
from moeprobe.results.caveats import ENOUGH_IMAGES
from tests.adapters import zoo
from tests.commands import pictures, refused, run

SOURCE = """
from tests.adapters import zoo
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.hooks import Hooks

def vit():
    return zoo.vit()

def hooked():
    return Hooks(zoo.vit(seed=1), classes="digits", **zoo.VIT)

def opened():
    return hooked().checkpoint("theirs")

def noisy():
    return Hooks(zoo.vit(zoo.NoisyMoe), classes="digits", **zoo.VIT)

def broken():
    raise ValueError("no weights at hand.\\nAsk for them.")

def number():
    return 3

made = zoo.vit(seed=2)
constant = 3
"""
SETTINGS: dict[str, Any] = {
    "routers": "blocks.*.mlp.gate", "top_k": 2, "image_size": 32, "num_prefix_tokens": 1, "classes": "digits",
    "head": "head", "mean": list(zoo.MEAN), "std": list(zoo.STD),
}  # fmt: skip
DATA = ("--data", "digits", "--limit", "24")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with a module of models and settings beside it."""
    root = tmp_path_factory.mktemp("foreign")
    (root / "foreign_zoo.py").write_text(SOURCE)
    (root / "foreign_fault.py").write_text("import nowhere_to_be_found\n")
    (root / "tiny.yaml").write_text(yaml.safe_dump(SETTINGS))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", list(sys.path))
        patch.chdir(root)
        yield root
    for name in ("foreign_zoo", "foreign_fault"):
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def swept(folder: Path) -> Path:
    """A noise sweep of two foreign models."""
    out = folder / "noise"
    models = ("py:foreign_zoo:vit@tiny.yaml", "py:foreign_zoo:hooked")
    with pictures():
        result = run("noise-sweep", *models, *DATA, "--sigmas", "0,0.2", "--layers", "blocks.3", "--out", out)
    assert result.exit_code == 0, result.output
    return out


@pytest.mark.pictures
def test_a_sweep_of_foreign_models(swept: Path) -> None:
    table = pd.read_csv(swept / "table.csv")
    assert list(table["checkpoint"].unique()) == ["tiny", "hooked"]
    assert set(table["layer"].dropna()) == {"blocks.3"}
    assert {"top1_match_kappa", "gate_highest", "accuracy", "prediction_agreement"} <= set(table["metric"])
    # Undisturbed images keep all their experts.
    clean = table.query("metric == 'top1_match' and severity == 0 and view == 'gaussian_noise'")
    assert len(clean) == 4 and (clean["value"] == 1).all()
    noisy = table.query("metric == 'top1_match' and severity == 0.2 and tokens == 'patch'")
    assert noisy["value"].between(0.1, 0.99).all() and noisy["ci_low"].notna().all()
    assert (swept / "comparison.csv").exists() and (swept / "figures" / "routing.png").exists()
    about = json.loads((swept / "table.json").read_text())["checkpoints"]
    assert about["tiny"]["path"] == "tiny.yaml" and about["tiny"]["factory"] == "foreign_zoo:vit"
    assert about["tiny"]["sha256"] != about["hooked"]["sha256"]
    assert about["tiny"]["normalisation"]["mean"] == list(zoo.MEAN)


def test_the_command_line_and_the_notebook_say_the_same(swept: Path) -> None:
    model = api.wrap(Hooks(zoo.vit(), **{**SETTINGS, "routers": None}), name="tiny")
    found = api.noise_sweep([model], data="digits", limit=24, sigmas=[0, 0.2], layers=("blocks.3",)).table
    table = pd.read_csv(swept / "table.csv").query("checkpoint == 'tiny'")
    np.testing.assert_allclose(table["value"], found["value"].to_numpy(dtype=float), atol=1e-9)


@pytest.mark.pictures
@pytest.mark.slow
def test_other_probes_take_them_too(folder: Path, swept: Path) -> None:
    model = "py:foreign_zoo:vit@tiny.yaml"
    for command, more in (
        ("match-ratio", ("--view", "random_crop")),
        ("confidence", ("--out", folder / "confidence")),
        ("eval", ()),
        ("overlay", ("--count", "1", "--out", folder / "overlay")),
        ("correspond", ("--count", "1", "--out", folder / "correspond")),
        ("fewshot", ("--shots", "1", "--draws", "1")),
        ("contagion", ()),
    ):
        data = ("--data", "digits") if command in ("overlay", "correspond") else DATA
        result = run(command, model, *data, *more)
        assert result.exit_code == 0, (command, result.output)
    assert (folder / "overlay" / "figures" / "overlay-blocks.3.png").exists()
    compared = run("compare", swept, "--out", folder / "compare")
    assert compared.exit_code == 0, compared.output
    report = run("report", folder / "confidence", folder / "overlay", "--out", folder / "report")
    assert report.exit_code == 0, report.output
    assert "tiny.yaml" in (folder / "report" / "report.html").read_text()


def test_inspect_says_what_was_found_and_how_images_come_in(folder: Path) -> None:
    found = json.loads(run("inspect", "py:foreign_zoo:hooked", "--json").stdout)
    assert found["input"] == "RGB in [0, 1], 32 x 32 pixels, the whole image, squashed"
    assert found["normalisation"] == {"mean": list(zoo.MEAN), "std": list(zoo.STD)}
    assert found["routers_found"].startswith("detected")
    assert found["routers"]["blocks.1"].startswith(
        "blocks.1.mlp.gate (Linear): gates the softmax of its logits"
    )
    assert found["parameters"] == sum(parameter.numel() for parameter in zoo.vit().parameters())
    assert [layer["patches"] for layer in found["layers"]] == ["4 x 4 of 8 pixels"] * 2
    shown = run("inspect", "py:foreign_zoo:hooked")
    assert shown.exit_code == 0
    assert "in [0, 1], 32 x 32 pixels" in shown.output and "mean 0.2, 0.3, 0.4" in shown.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("noise-sweep", "py:foreign_zoo:noisy", *DATA, "--attribute"), "noisy cannot replay a routing"),
        (("discontinuity", "py:foreign_zoo:noisy", *DATA), "noisy cannot replay a routing"),
        (("fewshot", "py:foreign_zoo:hooked", *DATA), "hooked does not say what its head reads"),
        (("confidence", "py:foreign_zoo:hooked"), "does not say what it was trained on; name the data"),
        (("confidence", "py:foreign_zoo:vit", *DATA), "py:foreign_zoo:vit@settings.yaml, or let it return"),
        (("confidence", "py:foreign_zoo:vitt", *DATA), "no 'vitt' in foreign_zoo. Did you mean 'vit'?"),
        (
            ("confidence", "py:foreign_zo:vit", *DATA),
            "There is no Python module 'foreign_zo', installed or in",
        ),
        (
            ("confidence", "py:foreign_fault:vit", *DATA),
            "Importing foreign_fault raised ModuleNotFoundError: No module",
        ),
        (("confidence", "py:foreign_zoo:broken", *DATA), "broken raised ValueError: no weights at hand."),
        (
            ("confidence", "py:foreign_zoo:number", *DATA),
            "gives a int; it should return a torch module, a moeprobe",
        ),
        (
            ("confidence", "py:foreign_zoo:constant", *DATA),
            "gives a int; it should return a torch module, a moeprobe",
        ),
        (("confidence", "py:foreign_zoo", *DATA), "A torch module is named as py:package.module:factory"),
        (("confidence", "py:foreign_zoo:vit@no.yaml", *DATA), "There is no settings file no.yaml"),
        (
            ("confidence", "py:foreign_zoo:hooked@tiny.yaml", *DATA),
            "gives a Hooks, which takes no settings file",
        ),
        (("inspect", "py:foreign_zoo:vitt"), "Did you mean 'vit'?"),
    ],
)
def test_what_cannot_be_is_one_sentence(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    assert said in refused(*arguments)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"router": "x"}, "Did you mean 'routers'?"),
        ({"top_k": 0}, "top_k: input should be greater than 0"),
        ({"image_size": None}, "image_size: input should be a valid integer"),
        ({"activation": "relu"}, "activation: input should be 'softmax', 'sigmoid' or 'none'"),
        ({"before": "relu"}, "activation: input should be 'softmax', 'sigmoid' or 'none'"),
        (
            {"before": "softmax", "activation": "none"},
            "before is the earlier name of activation; omit it",
        ),
        ({"weights": "no.safetensors"}, "There is no file of weights"),
        ({"classes": None}, "set the key classes: digits"),
    ],
)
def test_settings_are_checked(folder: Path, change: dict[str, Any], said: str) -> None:
    (folder / "changed.yaml").write_text(yaml.safe_dump(SETTINGS | change))
    assert said in refused("eval", "py:foreign_zoo:vit@changed.yaml", *DATA)


def test_weights_are_loaded_and_checked(folder: Path) -> None:
    state = zoo.vit(seed=5).state_dict()
    (folder / "sub").mkdir()
    save_file(state, folder / "sub" / "w.safetensors")
    parallel = {f"module.{name}": value for name, value in state.items()}
    torch.save({"state_dict": parallel, "epoch": 3}, folder / "sub" / "w.pt")
    (folder / "sub" / "bad.pt").write_bytes(b"nothing of the kind")
    torch.save({"net": folder}, folder / "sub" / "object.pt")
    save_file(
        {name: value for name, value in state.items() if "head" not in name},
        folder / "sub" / "less.safetensors",
    )
    found = []
    for name in ("w.safetensors", "w.pt"):
        # A path in the settings is meant from their folder.
        (folder / "sub" / "loaded.yaml").write_text(yaml.safe_dump(SETTINGS | {"weights": name}))
        found.append(api.load_model("py:foreign_zoo:vit@sub/loaded.yaml", device="cpu"))
    expected = Hooks(zoo.vit(seed=5), **SETTINGS)
    images = torch.rand(2, 3, 32, 32)
    for model in found:
        assert model.name == "loaded"
        torch.testing.assert_close(api.trace(model, images)[0], expected.trace(images)[0])
    for name, said in (
        ("bad.pt", "Cannot read the weights"),
        ("object.pt", "Cannot read the weights"),
        ("less.safetensors", "it lacks 2, e.g. head.weight"),
    ):
        (folder / "sub" / "bad.yaml").write_text(yaml.safe_dump(SETTINGS | {"weights": name}))
        with pytest.raises(UserError, match=said):
            api.load_model("py:foreign_zoo:vit@sub/bad.yaml")


def test_factories_may_return_what_is_ready(folder: Path) -> None:
    names = [api.load_model(f"py:foreign_zoo:{name}", device="cpu").name for name in ("hooked", "opened")]
    assert names == ["hooked", "theirs"]
    with pytest.raises(UserError, match="settings"):
        api.load_model("py:foreign_zoo:made")
    assert api.load_model("py:foreign_zoo:made@tiny.yaml").name == "tiny"


def test_models_of_one_name_are_told_apart_and_code_is_part_of_the_hash(folder: Path) -> None:
    names = ["py:foreign_zoo:made@tiny.yaml", "py:foreign_zoo:vit@tiny.yaml"]
    found = load_models(names, Options(device="cpu"))
    assert [model.name for model in found] == ["tiny/foreign_zoo.made", "tiny/foreign_zoo.vit"]
    with pytest.raises(UserError, match="named twice"):
        load_models([names[0]] * 2, Options(device="cpu"))
    (before,) = load_models([names[1]], Options(device="cpu"))
    again = api.load_model(names[1], device="cpu")
    assert before.provenance["sha256"] == again.provenance["sha256"]
    (folder / "foreign_zoo.py").write_text(SOURCE + "# another line\n")
    assert api.load_model(names[1], device="cpu").provenance["sha256"] != before.provenance["sha256"]


def test_half_precision_runs() -> None:
    images = torch.rand(2, 3, 32, 32)
    scores, routing = Hooks(zoo.vit().bfloat16(), **SETTINGS).trace(images)
    assert scores is not None and scores.dtype == torch.float32
    assert routing.layers["blocks.1"].gates.dtype == torch.float32


def test_group_images_reach_a_model_whose_images_meet(folder: Path) -> None:
    (folder / "foreign_crowd.py").write_text(
        "from tests.adapters import zoo\ndef vit():\n    return zoo.vit(zoo.CrowdedMoe)\n"
    )
    one, two = (
        api.load_model("py:foreign_crowd:vit@tiny.yaml", device="cpu", group_images=size) for size in (1, 2)
    )
    assert (one.model.group_images, two.model.group_images) == (1, 2)
    assert two.provenance["group_images"] == 2


@pytest.mark.slow
@pytest.mark.promise
def test_a_model_at_chance_is_doubted_everywhere(folder: Path) -> None:
    """Fresh parameters are no better than chance."""
    few = run("eval", "py:foreign_zoo:hooked", "--data", "digits", "--limit", ENOUGH_IMAGES - 1)
    assert "Warning" not in few.output
    out = folder / "doubted"
    result = run("eval", "py:foreign_zoo:hooked", "--data", "digits", "--limit", 80, "--out", out)
    assert "Warning: hooked answers no better than chance: accuracy 0." in result.output
    assert "the mean and std of its normalization" in result.output
    assert (
        "over 80 clean images"
        in json.loads((out / "table.json").read_text())["checkpoints"]["hooked"]["warning"]
    )
    run("report", out, "--out", folder / "doubted-report")
    assert (
        "Warning: hooked answers no better than chance"
        in (folder / "doubted-report" / "report.md").read_text()
    )
    model = api.load_model("py:foreign_zoo:hooked", device="cpu")
    sweep = api.noise_sweep([model], data="digits", limit=60, sigmas=[0], layers=("blocks.1",)).sidecar
    assert "over 60 clean images" in sweep["checkpoints"]["hooked"]["warning"]
