"""The start of a training: whether its parts fit together, and its model: fresh, upcycled, or from a checkpoint."""

import dataclasses
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn

from moeprobe.errors import UserError, first_line, option
from moeprobe.inputs.data.base import Example, ImageDataset
from moeprobe.models.checkpoints.checkpoint import initialise_from
from moeprobe.models.config import DEFAULT_OBJECTIVE, ModelConfig, TrainConfig, choose
from moeprobe.models.nn.build import build_model, create, is_of_user, is_ours
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.mae import Decoder, num_visible
from moeprobe.models.nn.upcycle import upcycle
from moeprobe.models.timm import VisionTransformer, is_model, list_models, load_state_dict, timm
from moeprobe.models.training import reporting
from moeprobe.models.training.objectives.base import Objective
from moeprobe.runtime.catalog import OBJECTIVES, did_you_mean
from moeprobe.runtime.files import DAMAGE, display_path, is_file, sha256
from moeprobe.runtime.schema import make_plugin
from moeprobe.runtime.seeds import generator, torch_seed
from moeprobe.runtime.similar_paths import did_you_mean_path

# How a training names a file of dense weights.
_FILE = "model.upcycle.file=PATH"


def check_data(config: TrainConfig, train: ImageDataset, val: ImageDataset) -> tuple[str, ...]:
    """Return the class names of the data.

    Raises:
        UserError: there are no labels or no images, the splits or the model name other classes, or TensorBoard is
            asked for and not installed.
    """
    if config.tensorboard:
        reporting.require_tensorboard()
    name = config.data.name
    if train.class_names is None or val.class_names is None:
        raise UserError(f"{name} has no labels to train on.")
    if len(val) == 0:
        raise UserError(f"The validation split of {name} has no images.")
    if train.class_names != val.class_names:
        raise UserError(
            f"The training and the validation split of {name} name different classes "
            f"({len(train.class_names)} and {len(val.class_names)} of them)."
        )
    num_classes = config.model.num_classes
    if num_classes is not None and num_classes != len(train.class_names):
        raise UserError(
            f"{name} has {len(train.class_names)} classes and model.num_classes is {num_classes}; leave it out."
        )
    return train.class_names


def make_objective(config: TrainConfig) -> Objective:
    """Return the configured objective.

    Raises:
        UserError: there is none of that name, it does not take these parameters, or the batch or the model does not
            fit it.
    """
    name = config.objective.name
    kind = OBJECTIVES.get(name)
    # The default objective adds no term without routers, so it may stay in shared configurations.
    if config.model.dense and name != DEFAULT_OBJECTIVE:
        raise UserError(
            f"The objective {name!r} is about routing, and a dense model has none: set "
            f"objective={DEFAULT_OBJECTIVE}, which adds nothing then."
        )
    if config.mae is not None and (kind.needs_pairs or config.mixup > 0):
        what = f"The objective {name!r} compares patches" if kind.needs_pairs else "mixup mixes labels"
        advice = "another objective" if kind.needs_pairs else "mixup to 0"
        raise UserError(f"{what}, and masked autoencoding hides patches and has no labels: set {advice}.")
    if kind.needs_pairs and config.views_per_image != 2:
        raise UserError(f"The objective {name!r} compares two views: set views_per_image to 2.")
    if kind.needs_pairs and config.mixup > 0:
        raise UserError(f"The objective {name!r} compares patches of one image: set mixup to 0.")
    objective: Objective = make_plugin(kind, config.objective, what="objective")
    return objective


def check_start(config: TrainConfig) -> None:
    """Raise ``UserError`` if a run would start from two sets of weights, or from weights of no vision transformer."""
    if config.model.upcycle is None:
        return
    if config.initialise is not None:
        raise UserError(
            "Weights to start from are given twice: leave out either initialise.checkpoint or model.upcycle."
        )
    check_dense(config.model.upcycle.name)


def check_groups(model: nn.Module, config: TrainConfig) -> None:
    """Raise ``UserError`` unless a training batch can be cut into groups (a smaller batch is one group)."""
    # A batch has a row per view, and groups are cut from rows.
    rows = config.batch_size * config.views_per_image
    for name, layer in moe_layers(model).items():
        if rows % layer.group_images and rows > layer.group_images:
            raise UserError(
                f"A batch of {config.batch_size} images x {config.views_per_image} views cannot be cut into groups of "
                f"{layer.group_images} ({name}); change batch_size or model.group_images."
            )


def check_routers_learn(model: nn.Module) -> None:
    """Raise ``UserError`` where routers alone are trained, and the weight of a token's one expert is always 1."""
    routers = [layer.router for layer in moe_layers(model).values()]
    router_ids = {id(parameter) for router in routers for parameter in router.parameters()}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    idle = all(router.renormalise and router.top_k == 1 for router in routers)
    if idle and all(id(parameter) in router_ids for parameter in trained):
        raise UserError(
            "Only routers are trained, and with top_k 1 and renormalized weights nothing that they decide changes with "
            "their parameters a little: set model.router.renormalise=false."
        )


def check_same_images(before: int, now: int, *, data: str, folder: Path) -> None:
    """Raise ``UserError`` unless a run continues with the number of images it was started on."""
    if before != now:
        raise UserError(
            f"The run in {display_path(folder)} was started on {before} images and {data} now has {now}; "
            f"add {option('overwrite', True)} to start again."
        )


class DivergedError(UserError):
    """The loss of a training, or a parameter, is no number any more.

    Attributes:
        step: by which that was found.
    """

    def __init__(self, sentence: str, *, step: int) -> None:
        super().__init__(sentence)
        self.step = step


def check_finite(values: Iterable[Tensor], *, step: int, folder: Path) -> None:
    """Raise ``DivergedError`` where a loss, or a parameter, is no number any more after ``step`` steps.

    Of a parameter that is spread over processes, each looks at its own part.
    """
    parts = (value.to_local() if hasattr(value, "to_local") else value for value in values)
    if not all(bool(torch.isfinite(part).all()) for part in parts):
        raise DivergedError(
            f"The loss stopped being a number by step {step}; {display_path(folder)} holds the evaluations "
            "before it. Lower optimizer.learning_rate or set optimizer.clip_norm, and start again.",
            step=step,
        )


# Training images of which a part has labels: the same share of each class, drawn by the seed.
#
# PRC needs no labels, so it can be taken over all images while the supervised loss is over the labeled ones: the
# semi-supervised use that its paper names and does not try (Kada et al. 2025, section V).


class PartlyLabeled(ImageDataset):
    """A data set that hides the labels of some images, or leaves those images out.

    Args:
        data: the whole data set.
        labeled: numbers of the images that keep their labels, ascending.
        unlabeled: whether the others are there, without labels.
    """

    def __init__(self, data: ImageDataset, labeled: NDArray[np.int64], *, unlabeled: bool) -> None:
        self._data = data
        self._kept = np.arange(len(data)) if unlabeled else labeled
        self._has_label = np.isin(self._kept, labeled)
        self.image_ids = [data.image_ids[number] for number in self._kept]
        self.class_names = data.class_names
        self.split_note = data.split_note
        self.flippable = data.flippable  # type: ignore[misc]  # of the data, not of the class

    def example(self, index: int) -> Example:
        """Return image ``index``; see ``Dataset``."""
        example = self._data.example(int(self._kept[index]))
        return example if self._has_label[index] else dataclasses.replace(example, label=None)

    def labels(self) -> NDArray[np.int64]:
        """Return the label of every image ``(n,)``, -1 where it is hidden."""
        return np.where(self._has_label, self._data.labels()[self._kept], -1)


def choose_labeled(labels: NDArray[np.int64], share: float, *, seed: int) -> NDArray[np.int64]:
    """Return the numbers of the images that keep their labels, ascending: this share of each class, at least one.

    A larger share holds a smaller one of the same seed. Images without a label have none to keep.
    """
    labeled = []
    # Class by class, so that rare classes keep their share.
    for label in np.unique(labels[labels >= 0]):
        images = np.flatnonzero(labels == label)
        order = generator(seed, "labeled", draw=int(label)).permutation(len(images))
        labeled.append(images[order[: max(1, math.floor(share * len(images) + 0.5))]])
    return np.sort(np.concatenate(labeled)) if labeled else np.zeros(0, dtype=np.int64)


def upcycle_from(model: VisionTransformer, config: ModelConfig) -> dict[str, Any]:
    """Start ``model`` from the dense weights that ``config.upcycle`` names; return where they are from.

    Raises:
        UserError: there are no such weights, they are damaged, or they do not fit the model.
    """
    assert config.upcycle is not None
    name, file = config.upcycle.name, config.upcycle.file
    if file:
        dense, origin = read_dense(Path(file), advice=_FILE)
    else:
        _check_normalization(name, config)
        dense, origin = fetch_dense(name, advice=_FILE)
    upcycle(model, dense, source=origin["source"], noise=config.upcycle.noise)
    return {"name": name, **origin}


def check_dense(name: str) -> None:
    """Raise ``UserError`` unless the name belongs to a dense vision transformer of timm."""
    if not is_model(name):
        hint = did_you_mean(name, list_models())
        raise UserError(f"timm has no model {name!r} to upcycle.{hint} timm.list_models('*vit*') names them.")
    if is_ours(name):
        raise UserError(f"{name!r} is sparse already; to start from its weights set initialise.checkpoint.")
    # On the meta device nothing is allocated, and no value can be read.
    with torch.device("cpu" if is_of_user(name) else "meta"):
        model = create(name)
    if not isinstance(model, VisionTransformer):
        raise UserError(
            f"{name!r} is a {type(model).__name__}; only vision transformers (VisionTransformer of timm) can be "
            "upcycled."
        )


def read_dense(path: Path, *, advice: str) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    """Return the parameters in a file of safetensors or of torch, and where they are from.

    ``advice``: how a file is named, for sentences.

    Raises:
        UserError: there is no such file, or it holds no parameters.
    """
    if not is_file(path):
        raise UserError(
            f"There is no file {path} of dense weights; give another {advice}.{did_you_mean_path(path)}"
        )
    try:
        with warnings.catch_warnings(action="ignore"):  # of other versions of the format
            tensors = load_state_dict(str(path))
    except (SafetensorError, *DAMAGE) as error:
        raise UserError(
            f"{path} holds no weights that can be read without executing it: {_in_short(error)}."
        ) from None
    if not tensors or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in tensors.items()
    ):
        raise UserError(f"{path} holds no weights: a mapping of parameters' names to tensors is needed.")
    return tensors, {"source": str(path), "sha256": sha256(path)}


def fetch_dense(name: str, *, advice: str) -> tuple[Mapping[str, Tensor], dict[str, Any]]:
    """Return the pretrained parameters of timm's hub, and where they are from; ``advice`` as of ``read_dense``.

    Raises:
        UserError: there are none, or they cannot be fetched.
    """
    pretrained = timm.get_pretrained_cfg(name)
    if pretrained is None or not pretrained.has_weights:
        raise UserError(f"timm has no pretrained weights for {name!r}; give a file: {advice}.")
    try:
        dense = create(name, pretrained=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise UserError(
            f"The pretrained weights of {name!r} cannot be fetched ({_in_short(error)}); give a file: {advice}."
        ) from None
    return dense.state_dict(), {
        "source": f"timm {pretrained.architecture}.{pretrained.tag}".removesuffix(".")
    }


def _check_normalization(name: str, model: ModelConfig) -> None:
    """Refuse another normalization than the weights were trained with: they would be fed other numbers."""
    pretrained = timm.get_pretrained_cfg(name)
    if pretrained is None or not pretrained.has_weights:
        return
    if (model.mean, model.std) != (list(pretrained.mean), list(pretrained.std)):
        raise UserError(
            f"The pretrained weights of {name!r} take images of another normalization: set "
            f"model.mean={_written(pretrained.mean)} model.std={_written(pretrained.std)}."
        )


def _in_short(error: Exception) -> str:
    """Return the first sentence; the rest is advice for callers of the library."""
    return first_line(error).split(". ")[0].rstrip(".")


def _written(values: tuple[float, ...]) -> str:
    return f"[{','.join(f'{value:g}' for value in values)}]"


def start_model(
    config: TrainConfig, model_config: ModelConfig, class_names: Sequence[str]
) -> tuple[VisionTransformer, dict[str, Any]]:
    """Return the model with its first parameters, and which these are: ``upcycled`` or ``started_from``, or nothing.

    What is to be pretrained by masked autoencoding has a ``decoder`` in addition, which no checkpoint keeps.

    Raises:
        UserError: there are no such weights, or the parts do not fit together.
    """
    check_start(config)
    # Seeded just before building: what was drawn earlier must not change the start.
    torch.manual_seed(torch_seed(config.seed, "initialise"))
    model = build_model(model_config)
    start = {} if config.model.upcycle is None else {"upcycled": upcycle_from(model, config.model)}
    if config.initialise is not None:
        weights = initialise_from(
            model,
            config.initialise.checkpoint,
            keep_head=config.initialise.keep_head,
            fresh=config.initialise.fresh,
            class_names=tuple(class_names),
        )
        start = {"started_from": weights}
    if config.mae is not None:
        num_visible(model.patch_embed.num_patches, config.mae.mask)
        model.decoder = Decoder(model, config.mae)
    # Last: groups and frozen parameters concern the whole model.
    check_groups(model, config)
    freeze(model, config.freeze)
    return model, start


def freeze(model: nn.Module, patterns: Sequence[str]) -> None:
    """Take the parameters that patterns choose out of training: without a gradient, no optimizer and no decay has them.

    Raises:
        UserError: a pattern matches no parameter, or nothing is left that could learn.
    """
    parameters = dict(model.named_parameters())
    frozen = choose(patterns, parameters, key="freeze")
    if len(frozen) == len(parameters):
        raise UserError(
            f"freeze={list(patterns)} leaves no parameter to train; take some out again, e.g. '!*.router.*'."
        )
    for name in frozen:
        parameters[name].requires_grad_(False)
    if frozen:
        check_routers_learn(model)


def compile_model(model: Any) -> None:
    """Compile what does not route: routers stay eager, so that what they decide can be captured."""
    for block in model.blocks:
        block.attn.compile()
        (block.mlp.experts if hasattr(block.mlp, "experts") else block.mlp).compile()
