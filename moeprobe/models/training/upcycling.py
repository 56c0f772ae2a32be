"""``moeprobe upcycle``: a dense vision transformer as a sparse checkpoint, ready to be probed and trained.

Source: Sparse Upcycling (Komatsuzaki et al. 2023); what is copied is in ``nn.upcycle``.

Axes: B images, T tokens, D width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.inputs.images import Framing
from moeprobe.inputs.open import open_images
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.checkpoints.importing import check_folder, class_names, model_config, save
from moeprobe.models.config import ROUTER, ModelConfig
from moeprobe.models.nn.build import build_model, running_of_user
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.upcycle import upcycle as copy_into_experts
from moeprobe.models.timm import VisionTransformer, timm
from moeprobe.models.training.start import check_dense, fetch_dense, read_dense
from moeprobe.models.training.tasks import Normalise
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.seeds import generator, torch_seed

# How a source of timm begins, and what names a file of its weights.
_TIMM, _FILE = "timm:", "timm:NAME@PATH"
# What a dense checkpoint says of the data that the sparse model has seen, too; seed and group are not its own.
_TRAINED_ON = ("data", "split")
# Images that both models see.
_IMAGES = 8


class Upcycling(TypedDict, total=False):
    """What the dense model does not determine: keys of ``ModelConfig``, and ``renormalise`` of the router."""

    num_experts: int
    top_k: int
    renormalise: bool
    image_size: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None


DEFAULTS: Upcycling = {
    "num_experts": 8,
    "top_k": 2,
    "renormalise": True,
    "image_size": None,
    "mean": None,
    "std": None,
}


@dataclass(frozen=True)
class Upcycled:
    """What was made.

    Attributes:
        folder: of the checkpoint.
        model: its description.
        layers: names of the sparse blocks.
        origin: of the dense weights: ``source``, and of a file its ``sha256``.
        parameters: their number.
        dense_parameters: those of the dense model.
        has_fresh_head: the dense model had no head, so a new one scores the classes of the data.
        difference: largest difference of a token after the last norm from the dense model's, relative to the largest.
        images: that both models saw, and what they were.
    """

    folder: Path
    model: ModelConfig
    layers: tuple[str, ...]
    origin: Mapping[str, Any]
    parameters: int
    dense_parameters: int
    has_fresh_head: bool
    difference: float
    images: str


@dataclass(frozen=True)
class _Dense:
    """A dense model.

    Attributes:
        model: its description.
        tensors: its parameters by timm's names.
        origin: of the parameters.
        class_names: in the order of the head; empty where unknown.
        trained_on: the data of its training, as a checkpoint says it; empty where unknown.
    """

    model: ModelConfig
    tensors: Mapping[str, Tensor]
    origin: Mapping[str, Any]
    class_names: tuple[str, ...] = ()
    trained_on: Mapping[str, Any] = field(default_factory=dict)


@check_arguments
def upcycle(
    source: str,
    folder: str | Path,
    *,
    blocks: Sequence[int] | str,
    data: str | None = None,
    noise: float = 0.0,
    seed: int = 0,
    overwrite: bool = False,
    **settings: Unpack[Upcycling],
) -> Upcycled:
    """Make a dense vision transformer sparse: the MLPs of some blocks become experts, which begin as copies of it.

    With renormalized weights and without noise, the sparse model computes what the dense one does; ``difference`` says
    how nearly. Routers are fresh and small.

    Args:
        source: ``timm:NAME`` with the pretrained weights of timm's hub, ``timm:NAME@PATH`` with those of a file, or a
            dense checkpoint of moeprobe.
        folder: of the new checkpoint, written whole or not at all.
        blocks: numbers from 0, or ``last-2`` or ``every-2``.
        data: data set whose classes the head scores, and whose images both models see; None = classes as in the
            source, if it knows them, and random pixels.
        noise: on the copies, as a share of their weights' standard deviation.
        seed: of routers, noise, a fresh head and random pixels.
        overwrite: replace a checkpoint that is there.
        settings: ``num_experts`` and ``top_k``; ``renormalise``: divide a token's weights by their sum over its
            experts; ``image_size`` in pixels, to which position embeddings are resampled; ``mean`` and ``std`` of the
            normalization, by default those of the source.

    Raises:
        UserError: the source is no dense vision transformer, has no weights or no such block, a setting does not fit,
            or the folder holds something else.
    """
    folder, keys = Path(folder), {**DEFAULTS, **settings}
    # The source of a timm model names a file of weights, which must not be replaced.
    file = source.partition("@")[2] if source.startswith(_TIMM) else ""
    check_folder(folder, Path(source), overwrite=overwrite, read=Path(file or source))
    if not 0 <= noise < float("inf"):
        raise UserError(f"{option('noise')}: a number of at least 0 is needed; got {noise}.")
    dense = _open(source, {key: keys.pop(key) for key in ("image_size", "mean", "std")})
    head = dense.tensors.get("head.weight")
    names = dense.class_names if data is None else _class_names(data, head)
    if head is None and not names:
        raise UserError(
            f"{dense.origin['source']} has no head for classes: name the data set to classify with {option('data')}."
        )
    num_classes = len(names) if head is None else len(head)
    router = {"name": ROUTER, "renormalise": keys.pop("renormalise")}
    content = dense.model.model_dump() | {"num_classes": num_classes}
    config = model_config(content | {"layers": blocks, "router": router, **keys})
    if config.dense:
        raise UserError(
            f"{option('blocks')}: name the blocks to make sparse, e.g. {option('blocks', 'last-2')}."
        )
    torch.manual_seed(torch_seed(seed, "initialise"))
    model, reference = (
        build_model(config).eval(),
        build_model(config.model_copy(update={"layers": []})).eval(),
    )
    for transformer, share in ((model, noise), (reference, 0.0)):
        copy_into_experts(
            transformer, dense.tensors, source=dense.origin["source"], noise=share, keep_head=head is not None
        )
    pixels, images = _pixels(config, model, data, seed)
    with running_of_user(config.name, doing=f"on {images}"):
        tokens, expected = (
            _tokens(transformer, Normalise(config)(pixels)) for transformer in (model, reference)
        )
    # Classes of other data are not those that it was trained on.
    trained_on = dense.trained_on if tuple(names) == dense.class_names else {}
    save(
        folder,
        model,
        config=config,
        imported="dense",
        source=Path(source),
        class_names=names,
        overwrite=overwrite,
        origin={**trained_on, "upcycled": {**dense.origin, "noise": noise, "seed": seed}},
    )
    return Upcycled(
        folder=folder,
        model=config,
        layers=tuple(moe_layers(model)),
        origin=dense.origin,
        parameters=_count(model),
        dense_parameters=_count(reference),
        has_fresh_head=head is None,
        difference=float((tokens - expected).abs().max() / expected.abs().max()),
        images=images,
    )


def _open(source: str, settings: Mapping[str, Any]) -> _Dense:
    """Return the dense model that a source names, with the given image size, mean and standard deviation."""
    changes = {
        key: list(value) if key != "image_size" else value
        for key, value in settings.items()
        if value is not None
    }
    if not source.startswith(_TIMM):
        info, tensors = checkpoint.read_info(source)
        if not info.model.dense:
            raise UserError(f"{info.path} has experts already; a dense model is needed here.")
        model = model_config(info.model.model_dump() | changes)
        return _Dense(
            model,
            tensors,
            {"source": str(info.path), "sha256": info.hash},
            tuple(info.class_names),
            {key: info.training[key] for key in _TRAINED_ON if key in info.training},
        )
    name, _, file = source.removeprefix(_TIMM).partition("@")
    check_dense(name)
    weights, origin = read_dense(Path(file), advice=_FILE) if file else fetch_dense(name, advice=_FILE)
    pretrained = timm.get_pretrained_cfg(name)
    if pretrained is not None:
        changes = {"mean": list(pretrained.mean), "std": list(pretrained.std)} | changes
    return _Dense(
        model_config({"name": name.partition(".")[0], **changes}), weights, {"name": name, **origin}
    )


def _class_names(data: str, head: Tensor | None) -> tuple[str, ...]:
    """Return the names of a data set's classes, which are as many as those of the head, where there is one."""
    if head is not None:
        return class_names(data, len(head))
    names = open_images(data, split="test").class_names
    if names is None:
        raise UserError(f"{data} has no classes for a head; name other data with {option('data')}.")
    return names


def _pixels(config: ModelConfig, model: VisionTransformer, data: str | None, seed: int) -> tuple[Tensor, str]:
    """Return pixels in [0, 1], ``(B, 3, H, W)``, that both models see, and what they are."""
    size = model.patch_embed.img_size[0]
    if data is None:
        random = generator(seed, "upcycle").random((_IMAGES, 3, size, size), dtype="float32")
        return torch.from_numpy(random), f"{_IMAGES} images of random pixels"
    images, framing = open_images(data, split="test"), Framing(size, config.crop_fraction)
    count = min(_IMAGES, len(images))
    pixels = [framing.clean(images.example(number).image).pixels for number in range(count)]
    return torch.stack(pixels), f"{count} images of {data}"


def _tokens(model: VisionTransformer, inputs: Tensor) -> Tensor:
    """Return the tokens ``(B, T, D)`` after the last norm."""
    with torch.inference_mode():
        return model.forward_features(inputs)


def _count(model: VisionTransformer) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
