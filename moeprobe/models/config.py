"""Run configurations: a YAML file and ``key=value`` overrides, validated; an unknown key is an error.

The classes below are the schema: every key of a configuration file is a field here, with its default.
"""

import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
import yaml
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from pydantic.fields import FieldInfo

from moeprobe.errors import UserError
from moeprobe.models.config_files import pair, path_of, put, read, written_out
from moeprobe.runtime.arguments import HIGHEST_SEED, LOWEST_SEED
from moeprobe.runtime.catalog import did_you_mean
from moeprobe.runtime.processes import MOST_WORKERS
from moeprobe.runtime.schema import ConfigSection, Plugin, section_of, sentence

# A run's length is given in one of two ways: an override of one replaces the other.
LENGTHS = {"steps": "epochs", "epochs": "steps"}
# How a transformer is made sparse where nothing is configured: as V-MoE's are.
NUM_EXPERTS, LAYERS, ROUTER = 8, "last-2", "softmax_token_choice"
# Far more than any group has tokens, and what 32 bits hold.
_MOST_ROOM = 2**30
Room = Annotated[float, Field(le=_MOST_ROOM)] | None | Literal["none"]
DEFAULT_OBJECTIVE = "balanced"
# What runs, and so their folders, may be called.
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"


class UpcycleConfig(ConfigSection):
    """Dense weights to start from, of one of timm's vision transformers."""

    name: str = Field(description="one of timm's vision transformers")
    file: str | None = Field(None, description="weights, safetensors or torch's; null: from timm's hub")
    noise: float = Field(
        0.0,
        ge=0,
        description="noise on the copies of each MLP, as a share of its weights' standard deviation",
    )


class SwinConfig(ConfigSection):
    """The stages of a Swin transformer, each of half the resolution and twice the width of the one before."""

    depths: list[int] = Field(min_length=1, description="blocks of each stage")
    num_heads: list[int] = Field(min_length=1, description="attention heads of each stage")
    windows: list[int] = Field(min_length=1, description="tokens along a side of a window, of each stage")
    patch_norm: bool = Field(True, description="normalize patches after embedding them")
    qkv_bias: bool = Field(True, description="queries, keys and values have biases")

    @model_validator(mode="after")
    def _same_stages(self) -> "SwinConfig":
        if not len(self.depths) == len(self.num_heads) == len(self.windows):
            raise ValueError("depths, num_heads and windows need one number for each stage")
        return self


class TransformerConfig(ConfigSection):
    """Which transformer. None = the named model's own value."""

    name: str = Field("vmoe_tiny_patch8_32", description="the transformer; with upcycle, the dense model's")
    upcycle: UpcycleConfig | None = Field(None, description="start from dense weights")
    swin: SwinConfig | None = Field(None, description="of imported Swin-MoEs; widths are the first stage's")
    image_size: int | None = Field(None, gt=0, description="side of an image, in pixels")
    patch_size: int | None = Field(None, gt=0, description="side of a patch, in pixels")
    width: int | None = Field(None, gt=0, description="channels of a token")
    depth: int | None = Field(None, gt=0, description="blocks")
    num_heads: int | None = Field(None, gt=0, description="attention heads")
    hidden_width: int | None = Field(None, gt=0, description="hidden width of the MLPs and of each expert")
    num_classes: int | None = Field(None, gt=0, description="null: as many as the data have")
    pre_logits: bool | Annotated[int, Field(gt=0)] | None = Field(
        None, description="a layer with tanh before the head: its width; true: as wide as the blocks"
    )
    head: Literal["token", "gap"] | None = Field(
        None, description="reads the class token, or the mean of the patches (there is no class token then)"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_the_dense_model(cls, content: Any) -> Any:
        """Without a name, ``upcycle`` determines the transformer; a tag in timm's name belongs to the weights."""
        if isinstance(content, dict) and content.get("name") is None:
            upcycle = content.get("upcycle")
            name = upcycle.get("name") if isinstance(upcycle, dict) else None
            if isinstance(name, str):
                return content | {"name": name.partition(".")[0]}
        return content


class MoeConfig(ConfigSection):
    """How a transformer is made sparse.

    None = V-MoE's value (``NUM_EXPERTS``, ``LAYERS``, ``ROUTER``; no dropout, no bfloat16) or the router's own.
    """

    num_experts: int | None = Field(None, gt=0, description=f"experts of a layer; null: {NUM_EXPERTS}")
    layers: list[int] | str | None = Field(
        None, description=f'MoE blocks, from 0; "last-2", "every-2"; [] or none: dense; null: {LAYERS}'
    )
    router: Plugin | None = Field(None, description=f"null: {ROUTER}; moeprobe list routers")
    top_k: int | None = Field(None, gt=0, description="experts that a token chooses")
    noise_std: float | None = Field(
        None, ge=0, description="noise on the logits in training, divided by num_experts"
    )
    capacity_factor: Room = Field(
        None, description="room of an expert in training, as a multiple of its even share; none: no limit"
    )
    eval_capacity_factor: Room = Field(None, description="the same in evaluation")
    capacity_rounding: Literal["ceil", "round", "tutel"] | None = Field(
        None, description="how capacities are rounded"
    )
    capacity_multiple_of: int | None = Field(
        None, gt=0, le=_MOST_ROOM, description="capacities are rounded up to it"
    )
    batch_priority: bool | None = Field(None, description="tokens with the largest gates take the room first")
    group_images: int | None = Field(None, gt=0, description="images that compete for the capacity")
    expert_dropout: float | None = Field(
        None, ge=0, lt=1, description="dropout inside the experts, in training"
    )
    whole_expert_dropout: float | None = Field(None, ge=0, lt=1, description="experts left out of a step")
    bfloat16_dispatch: bool | None = Field(None, description="send tokens to experts in bfloat16")

    @field_validator("layers", mode="before")
    @classmethod
    def _of_python(cls, layers: Any) -> Any:
        """Python writes block numbers as a tuple, too."""
        return list(layers) if isinstance(layers, tuple) else layers

    @property
    def router_name(self) -> str:
        """The router's catalog name."""
        return ROUTER if self.router is None else self.router.name

    @property
    def dense(self) -> bool:
        """Whether there is no MoE layer, so that no other key of this section matters."""
        return self.layers in ("none", [])


class ModelConfig(MoeConfig, TransformerConfig):
    """Which transformer, how it is made sparse, and what its images look like."""

    mean: list[float] = Field(
        [0.5] * 3, min_length=3, max_length=3, description="subtracted from the channels"
    )
    std: list[float] = Field([0.5] * 3, min_length=3, max_length=3, description="divides the channels")
    crop_fraction: float | None = Field(
        None, gt=0, le=1, description="share of the shorter side kept in evaluation; null: squash the image"
    )


class DataConfig(ConfigSection):
    """Which data set: ``name`` or ``name:location``."""

    name: str = Field("digits", description="the data set, NAME or NAME:PATH; moeprobe list data")
    workers: int = Field(0, ge=0, le=MOST_WORKERS, description="loader processes; changes only the speed")
    val_fraction: float | None = Field(
        None, gt=0, lt=0.9, description="share for validation of a folder without val/; null: 0.1"
    )

    labeled: float | None = Field(
        None, gt=0, lt=1, description="share of each class whose labels are used, by the seed; null: all"
    )
    unlabeled: bool = Field(True, description="with labeled: train on the other images too, without labels")

    @model_validator(mode="after")
    def _of_a_folder(self) -> "DataConfig":
        if self.labeled is None and not self.unlabeled:
            raise ValueError(
                "data.unlabeled=false is about the images that data.labeled leaves; give that too"
            )
        if self.val_fraction is not None and not self.name.startswith("folder:"):
            raise ValueError("val_fraction is a share of data.name=folder:PATH; leave it out")
        return self

    @property
    def source(self) -> str:
        """The name by which the data are opened, with the share that makes the splits what they are."""
        return self.name if self.val_fraction is None else f"{self.name}?val_fraction={self.val_fraction!r}"


class OptimizerConfig(ConfigSection):
    """One of timm's optimizers; ``momentum`` is heavy-ball SGD. Weight decay acts on kernels alone."""

    name: str = Field("adamw", description="one of timm's optimizers; momentum is heavy-ball SGD")
    learning_rate: float = Field(1e-3, gt=0, description="learning rate at its peak")
    weight_decay: float = Field(
        0.0, ge=0, description="weight decay of kernels, not of biases, norms and positions"
    )
    momentum: float = Field(0.9, ge=0, description="momentum, in optimizers that have it")
    betas: list[float] = Field(
        [0.9, 0.999], min_length=2, max_length=2, description="betas of Adam and its variants"
    )
    clip_norm: float | None = Field(None, gt=0, description="largest global norm of the gradients; null: any")


class ScheduleConfig(ConfigSection):
    """Linear warm-up from 0, then a cosine or a straight line to ``end_value``; counted in steps."""

    name: Literal["cosine", "linear"] = Field("cosine", description="how the learning rate falls")
    warmup_steps: int = Field(0, ge=0, description="steps of the linear warm-up from 0")
    end_value: float = Field(0.0, ge=0, description="learning rate at the end")


class InitialiseConfig(ConfigSection):
    """Start from a checkpoint: everything except the head, the pre-logits and ``fresh``, positions resampled."""

    checkpoint: str = Field(description="run folder or .safetensors file")
    keep_head: bool = Field(False, description="take the head and the pre-logits too")
    fresh: list[str] = Field([], description='patterns of parameters that start new, e.g. "*.router.*"')


class MaeConfig(ConfigSection):
    """Masked autoencoding in the place of classification: a decoder draws the patches that the model does not see."""

    mask: float = Field(0.75, gt=0, lt=1, description="share of the patches that are hidden")
    width: int = Field(192, gt=0, description="channels of the decoder's tokens")
    depth: int = Field(4, gt=0, description="blocks of the decoder")
    num_heads: int = Field(6, gt=0, description="attention heads of the decoder")


class TrainConfig(ConfigSection):
    """One training run."""

    name: str = Field(
        pattern=NAME,
        description="name of the run and its folder; default: the file's name",
    )
    group: str = Field("", description="shared by runs that differ in their seed alone")
    seed: int = Field(0, ge=LOWEST_SEED, le=HIGHEST_SEED, description="seed of everything random")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    view: Plugin = Field(Plugin(name="random_crop"), description="makes training views; moeprobe list views")
    views_per_image: int = Field(2, ge=1, le=2, description="views of each image in a batch")
    objective: Plugin = Field(
        Plugin(name=DEFAULT_OBJECTIVE), description="terms added to the loss; moeprobe list objectives"
    )
    loss: Literal["softmax", "sigmoid"] = Field("softmax", description="the supervised loss")
    mae: MaeConfig | None = Field(None, description="pretrain by masked autoencoding, without labels' help")
    mixup: float = Field(0.0, ge=0, description="concentration of the Dirichlet distribution; 0: none")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    route_by_class: list[list[int]] = Field(
        [], description="the classes of each expert: tokens go by the image's label, not by the router"
    )
    kl_weight: float = Field(
        0.0, ge=0, description="weight of the divergence from the gates of initialise.checkpoint"
    )
    feature_weight: float = Field(
        0.0, ge=0, description="weight of the distance of features from the dense model of model.upcycle"
    )
    freeze: list[str] = Field(
        [], description='patterns of parameters that stay as they are; ["*", "!*.router.*"]: all but routers'
    )
    batch_size: int = Field(64, gt=0, description="source images per step, over all processes together")
    accumulate: int = Field(1, gt=0, description="passes that share a step's batch: less memory, same step")
    parallel: Literal["replicas", "experts", "fsdp"] = Field(
        "replicas",
        description="with torchrun, what a process holds: the model, a share of the experts, a share of everything",
    )
    expert_ranks: int | None = Field(
        None,
        gt=0,
        description="processes that share a layer's experts; null: gcd of processes and experts",
    )
    epochs: float | None = Field(None, gt=0, le=1e6, description="length of the run; or give steps")
    steps: int | None = Field(None, gt=0, le=10**12, description="length of the run; or give epochs")
    evaluate_every: int | None = Field(
        None, gt=0, description="steps between evaluations; null: ten evaluations in all"
    )
    eval_batch_size: int = Field(128, gt=0, description="images per batch; changes only the speed")
    amp: bool = Field(False, description="bfloat16, except in the routers")
    compile: bool = Field(False, description="torch.compile what does not route")
    tensorboard: bool = Field(False, description="write metrics for TensorBoard too")
    initialise: InitialiseConfig | None = Field(None, description="start from a checkpoint of moeprobe")

    @model_validator(mode="after")
    def _one_length(self) -> "TrainConfig":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        if self.data.labeled is not None and self.mixup > 0:
            raise ValueError("mixup mixes labels, which data.labeled hides; set mixup to 0")
        if self.route_by_class and (self.data.labeled is not None or self.mixup > 0 or self.mae):
            raise ValueError(
                "route_by_class needs every image's own label: leave out data.labeled, mixup and mae"
            )
        if self.expert_ranks is not None and self.parallel != "experts":
            raise ValueError("expert_ranks is about parallel=experts; leave it out")
        if self.parallel != "replicas" and self.compile:
            raise ValueError(
                f"parallel={self.parallel} sends messages where compile sees none; set compile to false"
            )
        if self.parallel == "fsdp" and self.mae is not None:
            raise ValueError(
                "masked autoencoding runs parts of the model, and parallel=fsdp needs whole passes; leave it out"
            )
        if self.kl_weight and self.mae:
            raise ValueError(
                "masked autoencoding hides patches, so gates cannot be compared; set kl_weight to 0"
            )
        if self.feature_weight and self.mae:
            raise ValueError(
                "masked autoencoding hides patches, so features cannot be compared; set feature_weight to 0"
            )
        return self


def load(source: str, overrides: Iterable[str] = ()) -> TrainConfig:
    """Return the configuration called ``source`` (a name or a path to a YAML file) with overrides.

    ``steps=5`` on a configuration that counts in epochs replaces them, and the other way round; ``model.upcycle=NAME``
    replaces ``model.name``.

    Raises:
        UserError: there is none, it is no YAML mapping, a key is unknown, a value has the wrong type.
    """
    return load_with(source, [pair(override) for override in overrides])


def load_with(source: str, changes: Sequence[tuple[str, Any]]) -> TrainConfig:
    """Return the configuration called ``source`` with values put in by dotted key, one after the other.

    Raises:
        UserError: as for ``load``.
    """
    return with_changes(read(path_of(source)), changes)


def with_changes(content: dict[str, Any], changes: Sequence[tuple[str, Any]]) -> TrainConfig:
    """Return the configuration that a file's ``content`` comes to with values put in by dotted key, in place.

    Raises:
        UserError: as for ``load``.
    """
    for key, value in changes:
        put(content, key, value)
    keys = {key for key, _ in changes}
    if keys & {"model.upcycle", "model.upcycle.name"} and "model.name" not in keys:
        content["model"].pop("name", None)
    for length, alternative in LENGTHS.items():
        if length in keys and alternative not in keys and content[length] is not None:
            content.pop(alternative, None)
    return parse(content)


def parse(content: dict[str, Any]) -> TrainConfig:
    """Return the validated configuration of a mapping.

    Raises:
        UserError: a key is unknown or a value has the wrong type.
    """
    if isinstance(content.get("pipeline"), dict):
        raise UserError(
            f"{content.get('name')} is a pipeline of trainings ({', '.join(map(str, content['pipeline']))}), and one "
            "training is wanted here; moeprobe train --config takes it."
        )
    try:
        return TrainConfig.model_validate(written_out(content))
    except ValidationError as error:
        raise UserError(sentence(error, TrainConfig, what="configuration")) from None


def dump(config: TrainConfig) -> str:
    """Return the resolved configuration as YAML."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)


# Parameters chosen by patterns of their names. Nothing here imports torch.


def choose(patterns: Sequence[str], names: Iterable[str], *, key: str) -> set[str]:
    """Return the chosen names: the last pattern that matches the name does not begin with ``!``.

    Args:
        patterns: of whole names, as a shell has them (``*.router.*``), one after the other; with ``!`` before it, a
            pattern takes out again what it matches.
        names: of parameters.
        key: of the configuration that holds the patterns, for sentences.

    Raises:
        UserError: a pattern matches nothing.
    """
    existing, selection = list(names), set[str]()
    for pattern in patterns:
        body = pattern.removeprefix("!")
        matched = {name for name in existing if fnmatchcase(name, body)}
        if not matched:
            raise UserError(
                f"{key}: the pattern {pattern!r} matches no parameter.{did_you_mean(body.replace('*', ' '), existing)} "
                f"Their names begin with: {', '.join(dict.fromkeys(map(_beginning, existing)))}."
            )
        selection = selection - matched if pattern.startswith("!") else selection | matched
    return selection


def _beginning(name: str) -> str:
    """Return the first part of a name, with its number: ``blocks.3``."""
    first, *parts = name.split(".")
    return f"{first}.{parts[0]}" if parts and parts[0].isdigit() else first


_WORDS = {int: "integer", float: "number", str: "text", bool: "true | false", type(None): "null"}
_BOUNDS = {
    annotated_types.Gt: (">", "gt"),
    annotated_types.Ge: ("≥", "ge"),
    annotated_types.Lt: ("<", "lt"),
    annotated_types.Le: ("≤", "le"),
}


@dataclass(frozen=True)
class Key:
    """One key.

    Attributes:
        name: with dots, as in an override.
        type: what it takes, with bounds.
        default: as in YAML; "required" where there is none.
        meaning: in a few words.
    """

    name: str
    type: str
    default: str
    meaning: str


def list_keys(schema: type[BaseModel] = TrainConfig) -> list[Key]:
    """Return the keys of a configuration, section by section."""
    return list(_keys(schema, ""))


def _keys(schema: type[BaseModel], prefix: str) -> Iterator[Key]:
    for name, field in schema.model_fields.items():
        section = section_of(schema, name)
        if section is None or issubclass(section, Plugin):
            yield Key(f"{prefix}{name}", _type(field), _default(field), field.description or "")
        else:
            yield from _keys(section, f"{prefix}{name}.")


def _type(field: FieldInfo) -> str:
    bounds = [
        f"{sign} {getattr(bound, at)}"
        for bound in field.metadata
        for kind, (sign, at) in _BOUNDS.items()
        if isinstance(bound, kind)
    ]
    return " ".join([_type_text(field.annotation), ", ".join(bounds)]).strip()


def _type_text(annotation: Any) -> str:
    """Return a type in the words of YAML."""
    if get_origin(annotation) in (Union, types.UnionType):
        return " | ".join(_type_text(part) for part in get_args(annotation))
    if get_origin(annotation) is Literal:
        return " | ".join(map(str, get_args(annotation)))
    if get_origin(annotation) is list:
        return f"list of {_type_text(get_args(annotation)[0])}"
    if get_origin(annotation) is Annotated:
        return _type_text(get_args(annotation)[0])
    return _WORDS.get(annotation, "name, with parameters")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None:
        return "null"
    if isinstance(value, Plugin):
        return value.name
    return str(value).lower() if isinstance(value, bool) else str(value) or '""'
