"""Dense vision transformers of timm as the start of sparse ones."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.models import config
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.upcycle import upcycle
from moeprobe.models.timm import VisionTransformer, register_model
from moeprobe.models.training import start
from moeprobe.models.training.objectives.base import BatchViews
from moeprobe.models.training.reporting import Report
from moeprobe.models.training.start import check_dense, upcycle_from
from moeprobe.models.training.tasks import Classification
from moeprobe.runtime.distributed import Alone
from tests.commands import refused, run
from tests.models.training.tiny import finish, results, tiny_config, trainer

# Small forms of timm's: ours beside timm's own arguments.
SIZES: dict[str, Any] = {"width": 24, "depth": 2, "num_heads": 2, "patch_size": 8, "image_size": 16}
THEIRS: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 2, "patch_size": 8, "img_size": 16}
NAME = "vit_tiny_patch16_224"
# Each has something that plain ones have not.
KINDS = {
    NAME: "class token",
    "vit_base_patch16_siglip_224": "attention pooling, no class token",
    "vit_small_patch14_reg4_dinov2": "registers without positions, layer scale",
    "vit_base_patch16_clip_224": "a norm before, no bias in the patch embedding",
    "vit_medium_patch16_gap_256": "mean of the patches, no class token, no bias in qkv",
    "vit_base_patch16_rpn_224": "norm after, fc_norm",
    "vit_base_patch32_plus_256": "another head count",
    "deit_tiny_distilled_patch16_224": "two heads",
}


def dense_model(name: str = NAME, *, seed: int = 0, **changes: Any) -> nn.Module:
    """A dense model whose every parameter is random."""
    torch.manual_seed(seed)
    model = timm.create_model(name, **(THEIRS | changes), num_classes=5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.2)
    return model.eval()


class Raising(VisionTransformer):
    """A model of a user whose forward pass has a bug."""

    def forward_features(self, *inputs: Any, **_: Any) -> Tensor:
        raise KeyError("positions")


@register_model
def raising_vit(**_: Any) -> VisionTransformer:
    return Raising(**THEIRS, num_classes=5)


@register_model
def unbuilt_vit(**_: Any) -> VisionTransformer:
    raise AttributeError("no width")


def test_what_a_model_of_a_user_raises_is_a_sentence(tmp_path: Path) -> None:
    built = r"^The model 'unbuilt_vit' raised AttributeError: no width while it was built \(.*test_upcycling\.py:\d+\)"
    with pytest.raises(UserError, match=built):
        check_dense("unbuilt_vit")
    with pytest.raises(UserError, match=built):
        build_model(ModelConfig(name="unbuilt_vit", num_classes=5))
    save_file(dense_model("raising_vit").state_dict(), tmp_path / "dense.safetensors")
    with pytest.raises(
        UserError, match=r"^The model 'raising_vit' raised KeyError: 'positions' on 8 images of random"
    ):
        api.upcycle(f"timm:raising_vit@{tmp_path / 'dense.safetensors'}", tmp_path / "out", blocks=[1])
    assert not (tmp_path / "out").exists()


def sparse_config(name: str = NAME, **changes: Any) -> ModelConfig:
    content = {"upcycle": {"name": name}, "num_classes": 5, "num_experts": 3, "layers": [1], **SIZES}
    return ModelConfig.model_validate(content | changes)


@pytest.mark.parametrize(
    ("name", "top_k", "renormalise"),
    [*((name, 3, False) for name in KINDS), (NAME, 2, True), (NAME, 1, True)],
    ids=[*KINDS.values(), "two of three, renormalized", "one of three, renormalized"],
)
def test_it_begins_as_the_dense_model_where_weights_sum_to_one(
    name: str, top_k: int, renormalise: bool
) -> None:
    """All experts are equal, and the softmax over all of them sums to one, or over the chosen ones."""
    dense = dense_model(name)
    router = {"name": "softmax_token_choice", "renormalise": renormalise}
    model = build_model(sparse_config(name, top_k=top_k, router=router)).eval()
    heads = {
        key: value for key, value in dense.state_dict().items() if key.startswith(("head.", "head_dist."))
    }
    upcycle(model, dense.state_dict(), source="here")
    assert any(not torch.equal(model.state_dict()[key], value) for key, value in heads.items()), (
        "the head is fresh"
    )
    model.load_state_dict(heads, strict=False)
    images = torch.rand(3, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected, found = dense(images), model(images)
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()
    model.state_dict()["blocks.1.mlp.experts.fc2.bias"][:, 0] += 1
    with torch.inference_mode():
        assert (model(images) - expected).abs().max() > 1e-3 * expected.abs().max(), (
            "this comparison cannot fail"
        )


def test_experts_are_copies_and_routers_small() -> None:
    dense, model = dense_model().state_dict(), build_model(sparse_config(num_experts=64))
    upcycle(model, dense, source="here")
    state = model.state_dict()
    for part in ("fc1", "fc2"):
        for expert in range(64):
            weight = state[f"blocks.1.mlp.experts.{part}.weight"][expert]
            assert torch.equal(weight.T, dense[f"blocks.1.mlp.{part}.weight"])
            bias = state[f"blocks.1.mlp.experts.{part}.bias"][expert]
            assert torch.equal(bias, dense[f"blocks.1.mlp.{part}.bias"])
    # 64 · 24 draws: the standard deviation of their standard deviation is 0.02 / sqrt(2 · 1536) = 0.0004.
    gate = model.state_dict()["blocks.1.mlp.router.gate.weight"]
    assert abs(float(gate.std()) - 0.02) < 0.0016
    assert len(torch.unique(gate)) > 1000


def test_another_resolution_resamples_positions() -> None:
    """Two patches to three with aligned corners: the middle one is the mean of its neighbors; CLS is copied."""
    dense = dense_model().state_dict()
    model = build_model(sparse_config(image_size=24))
    upcycle(model, dense, source="here")
    before, after = dense["pos_embed"][0], model.pos_embed[0]
    torch.testing.assert_close(after[0], before[0])
    torch.testing.assert_close(after[1], before[1])
    torch.testing.assert_close(after[2], (before[1] + before[2]) / 2)
    torch.testing.assert_close(after[5], before[1:].mean(0))
    registers = dense_model("vit_small_patch14_reg4_dinov2").state_dict()
    larger = build_model(sparse_config("vit_small_patch14_reg4_dinov2", image_size=24))
    upcycle(larger, registers, source="here")
    assert larger.pos_embed.shape == (1, 9, 24), "registers and CLS have no positions there"
    torch.testing.assert_close(larger.pos_embed[0, 8], registers["pos_embed"][0, 3])


def test_the_configuration_names_the_model_once(tmp_path: Path) -> None:
    short = config.load("digits-baseline", [f"model.upcycle={NAME}", "model.upcycle.file=x.pth"])
    assert short.model.name == NAME and short.model.upcycle is not None
    assert (short.model.upcycle.name, short.model.upcycle.file) == (NAME, "x.pth")
    tagged = config.load("digits-baseline", [f"model.upcycle={NAME}.augreg_in21k"])
    assert (tagged.model.name, tagged.model.upcycle.name) == (NAME, f"{NAME}.augreg_in21k")  # type: ignore[union-attr]
    (tmp_path / "again.yaml").write_text(config.dump(tagged))
    assert config.load(str(tmp_path / "again.yaml")) == tagged
    both = config.load("digits-baseline", [f"model.upcycle={NAME}", "model.name=vmoe_small_patch32_224"])
    assert both.model.name == "vmoe_small_patch32_224"
    with pytest.raises(UserError, match=r"Did you mean 'model\.upcycle"):
        config.load("digits-baseline", ["model.upcycl=x"])


def written(path: Path, tensors: dict[str, Tensor], how: str) -> str:
    if how == "safetensors":
        save_file(tensors, path)
    else:
        torch.save({"model": {f"module.{name}": value for name, value in tensors.items()}, "epoch": 3}, path)
    return str(path)


@pytest.mark.parametrize("how", ["safetensors", "torch"])
def test_training_starts_from_a_file_and_says_so(how: str, tmp_path: Path) -> None:
    tensors = dense_model().state_dict()
    file = written(tmp_path / f"dense.{'safetensors' if how == 'safetensors' else 'pth'}", tensors, how)
    model = SIZES | {"upcycle": {"name": NAME, "file": file}, "num_experts": 3, "top_k": 2, "layers": [1]}
    begun = trainer(tmp_path / "x", model=model)
    assert torch.equal(begun.model.blocks[0].attn.qkv.weight, tensors["blocks.0.attn.qkv.weight"])
    assert begun.model.head.out_features == 3
    if how == "torch":
        return
    finish(tmp_path / "run", model=model, steps=4, evaluate_every=4)
    loaded, info = checkpoint.load(tmp_path / "run")
    assert list(moe_layers(loaded)) == ["blocks.1"] and info.model.name == NAME
    found = json.loads(run("inspect", tmp_path / "run", "--json").stdout)["training"]["upcycled"]
    assert (found["name"], found["source"], len(found["sha256"])) == (NAME, file, 64)
    assert "upcycled name vit_tiny" in " ".join(run("inspect", tmp_path / "run").stdout.split())


def test_the_command_trains_and_prints_it(tmp_path: Path) -> None:
    file = written(tmp_path / "dense.safetensors", dense_model().state_dict(), "safetensors")
    sizes = [f"model.{key}={value}" for key, value in SIZES.items()]
    more = [
        "model.num_experts=3",
        "model.layers=[1]",
        "steps=2",
        "schedule.warmup_steps=1",
        "evaluate_every=2",
    ]
    folder = tmp_path / "run"
    command = [
        "train",
        "--config",
        "digits-baseline",
        "--folder",
        folder,
        f"model.upcycle={NAME}",
        *sizes,
        *more,
    ]
    result = run(*command, f"model.upcycle.file={file}")
    assert result.exit_code == 0, result.output
    assert f"Upcycled from {NAME} ({file}): experts are copies" in result.stdout
    assert "leave out either" in refused(*command, "initialise=checkpoints/x", "--overwrite")
    assert "Finished already" in run(*command, f"model.upcycle.file={file}").stdout
    written(tmp_path / "dense.safetensors", dense_model(seed=1).state_dict(), "safetensors")
    said = refused(*command, f"model.upcycle.file={file}")
    assert f"trained from other weights than {file} holds now; add --overwrite" in said


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def test_files_that_cannot_be_had_are_sentences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = dense_model().state_dict()
    good = written(tmp_path / "good.safetensors", tensors, "safetensors")
    (tmp_path / "short.safetensors").write_bytes(Path(good).read_bytes()[:5000])
    (tmp_path / "evil.pth").write_bytes(pickle.dumps(Harmful(), protocol=2))
    torch.save({"a": Harmful()}, tmp_path / "worse.pth")
    torch.save({"epoch": 3}, tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    lacking = {name: value for name, value in tensors.items() if name != "blocks.0.norm1.bias"}
    written(tmp_path / "lacking.safetensors", lacking, "safetensors")
    dry = {name: value for name, value in tensors.items() if name != "blocks.1.mlp.fc2.bias"}
    written(tmp_path / "dry.safetensors", dry, "safetensors")
    written(tmp_path / "wide.safetensors", dense_model(embed_dim=32).state_dict(), "safetensors")
    written(tmp_path / "other.safetensors", {"x": torch.zeros(1)}, "safetensors")
    written(tmp_path / "patches.safetensors", dense_model(patch_size=4).state_dict(), "safetensors")
    written(tmp_path / "deep.safetensors", dense_model(depth=3).state_dict(), "safetensors")
    for name, words in (
        ("nowhere.pth", "There is no file"),
        ("short.safetensors", "without executing it"),
        ("evil.pth", "without executing it"),
        ("worse.pth", "without executing it"),
        ("none.pth", "holds no weights"),
        ("list.pth", "holds no weights"),
        ("lacking.safetensors", r"lacks blocks\.0\.norm1\.bias"),
        ("dry.safetensors", r"lacks blocks\.1\.mlp\.fc2, a dense perceptron"),
        (
            "wide.safetensors",
            "has 2 blocks of width 32, the model to fill 2 of width 24: name the model that",
        ),
        ("deep.safetensors", "has 3 blocks"),
        ("other.safetensors", "holds no vision transformer"),
        ("patches.safetensors", r"patch_embed\.proj\.weight is \(24, 3, 4, 4\) there, \(24, 3, 8, 8\) here"),
    ):
        settings = sparse_config(upcycle={"name": NAME, "file": str(tmp_path / name)})
        with pytest.raises(UserError, match=words) as caught:
            upcycle_from(build_model(settings), settings)
        assert "\n" not in str(caught.value)
    assert "executed" not in capsys.readouterr().out


def test_names_that_cannot_be_upcycled_are_sentences() -> None:
    for name, words in (
        ("vit_smal_patch32_224", "Did you mean 'vit_small_patch32_224'"),
        ("swin_tiny_patch4_window7_224", "SwinTransformer; only vision transformers"),
        ("convnext_atto", "ConvNeXt; only vision transformers"),
        ("vmoe_tiny_patch8_32", "sparse already"),
    ):
        with pytest.raises(UserError, match=words):
            check_dense(name)
    other = sparse_config(
        name="vmoe_small_patch32_224", width=None, depth=None, num_heads=None, layers="last-2"
    )
    with pytest.raises(UserError, match="has 2 blocks of width 24, the model to fill 8 of width 512"):
        upcycle(build_model(other), dense_model().state_dict(), source="dense.pth")
    gated = sparse_config("vit_giant_patch14_reg4_dinov2")
    with pytest.raises(UserError, match="gated or normalized inside"):
        build_model(gated)
    parallel = sparse_config("vit_base_patch16_xp_224")
    with pytest.raises(UserError, match=r"blocks\.1 is a ParallelScalingBlock without an MLP"):
        build_model(parallel)


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is fetched is taken over; without a hub, or with another normalization, a sentence says what to do."""
    settings = sparse_config()
    dense = dense_model()

    def fetched(name: str, **arguments: Any) -> nn.Module:
        assert (name, arguments) == (NAME, {"pretrained": True})
        return dense

    def offline(name: str, **arguments: Any) -> nn.Module:
        raise OSError("An error happened while trying to locate the file.\nSecond line")

    model = build_model(settings)
    monkeypatch.setattr(start.timm, "create_model", fetched)
    found = upcycle_from(model, settings)
    assert found == {"name": NAME, "source": f"timm {NAME}.augreg_in21k_ft_in1k"}
    assert torch.equal(model.patch_embed.proj.weight, dense.state_dict()["patch_embed.proj.weight"])
    monkeypatch.setattr(start.timm, "create_model", offline)
    with pytest.raises(
        UserError, match=r"trying to locate the file\); give a file: model\.upcycle\.file=PATH"
    ):
        upcycle_from(model, settings)
    deit = sparse_config("deit_tiny_patch16_224")
    with pytest.raises(UserError, match=r"set model\.mean=\[0\.485,0\.456,0\.406\] model\.std="):
        upcycle_from(model, deit)
    with pytest.raises(UserError, match="timm has no pretrained weights for 'vit_tiny_patch16_384x'"):
        upcycle_from(model, sparse_config("vit_tiny_patch16_384x"))


def _teaching(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """A training of two of three experts, equal to the dense model at its start, that is to stay near it."""
    weights = tmp_path / "dense.safetensors"
    save_file(dense_model().state_dict(), weights)
    model = SIZES | {
        "upcycle": {"name": NAME, "file": str(weights)}, "top_k": 2, "num_experts": 3, "layers": [1],
        "router": {"name": "softmax_token_choice", "renormalise": True}, "capacity_factor": "none",
    }  # fmt: skip
    return {"model": model, "feature_weight": 2.0, "steps": 4} | changes


def test_features_stay_near_those_of_the_dense_model(tmp_path: Path) -> None:
    """0 where nothing has been learned; else by a loop over tokens, and as a part of the loss."""
    one = trainer(tmp_path / "run", **_teaching(tmp_path))
    assert isinstance(one.task, Classification)
    images = torch.rand(16, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    labels = torch.zeros(16, dtype=torch.long)
    views = BatchViews([np.stack([np.eye(3)] * 8)] * 2, np.full((8, 2), 16.0), PatchGrid(2, 2, 8), 1)
    rows = one.task.rows(images, labels, num_views=2, step=0, ranks=Alone())
    one.model.eval()
    with torch.no_grad():
        assert abs(float(one.task.measure(rows, views)["feature_distance"])) < 1e-6
        one.model.blocks[1].mlp.experts.fc2.bias.normal_(std=3.0)
        values = one.task.measure(rows, views)
    teacher: Any = dense_model()
    dense = teacher.forward_features(images).detach().double()
    own = one.model.forward_features(images).detach().double()
    cosines = [
        float(a @ b / (a.norm() * b.norm()))
        for a, b in zip(own.flatten(0, 1), dense.flatten(0, 1), strict=True)
    ]
    expected = 1 - sum(cosines) / len(cosines)
    assert expected > 0.01
    assert float(values["feature_distance"]) == pytest.approx(expected, rel=1e-4)
    weighted = float(values["loss"] - values["main_loss"]) - 2 * expected
    without = trainer(tmp_path / "without", **_teaching(tmp_path, feature_weight=0.0))
    without.model.load_state_dict(one.model.state_dict())
    without.model.eval()
    with torch.no_grad():
        plain = without.task.measure(rows, views)
    assert weighted == pytest.approx(float(plain["loss"] - plain["main_loss"]), abs=1e-4)
    assert "feature_distance" not in plain


def test_a_taught_training_ends_with_the_same_bytes_when_resumed(tmp_path: Path) -> None:
    settings = _teaching(tmp_path, evaluate_every=2)
    finish(tmp_path / "whole", **settings)
    stopped = trainer(tmp_path / "halves", **settings)

    def interrupt(report: Report) -> None:
        if report.step >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped.run(interrupt)
    finish(tmp_path / "halves", **settings)
    assert results(tmp_path / "whole") == results(tmp_path / "halves")


def test_there_is_no_dense_model_to_stay_near(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"feature_weight is about .* model\.upcycle"):
        trainer(tmp_path / "run", feature_weight=1.0)
    with pytest.raises(UserError, match="set feature_weight to 0"):
        tiny_config(feature_weight=1.0, mae={"width": 8, "num_heads": 1})


def test_noise_tells_copies_apart() -> None:
    """Its standard deviation is a share of the weights' own, and no two experts have the same."""
    dense, model = dense_model().state_dict(), build_model(sparse_config(num_experts=16))
    upcycle(model, dense, source="here", noise=0.1)
    copies, weight = model.state_dict()["blocks.1.mlp.experts.fc1.weight"], dense["blocks.1.mlp.fc1.weight"]
    noise = copies - weight.T
    assert float(noise.std() / weight.std()) == pytest.approx(0.1, rel=0.02)
    assert len({float(one.sum()) for one in noise}) == 16


def test_routers_are_the_same_with_and_without_noise() -> None:
    """So two models of one seed differ by the noise alone."""
    dense, gates = dense_model().state_dict(), []
    for noise in (0.0, 0.1):
        torch.manual_seed(3)
        model = build_model(sparse_config())
        upcycle(model, dense, source="here", noise=noise)
        gates.append(model.state_dict()["blocks.1.mlp.router.gate.weight"])
    assert torch.equal(*gates)
