"""A sweep of trainings: one YAML file that says which configurations are trained, and what is measured of each.

    base: routers/digits                  # a configuration, by name or as a file next to this one
    fixed: {epochs: 30}                   # keys of it, as overrides on the command line: for every cell
    cells:                                # each entry is a grid of its own: a list is what is gone through
      - {model.router: softmax_token_choice, model.top_k: [1, 2]}
      - model.router: softmax_expert_choice
        model.capacity_factor: [1, 2]
        fixed: {objective.importance_weight: 0}   # for these cells, without a part in their names
    seeds: [0, 1, 2]
    measure: {views: [random_crop], sigmas: [0.1]}

A value that is itself a list is put in a list of its own: ``model.layers: [[1, 3]]``.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from moeprobe.errors import UserError
from moeprobe.models import config_files
from moeprobe.models.config import LENGTHS, TrainConfig, change
from moeprobe.models.config_files import SWEEPS
from moeprobe.runtime.schema import Section, sentence

# The part of a cell's name for a key; of others the last part of the key goes before the value.
_SHORT = {"model.router": "", "model.top_k": "k", "model.capacity_factor": "c"}
# Keys of a configuration that a sweep gives each of its cells.
_OWN = {
    "name": "put together from what a cell varies",
    "group": "the name without the seed",
    "seed": "in seeds",
}


class MeasureConfig(Section):
    """What is measured of a trained cell, in addition to accuracy, confidence and load on the clean images."""

    split: str = "test"
    limit: int | None = Field(None, gt=0)  # images; None = all
    seed: int = Field(0, ge=0)
    group_images: int = Field(1, gt=0)  # images of a group, where experts choose or room is limited
    views: list[str] = Field(["random_crop"])  # pairs of views: match of corresponding patches
    sigmas: list[float] = Field([0.1, 0.2])  # Gaussian noise: match with the clean image, accuracy
    shots: list[int] = Field(
        [10]
    )  # training images per class: accuracy of few-shot regressions on frozen features
    contagion: bool = True  # how far a token's routing depends on batch-mates, other tokens and other patches


class SweepConfig(Section):
    """One sweep of trainings."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    base: str
    fixed: dict[str, Any] = Field({})
    cells: list[dict[str, Any]] = Field(min_length=1)
    seeds: list[int] = Field([0], min_length=1)
    measure: MeasureConfig = MeasureConfig()


@dataclass(frozen=True)
class Sweep:
    """A sweep with its configurations worked out, one per cell; their names are unique."""

    name: str
    cells: tuple[TrainConfig, ...]
    measure: MeasureConfig


def names() -> list[str]:
    """Return the names of the sweeps that come with moeprobe."""
    return sorted({path.stem for root in config_files.folders() for path in (root / SWEEPS).glob("*.yaml")})


def is_sweep(source: str) -> bool:
    """Whether a text means a sweep: the name of one, or a YAML file."""
    return source in names() or Path(source).suffix in (".yaml", ".yml")


def no_training(path: Path) -> UserError:
    """Return the sentence for what is neither a sweep nor the folder of a training."""
    if path.is_dir():
        return UserError(f"{path} is no folder of a training: it needs config.yaml and last.safetensors.")
    return UserError(
        f"There is no sweep and no folder of a training called {path}; moeprobe list sweeps names the sweeps."
    )


def path_of(source: str) -> Path:
    """Return the file of the sweep called ``source``, a name or a path.

    Raises:
        UserError: there is none.
    """
    return config_files.find(source, names(), what="sweep", folder=SWEEPS)


def load(source: str, overrides: Iterable[str] = ()) -> Sweep:
    """Return the sweep called ``source`` (a name or a path to a YAML file).

    An override is of a key of the file (``seeds=[0]``, ``measure.limit=100``) or of the configurations
    (``epochs=5``); the latter are put into ``fixed``.

    Raises:
        UserError: there is none, a key is unknown, a value does not fit, or two cells are the same.
    """
    path = path_of(source)
    content = config_files.read(path)
    for override in overrides:
        key, value = config_files.pair(override)
        if key.split(".")[0] in SweepConfig.model_fields:
            config_files.put(content, key, value)
        else:
            fixed = content.get("fixed") or {}
            other = LENGTHS.get(key)
            content["fixed"] = {name: old for name, old in fixed.items() if name != other} | {key: value}
    sweep: SweepConfig = _parse(content, SweepConfig)
    base = str(path.parent / sweep.base) if sweep.base.endswith((".yaml", ".yml")) else sweep.base
    cells = [cell for grid in sweep.cells for cell in _grid(sweep, grid, base)]
    for name, number in Counter(cell.name for cell in cells).items():
        if number > 1:
            raise UserError(
                f"{number} cells of the sweep {sweep.name!r} are called {name}; each needs its own values."
            )
    return Sweep(sweep.name, tuple(cells), sweep.measure)


def load_measure(overrides: Iterable[str]) -> MeasureConfig:
    """Return what is measured where there is no sweep: as usual, with overrides such as ``measure.limit=100``.

    Raises:
        UserError: an override is of something else.
    """
    content: dict[str, Any] = {}
    for override in overrides:
        config_files.put(content, *config_files.pair(override))
    return _parse(content, _Measured).measure


class _Measured(Section):
    measure: MeasureConfig = MeasureConfig()


def _parse(content: dict[str, Any], schema: type[Section]) -> Any:
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise UserError(sentence(error, schema, what="sweep")) from None


def _grid(sweep: SweepConfig, grid: dict[str, Any], base: str) -> list[TrainConfig]:
    """Return the configurations of one entry of ``cells``, seed after seed of each."""
    fixed = grid.get("fixed", {})
    if not isinstance(fixed, dict):
        raise UserError(
            f"In the sweep {sweep.name!r}, the fixed of a cell is a mapping of keys; got {fixed!r}."
        )
    keys = [key for key in grid if key != "fixed"]
    for key in (*sweep.fixed, *fixed, *keys):
        if key in _OWN:
            raise UserError(
                f"In the sweep {sweep.name!r}, {key} is {_OWN[key]}; leave it out of fixed and cells."
            )
    values = [grid[key] if isinstance(grid[key], list) else [grid[key]] for key in keys]
    return [
        _cell(
            sweep,
            base,
            [*fixed.items(), *zip(keys, chosen, strict=True)],
            dict(zip(keys, chosen, strict=True)),
            seed,
        )
        for chosen in itertools.product(*values)
        for seed in sweep.seeds
    ]


def _cell(
    sweep: SweepConfig, base: str, own: list[tuple[str, Any]], named: dict[str, Any], seed: int
) -> TrainConfig:
    group = "-".join(part(key, value) for key, value in named.items()) or sweep.name
    about = [("name", f"{group}-seed{seed}"), ("group", group), ("seed", seed)]
    try:
        return change(base, [*sweep.fixed.items(), *own, *about])
    except UserError as error:
        raise UserError(f"In the cell {group} of the sweep {sweep.name!r}: {error}") from None


def part(key: str, value: Any) -> str:
    """Return what the value of a key is called in the name of its cell."""
    if isinstance(value, dict):  # a plug-in with parameters: its name, then each of them
        return "-".join(str(own) if name == "name" else part(name, own) for name, own in value.items())
    short = _SHORT.get(key, f"{key.rpartition('.')[2]}-")
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return short + re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
