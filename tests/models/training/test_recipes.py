"""The configurations that come with the project: the released values, and that each of them trains."""

import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import VisionTransformer

from moeprobe import api
from moeprobe.models import config, config_files
from moeprobe.models.checkpoints.checkpoint import load
from moeprobe.models.checkpoints.header import CheckpointInfo
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.runtime.schema import Plugin
from tests.golden import golden
from tests.inputs.data import making

PAPER = [name for name in config_files.names() if name.startswith("vmoe-")]
LAYOUTS = [name for name in config_files.names() if name.startswith("routers/vmoe-")]
PRINTED = {
    "paper/vmoe-s32-imagenet224-prc": ("adamw", 224),
    "paper/vmoe-s32-imagenet384-prc": ("momentum", 384),
}
OWN = [name for name in config_files.names() if name not in (*PAPER, *LAYOUTS, *PRINTED)]
DUMPS = {
    "vmoe-s32-imagenet224-baseline": "vmoe_s32_pretrain",
    "vmoe-s32-imagenet224-prc": "prc_ilsvrc2012_full",
    "vmoe-s32-imagenet384-baseline": "vmoe_s32_finetune384",
    "vmoe-s32-imagenet384-prc": "prc_ilsvrc2012_ft",
    "vmoe-s32-cifar100-prc": "prc_cifar100_ft",
}
IMAGES = 1_268_355  # 99 % of ImageNet's training images


def test_the_recipes_are_there() -> None:
    sets = ("imagenet224", "imagenet384", "cifar10", "cifar100", "flowers102")
    assert sorted(f"vmoe-s32-{data}-{kind}" for data in sets for kind in ("baseline", "prc")) == PAPER


@pytest.mark.golden
@pytest.mark.parametrize(("name", "dump"), DUMPS.items())
def test_released_values(name: str, dump: str) -> None:
    recipe, released = config.load(name), golden(f"configs/{dump}.json")
    encoder = released["model"]["encoder"]
    moe, router = encoder["moe"], encoder["moe"]["router"]
    optimizer, rate = released["optimizer"], released["optimizer"]["learning_rate"]
    train = released["dataset"]["train"]

    assert recipe.batch_size == train["batch_size"]
    assert recipe.views_per_image == (2 if train.get("contrastive") else 1)
    assert recipe.evaluate_every == released["evaluate"]["every_steps"]
    assert f"{recipe.loss}_xent" == released["loss"]["name"]
    assert recipe.mixup == released.get("mixup", {}).get("concentration", 0)
    rows = recipe.batch_size * recipe.views_per_image
    steps = released.get("train_steps") or math.ceil(released["train_epochs"] * IMAGES / rows)
    assert recipe.steps == steps

    assert {"adam": "adamw", "sgd": "momentum"}[optimizer["name"]] == recipe.optimizer.name
    assert recipe.optimizer.learning_rate == pytest.approx(rate["peak_value"], rel=1e-12)
    assert recipe.optimizer.clip_norm == optimizer["gradient_clip"]["global_norm"]
    assert recipe.optimizer.weight_decay == dict(optimizer.get("weight_decay", [])).get(".*/kernel", 0)
    assert recipe.optimizer.betas == [optimizer.get("b1", 0.9), optimizer.get("b2", 0.999)]
    assert recipe.optimizer.momentum == optimizer.get("momentum", 0.9)
    assert rate["schedule"] == f"warmup_{recipe.schedule.name}_decay"
    assert recipe.schedule.warmup_steps == rate["warmup_steps"]
    assert recipe.schedule.end_value == pytest.approx(rate["end_value"], rel=1e-12)

    model = build_model(recipe.model.model_copy(update={"num_classes": released["model"]["num_classes"]}))
    size = re.search(r"(?:inception_crop|augment|randaug_ssl)\((\d+)", train["process"])
    assert size is not None
    image_size = int(size[1])
    assert model.patch_embed.img_size == (image_size, image_size)
    assert list(model.patch_embed.patch_size) == released["model"]["patch_size"]
    assert model.embed_dim == released["model"]["hidden_size"]
    assert len(model.blocks) == encoder["num_layers"]
    assert ("fc_norm.0.weight" in model.state_dict()) == (
        released["model"]["representation_size"] is not None
    )
    assert model.head.bias[0].item() == pytest.approx(released["model"]["head_bias_init"])
    assert list(moe_layers(model)) == [f"blocks.{layer}" for layer in moe["layers"]]
    layer = moe_layers(model)["blocks.5"]
    tokens = model.patch_embed.num_patches + 1
    assert layer.group_images * tokens == moe["group_size"]
    assert layer.experts.dropout == moe["dropout_rate"]
    assert layer.bfloat16_dispatch == router["dispatcher"]["bfloat16"]
    assert layer.router.num_experts == moe["num_experts"]
    assert layer.router.top_k == router["num_selected_experts"]
    assert layer.router.noise_std == router["noise_std"]
    assert layer.router.batch_priority == router["dispatcher"]["batch_priority"]
    assert layer.router.capacity.factor == router["dispatcher"]["capacity_factor"]
    overrides = released["evaluate"].get("model_overrides")
    deployed = overrides["encoder"]["moe"]["router"] if overrides else router
    assert layer.router.eval_capacity.factor == deployed["dispatcher"]["capacity_factor"]
    crop = "central_crop(224)" in released["dataset"]["val"]["process"]
    assert recipe.model.crop_fraction == (224 / 256 if crop else None)

    losses = dict(router.get("additional_losses", []))
    if losses:
        assert router["importance_loss_weight"] == router["load_loss_weight"] == 0
        assert recipe.objective == Plugin(
            name="prc_released",
            diagonal_weight=losses["matrix_top1_diagonal"],
            offdiagonal_weight=losses["matrix_top1_offdiagonal"],
            class_pair=released["patch_correspondence"]["cls_correspondence"],
        )
    else:
        assert recipe.objective == Plugin(
            name="balanced",
            importance_weight=router["importance_loss_weight"],
            load_weight=router["load_loss_weight"],
        )


@pytest.mark.parametrize(
    ("kind", "steps"), [("baseline", math.ceil(300 * IMAGES / 8192)), ("prc", math.ceil(300 * IMAGES / 1024))]
)
def test_pretraining_is_300_epochs(kind: str, steps: int) -> None:
    assert config.load(f"vmoe-s32-imagenet224-{kind}").steps == steps


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in (*OWN, *PAPER)
        if "-baseline" in name and "imagenet" not in name and not name.endswith("-mixup")
    ],
)
def test_baseline_and_prc_differ_in_their_objective_alone(name: str) -> None:
    names = (name, name.replace("-baseline", "-prc"))
    one, two = (config.load(name).model_dump() for name in names)
    for key in ("name", "group", "objective", "initialise"):
        one.pop(key), two.pop(key)
    assert one == two


@pytest.mark.parametrize("data", ["digits", "shapes"])
def test_the_baseline_with_mixup_differs_in_mixup_alone(data: str) -> None:
    """Of one view per image: mixed images have no pairs."""
    one, two = (config.load(f"{data}-baseline{end}").model_dump() for end in ("", "-mixup"))
    differing = {key for key in one if one[key] != two[key]}
    assert differing == {"name", "group", "mixup", "views_per_image"}
    assert two["mixup"] > 0 and two["views_per_image"] == 1


def test_fine_tuning_starts_where_pretraining_ends() -> None:
    for kind in ("baseline", "prc"):
        tuned = config.load(f"fashion-{kind}-ft").initialise
        assert tuned is not None and tuned.checkpoint == f"checkpoints/fashion-{kind}" and not tuned.keep_head
    for name in PAPER:
        recipe = config.load(name)
        kind = name.rpartition("-")[2]
        start = None if "imagenet224" in name else f"checkpoints/vmoe-s32-imagenet224-{kind}"
        assert (recipe.initialise.checkpoint if recipe.initialise else None) == start


@pytest.mark.parametrize("name", config_files.names())
def test_every_recipe_fits_itself(name: str) -> None:
    """Its view, objective and groups exist and fit; k = 1 is an override."""
    recipe = config.load(name, ["model.top_k=1"])
    api.open_view(recipe.view.name, **recipe.view.parameters)
    # Without memory: the largest of them has three thousand million parameters.
    with torch.device("meta"):
        layers = moe_layers(build_model(recipe.model.model_copy(update={"num_classes": 3}))).values()
    assert {layer.router.top_k for layer in layers} == {1}
    assert {recipe.batch_size * recipe.views_per_image % layer.group_images for layer in layers} == {0}


def one_step(name: str, folder: Path, *more: str) -> tuple[VisionTransformer, CheckpointInfo]:
    """One step of a recipe, which must leave a checkpoint that loads: this one."""
    small = ["steps=1", "schedule.warmup_steps=0", "data.workers=0", "evaluate_every=1", "eval_batch_size=8"]
    summary = api.train(name, overrides=[*small, *more], folder=folder, device="cpu")
    assert summary["steps"] == 1
    metrics = pd.read_csv(folder / "metrics.csv")
    assert np.isfinite(metrics.to_numpy(dtype=float)).all()
    model, info = load(folder)
    assert info.model == ModelConfig.model_validate(info.model.model_dump()) and info.training["step"] == 1
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    return model, info


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OWN if not name.startswith(("fashion-", "photographs-"))])
def test_one_step_of_our_own_recipes(name: str, tmp_path: Path) -> None:
    small = ["batch_size=8"] if "shapes" in name else []
    one_step(name, tmp_path / name, *small)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["baseline", "prc"])
def test_one_step_on_fashion_mnist_and_one_of_fine_tuning_it(kind: str, tmp_path: Path) -> None:
    """From one model with k = 2 come one with k = 2 and one with k = 1, for larger images and with new heads."""
    small = [f"data.name=fashion_mnist:{making.mnist(tmp_path / 'data')}", "batch_size=8"]
    start = tmp_path / "start"
    before, _ = one_step(f"fashion-{kind}", start, *small)
    for top_k in (2, 1):
        more = [
            *small,
            f"initialise.checkpoint={start}",
            f"model.top_k={top_k}",
            "optimizer.learning_rate=1e-9",
        ]
        model, info = one_step(f"fashion-{kind}-ft", tmp_path / f"k{top_k}", *more)
        assert (info.model.image_size, info.model.top_k) == (32, top_k)
        for name, parameter in model.named_parameters():
            if name == "pos_embed" or name.startswith("head."):
                continue  # resampled, and new
            assert torch.allclose(parameter, before.get_parameter(name), atol=1e-6), name
        assert not torch.allclose(model.head.weight, before.head.weight, atol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["baseline", "prc"])
def test_one_step_on_photographs_moves_what_the_recipe_leaves_free(kind: str, tmp_path: Path) -> None:
    """From a dense model of the size of the pretrained one: the package with its weights is nothing that tests need."""
    weights = tmp_path / "vit_s14.safetensors"
    dense = timm.create_model("vit_small_patch14_dinov2", img_size=126, num_classes=0)
    save_file(dense.state_dict(), weights)
    stamps = making.stamps(tmp_path / "data")
    small = [f"data.name=photographs:{stamps}", f"model.upcycle.file={weights}", "batch_size=2"]
    model, _ = one_step(f"photographs-{kind}", tmp_path / "run", *small, "optimizer.learning_rate=0.01")
    before = dense.state_dict()
    for name, parameter in model.named_parameters():
        if name in before:
            is_same = torch.allclose(parameter, before[name], atol=1e-6)
            assert is_same == (not name.startswith("norm.")), name


def test_the_layouts_of_the_study_of_routers() -> None:
    """32 experts in every second block; C = round(k · T / E), for a group of whole images."""
    tokens = {"routers/vmoe-b32": 50, "routers/vmoe-b16": 197, "routers/vmoe-l16": 197}
    assert set(LAYOUTS) == set(tokens)
    for name in LAYOUTS:
        recipe = config.load(name)
        with torch.device("meta"):
            model: Any = build_model(recipe.model.model_copy(update={"num_classes": 1000}))
        layers = moe_layers(model)
        assert list(layers) == [f"blocks.{block}" for block in range(1, len(model.blocks), 2)]
        for layer in layers.values():
            router, size = layer.router, layer.group_images * tokens[name]
            assert router.num_experts == 32
            for k in (1, 2):
                capacity = router.capacity.capacity(group_size=size, num_experts=32, top_k=k)
                assert capacity == round(k * size / 32)


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images in ImageNet's layout."""
    return making.imagenet(tmp_path_factory.mktemp("data") / "imagenet")


@pytest.mark.slow
def test_one_step_of_pretraining_at_its_own_size(imagenet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pretrained"
    model, _ = one_step("vmoe-s32-imagenet224-prc", folder, f"data.name=imagenet:{imagenet}", "batch_size=4")
    assert moe_layers(model)["blocks.5"].router.num_experts == 8
    shutil.rmtree(folder)


FEWER = "model.num_experts=4"  # of 8: they are most of the weights, and what is tested does not depend on their number


@pytest.fixture(scope="module")
def pretrained(
    imagenet: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, tuple[Path, VisionTransformer]]]:
    """One step of either pretraining: its folder and its model."""
    root, found = tmp_path_factory.mktemp("pretrained"), {}
    for kind, batch in (("baseline", 8), ("prc", 4)):
        folder = root / f"vmoe-s32-imagenet224-{kind}"
        more = (f"data.name=imagenet:{imagenet}", f"batch_size={batch}", FEWER)
        found[kind] = folder, one_step(folder.name, folder, *more)[0]
    yield found
    shutil.rmtree(root)


FINE = [name for name in PAPER if "imagenet224" not in name]
MODIFIED: dict[str, list[str]] = {name: [] for name in FINE} | {"vmoe-s32-cifar10-prc": ["model.top_k=1"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", FINE)
def test_one_step_of_fine_tuning(
    name: str, pretrained: dict[str, tuple[Path, VisionTransformer]], tmp_path: Path
) -> None:
    """At the recipe's resolution, from the checkpoint of one step of pretraining."""
    data, kind = name.removeprefix("vmoe-s32-").split("-")
    catalog_name = "imagenet" if data == "imagenet384" else data
    location: Any = making.location_of(catalog_name, tmp_path / "data")
    batch = {"imagenet384": 8 if kind == "baseline" else 4, "flowers102": 2}.get(data, 4)
    start, source = pretrained[kind]
    folder = tmp_path / name
    tuned, info = one_step(
        name,
        folder,
        f"data.name={catalog_name}:{location}",
        f"batch_size={batch}",
        f"initialise.checkpoint={start}",
        "optimizer.learning_rate=1e-12",
        FEWER,
        *MODIFIED[name],
    )
    assert (info.training["initialise"] or {})["checkpoint"] == str(start)
    torch.testing.assert_close(
        tuned.blocks[5].mlp.experts.fc1.weight, source.blocks[5].mlp.experts.fc1.weight
    )
    torch.testing.assert_close(tuned.pos_embed[:, 0], source.pos_embed[:, 0])
    assert not hasattr(tuned.fc_norm, "0")
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", PRINTED)
def test_the_values_of_the_papers_table(name: str) -> None:
    """Table 1 of Kada et al.; what it does not print is as released."""
    optimizer, size = PRINTED[name]
    recipe, released = config.load(name), config.load(name.removeprefix("paper/"))
    assert (recipe.optimizer.name, recipe.optimizer.learning_rate) == (optimizer, 5e-4)
    assert recipe.schedule.name == "cosine" and recipe.schedule.warmup_steps > 0
    assert recipe.objective == Plugin(name="prc", diagonal_weight=5e-3, offdiagonal_weight=5e-2)
    assert recipe.view == released.view and recipe.mixup == 0 and recipe.views_per_image == 2
    differs = {"name", "group", "objective", "optimizer", "schedule", "initialise"}
    ours, theirs = (one.model_dump(exclude=differs) for one in (recipe, released))
    assert ours == theirs
    with torch.device("meta"):
        model: Any = build_model(recipe.model.model_copy(update={"num_classes": 1000}))
    assert (len(model.blocks), model.embed_dim, model.patch_embed.patch_size) == (8, 512, (32, 32))
    assert model.patch_embed.img_size == (size, size)
    layers = moe_layers(model)
    assert list(layers) == ["blocks.5", "blocks.7"]  # the sixth and the eighth
    assert {layer.router.num_experts for layer in layers.values()} == {8}
    start = recipe.initialise and recipe.initialise.checkpoint
    before = None if size == 224 else f"checkpoints/{config.load('paper/vmoe-s32-imagenet224-prc').name}"
    assert start == before
