"""Run a few images and keep what is to be looked at."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs import geometry
from moeprobe.inputs.batches import Batch, Loading, batches
from moeprobe.inputs.geometry import Correspondence
from moeprobe.inputs.views.base import SeverityView
from moeprobe.probes.engine.question import Question, recipe
from moeprobe.probes.overlay.record import Overlay, overlay
from moeprobe.routing import finite
from moeprobe.runtime.progress import Advance


def overlays(
    question: Question, checkpoints: Sequence[Checkpoint], *, progress: Advance | None = None
) -> list[Overlay]:
    """Return the overlays of every checkpoint, severity, layer and image; ``question`` holds the severities and images.

    ``progress`` is called with the number of images done since the last call.
    """
    drawn: list[Overlay] = []
    for checkpoint in checkpoints:
        loader = batches(
            question.dataset,
            question.indices,
            recipe(question, checkpoint.framing),
            loading=Loading(question.batch_size),
            skip_bad_images=question.skip_bad_images,
            group_images=checkpoint.model.group_images,
        )
        for batch in loader:
            if batch.image_ids:
                drawn += _of_batch(question, checkpoint, batch)
            if progress is not None:
                progress(len(batch.image_ids) + len(batch.skipped))
    return drawn


def _of_batch(question: Question, checkpoint: Checkpoint, batch: Batch) -> Iterator[Overlay]:
    """Yield the overlays of a batch: one clean pass, and one for each severity that changes something."""
    assert isinstance(question.view, SeverityView)
    layers = question.layers_of(checkpoint.model)
    _, clean = checkpoint.model.trace(batch.views[0], layers=layers, logits=False)
    finite.check(clean.layers, None, batch.image_ids, checkpoint=checkpoint.name)
    for number, severity in enumerate(question.severities, start=1):
        perturbed = clean
        if severity != question.view.severities[0]:
            _, perturbed = checkpoint.model.trace(batch.views[number], layers=layers, logits=False)
            finite.check(perturbed.layers, None, batch.image_ids, checkpoint=checkpoint.name)
        for layer in clean.layers:
            routing = clean.layers[layer], perturbed.layers[layer]
            grid = routing[0].grid
            assert grid is not None
            pairs: Correspondence = geometry.correspond(
                batch.to_source[0], batch.to_source[number], grid=grid, source_size=batch.source_size
            )
            for position, image_id in enumerate(batch.image_ids):
                pixels = batch.views[0][position].numpy(), batch.views[number][position].numpy()
                yield overlay(
                    image_id=image_id,
                    checkpoint=checkpoint.name,
                    layer=layer,
                    severity=severity,
                    pixels=pixels,
                    routing=routing,
                    pairs=pairs,
                    position=position,
                )


def overlay_table(overlays: Sequence[Overlay]) -> pd.DataFrame:
    """Return one row per patch of the perturbed image: its expert, and that of the corresponding clean patch.

    ``clean_expert`` is that of the same place in the clean image, whatever it shows.
    """
    rows = []
    for item in overlays:
        for row, column in np.ndindex(item.clean_expert.shape):
            rows.append(
                {
                    "checkpoint": item.checkpoint,
                    "layer": item.layer,
                    "severity": item.severity,
                    "image_id": item.image_id,
                    "row": row,
                    "column": column,
                    "clean_expert": item.clean_expert[row, column],
                    "perturbed_expert": item.perturbed_expert[row, column],
                    "clean_patch": item.clean_patch[row, column],
                    "clean_patch_expert": item.clean_patch_expert[row, column],
                    "compared": bool(item.compared[row, column]),
                    "changed": bool(item.changed[row, column]),
                }
            )
    table = pd.DataFrame(rows)
    table["clean_patch"] = table["clean_patch"].astype("Int64").where(table["clean_patch"] >= 0)
    # -1 is no expert.
    experts = ["clean_expert", "perturbed_expert", "clean_patch_expert"]
    return table.assign(**{name: table[name].astype("Int64").where(table[name] >= 0) for name in experts})
