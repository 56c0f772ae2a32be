"""Blocks of unperturbed inputs that are run in several variants of the model, or of the run, each a view in tables."""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.text_batches import TextBatch
from moeprobe.probes.engine import loop
from moeprobe.probes.engine.batch_sums import to_host
from moeprobe.probes.engine.blocks import counted, loaded
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.question import Question
from moeprobe.results.folder import Result
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.runtime.progress import Advance

Sums = dict[Cell, dict[str, Tensor]]
# From a batch to its sums by the name of the variant.
BatchSums = Callable[[Batch | TextBatch], Mapping[str, Sums]]


class VariantsMeasurement(Measurement[Result]):
    """The work of a probe that runs each batch in several variants."""

    @abstractmethod
    def batch_sums(self, question: Question, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch, by the name of the variant."""

    def run_block(self, question: Question, model: Checkpoint) -> loop.RunBlock:
        """Return what runs each batch of a block in all variants."""
        return partial(_run_block, sums=self.batch_sums(question, model))

    def make_request(self) -> dict[str, Any]:
        """Return what determines the numbers; the variants are all of the images as they are."""
        return super().make_request() | {"aligned": True}

    def _about(self) -> About:
        return dataclasses.replace(super()._about(), aligned=True)


def _run_block(
    question: Question,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    sums: BatchSums,
) -> tuple[Accumulator, list[str]]:
    """Return the sums per input of some inputs."""
    accumulator, skipped = Accumulator(), list[str]()
    for batch in counted(loaded(question, checkpoint, block), skipped, progress):
        labels = {"label": batch.labels.numpy()}
        for view, found in sums(batch).items():
            for cell, columns in found.items():
                arrays = {name: to_host(column) for name, column in columns.items()}
                accumulator.add(dataclasses.replace(cell, view=view), batch.image_ids, labels | arrays)
    return accumulator, skipped
