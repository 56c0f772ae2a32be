"""A sweep of trainings: one YAML file names the configurations to train and the metrics of each.

    base: routers/digits                  # a configuration, by name or as a file next to this one
    fixed: {epochs: 30}                   # keys of it, as overrides on the command line: for every cell
    cells:                                # each entry is a grid of its own: a list holds the values to try
      - {model.router: softmax_token_choice, model.top_k: [1, 2]}
      - model.router: softmax_expert_choice
        model.capacity_factor: [1, 2]
        fixed: {objective.importance_weight: 0}   # for these cells, without a part in their names
    seeds: [0, 1, 2]
    measure: {views: [random_crop], sigmas: [0.1]}

The base may be a pipeline: of each cell all stages are trained, the last one is measured, and an entry may keep some of
them (``stages: [pretrain, finetune]``). ``label`` is what the cells of an entry are called, before what they vary.

A value that is itself a list is put in a list of its own: ``model.layers: [[1, 3]]``.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from moeprobe.errors import UserError
from moeprobe.models import config_files, pipeline
from moeprobe.models.checkpoints.location import CHECKPOINTS
from moeprobe.models.config import LENGTHS, NAME, TrainConfig, load_with
from moeprobe.models.config_files import SWEEPS
from moeprobe.models.pipeline import Pipeline, is_pipeline
from moeprobe.runtime.arguments import HIGHEST_SEED, LOWEST_SEED
from moeprobe.runtime.files import is_folder
from moeprobe.runtime.schema import ConfigSection, sentence
from moeprobe.runtime.similar_paths import did_you_mean_path

# The part of a cell's name for a key; of others the last part of the key goes before the value.
_SHORT = {"model.router": "", "model.top_k": "k", "model.capacity_factor": "c"}
# What an entry of cells has besides keys of a configuration.
_OF_THE_ENTRY = ("fixed", "label", "stages")
# Keys of a configuration that a sweep gives each of its cells.
_OWN = {
    "name": "put together from what a cell varies",
    "group": "the name without the seed",
    "seed": "in seeds",
}


class MeasureConfig(ConfigSection):
    """What is measured of a trained cell, in addition to accuracy, confidence and load on the clean images."""

    split: str = "test"
    limit: int | None = Field(None, gt=0)  # images; None = all
    seed: int = Field(0, ge=LOWEST_SEED, le=HIGHEST_SEED)
    group_images: int = Field(1, gt=0)  # images of a group, where experts choose or room is limited
    views: list[str] = Field(["random_crop"])  # pairs of views: match of corresponding patches
    sigmas: list[float] = Field([0.1, 0.2])  # Gaussian noise: match with the clean image, accuracy
    shots: list[int] = Field(
        [10]
    )  # training images per class: accuracy of few-shot regressions on frozen features
    contagion: bool = True  # how far a token's routing depends on batch-mates, other tokens and other patches


class SweepConfig(ConfigSection):
    """One sweep of trainings."""

    name: str = Field(pattern=NAME)
    base: str
    fixed: dict[str, Any] = Field({})
    cells: list[dict[str, Any]] = Field(min_length=1)
    seeds: list[int] = Field([0], min_length=1)
    measure: MeasureConfig = MeasureConfig()


@dataclass(frozen=True)
class TrainingGrid:
    """A sweep with its configurations worked out, one per cell; their names are unique.

    A pipeline's configuration is its last stage's; ``pipelines`` has all stages, by the cell's name.
    """

    name: str
    cells: tuple[TrainConfig, ...]
    measure: MeasureConfig
    pipelines: Mapping[str, Pipeline] = field(default_factory=dict)


def names() -> list[str]:
    """Return the names of the sweeps that come with moeprobe."""
    return sorted({path.stem for root in config_files.folders() for path in (root / SWEEPS).glob("*.yaml")})


def is_sweep(source: str) -> bool:
    """Whether a text means a sweep: the name of one, or a YAML file."""
    return source in names() or Path(source).suffix in (".yaml", ".yml")


def no_training(path: Path) -> UserError:
    """Return the sentence for a source that is neither a sweep nor the folder of a training."""
    if is_folder(path):
        return UserError(f"{path} is no folder of a training: it needs config.yaml and last.safetensors.")
    return UserError(
        f"There is no sweep and no folder of a training called {path}; moeprobe list sweeps names the sweeps."
        f"{did_you_mean_path(path)}"
    )


def path_of(source: str) -> Path:
    """Return the file of the sweep called ``source``, a name or a path.

    Raises:
        UserError: there is none.
    """
    return config_files.find(source, names(), what="sweep", folder=SWEEPS)


def load(source: str, overrides: Iterable[str] = (), *, checkpoints: Path = CHECKPOINTS) -> TrainingGrid:
    """Return the sweep called ``source`` (a name or a path to a YAML file).

    An override is of a key of the file (``seeds=[0]``, ``measure.limit=100``) or of the configurations
    (``epochs=5``); the latter are put into ``fixed``. Pipelines are trained below ``checkpoints``.

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
            alternative = LENGTHS.get(key)
            content["fixed"] = {name: old for name, old in fixed.items() if name != alternative} | {
                key: value
            }
    sweep: SweepConfig = _parse(content, SweepConfig)
    base = str(path.parent / sweep.base) if sweep.base.endswith((".yaml", ".yml")) else sweep.base
    cells = [cell for grid in sweep.cells for cell in _grid(sweep, grid, base, checkpoints / sweep.name)]
    names_of = [cell.name for cell in cells]
    for name, number in Counter(names_of).items():
        if number > 1:
            raise UserError(
                f"{number} cells of the sweep {sweep.name!r} are called {name}; each needs its own values, or a label."
            )
    pipelines = {cell.name: cell for cell in cells if isinstance(cell, Pipeline)}
    configs = [list(cell.stages.values())[-1] if isinstance(cell, Pipeline) else cell for cell in cells]
    return TrainingGrid(sweep.name, tuple(configs), sweep.measure, pipelines)


def load_measure(overrides: Iterable[str]) -> MeasureConfig:
    """Return the metrics to compute without a sweep: the defaults, with overrides such as ``measure.limit=100``.

    Raises:
        UserError: an override is of something else.
    """
    content: dict[str, Any] = {}
    for override in overrides:
        config_files.put(content, *config_files.pair(override))
    return _parse(content, _Measured).measure


class _Measured(ConfigSection):
    measure: MeasureConfig = MeasureConfig()


def _parse(content: dict[str, Any], schema: type[ConfigSection]) -> Any:
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise UserError(sentence(error, schema, what="sweep")) from None


def _grid(sweep: SweepConfig, grid: dict[str, Any], base: str, folder: Path) -> list[TrainConfig | Pipeline]:
    """Return the configurations of one entry of ``cells``, seed after seed of each."""
    fixed = grid.get("fixed", {})
    if not isinstance(fixed, dict):
        raise UserError(
            f"In the sweep {sweep.name!r}, the fixed of a cell is a mapping of keys; got {fixed!r}."
        )
    label, stages = grid.get("label", ""), grid.get("stages", [])
    if not isinstance(label, str) or not isinstance(stages, list):
        raise UserError(
            f"In the sweep {sweep.name!r}, the label of a cell is a word and its stages a list of names."
        )
    if stages and not is_pipeline(base):
        raise UserError(f"In the sweep {sweep.name!r}, {base} is no pipeline, so its cells have no stages.")
    keys = [key for key in grid if key not in _OF_THE_ENTRY]
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
            [*fixed.items(), *zip(keys, combination, strict=True)],
            _cell_name(label, dict(zip(keys, combination, strict=True))) or sweep.name,
            seed,
            stages,
            folder,
        )
        for combination in itertools.product(*values)
        for seed in sweep.seeds
    ]


def _cell_name(label: str, values: dict[str, Any]) -> str:
    return "-".join([*filter(None, [label]), *(part(key, value) for key, value in values.items())])


def _cell(
    sweep: SweepConfig,
    base: str,
    cell_changes: list[tuple[str, Any]],
    group: str,
    seed: int,
    stages: list[str],
    folder: Path,
) -> TrainConfig | Pipeline:
    name = f"{group}-seed{seed}"
    changes = [*sweep.fixed.items(), *cell_changes]
    try:
        if not is_pipeline(base):
            return load_with(base, [*changes, ("name", name), ("group", group), ("seed", seed)])
        labels = [("name", name), ("group", group), ("seed", seed)]
        cell_pipeline = pipeline.load_with(base, [*changes, *labels], folder=folder / name, only=stages)
    except UserError as error:
        raise UserError(f"In the cell {group} of the sweep {sweep.name!r}: {error}") from None
    # What is measured is the last stage, under the cell's own name for its group.
    *_, last = cell_pipeline.stages
    return replace(
        cell_pipeline,
        stages=cell_pipeline.stages | {last: cell_pipeline.stages[last].model_copy(update={"group": group})},
    )


def part(key: str, value: Any) -> str:
    """Return what the value of a key is called in the name of its cell."""
    if isinstance(value, dict):  # a plug-in with parameters: its name, then each of them
        return "-".join(str(item) if name == "name" else part(name, item) for name, item in value.items())
    short = _SHORT.get(key, f"{key.rpartition('.')[2]}-")
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return short + re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")
