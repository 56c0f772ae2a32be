"""Blocks of unperturbed inputs that are run in several variants of the model, or of the run, each a view in tables."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.batches import Batch, Loading, batches
from moeprobe.inputs.text_batches import TextBatch
from moeprobe.probes.engine.batch_sums import to_host
from moeprobe.probes.engine.question import Question, recipe
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.runtime.progress import Advance

Sums = dict[Cell, dict[str, Tensor]]


def run_block(
    question: Question,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    sums: Callable[[Batch | TextBatch], Mapping[str, Sums]],
) -> tuple[Accumulator, list[str]]:
    """Return the sums per input of some inputs; ``sums`` are those of a batch by the name of the variant."""
    accumulator, skipped = Accumulator(), list[str]()
    loader = batches(
        question.dataset,
        block,
        recipe(question, checkpoint.framing),
        loading=Loading(question.batch_size, question.workers),
        skip_bad_images=question.skip_bad_images,
        group_images=checkpoint.model.group_images,
        masks=False,
    )
    for batch in loader:
        skipped += batch.skipped
        if batch.image_ids:
            labels = {"label": batch.labels.numpy()}
            for view, found in sums(batch).items():
                for cell, columns in found.items():
                    arrays = {name: to_host(column) for name, column in columns.items()}
                    accumulator.add(dataclasses.replace(cell, view=view), batch.image_ids, labels | arrays)
        if progress is not None:
            progress(len(batch.image_ids) + len(batch.skipped))
    return accumulator, skipped
