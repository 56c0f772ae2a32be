"""Blocks of unperturbed inputs that are run in several variants of the model, or of the run, each a view in tables."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.batch_sums import load_batches, readable_batches, to_host
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.results.folder import Result
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.runtime.progress import Advance

Sums = dict[Cell, dict[str, Tensor]]
# From a batch to its sums by the name of the variant.
BatchSums = Callable[[Batch | TextBatch], Mapping[str, Sums]]


class VariantsMeasurement(Measurement[Result]):
    """The work of a probe that runs each batch in several variants.

    Attributes:
        masks: whether it reads which pixels show the foreground.
    """

    masks: ClassVar[bool] = False

    @abstractmethod
    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch, by the name of the variant."""

    def run_block(self, spec: RunSpec, model: Checkpoint) -> loop.RunBlock:
        """Return what runs each batch of a block in all variants."""
        return partial(_run_block, sums=self.batch_sums(spec, model), masks=self.masks)

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on; the variants are all of unperturbed images."""
        return super().make_request() | {"aligned": True}

    @property
    def is_aligned(self) -> bool:
        """No variant moves a patch."""
        return True


def _run_block(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    sums: BatchSums,
    masks: bool,
) -> tuple[Accumulator, list[str]]:
    """Return the sums per input of some inputs."""
    accumulator, skipped = Accumulator(), list[str]()
    for batch in readable_batches(load_batches(spec, checkpoint, block, masks=masks), skipped, progress):
        labels = {"label": batch.labels.numpy()}
        for view, sums_by_cell in sums(batch).items():
            for cell, columns in sums_by_cell.items():
                arrays = {name: to_host(column) for name, column in columns.items()}
                accumulator.add(dataclasses.replace(cell, view=view), batch.image_ids, labels | arrays)
    return accumulator, skipped
