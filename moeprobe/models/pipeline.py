"""Trainings one after the other: one YAML file, in which each stage starts from the checkpoint of the one before.

    name: distilled                       # what all stages share: keys of a configuration
    data: {name: digits}
    model: {name: vmoe_tiny_patch8_32, num_experts: 4, router: dense}
    pipeline:                             # what each changes, in their order: keys as on the command line
      teach: {epochs: 40, objective: variation}
      distil:
        model.router: softmax_token_choice
        model.top_k: 1
        initialise: {keep_head: true, fresh: ["*.router.*"]}
        freeze: ["*", "!*.router.*"]
        epochs: 10

A stage is a configuration like any other, called ``distilled-distil``, and its folder is one below the pipeline's.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from moeprobe.errors import UserError
from moeprobe.models import config_files
from moeprobe.models.checkpoints.location import CHECKPOINTS
from moeprobe.models.config import LENGTHS, NAME, TrainConfig, with_changes
from moeprobe.models.config_files import PIPELINES
from moeprobe.runtime.catalog import describe_unknown
from moeprobe.runtime.files import is_file
from moeprobe.runtime.schema import sentence

KEY = "pipeline"
# Keys that a pipeline gives each of its stages.
_OWN = ("name", "group", "seed")


class _Named(BaseModel):
    """What a pipeline needs besides the keys of its stages."""

    model_config = ConfigDict(extra="ignore", strict=True)
    name: str = Field(pattern=NAME)
    group: str = ""
    pipeline: dict[str, dict[str, Any]] = Field(min_length=1)


@dataclass(frozen=True)
class Pipeline:
    """Trainings in their order.

    Attributes:
        name: of the pipeline and its folder.
        stages: name -> configuration; all but the first start from the folder of the one before, below ``folder``.
        folder: of the pipeline.
    """

    name: str
    stages: dict[str, TrainConfig]
    folder: Path


def names() -> list[str]:
    """Return the names of the pipelines that come with moeprobe."""
    return sorted(
        {path.stem for root in config_files.folders() for path in (root / PIPELINES).glob("*.yaml")}
    )


def path_of(source: str) -> Path:
    """Return the file of the pipeline called ``source``, a name or a path.

    Raises:
        UserError: there is none.
    """
    return config_files.find(source, names(), what="pipeline", folder=PIPELINES)


def is_pipeline(source: str) -> bool:
    """Whether a text means a pipeline: the name of one, or a YAML file with stages.

    Raises:
        UserError: the file cannot be read.
    """
    if source in names():
        return True
    path = Path(source)
    return path.suffix in (".yaml", ".yml") and is_file(path) and KEY in config_files.read(path)


def load(source: str, overrides: Iterable[str] = (), *, folder: Path | None = None) -> Pipeline:
    """Return the pipeline called ``source`` (a name or a path to a YAML file), with its configurations worked out.

    An override is of a stage (``pipeline.distil.epochs=5``), or of what all share and a stage may change.

    Args:
        source: name or path.
        overrides: ``key=value`` strings.
        folder: where it is to be trained; None = ``checkpoints/NAME``.

    Raises:
        UserError: there is none, a key is unknown, a value does not fit, or there is no such stage.
    """
    return load_with(source, [config_files.pair(override) for override in overrides], folder=folder)


def load_with(
    source: str,
    changes: Sequence[tuple[str, Any]],
    *,
    folder: Path | None = None,
    only: Sequence[str] = (),
) -> Pipeline:
    """Return the pipeline called ``source`` with values put in by dotted key.

    Args:
        source: name or path.
        changes: keys and values, as in ``load``.
        folder: where it is to be trained; None = ``checkpoints/NAME``.
        only: the stages that are kept, and changes of the others left out; none = all.

    Raises:
        UserError: as for ``load``.
    """
    content = config_files.read(path_of(source))
    if wrong := [stage for stage in only if stage not in (content.get(KEY) or {})]:
        raise UserError(describe_unknown("stage", wrong[0], list(content.get(KEY) or {})))
    left_out: set[str] = set()
    if only:
        left_out = content[KEY].keys() - set(only)
        content[KEY] = {stage: keys for stage, keys in content[KEY].items() if stage in only}
    stages = _stages(content)
    shared = []
    for key, value in changes:
        section, _, subkey = key.partition(".")
        if section != KEY:
            shared.append((key, value))
            continue
        stage, _, inner = subkey.partition(".")
        if stage in left_out:
            continue
        if stage not in stages:
            raise UserError(describe_unknown("stage", stage, stages))
        if not inner:
            raise UserError(f"An override of a stage names a key of it: {KEY}.{stage}.epochs=5.")
        stages[stage].append((inner, value))
    put = dict(shared)
    header = _parse(content | {key: put[key] for key in ("name", "group") if key in put})
    root = CHECKPOINTS / header.name if folder is None else folder
    configs: dict[str, TrainConfig] = {}
    for stage, stage_changes in stages.items():
        _check_own(stage, stage_changes, first=not configs)
        start = [("initialise.checkpoint", str(root / list(configs)[-1]))] if configs else []
        group = [("group", f"{header.group}-{stage}")] if header.group else []
        own_changes = [
            *_of_one_length([*shared, *stage_changes]),
            ("name", f"{header.name}-{stage}"),
            *group,
            *start,
        ]
        copy = config_files.written_out({key: value for key, value in content.items() if key != KEY})
        try:
            configs[stage] = with_changes(copy, own_changes)
        except UserError as error:
            raise UserError(f"In the stage {stage} of the pipeline {header.name!r}: {error}") from None
    return Pipeline(header.name, configs, root)


def _stages(content: dict[str, Any]) -> dict[str, list[tuple[str, Any]]]:
    header = _parse(content)
    for stage in header.pipeline:
        if not stage.replace("-", "").replace("_", "").isalnum():
            raise UserError(
                f"A stage is called by letters, digits, - and _, since it is a folder; got {stage!r}."
            )
    if "initialise" in content:
        first = next(iter(header.pipeline))
        raise UserError(f"In a pipeline, initialise is a key of the first stage ({first}); move it there.")
    return {stage: list(keys.items()) for stage, keys in header.pipeline.items()}


def _parse(content: dict[str, Any]) -> _Named:
    try:
        return _Named.model_validate(content)
    except ValidationError as error:
        raise UserError(sentence(error, _Named, what="pipeline")) from None


def _check_own(stage: str, keys: list[tuple[str, Any]], *, first: bool) -> None:
    """Raise ``UserError`` where a stage has keys that follow from the pipeline."""
    for key, value in keys:
        section = key == "initialise" and (not isinstance(value, dict) or "checkpoint" in value)
        if key in _OWN or (not first and (section or key == "initialise.checkpoint")):
            what = "initialise.checkpoint" if section else key
            raise UserError(f"In the stage {stage}, {what} follows from the pipeline; leave it out.")


def _of_one_length(changes: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """Return the changes without steps where epochs come later, and the other way round."""
    lengths = [key for key, _ in changes if key in LENGTHS]
    return [change for change in changes if not lengths or change[0] != LENGTHS[lengths[-1]]]
