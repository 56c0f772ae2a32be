"""Run configurations: a YAML file and ``key=value`` overrides, validated; an unknown key is an error.

The classes below are the schema: every key of a configuration file is a field here, with its default.
"""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from moeprobe.catalog import unknown
from moeprobe.errors import UserError


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Plugin(_Section):
    """A plug-in by name, with parameters for it."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        """All keys but the name; lists become tuples, as frozen dataclasses want them."""
        extra = self.model_extra or {}
        return {key: tuple(value) if isinstance(value, list) else value for key, value in extra.items()}


class ModelConfig(_Section):
    """Which transformer, and how it is made sparse. None = the named model's own value."""

    name: str = "vmoe_tiny_patch8_32"
    image_size: int | None = Field(None, gt=0)
    patch_size: int | None = Field(None, gt=0)
    num_classes: int | None = Field(None, gt=0)  # None = that of the data
    pre_logits: bool | None = None
    num_experts: int | None = Field(None, gt=0)
    top_k: int | None = Field(None, gt=0)
    layers: list[int] | None = None
    router: str | None = None
    noise_std: float | None = Field(None, ge=0)
    capacity_factor: float | None | Literal["none"] = None
    eval_capacity_factor: float | None | Literal["none"] = None
    batch_priority: bool | None = None
    group_images: int | None = Field(None, gt=0)
    expert_dropout: float | None = Field(None, ge=0, lt=1)
    bfloat16_dispatch: bool | None = None
    mean: list[float] = Field([0.5, 0.5, 0.5], min_length=3, max_length=3)
    std: list[float] = Field([0.5, 0.5, 0.5], min_length=3, max_length=3)
    crop_fraction: float | None = Field(None, gt=0, le=1)  # of the shorter side; None = squash


class DataConfig(_Section):
    """Which data set: ``name`` or ``name:location``."""

    name: str = "digits"
    workers: int = Field(0, ge=0)


class OptimizerConfig(_Section):
    """One of timm's optimisers; ``momentum`` is heavy-ball SGD. Weight decay acts on kernels alone."""

    name: str = "adamw"
    learning_rate: float = Field(1e-3, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    momentum: float = Field(0.9, ge=0)
    betas: list[float] = Field([0.9, 0.999], min_length=2, max_length=2)
    clip_norm: float | None = Field(None, gt=0)


class ScheduleConfig(_Section):
    """Linear warm-up from 0, then a cosine or a straight line to ``end_value``; counted in steps."""

    name: Literal["cosine", "linear"] = "cosine"
    warmup_steps: int = Field(0, ge=0)
    end_value: float = Field(0.0, ge=0)


class InitialiseConfig(_Section):
    """Start from a checkpoint: everything but the head and the pre-logits, positions resampled."""

    checkpoint: str
    keep_head: bool = False


class TrainConfig(_Section):
    """One training run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    group: str = ""
    seed: int = Field(0, ge=0)
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    view: Plugin = Plugin(name="random_crop")
    views_per_image: Literal[1, 2] = 2
    objective: Plugin = Plugin(name="balanced")
    loss: Literal["softmax", "sigmoid"] = "softmax"
    mixup: float = Field(0.0, ge=0)  # concentration of the Dirichlet distribution; 0 = none
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    batch_size: int = Field(64, gt=0)  # source images
    epochs: float | None = Field(None, gt=0)
    steps: int | None = Field(None, gt=0)
    evaluate_every: int | None = Field(None, gt=0)  # steps; None = ten times in all
    eval_batch_size: int = Field(128, gt=0)
    amp: bool = False
    compile: bool = False
    tensorboard: bool = False
    initialise: InitialiseConfig | None = None

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
    """Return the names of the configurations that come with moeprobe."""
    return sorted({path.stem for folder in folders() for path in folder.glob("*.yaml")})


def load(source: str, overrides: Iterable[str] = ()) -> TrainConfig:
    """Return the configuration called ``source`` (a name or a path to a YAML file) with overrides.

    Raises:
        UserError: there is none, it is no YAML mapping, a key is unknown, a value has the wrong type.
    """
    content = _read(_find(source))
    for override in overrides:
        _set(content, override)
    return parse(content)


def parse(content: dict[str, Any]) -> TrainConfig:
    """Return the validated configuration of a mapping.

    Raises:
        UserError: a key is unknown or a value has the wrong type.
    """
    try:
        return TrainConfig.model_validate(content)
    except ValidationError as error:
        raise UserError(_sentence(error)) from None


def dump(config: TrainConfig) -> str:
    """Return the resolved configuration as YAML."""
    return yaml.safe_dump(config.model_dump(), sort_keys=False, allow_unicode=True)


def _find(source: str) -> Path:
    path = Path(source)
    if path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise UserError(f"There is no configuration file {source}.")
        return path
    for folder in folders():
        if (folder / f"{source}.yaml").is_file():
            return folder / f"{source}.yaml"
    raise UserError(unknown("configuration", source, names()))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"Cannot read {path} as YAML: {' '.join(str(error).split())}.") from None
    if not isinstance(content, dict):
        raise UserError(f"{path} should hold a mapping of keys to values, not {type(content).__name__}.")
    content.setdefault("name", path.stem)
    return content


def _set(content: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"An override is written key=value, e.g. model.top_k=1; got {override!r}.")
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError:
        raise UserError(f"Cannot read the value of {override!r}.") from None
    *sections, last = key.split(".")
    for section in sections:
        child = content.setdefault(section, {})
        if child is None:
            child = content[section] = {}
        if not isinstance(child, dict):
            raise UserError(f"{section!r} in {override!r} is a value, not a section.")
        content = child
    # YAML reads 1e-3 as a string; people mean a number.
    content[last] = _number(value)


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


def _sentence(error: ValidationError) -> str:
    """Return the first problem as a sentence."""
    problem = error.errors()[0]
    where = ".".join(
        str(part) for part in problem["loc"] if not str(part).startswith(("literal[", "function-"))
    )
    if problem["type"] == "extra_forbidden":
        *sections, key = [str(part) for part in problem["loc"]]
        known = _fields(sections)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f" Did you mean {'.'.join([*sections, near[0]])!r}?" if near else ""
        return f"There is no configuration key {where!r}.{hint} Known here: {', '.join(sorted(known))}."
    message = problem["msg"].removeprefix("Value error, ")
    given = "" if problem["type"] == "missing" else f"; got {problem['input']!r}"
    return f"In the configuration, {where or 'the whole'}: {message[0].lower()}{message[1:]}{given}."[:600]


def _fields(sections: list[str]) -> list[str]:
    model: Any = TrainConfig
    for section in sections:
        annotation = model.model_fields[section].annotation
        choices = [annotation, *getattr(annotation, "__args__", ())]
        model = next(
            choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)
        )
    return list(model.model_fields)
