"""Settings under which a trained model is probed: ``PATH,top_k=1,capacity=0.5``. Nothing here imports torch.

They change how the model serves its tokens, never what it has learned, so that one run can hold a checkpoint against
itself: with another k, less room for each expert, or without experts.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationError, field_validator

from moeprobe.errors import UserError
from moeprobe.models.config import NUM_EXPERTS, ROUTER, ModelConfig
from moeprobe.runtime.assignments import split_assignments
from moeprobe.runtime.schema import Plugin, Section, sentence


class Settings(Section):
    """What is written after a checkpoint's path, ``,key=value`` each; None = as trained."""

    model_config = ConfigDict(strict=False)
    top_k: int | None = Field(None, gt=0, description="experts that a token chooses")
    renormalise: bool | None = Field(
        None, description="divide the weights of a token's experts by their sum, or do not"
    )
    capacity: Annotated[float, Field(gt=0, le=2**30)] | Literal["trained"] | None = Field(
        None,
        description="room of an expert as a multiple of its even share, C = ⌈S · k · capacity / E⌉ of a group's S "
        "tokens; trained: that of the model in evaluation",
    )
    priority: Literal["order", "gate"] | None = Field(
        None, description="who takes the room first: tokens in their order, or by their largest gate (BPR)"
    )
    experts: str | None = Field(
        None,
        description="off: experts add nothing; without-N: expert N adds nothing; only-N: all are copies of expert N",
    )

    @field_validator("experts")
    @classmethod
    def _of_experts(cls, experts: str | None) -> str | None:
        if experts is not None and not re.fullmatch(r"off|(without|only)-\d+", experts):
            raise ValueError("input should be off, without-N or only-N, N the number of an expert")
        return experts

    @property
    def suffix(self) -> str:
        """What follows the name of the checkpoint in tables; empty where nothing is changed."""
        values = self.plain()
        return "".join(
            f",{key}={str(value).lower() if isinstance(value, bool) else value}"
            for key, value in values.items()
        )

    def plain(self) -> dict[str, Any]:
        """Return what is changed, by name."""
        return self.model_dump(exclude_none=True)

    def switches(self) -> dict[str, Any]:
        """Return what ``experts`` says as arguments of ``nn.switch.switch_experts``."""
        if self.experts is None:
            return {}
        kind, _, number = self.experts.partition("-")
        return {kind: int(number) if number else True}

    def applied(self, config: ModelConfig) -> ModelConfig:
        """Return the description of a model that serves as these settings say.

        Raises:
            UserError: there are not so many experts, or none at all.
        """
        if config.dense and self.suffix:
            raise UserError(f"The model is dense: leave the settings {self.suffix.removeprefix(',')!r} out.")
        num_experts = config.num_experts or NUM_EXPERTS
        if self.top_k is not None and self.top_k > num_experts:
            raise UserError(f"top_k={self.top_k} is more than the {num_experts} experts of a layer.")
        if any(number >= num_experts for number in self.switches().values() if number is not True):
            raise UserError(f"experts={self.experts}: the experts of a layer are 0 to {num_experts - 1}.")
        changes: dict[str, Any] = {}
        if self.top_k is not None:
            changes["top_k"] = self.top_k
        if self.priority is not None:
            changes["batch_priority"] = self.priority == "gate"
        if isinstance(self.capacity, float):
            # Without rounding up to a multiple of four, with which a small group has room for all.
            changes |= {
                "eval_capacity_factor": self.capacity,
                "capacity_multiple_of": 1,
                "capacity_rounding": "ceil",
            }
        if self.renormalise is not None:
            router = config.router or Plugin(name=ROUTER)
            changes["router"] = Plugin.model_validate(
                {"name": router.name, **router.parameters, "renormalise": self.renormalise}
            )
        return config.model_copy(update=changes)


def split_settings(source: str | Path) -> tuple[str | Path, Settings]:
    """Return the path of a checkpoint and the settings that follow it, if there are any.

    Raises:
        UserError: there is no such setting, one is named twice, or its value does not fit.
    """
    path, assignments = split_assignments(str(source))
    if not assignments or Path(source).exists():
        return source, Settings()
    values: dict[str, str] = {}
    for key, value in assignments:
        if key in values:
            raise UserError(f"{str(source)!r} has the setting {key} twice; name it once.")
        values[key] = value
    try:
        return path, Settings.model_validate_strings(values)
    except ValidationError as error:
        raise UserError(sentence(error, Settings, what="setting")) from None


def refuse_settings(source: str) -> None:
    """Raise ``UserError`` where settings follow the name of another program's model, which serves as it does."""
    name, assignments = split_assignments(source)
    if assignments:
        settings = source.removeprefix(f"{name},")
        raise UserError(f"Settings are for checkpoints of moeprobe; leave {settings!r} out after {name!r}.")
