"""Run one checkpoint over the images: all severities inside, one clean pass shared by all of them.

What comes out are sums per image; blocks of images can be kept as part files, so that an interrupted run continues
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
from moeprobe.errors import RunWarning, UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.views.base import SeverityView
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.probes.engine.batch_sums import (
    ForwardResult,
    corner_sums,
    layer_sums,
    load_batches,
    output_sums,
    readable_batches,
    to_host,
)
from moeprobe.probes.engine.floors import repeats
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.shard import BlockSizes, ImageRange, Shard, image_ranges
from moeprobe.results.stored import SumsStore, concat, has_columns, of_file, of_table, write
from moeprobe.results.stored_cell import in_order
from moeprobe.results.sums import FORMAT, Accumulator, Cell
from moeprobe.results.tables import image_table, read_note
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime.files import Scratch, display_path, is_there
from moeprobe.runtime.progress import Advance

# Inputs of a part: an interrupted run loses no more than one part.
BLOCK_IMAGES = 1024

RunBlock = Callable[[RunSpec, Checkpoint, Sequence[int], Advance | None], tuple[Accumulator, list[str]]]


def run(
    spec: RunSpec,
    checkpoint: Checkpoint,
    *,
    parts: Path | None = None,
    progress: Advance | None = None,
    run_block: RunBlock | None = None,
    sizes: BlockSizes | None = None,
) -> tuple[SumsStore, list[str]]:
    """Return the sums per image of one checkpoint, and the names of the images that could not be read.

    Of more images than one block holds they are kept in files, in a temporary folder where none is named. Blocks and
    batches are the same whatever part of them is run, so that shards put together are the run of one process.

    Args:
        spec: the run specification.
        checkpoint: the checkpoint to run.
        parts: folder for part files; finished ones in it are not computed again. None = there is none to be kept.
        progress: called with the number of images done since the last call.
        run_block: processes a block of images; None = trace and compare its views.
        sizes: images of part files and batches; None = as ``block_sizes`` says.
    """
    part_sums: list[SumsStore] = []
    skipped: list[str] = []
    sizes = sizes or block_sizes(spec, checkpoint)
    parts_by_block = _parts_by_block(spec, sizes)
    scratch_folders = []
    # One block fits into memory, and needs no files.
    if parts is None and len(spec.indices) > sizes.block:
        scratch = Scratch()
        scratch_folders.append(scratch)
        parts = scratch.path
    for span in image_ranges(len(spec.indices), sizes, spec.shard):
        images = spec.indices[span.start : span.stop]
        name = f"{checkpoint.name}-{span.block:05d}.parquet"
        path = None if parts is None else parts / name
        identity = _identity(spec, checkpoint, images)
        part = _read_part(path, identity)
        is_measured = part is None and not spec.shards
        if part is None:
            # Sums of shards are read instead of computed, but checked and written like any other part.
            if is_measured:
                accumulator, unreadable = (run_block or measure_block)(spec, checkpoint, images, progress)
                part = of_table(image_table(accumulator, checkpoint=checkpoint.name)), unreadable
            else:
                part = _merge_shards(spec, checkpoint, name, parts_by_block[span.block])
            if path is not None:
                part = _write_part(path, *part, identity)
        # A measured block has reported its progress batch by batch.
        if progress is not None and not is_measured:
            progress(len(images))
        sums, unreadable = part
        skipped += unreadable
        part_sums.append(sums)
    return SumsStore((cell for sums in part_sums for cell in sums), keep=scratch_folders), skipped


def block_sizes(spec: RunSpec, checkpoint: Checkpoint) -> BlockSizes:
    """Return where the images are cut: into blocks and batches of whole groups."""
    group = checkpoint.model.group_images
    return BlockSizes.of_groups(group, block=BLOCK_IMAGES, batch=spec.batch_size)


def _parts_by_block(spec: RunSpec, sizes: BlockSizes) -> dict[int, list[tuple[Path, ImageRange]]]:
    """Return which folder of the shards has which images of each block."""
    parts: dict[int, list[tuple[Path, ImageRange]]] = {}
    for number, folder in enumerate(spec.shards, start=1):
        shard = Shard(of=len(spec.shards), number=number)
        for span in image_ranges(len(spec.indices), sizes, shard):
            parts.setdefault(span.block, []).append((folder, span))
    return parts


def _merge_shards(
    spec: RunSpec, checkpoint: Checkpoint, name: str, parts: Sequence[tuple[Path, ImageRange]]
) -> tuple[SumsStore, list[str]]:
    """Return the sums of a block, put together of the part files that the shards have of it.

    Raises:
        UserError: a shard lacks its part, or has one of other images or of another checkpoint.
    """
    part_sums, skipped = [], list[str]()
    for folder, span in parts:
        identity = _identity(spec, checkpoint, spec.indices[span.start : span.stop])
        part = _read_part(folder / name, identity, unnamed=True)
        if part is None:
            raise UserError(
                f"{display_path(folder.parent)} does not hold its part of {checkpoint.name}: {name} is gone, damaged, "
                f"or of other images or another version of moeprobe; run the shard again with {option('overwrite')}."
            )
        sums, unreadable = part
        part_sums.append(sums)
        skipped += unreadable
    return concat(part_sums), skipped


def _write_part(
    path: Path, sums: SumsStore, skipped: list[str], identity: dict[str, Any]
) -> tuple[SumsStore, list[str]]:
    """Write a part file; returns the sums as they are in it."""
    write(path, sums, note=identity | {"skipped": skipped})
    return of_file(path), skipped


def _identity(spec: RunSpec, checkpoint: Checkpoint, block: Sequence[int]) -> dict[str, Any]:
    """Return what a part file must match to be reused (the folder checks the request)."""
    # Hashed, since a block has up to a thousand names.
    names = "\n".join(spec.dataset.image_ids[index] for index in block)
    return {
        "checkpoint": checkpoint.provenance.get("sha256"),
        "images": hashlib.sha256(names.encode()).hexdigest(),
        "masks": spec.dataset.mask_hash(block),
        "moeprobe": __version__,
        "format": FORMAT,
        "group_images": checkpoint.model.group_images,
    }


def _read_part(
    path: Path | None, identity: dict[str, Any], *, unnamed: bool = False
) -> tuple[SumsStore, list[str]] | None:
    """Return the sums of a part file and the images skipped in it; None unless it is about the same images.

    A checkpoint without a hash is never taken for the one of before, unless ``unnamed``: what a user names as a shard
    of this run is one, and is refused where it is damaged.
    """
    if path is None or not (unnamed or identity["checkpoint"]) or not is_there(path):
        return None
    try:
        note = read_note(path)
        skipped = note.pop("skipped", None)
        if note != identity:
            return None
        sums = of_file(path)
        # A part that measured nothing, as no metric applies to its checkpoint, has no columns either.
        if not sums.num_rows and not skipped and has_columns(path):
            raise ValueError("It holds no image.")
        # All of it is looked at once, for damage that its first lines do not show.
        for cell in sums:
            in_order(cell.names())
            for _ in cell.blocks():
                pass
        return sums, skipped
    except (OSError, pa.ArrowException, ValueError, TypeError, AttributeError, RecursionError, UserError):
        if not unnamed:
            warnings.warn(
                RunWarning(f"{display_path(path)} is damaged; its images are probed again."), stacklevel=2
            )
        return None


def measure_block(
    spec: RunSpec, checkpoint: Checkpoint, block: Sequence[int], progress: Advance | None
) -> tuple[Accumulator, list[str]]:
    """Return the sums per input of one block, and the names of inputs that could not be read."""
    accumulator, skipped = Accumulator(), list[str]()
    of_tokens = any(isinstance(analysis, LayerAnalysis) for analysis in spec.analyses)
    loader = load_batches(spec, checkpoint, block, masks=of_tokens)
    for batch in readable_batches(loader, skipped, progress):
        run_batch(spec, checkpoint, batch, accumulator)
    return accumulator, skipped


def run_batch(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    accumulator: Accumulator,
    *,
    reference: ForwardResult | None = None,
) -> None:
    """Add the sums of a batch; ``reference``: the pass over its first view, where that is done already."""
    model = checkpoint.model
    layers = spec.layers_of(model)
    output_wanted = any(not isinstance(analysis, LayerAnalysis) for analysis in spec.analyses)

    def trace(view: int) -> ForwardResult:
        return model.trace(batch.views[view], layers=layers, logits=output_wanted)

    reference = reference or trace(0)
    for number, severity in enumerate(spec.severities or (float("nan"),), start=1):
        # A view's first severity leaves inputs as they are, so the reference pass serves for it.
        if spec.view is None or (isinstance(spec.view, SeverityView) and severity == spec.view.severities[0]):
            view, view_index = reference, 0
        else:
            view, view_index = trace(number), number
        sums_by_cell = layer_sums(spec, checkpoint, batch, reference[1], view[1], view_index)
        if output_wanted:
            compared = None if spec.view is None else reference[0]
            sums_by_cell[Cell()] = output_sums(spec, checkpoint, batch, compared, view[0])
            if spec.corners and all(layer.top_k > 0 for layer in view[1].layers.values()):
                sums_by_cell[Cell()] |= corner_sums(spec, checkpoint, batch, reference, view, view_index)
        _accumulate(accumulator, spec, batch, sums_by_cell, view=spec.view_name, severity=severity)
    if spec.floor_images:
        _run_floors(spec, checkpoint, batch, reference[1], accumulator)


def _run_floors(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    reference: RoutingTrace,
    accumulator: Accumulator,
) -> None:
    """Run the clean images of the batch again unchanged, to measure the noise floor."""
    # The floor is measured on the first images of the run, whatever batch they are in.
    floor_ids = {spec.dataset.image_ids[index] for index in spec.indices[: spec.floor_images]}
    rows = np.flatnonzero([image_id in floor_ids for image_id in batch.image_ids])
    if len(rows) == 0:
        return
    matching = dataclasses.replace(
        spec,
        analyses=tuple(analysis for analysis in spec.analyses if analysis.of_agreement),
        # Another dtype may overflow where the model's own does not.
        allow_not_finite=True,
    )
    # Routing of long texts is on the host, wherever the model is.
    routing_device = next(iter(reference.layers.values())).gates.device
    device = getattr(checkpoint.model, "device", None) or routing_device
    passes = repeats(
        checkpoint,
        batch.views[0],
        layers=list(reference.layers),
        device=device,
        other_dtype=checkpoint.name not in spec.no_other_dtype,
    )
    for name, routing in passes:
        sums_by_cell = layer_sums(matching, checkpoint, batch, reference, routing, 0)
        _accumulate(accumulator, spec, batch, sums_by_cell, view=name, severity=float("nan"), rows=rows)


def _accumulate(
    accumulator: Accumulator,
    spec: RunSpec,
    batch: Batch | TextBatch,
    sums_by_cell: Mapping[Cell, dict[str, Tensor]],
    *,
    view: str,
    severity: float,
    rows: NDArray[np.int64] | None = None,
) -> None:
    """Add the sums of some images of the batch, all by default, under the name of the view."""
    chosen_rows = np.arange(len(batch.image_ids)) if rows is None else rows
    names = [batch.image_ids[row] for row in chosen_rows]
    for cell, columns in sums_by_cell.items():
        view_cell = dataclasses.replace(cell, view=view, severity=severity)
        arrays = {name: to_host(column)[chosen_rows] for name, column in columns.items()}
        accumulator.add(view_cell, names, {"label": batch.labels.numpy()[chosen_rows]} | arrays)
