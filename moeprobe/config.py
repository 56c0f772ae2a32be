"""Run configurations: a YAML file and ``key=value`` overrides, validated; an unknown key is an error.

The classes below are the schema: every key of a configuration file is a field here, with its default.
"""

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from moeprobe.catalog import unknown
from moeprobe.errors import UserError
from moeprobe.validation import lower_first, sentence, shortened
from moeprobe.yamls import NotYamlError, parse_yaml, read_yaml

# A section may be written as its one essential value: ``objective: prc`` is ``objective: {name: prc}``.
_SHORTHANDS = {
    "data": "name",
    "view": "name",
    "objective": "name",
    "initialise": "checkpoint",
    "model.router": "name",
    "model.upcycle": "name",
}
# Of the two ways to give a run's length, an override of one replaces the other.
LENGTHS = {"steps": "epochs", "epochs": "steps"}
# The sub-folder whose files are no configurations but sweeps of them (``grids``).
SWEEPS = "sweeps"


class Section(BaseModel):
    """A part of a configuration: an unknown key or a value of another type is an error; nothing is changed later."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, protected_namespaces=(), allow_inf_nan=False
    )


class Plugin(Section):
    """A plug-in by name, with parameters for it."""

    model_config = ConfigDict(extra="allow")
    name: str = Field(description="its name; further keys are parameters of its own")

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, content: Any) -> Any:
        return {"name": content} if isinstance(content, str) else content

    @property
    def parameters(self) -> dict[str, Any]:
        """All keys but the name; lists become tuples, as frozen dataclasses want them."""
        extra = self.model_extra or {}
        return {key: tuple(value) if isinstance(value, list) else value for key, value in extra.items()}


class UpcycleConfig(Section):
    """Dense weights to start from: those of one of timm's vision transformers."""

    name: str = Field(description="one of timm's vision transformers")
    file: str | None = Field(None, description="weights, safetensors or torch's; null: those of timm's hub")


class SwinConfig(Section):
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


class ModelConfig(Section):
    """Which transformer, and how it is made sparse. None = the named model's own value."""

    name: str = Field("vmoe_tiny_patch8_32", description="the transformer; with upcycle, the dense model's")
    upcycle: UpcycleConfig | None = Field(None, description="start from dense weights")
    swin: SwinConfig | None = Field(None, description="of imported Swin-MoEs; widths are the first stage's")
    image_size: int | None = Field(None, gt=0, description="side of an image, in pixels")
    patch_size: int | None = Field(None, gt=0, description="side of a patch, in pixels")
    width: int | None = Field(None, gt=0, description="channels of a token")
    depth: int | None = Field(None, gt=0, description="blocks")
    num_heads: int | None = Field(None, gt=0, description="attention heads")
    hidden_width: int | None = Field(None, gt=0, description="of the perceptrons and of each expert")
    num_classes: int | None = Field(None, gt=0, description="null: as many as the data have")
    pre_logits: bool | Annotated[int, Field(gt=0)] | None = Field(
        None, description="a layer with tanh before the head: its width; true: that of the blocks"
    )
    head: Literal["token", "gap"] | None = Field(
        None, description="reads the class token, or the mean of the patches (there is no class token then)"
    )
    num_experts: int | None = Field(None, gt=0, description="experts of a layer")
    layers: list[int] | str | None = Field(None, description='MoE blocks, from 0; or "last-2", "every-2"')
    router: Plugin | None = Field(None, description="null: softmax_token_choice; moeprobe list routers")
    top_k: int | None = Field(None, gt=0, description="experts that a token chooses")
    noise_std: float | None = Field(
        None, ge=0, description="of the logits in training, divided by num_experts"
    )
    capacity_factor: float | None | Literal["none"] = Field(
        None, description="room of an expert in training, as a multiple of its even share; none: no limit"
    )
    eval_capacity_factor: float | None | Literal["none"] = Field(None, description="likewise in evaluation")
    capacity_rounding: Literal["ceil", "round", "tutel"] | None = Field(None, description="of the capacity")
    capacity_multiple_of: int | None = Field(None, gt=0, description="capacities are rounded up to it")
    batch_priority: bool | None = Field(None, description="surest tokens take the room first")
    group_images: int | None = Field(None, gt=0, description="images that compete for the capacity")
    expert_dropout: float | None = Field(None, ge=0, lt=1, description="inside of the experts, in training")
    bfloat16_dispatch: bool | None = Field(None, description="send tokens to experts in bfloat16")
    mean: list[float] = Field(
        [0.5] * 3, min_length=3, max_length=3, description="subtracted from the channels"
    )
    std: list[float] = Field([0.5] * 3, min_length=3, max_length=3, description="divides the channels")
    crop_fraction: float | None = Field(
        None, gt=0, le=1, description="of the shorter side, kept of images in evaluation; null: squash them"
    )

    @model_validator(mode="before")
    @classmethod
    def _of_the_dense_model(cls, content: Any) -> Any:
        """Without a name, what is upcycled says which transformer it is; of timm's names a tag is of the weights."""
        if isinstance(content, dict) and content.get("name") is None:
            upcycle = content.get("upcycle")
            name = upcycle.get("name") if isinstance(upcycle, dict) else None
            if isinstance(name, str):
                return content | {"name": name.partition(".")[0]}
        return content

    @property
    def router_name(self) -> str:
        """The router's catalog name."""
        return "softmax_token_choice" if self.router is None else self.router.name


class DataConfig(Section):
    """Which data set: ``name`` or ``name:location``."""

    name: str = Field("digits", description="the data set, NAME or NAME:PATH; moeprobe list data")
    workers: int = Field(0, ge=0, description="loader processes; changes nothing but speed")
    val_fraction: float | None = Field(
        None, gt=0, lt=0.9, description="share for validation of a folder without val/; null: 0.1"
    )

    @model_validator(mode="after")
    def _of_a_folder(self) -> "DataConfig":
        if self.val_fraction is not None and not self.name.startswith("folder:"):
            raise ValueError("val_fraction is a share of data.name=folder:PATH; leave it out")
        return self

    @property
    def source(self) -> str:
        """The name by which the data are opened, with the share that makes the splits what they are."""
        return self.name if self.val_fraction is None else f"{self.name}?val_fraction={self.val_fraction!r}"


class OptimizerConfig(Section):
    """One of timm's optimisers; ``momentum`` is heavy-ball SGD. Weight decay acts on kernels alone."""

    name: str = Field("adamw", description="one of timm's optimizers; momentum is heavy-ball SGD")
    learning_rate: float = Field(1e-3, gt=0, description="at its peak")
    weight_decay: float = Field(0.0, ge=0, description="of kernels, not of biases, norms and positions")
    momentum: float = Field(0.9, ge=0, description="of optimizers that have it")
    betas: list[float] = Field([0.9, 0.999], min_length=2, max_length=2, description="of Adam and its kin")
    clip_norm: float | None = Field(None, gt=0, description="largest global norm of the gradients; null: any")


class ScheduleConfig(Section):
    """Linear warm-up from 0, then a cosine or a straight line to ``end_value``; counted in steps."""

    name: Literal["cosine", "linear"] = Field("cosine", description="how the learning rate falls")
    warmup_steps: int = Field(0, ge=0, description="steps of the linear warm-up from 0")
    end_value: float = Field(0.0, ge=0, description="learning rate at the end")


class InitialiseConfig(Section):
    """Start from a checkpoint: everything but the head and the pre-logits, positions resampled."""

    checkpoint: str = Field(description="run folder or .safetensors file")
    keep_head: bool = Field(False, description="take over the head and the pre-logits too")


class TrainConfig(Section):
    """One training run."""

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="of the run and its folder; else the file's"
    )
    group: str = Field("", description="shared by runs that differ in their seed alone")
    seed: int = Field(0, ge=0, lt=2**63, description="of everything random")
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    view: Plugin = Field(Plugin(name="random_crop"), description="makes training views; moeprobe list views")
    views_per_image: int = Field(2, ge=1, le=2, description="how many of each image in a batch")
    objective: Plugin = Field(
        Plugin(name="balanced"), description="what is added to the loss; moeprobe list objectives"
    )
    loss: Literal["softmax", "sigmoid"] = Field("softmax", description="the supervised loss")
    mixup: float = Field(0.0, ge=0, description="concentration of the Dirichlet distribution; 0: none")
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    batch_size: int = Field(64, gt=0, description="source images of a step")
    epochs: float | None = Field(None, gt=0, le=1e6, description="length of the run; or give steps")
    steps: int | None = Field(None, gt=0, le=10**12, description="length of the run; or give epochs")
    evaluate_every: int | None = Field(None, gt=0, description="in steps; null: ten times in all")
    eval_batch_size: int = Field(128, gt=0, description="images; changes nothing but speed")
    amp: bool = Field(False, description="bfloat16, but for the routers")
    compile: bool = Field(False, description="torch.compile what does not route")
    tensorboard: bool = Field(False, description="write metrics for TensorBoard too")
    initialise: InitialiseConfig | None = Field(None, description="start from a checkpoint of moeprobe")

    @model_validator(mode="after")
    def _one_length(self) -> "TrainConfig":
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give either epochs or steps")
        return self


def folders() -> list[Path]:
    """Return where configurations are found by name: in the package, or beside it in a checkout."""
    package = Path(__file__).parent
    return [folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir()]


def names() -> list[str]:
    """Return the names of the configurations that come with moeprobe; those of a sub-folder begin with its name."""
    return sorted(
        {
            path.relative_to(folder).with_suffix("").as_posix()
            for folder in folders()
            for path in folder.rglob("*.yaml")
            if SWEEPS not in path.relative_to(folder).parts
        }
    )


def load(source: str, overrides: Iterable[str] = ()) -> TrainConfig:
    """Return the configuration called ``source`` (a name or a path to a YAML file) with overrides.

    ``steps=5`` on a configuration that counts in epochs replaces them, and the other way round; ``model.upcycle=NAME``
    replaces ``model.name``.

    Raises:
        UserError: there is none, it is no YAML mapping, a key is unknown, a value has the wrong type.
    """
    return change(source, [pair(override) for override in overrides])


def change(source: str, changes: Sequence[tuple[str, Any]]) -> TrainConfig:
    """Return the configuration called ``source`` with values put in by dotted key, one after the other.

    Raises:
        UserError: as for ``load``.
    """
    content = read(path_of(source))
    for key, value in changes:
        put(content, key, value)
    given = {key for key, _ in changes}
    if given & {"model.upcycle", "model.upcycle.name"} and "model.name" not in given:
        content["model"].pop("name", None)
    for length, other in LENGTHS.items():
        if length in given and other not in given and content[length] is not None:
            content.pop(other, None)
    return parse(content)


def parse(content: dict[str, Any]) -> TrainConfig:
    """Return the validated configuration of a mapping.

    Raises:
        UserError: a key is unknown or a value has the wrong type.
    """
    try:
        return TrainConfig.model_validate(_written_out(content))
    except ValidationError as error:
        raise UserError(sentence(error, TrainConfig, what="configuration")) from None


def dump(config: TrainConfig) -> str:
    """Return the resolved configuration as YAML."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)


def make_plugin(kind: Any, plugin: Plugin, *, what: str, **fixed: Any) -> Any:
    """Return the plug-in ``kind``, a class, with the configured parameters; ``fixed`` ones go before them.

    Raises:
        UserError: it has no such parameter (``what`` it is stands in the sentence), or a value has the wrong type.
    """
    hints = get_type_hints(kind.__init__)
    known = list(inspect.signature(kind).parameters)
    values = plugin.parameters | fixed
    for key, value in values.items():
        if key not in known:
            free = [name for name in known if name not in fixed]
            raise UserError(unknown(f"parameter of the {what} {plugin.name!r} called", key, free))
        try:
            TypeAdapter(hints[key]).validate_python(value, strict=True)
        except ValidationError as error:
            message = lower_first(error.errors()[0]["msg"])
            raise UserError(f"In the {what} {plugin.name!r}, {key}: {message}; got {value!r}.") from None
    return kind(**values)


def path_of(source: str) -> Path:
    """Return the file of the configuration called ``source``, a name or a path.

    Raises:
        UserError: there is none.
    """
    return find(source, names(), what="configuration")


def find(source: str, known: Iterable[str], *, what: str, folder: str = "") -> Path:
    """Return the file that a name or a path to a YAML file means; ``what`` it is stands in the sentence.

    Raises:
        UserError: there is none.
    """
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"There is no {what} file {source}.")
        return path
    known = list(known)
    for root in folders():
        if source in known and (root / folder / f"{source}.yaml").is_file():
            return root / folder / f"{source}.yaml"
    raise UserError(unknown(what, source, known))


def read(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file holds; ``name`` is that of the file where it gives none.

    Raises:
        UserError: it cannot be read or holds something else.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        found = "nothing" if content is None else type(content).__name__
        raise UserError(f"{path} should hold a mapping of keys to values; it holds {found}.")
    content.setdefault("name", path.stem)
    return _written_out(content)


def _written_out(content: dict[str, Any], section: str = "") -> dict[str, Any]:
    """Return the content with its shorthands written out and every key a string."""
    return {str(key): _long_form(f"{section}{key}", value) for key, value in content.items()}


def _long_form(path: str, value: Any) -> Any:
    if isinstance(value, str) and path in _SHORTHANDS:
        return {_SHORTHANDS[path]: value}
    return _written_out(value, f"{path}.") if isinstance(value, dict) else value


def pair(override: str) -> tuple[str, Any]:
    """Return the key and the value of a ``key=value``.

    Raises:
        UserError: it is none, or the value is no YAML.
    """
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"An override is written key=value, e.g. model.top_k=1; got {shortened(override)}.")
    try:
        return key, parse_yaml(text)
    except NotYamlError:
        raise UserError(f"Cannot read the value of {shortened(override)}.") from None


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Put a value into ``content`` by its dotted key.

    Raises:
        UserError: a section of the key is a value.
    """
    *sections, last = key.split(".")
    for section in sections:
        child = content.setdefault(section, {})
        if child is None:
            child = content[section] = {}
        if not isinstance(child, dict):
            raise UserError(f"{section!r} in {key!r} is a value, not a section.")
        content = child
    content[last] = _long_form(key, value)
