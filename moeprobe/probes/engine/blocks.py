"""The batches of a block of images, with what could not be read and how far it is."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UnreadableError, UserError, option
from moeprobe.inputs.batches import Loading, batches
from moeprobe.probes.engine.run_spec import RunSpec, recipe
from moeprobe.runtime.progress import Advance


def load_batches(
    spec: RunSpec, checkpoint: Checkpoint, block: Sequence[int], *, masks: bool = False
) -> Iterator[Any]:
    """Yield the batches of some images, with the views of the run; arguments and errors as of ``batches``."""
    try:
        yield from batches(
            spec.dataset,
            block,
            recipe(spec, checkpoint.framing),
            loading=Loading(spec.batch_size, spec.workers),
            skip_bad_images=spec.skip_bad_images,
            group_images=checkpoint.model.group_images,
            masks=masks,
        )
    except UnreadableError as error:
        raise UserError(
            f"{error} Mend or remove it, or skip such files with {option('skip_bad_images')}."
        ) from error


def readable_batches(loader: Iterable[Any], skipped: list[str], progress: Advance | None) -> Iterator[Any]:
    """Yield the batches that hold images; names of those that could not be read go to ``skipped``."""
    for batch in loader:
        skipped += batch.skipped
        if batch.image_ids:
            yield batch
        if progress is not None:
            progress(len(batch.image_ids) + len(batch.skipped))
