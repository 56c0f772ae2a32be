"""The weights that a training starts from: a file may hold others by the time its command is given again."""

from pathlib import Path

from moeprobe.errors import UserError, option
from moeprobe.models.checkpoints.header import read_header
from moeprobe.models.config import TrainConfig
from moeprobe.runtime.files import LAST, STATE, is_file, read_json, sha256
from moeprobe.studies.training_files import SUMMARY

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
