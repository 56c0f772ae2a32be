"""Run configurations: a YAML file and ``key=value`` overrides, validated; an unknown key is an error.

The classes below are the schema: every key of a configuration file is a field here, with its default.
"""

import difflib
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal, get_type_hints

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from moeprobe.catalog import unknown
from moeprobe.errors import UserError

# A section may be written as its one essential value: ``objective: prc`` is ``objective: {name: prc}``.
_SHORTHANDS = {
    "data": "name",
    "view": "name",
    "objective": "name",
    "initialise": "checkpoint",
    "model.router": "name",
}
# Of the two ways to give a run's length, an override of one replaces the other.
_LENGTHS = {"steps": "epochs", "epochs": "steps"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False)


class Plugin(_Section):
    """A plug-in by name, with parameters for it."""

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)
    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, content: Any) -> Any:
        return {"name": content} if isinstance(content, str) else content

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
    head: Literal["token", "gap"] | None = (
        None  # reads the class token; gap = the mean of the patches, no such token
    )
    num_experts: int | None = Field(None, gt=0)
    layers: list[int] | str | None = None  # blocks from 0, or "last-2", "every-2"
    router: Plugin | None = None
    top_k: int | None = Field(None, gt=0)
    noise_std: float | None = Field(None, ge=0)
    capacity_factor: float | None | Literal["none"] = None
    eval_capacity_factor: float | None | Literal["none"] = None
    capacity_rounding: Literal["ceil", "round"] | None = None
    capacity_multiple_of: int | None = Field(None, gt=0)
    batch_priority: bool | None = None
    group_images: int | None = Field(None, gt=0)
    expert_dropout: float | None = Field(None, ge=0, lt=1)
    bfloat16_dispatch: bool | None = None
    mean: list[float] = Field([0.5, 0.5, 0.5], min_length=3, max_length=3)
    std: list[float] = Field([0.5, 0.5, 0.5], min_length=3, max_length=3)
    crop_fraction: float | None = Field(None, gt=0, le=1)  # of the shorter side; None = squash

    @property
    def router_name(self) -> str:
        """The router's catalog name."""
        return "softmax_token_choice" if self.router is None else self.router.name


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

    ``steps=5`` on a configuration that counts in epochs replaces them, and the other way round.

    Raises:
        UserError: there is none, it is no YAML mapping, a key is unknown, a value has the wrong type.
    """
    content = _read(_find(source))
    given = {_set(content, override) for override in overrides}
    for length, other in _LENGTHS.items():
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
        raise UserError(_sentence(error)) from None


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
            message = _lower_first(error.errors()[0]["msg"])
            raise UserError(f"In the {what} {plugin.name!r}, {key}: {message}; got {value!r}.") from None
    return kind(**values)


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


class _Loader(yaml.SafeLoader):
    """YAML with two mends: 1e-3 is a number, and a key that stands twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        """Return a mapping; called by the base class."""
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise yaml.YAMLError(f"the key {twice!r} stands twice{node.start_mark}")
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), _Loader)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"Cannot read {path} as YAML: {' '.join(str(error).split())}.") from None
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


def _set(content: dict[str, Any], override: str) -> str:
    """Put an override into ``content``; returns its key."""
    key, equals, text = override.partition("=")
    if not equals or not key:
        raise UserError(f"An override is written key=value, e.g. model.top_k=1; got {override!r}.")
    try:
        value = yaml.load(text, _Loader)
    except (ValueError, yaml.YAMLError):
        raise UserError(f"Cannot read the value of {override!r}.") from None
    *sections, last = key.split(".")
    for section in sections:
        child = content.setdefault(section, {})
        if child is None:
            child = content[section] = {}
        if not isinstance(child, dict):
            raise UserError(f"{section!r} in {override!r} is a value, not a section.")
        content = child
    content[last] = _long_form(key, value)
    return key


def _sentence(error: ValidationError) -> str:
    """Return the first problem as a sentence; a misspelt key before the one that is missed for it."""
    problem = min(error.errors(), key=lambda one: one["type"] == "missing")
    *sections, key = path = _key(problem["loc"])
    where = ".".join(path)
    if problem["type"] == "extra_forbidden":
        known = _fields(sections)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
        hint = f" Did you mean {'.'.join([*sections, near[0]])!r}?" if near else ""
        return f"There is no configuration key {where!r}.{hint} Known here: {', '.join(sorted(known))}."
    given = "" if problem["type"] == "missing" or not where else f"; got {_short(problem['input'])}"
    if problem["type"] == "model_type":
        inside = ", ".join(f"{where}.{name}" for name in _fields([key]))
        return f"In the configuration, {where} is a section of keys ({inside}){given}."
    message = _lower_first(problem["msg"].removeprefix("Value error, "))
    return f"In the configuration, {where or 'the whole'}: {message}{given}."


def _key(location: tuple[str | int, ...]) -> list[str]:
    """Return the key that a problem is about, without the marks of a union's members; [""] for the whole."""
    names = [str(part) for part in location] or [""]
    depth = 2 if names[0] in TrainConfig.model_fields and _fields(names[:1]) else 1
    return names[:depth] + [name for name in names[depth:] if name.isdecimal()]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


def _fields(sections: list[str]) -> list[str]:
    """Return the keys of a section, [] where it is none."""
    model: Any = TrainConfig
    for section in sections:
        annotation = model.model_fields[section].annotation
        choices = [annotation, *getattr(annotation, "__args__", ())]
        models = [choice for choice in choices if isinstance(choice, type) and issubclass(choice, BaseModel)]
        if not models:
            return []
        model = models[0]
    return list(model.model_fields)
