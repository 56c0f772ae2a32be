"""What a training wrote, read back and checked once: the curve ``metrics.csv`` and the mark ``finished.json``."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from moeprobe.errors import UserError, option
from moeprobe.models.checkpoints.header import read_header
from moeprobe.models.checkpoints.location import LAST, STATE
from moeprobe.models.config import TrainConfig
from moeprobe.runtime.files import is_file, read_json, sha256

CURVE, SUMMARY = "metrics.csv", "finished.json"
# Bytes of a curve.
LONGEST_CURVE = 2**26


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


# The weights that a training starts from: a file may hold others by the time its command is given again.

# What a run calls what it started from.
CHECKPOINT, DENSE = "started_from", "upcycled"


def starting_weights(config: TrainConfig) -> dict[str, Path]:
    """Return the files that a configuration starts from, by what a run's record calls them."""
    paths = {}
    if config.initialise is not None:
        path = Path(config.initialise.checkpoint)
        paths[CHECKPOINT] = path / LAST if path.suffix != ".safetensors" else path
    if config.model.upcycle is not None and config.model.upcycle.file is not None:
        paths[DENSE] = Path(config.model.upcycle.file)
    return paths


def recorded_hash(folder: Path, state: str, key: str) -> str | None:
    """Return the hash of the weights that a run began with; None where it does not say.

    Args:
        folder: the run's folder.
        state: whether it is "finished" or "unfinished".
        key: ``CHECKPOINT`` or ``DENSE``.

    Raises:
        UserError: the record of the run cannot be read.
    """
    is_finished = state == "finished"
    description = read_json(folder / SUMMARY) if is_finished else read_header(folder / STATE).description
    start = description.get(key) if isinstance(description, dict) else None
    return start.get("sha256") if isinstance(start, dict) else None


def check_same_start(folder: Path, config: TrainConfig, state: str) -> None:
    """Raise ``UserError`` where a run began with other weights than the configured file holds now.

    A file that is gone is no other one: what a run has learned does not need it any more.
    """
    for key, path in starting_weights(config).items():
        before = recorded_hash(folder, state, key)
        if before is not None and is_file(path) and sha256(path) != before:
            raise UserError(
                f"{folder} was trained from other weights than {path} holds now; add {option('overwrite', True)} "
                "to train again."
            )
