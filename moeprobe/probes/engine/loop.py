"""Run one checkpoint over the images: all severities inside, one clean pass shared by all of them.

What comes out are sums per image; blocks of images can be kept as part files, so that an interrupted run goes on
where it stopped.
"""

import dataclasses
import hashlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor

from moeprobe import __version__
from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import RunWarning, UserError
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.text_batches import TextBatch
from moeprobe.inputs.views.base import SeverityView
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.probes.engine.batch_sums import Pass, corner_sums, layer_sums, output_sums, to_host
from moeprobe.probes.engine.blocks import counted, loaded
from moeprobe.probes.engine.noise_floor import repeats
from moeprobe.probes.engine.question import Question
from moeprobe.probes.engine.shard import Cuts, Shard, Stretch, stretches
from moeprobe.results.stored import Stored, of_file, of_table, together, write
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table, read_note
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime.files import Scratch, shown
from moeprobe.runtime.progress import Advance

_BLOCK = 1024

RunBlock = Callable[[Question, Checkpoint, Sequence[int], Advance | None], tuple[Accumulator, list[str]]]


def run(
    question: Question,
    checkpoint: Checkpoint,
    *,
    parts: Path | None = None,
    progress: Advance | None = None,
    run_block: RunBlock | None = None,
    cuts: Cuts | None = None,
) -> tuple[Stored, list[str]]:
    """Return the sums per image of one checkpoint, and the names of the images that could not be read.

    Of more images than one block holds they are kept in files, in a temporary folder where none is named. Blocks and
    batches are the same whatever part of them is run, so that shards put together are the run of one process.

    Args:
        question: what is asked.
        checkpoint: of whom.
        parts: folder for part files; finished ones in it are not computed again. None = there is none to be kept.
        progress: called with the number of images done since the last call.
        run_block: what is done with a block of images; None = its views are traced and compared.
        cuts: images of part files and batches; None = as ``cuts_of`` says.
    """
    sums: list[Stored] = []
    skipped: list[str] = []
    cuts = cuts or cuts_of(question, checkpoint)
    held = _held(question, cuts)
    keep = []
    if parts is None and len(question.indices) > cuts.block:
        scratch = Scratch()
        keep.append(scratch)
        parts = scratch.path
    for piece in stretches(len(question.indices), cuts, question.shard):
        images = question.indices[piece.start : piece.stop]
        name = f"{checkpoint.name}-{piece.block:05d}.parquet"
        path = None if parts is None else parts / name
        identity = _identity(question, checkpoint, images)
        kept = _kept(path, identity)
        if kept is None and question.shards:
            kept = _of_shards(question, checkpoint, name, held[piece.block])
            if path is not None:
                kept = _keep(path, *kept, identity)
        if kept is not None:
            done, bad = kept
            if progress is not None:
                progress(len(images))
        else:
            accumulator, bad = (run_block or _run_block)(question, checkpoint, images, progress)
            done = of_table(image_table(accumulator, checkpoint=checkpoint.name))
            if path is not None:
                done, bad = _keep(path, done, bad, identity)
        skipped += bad
        sums.append(done)
    return Stored((one for part in sums for one in part), keep=keep), skipped


def cuts_of(question: Question, checkpoint: Checkpoint) -> Cuts:
    """Return where the images are cut: into blocks and batches of whole groups."""
    group = checkpoint.model.group_images
    return Cuts(max(_BLOCK // group, 1) * group, max(question.batch_size // group, 1) * group)


def _held(question: Question, cuts: Cuts) -> dict[int, list[tuple[Path, Stretch]]]:
    """Return which folder of the shards has which images of each block."""
    held: dict[int, list[tuple[Path, Stretch]]] = {}
    for number, folder in enumerate(question.shards, start=1):
        shard = Shard(of=len(question.shards), number=number)
        for piece in stretches(len(question.indices), cuts, shard):
            held.setdefault(piece.block, []).append((folder, piece))
    return held


def _of_shards(
    question: Question, checkpoint: Checkpoint, name: str, held: Sequence[tuple[Path, Stretch]]
) -> tuple[Stored, list[str]]:
    """Return the sums of a block, put together of the part files that the shards have of it.

    Raises:
        UserError: a shard lacks its part, or has one of other images or of another checkpoint.
    """
    found, skipped = [], list[str]()
    for folder, piece in held:
        identity = _identity(question, checkpoint, question.indices[piece.start : piece.stop])
        kept = _kept(folder / name, identity, unnamed=True)
        if kept is None:
            raise UserError(
                f"{shown(folder.parent)} does not hold its part of {checkpoint.name}: {name} is gone, damaged, or of "
                "other images or another version of moeprobe; run the shard again with --overwrite."
            )
        found.append(kept[0])
        skipped += kept[1]
    return together(found), skipped


def _keep(path: Path, done: Stored, skipped: list[str], identity: dict[str, Any]) -> tuple[Stored, list[str]]:
    """Write a part file; returns the sums as they are in it."""
    write(path, done, note=identity | {"skipped": skipped})
    return of_file(path), skipped


def _identity(question: Question, checkpoint: Checkpoint, block: Sequence[int]) -> dict[str, Any]:
    """Return what a part file must match to be reused (the folder checks the request)."""
    names = "\n".join(question.dataset.image_ids[index] for index in block)
    return {
        "checkpoint": checkpoint.provenance.get("sha256"),
        "images": hashlib.sha256(names.encode()).hexdigest(),
        "masks": question.dataset.mask_hash(block),
        "moeprobe": __version__,
        "group_images": checkpoint.model.group_images,
    }


def _kept(
    path: Path | None, identity: dict[str, Any], *, unnamed: bool = False
) -> tuple[Stored, list[str]] | None:
    """Return the sums of a part file and the images skipped in it; None unless it is about the same images.

    A checkpoint without a hash is never taken for the one of before, unless ``unnamed``: what a user names as a shard
    of this run is one, and is refused where it is damaged.
    """
    if path is None or not (unnamed or identity["checkpoint"]) or not path.exists():
        return None
    try:
        note = read_note(path)
        skipped = note.pop("skipped", None)
        if note != identity:
            return None
        sums = of_file(path)
        # All of it is looked at once, for damage that its first lines do not show.
        for cell in sums:
            for _ in cell.blocks():
                pass
        return sums, skipped
    except (OSError, pa.ArrowException, ValueError, TypeError, AttributeError, RecursionError):
        if not unnamed:
            warnings.warn(RunWarning(f"{shown(path)} is damaged; its images are probed again."), stacklevel=2)
        return None


def _run_block(
    question: Question, checkpoint: Checkpoint, block: Sequence[int], progress: Advance | None
) -> tuple[Accumulator, list[str]]:
    accumulator, skipped = Accumulator(), list[str]()
    loader = loaded(question, checkpoint, block, masks=question.view is not None)
    for batch in counted(loader, skipped, progress):
        _run_batch(question, checkpoint, batch, accumulator)
    return accumulator, skipped


def _run_batch(
    question: Question, checkpoint: Checkpoint, batch: Batch | TextBatch, accumulator: Accumulator
) -> None:
    model = checkpoint.model
    layers = question.layers_of(model)
    output_wanted = any(not isinstance(analysis, LayerAnalysis) for analysis in question.analyses)

    def trace(view: int) -> Pass:
        return model.trace(batch.views[view], layers=layers, logits=output_wanted)

    reference = trace(0)
    for number, severity in enumerate(question.severities or (float("nan"),), start=1):
        if question.view is None or (
            isinstance(question.view, SeverityView) and severity == question.view.severities[0]
        ):
            view, shown = reference, 0
        else:
            view, shown = trace(number), number
        found = layer_sums(question, checkpoint, batch, reference[1], view[1], shown)
        if output_wanted:
            compared = None if question.view is None else reference[0]
            found[Cell()] = output_sums(question, checkpoint, batch, compared, view[0])
            if question.corners and all(layer.top_k > 0 for layer in view[1].layers.values()):
                found[Cell()] |= corner_sums(question, checkpoint, batch, reference, view, shown)
        _add(accumulator, question, batch, found, view=question.view_name, severity=severity)
    if question.floor_images:
        _run_floors(question, checkpoint, batch, reference[1], accumulator)


def _run_floors(
    question: Question,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    reference: RoutingTrace,
    accumulator: Accumulator,
) -> None:
    """Run the clean images of the batch again unchanged, as far as they are wanted."""
    wanted = {question.dataset.image_ids[index] for index in question.indices[: question.floor_images]}
    rows = np.flatnonzero([image_id in wanted for image_id in batch.image_ids])
    if len(rows) == 0:
        return
    matching = dataclasses.replace(
        question,
        analyses=tuple(analysis for analysis in question.analyses if analysis.of_agreement),
        # Another dtype may overflow where the model's own does not.
        allow_not_finite=True,
    )
    model = checkpoint.model
    device = next(iter(reference.layers.values())).gates.device
    for name, routing in repeats(model, batch.views[0], layers=list(reference.layers), device=device):
        found = layer_sums(matching, checkpoint, batch, reference, routing, 0)
        _add(accumulator, question, batch, found, view=name, severity=float("nan"), rows=rows)


def _add(
    accumulator: Accumulator,
    question: Question,
    batch: Batch | TextBatch,
    found: Mapping[Cell, dict[str, Tensor]],
    *,
    view: str,
    severity: float,
    rows: NDArray[np.int64] | None = None,
) -> None:
    """Add the sums of some images of the batch, all by default, under the name of the view."""
    chosen = np.arange(len(batch.image_ids)) if rows is None else rows
    names = [batch.image_ids[row] for row in chosen]
    for cell, columns in found.items():
        placed = dataclasses.replace(cell, view=view, severity=severity)
        arrays = {name: to_host(column)[chosen] for name, column in columns.items()}
        accumulator.add(placed, names, {"label": batch.labels.numpy()[chosen]} | arrays)
