"""What a training wrote, read back and checked once: the curve ``metrics.csv`` and the mark ``finished.json``."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from moeprobe.errors import UserError, option
from moeprobe.runtime.files import read_json

CURVE, SUMMARY = "metrics.csv", "finished.json"


class _Summary(BaseModel):
    """What commands print of a finished training."""

    model_config = ConfigDict(extra="allow", strict=True)

    name: str
    steps: int
    images_per_second: float
    val_accuracy: float | None = None
    best_val_accuracy: float | None = None
    val_loss: float | None = None
    best_val_loss: float | None = None
    validated_on: str = ""
    upcycled: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _is_validated(self) -> "_Summary":
        pairs = ((self.val_accuracy, self.best_val_accuracy), (self.val_loss, self.best_val_loss))
        if not any(None not in pair for pair in pairs):
            raise ValueError("it lacks val_accuracy or val_loss")
        return self


def read_summary(path: Path) -> dict[str, Any]:
    """Return what ``finished.json`` says.

    Raises:
        UserError: it cannot be read, or is not what a training writes.
    """
    content: dict[str, Any] = read_json(path)
    try:
        _Summary.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        location = ".".join(map(str, problem["loc"])) or problem["msg"].removeprefix("Value error, ")
        raise UserError(
            f"{path} is not what a training writes at its end ({location}); add {option('overwrite', True)} to "
            "train again."
        ) from None
    return content


def read_curve(text: str, path: Path, *, needed: Sequence[str] = ("step",)) -> pd.DataFrame:
    """Return a curve, all of it numbers.

    Args:
        text: the content of ``metrics.csv``.
        path: where it is, for the message.
        needed: columns that it must have.

    Raises:
        UserError: it has no steps, or something else than numbers.
    """
    try:
        curve = pd.read_csv(io.StringIO(text))
        if not set(needed) <= set(curve):
            raise ValueError("it has no steps")
        curve = curve.apply(pd.to_numeric)
        if curve[list(needed)].isna().any(axis=None):
            raise ValueError(f"a line lacks one of {', '.join(needed)}")
    except (ValueError, TypeError) as error:
        raise UserError(f"The {CURVE} of {path} cannot be read: {error}.") from None
    return curve
