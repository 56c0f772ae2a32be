"""Checkpoints: what is written is read again, and what a model can start from."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.models import register_model
from timm.models.vision_transformer import VisionTransformer

from moeprobe.errors import UserError
from moeprobe.models.checkpoints import checkpoint, header
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn import sparse
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.sparse import make_router
from moeprobe.models.nn.vit import resize_position_embedding
from moeprobe.models.training.start import check_dense
from moeprobe.runtime.catalog import ROUTERS

CLASSES = ("a", "b", "c")


class Scaled(VisionTransformer):
    """A user's transformer, whose tokens are scaled by something that is no parameter and no buffer."""

    make_scale: Callable[[], Any] = int

    def __init__(self, **sizes: Any) -> None:
        super().__init__(**sizes)
        self.scale = self.make_scale()

    def forward_features(self, *inputs: Any, **keywords: Any) -> torch.Tensor:
        factor = self.scale["of tokens"] if isinstance(self.scale, dict) else self.scale
        return super().forward_features(*inputs, **keywords) * factor


@register_model
def scaled_vit(num_classes: int = 3, **_: Any) -> VisionTransformer:
    """timm gives more keywords, such as those of pretrained weights."""
    return Scaled(img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=2, num_classes=num_classes)


def config(**changes: object) -> ModelConfig:
    return ModelConfig.model_validate({"image_size": 32, "num_classes": 3, "pre_logits": True} | changes)


def randomized(settings: ModelConfig) -> VisionTransformer:
    torch.manual_seed(0)
    model = build_model(settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    return model


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, VisionTransformer]:
    settings = config()
    model = randomized(settings)
    path = tmp_path / "run/last.safetensors"
    checkpoint.save(path, model, config=settings, training={"seed": 4}, class_names=CLASSES)
    return path.parent, model


def test_what_is_saved_is_loaded(saved: tuple[Path, VisionTransformer]) -> None:
    folder, model = saved
    again, info = checkpoint.load(folder)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert (info.name, info.model, info.class_names) == ("run", config(), CLASSES)
    assert info.training == {"seed": 4} and len(info.hash) == 64
    assert checkpoint.load(folder / "last.safetensors")[1] == info


@pytest.mark.parametrize("router", ROUTERS.names())
def test_a_model_is_loaded_without_drawing_its_parameters(tmp_path: Path, router: str) -> None:
    settings = config(router={"name": router}, top_k=None)
    model = build_model(settings).eval()
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, model, config=settings, training={}, class_names=CLASSES)
    random_state = torch.get_rng_state()
    again = checkpoint.load(path)[0].eval()
    assert torch.equal(torch.get_rng_state(), random_state)
    saved, loaded = dict(model.named_buffers()), dict(again.named_buffers())
    assert saved.keys() == loaded.keys()
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)
    trained = {name: parameter.requires_grad for name, parameter in again.named_parameters()}
    assert trained == {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    pixels = torch.linspace(0, 1, 3 * 32 * 32).view(1, 3, 32, 32)
    with torch.inference_mode():
        assert torch.equal(again(pixels), model(pixels))


def test_parameters_of_fewer_bits_are_loaded_as_the_model_has_them(tmp_path: Path) -> None:
    settings = config()
    narrow = {name: value.bfloat16() for name, value in randomized(settings).state_dict().items()}
    path = tmp_path / "last.safetensors"
    about: dict[str, Any] = {"config": settings, "training": {}, "class_names": CLASSES}
    checkpoint.save(path, randomized(settings), **about, parameters=narrow)
    loaded = checkpoint.load(path)[0].state_dict()
    assert {value.dtype for value in loaded.values()} == {torch.float32}
    assert all(torch.equal(loaded[name], narrow[name].float()) for name in narrow)


def test_what_no_checkpoint_holds_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_places(*values: Any, **keywords: Any) -> Any:
        router = make_router(*values, **keywords)
        router.register_buffer("places", torch.arange(4), persistent=False)
        return router

    monkeypatch.setattr(sparse, "make_router", with_places)
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, randomized(config()), config=config(), training={}, class_names=CLASSES)
    layers = moe_layers(checkpoint.load(path)[0]).values()
    assert [layer.router.get_buffer("places").tolist() for layer in layers] == [[0, 1, 2, 3]] * len(layers)


@pytest.mark.parametrize(
    "scale",
    [
        lambda: torch.tensor(2.0),
        lambda: torch.ones(1, device="cpu").mul_(2),
        lambda: torch.tensor(2.0).item(),
        lambda: {"of tokens": torch.tensor([2.0])},
    ],
    ids=["tensor", "changed in place", "number", "in a container"],
)
def test_a_users_transformer_keeps_what_is_no_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scale: Callable[[], Any]
) -> None:
    """Such a tensor is in no checkpoint, so the code that makes it has to run."""
    monkeypatch.setattr(Scaled, "make_scale", staticmethod(scale))
    settings = ModelConfig(name="scaled_vit", num_classes=3, layers=[0])
    model = randomized(settings).eval()
    path = tmp_path / "last.safetensors"
    checkpoint.save(path, model, config=settings, training={}, class_names=CLASSES)
    pixels = torch.linspace(0, 1, 3 * 16 * 16).view(1, 3, 16, 16)
    with torch.inference_mode():
        assert torch.equal(checkpoint.load(path)[0].eval()(pixels), model(pixels))
    check_dense("scaled_vit")


def test_another_resolution_head_and_top_k(saved: tuple[Path, VisionTransformer]) -> None:
    """Positions are resampled, head and pre-logits are new, everything else is taken over."""
    folder, model = saved
    torch.manual_seed(1)
    fine = build_model(config(image_size=64, num_classes=7, pre_logits=False, top_k=1))
    head = fine.head.weight.detach().clone()
    checkpoint.initialise_from(fine, folder)
    own, theirs = dict(fine.named_parameters()), dict(model.named_parameters())
    for name, parameter in own.items():
        if not name.startswith(("head.", "pos_embed")):
            assert torch.equal(parameter, theirs[name]), name
    wanted = resize_position_embedding(theirs["pos_embed"], num_prefix=1, rows=8, columns=8)
    assert torch.equal(own["pos_embed"], wanted)
    assert torch.equal(own["pos_embed"][:, 0], theirs["pos_embed"][:, 0])
    assert torch.equal(own["head.weight"], head)
    assert {layer.router.top_k for layer in moe_layers(fine).values()} == {1}
    fine(torch.zeros(2, 3, 64, 64))


def test_the_pre_logits_start_anew(saved: tuple[Path, VisionTransformer]) -> None:
    folder, model = saved
    fine = build_model(config())
    checkpoint.initialise_from(fine, folder)
    assert not torch.equal(fine.fc_norm[0].weight, model.fc_norm[0].weight)
    assert torch.equal(fine.pos_embed, model.pos_embed)


def test_a_kept_head(saved: tuple[Path, VisionTransformer]) -> None:
    folder, model = saved
    fine = build_model(config(image_size=16))
    checkpoint.initialise_from(fine, folder, keep_head=True, class_names=CLASSES)
    assert torch.equal(fine.head.weight, model.head.weight)
    assert torch.equal(fine.fc_norm[0].weight, model.fc_norm[0].weight)
    with pytest.raises(UserError, match="of other classes than the data"):
        checkpoint.initialise_from(fine, folder, keep_head=True, class_names=("a", "b", "d"))
    with pytest.raises(UserError, match=r"fc_norm\.0\.bias is \(64,\) there, no such parameter here"):
        checkpoint.initialise_from(build_model(config(pre_logits=False)), folder, keep_head=True)


def test_a_head_that_is_kept_is_complete(tmp_path: Path) -> None:
    settings = config(pre_logits=False)
    checkpoint.save(
        tmp_path / "last.safetensors", randomized(settings), config=settings, training={}, class_names=CLASSES
    )
    with pytest.raises(UserError, match=r"lacks fc_norm\.0\.weight"):
        checkpoint.initialise_from(build_model(config()), tmp_path, keep_head=True)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_experts": 4}, r"blocks\.1\.mlp\.experts\.fc1\.bias is \(8, 128\) there, \(4, 128\) here"),
        ({"layers": [0, 1, 3]}, r"blocks\.0\.mlp\.fc1\.bias is \(128,\) there, no such parameter"),
        ({"patch_size": 16}, r"patch_embed\.proj\.weight is"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(
    saved: tuple[Path, VisionTransformer], changes: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        checkpoint.initialise_from(build_model(config(**changes)), saved[0])


def test_files_that_are_no_checkpoints(saved: tuple[Path, VisionTransformer], tmp_path: Path) -> None:
    path = saved[0] / "last.safetensors"
    with pytest.raises(UserError, match="no checkpoint"):
        checkpoint.load(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"no last\.safetensors"):
        checkpoint.load(tmp_path)
    (tmp_path / "clean.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match="recorded routing is for moeprobe trace"):
        checkpoint.load(tmp_path / "clean.parquet")
    content = path.read_bytes()
    for length in (0, 4, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:length])
        with pytest.raises(UserError, match="not a safetensors file, or is truncated"):
            checkpoint.load(path)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(UserError, match="not one that moeprobe wrote"):
        checkpoint.load(path)
    checkpoint.write_tensors(path, {"x": torch.zeros(1)}, {"format": "another"})
    with pytest.raises(UserError, match="not a checkpoint of a format"):
        checkpoint.load(path)
    about = {"format": header.FORMAT, "model": {"widht": 3}}
    checkpoint.write_tensors(path, {"x": torch.zeros(1)}, about)
    with pytest.raises(UserError, match="describes no model"):
        checkpoint.load(path)
    about["model"] = config().model_dump()
    checkpoint.write_tensors(path, {"x": torch.zeros(1)}, about)
    with pytest.raises(UserError, match="do not fit the model"):
        checkpoint.load(path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"training": None}, "training is a section of keys"),
        ({"training": [1]}, "training is a section of keys"),
        ({"training": {"seed": "four"}}, "training.seed: input should be a valid integer; got 'four'."),
        ({"training": {"group": 5}}, "training.group: input should be a valid string; got 5."),
        ({"training": {"objective": "prc"}}, "training.objective: input should be a valid dictionary"),
        ({"model": {"image_size": "32"}}, "model.image_size: input should be a valid integer; got '32'."),
        ({"model": None}, "model is a section of keys"),
        ({"class_names": [1, 2, 3]}, "class_names.0: input should be a valid string; got 1."),
        ({"class_names": "abc"}, "class_names: input should be a valid list; got 'abc'."),
    ],
)
def test_descriptions_of_other_types_are_sentences(
    changes: dict[str, object], words: str, saved: tuple[Path, VisionTransformer]
) -> None:
    path = saved[0] / "last.safetensors"
    tensors, description = checkpoint.read_tensors(path)
    checkpoint.write_tensors(path, tensors, description | changes)
    with pytest.raises(UserError) as caught:
        checkpoint.load(path)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_description_that_is_nested_too_deeply_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "last.safetensors"
    for text, words in (("[" * 100_000, "nested too deeply"), ("[]", "not one that moeprobe wrote")):
        save_file({"x": torch.zeros(1)}, path, metadata={"description": text})
        with pytest.raises(UserError, match=words):
            checkpoint.load(path)
