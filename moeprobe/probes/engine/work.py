"""What a probe prepares: work that can be executed, in shards too, or timed."""

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from moeprobe.adapters.base import Checkpoint
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.shard import Shard
from moeprobe.results.folder import OutputFolder
from moeprobe.runtime.progress import Progress

R_co = TypeVar("R_co", covariant=True)


@dataclass(frozen=True)
class Plan:
    """The cost of a probe, estimated from a few images."""

    checkpoints: int
    images: int
    passes: int
    timed_images: int
    seconds: float


class Work(ABC, Generic[R_co]):
    """The work of one run, checked and not begun.

    Attributes:
        request: everything that its numbers depend on, as ``run.json`` keeps it.
        models: the checkpoints.
        data: the data set.
    """

    request: dict[str, Any]
    models: Sequence[Checkpoint]
    data: str

    @abstractmethod
    def execute(self, folder: OutputFolder | None, watcher: Progress) -> R_co:
        """Do the work, write all files except the folder's own, and mark the folder as finished."""

    @abstractmethod
    def plan(self) -> Plan:
        """Return an estimate of the cost, by doing some of the work; nothing is written."""

    def set_shard(self, shard: Shard) -> None:
        """Do no more than a shard of the work; of probes that are measured in shards."""
        raise NotImplementedError

    def measure(self, parts: Path, watcher: Progress) -> dict[str, Any]:
        """Write the part files of the selected shard; returns its sidecar."""
        raise NotImplementedError

    def use_shard_parts(self, shards: Mapping[Path, Mapping[str, Any]]) -> None:
        """Merge the parts of shards, in place of measuring; folders of their parts -> their sidecars."""
        raise NotImplementedError


def time_sample(
    spec: RunSpec,
    models: Sequence[Checkpoint],
    *,
    images: int,
    passes: int,
    run: Callable[..., object],
) -> Plan:
    """Return the cost of a probe, estimated from its first ``images``."""
    sample = dataclasses.replace(spec, indices=spec.indices[:images], skip_bad_images=True, shard=None)
    seconds = 0.0
    for model in models:
        run(dataclasses.replace(sample, indices=sample.indices[:1]), model)
        begun = time.perf_counter()
        run(sample, model)
        seconds += time.perf_counter() - begun
    return Plan(
        checkpoints=len(models),
        images=len(spec.indices),
        passes=passes,
        timed_images=len(sample.indices),
        seconds=seconds * len(spec.indices) / len(sample.indices),
    )
