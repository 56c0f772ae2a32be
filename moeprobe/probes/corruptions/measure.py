"""The work of ``corruptions``: each batch clean, then under one corruption after the other; then means over them.

One clean pass is compared with all of them. Pixels of all corruptions at once would take 100 times a batch's memory.
"""

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.views.corruption import Corruption
from moeprobe.metrics.base import OutputAnalysis
from moeprobe.probes.base import CLEAN
from moeprobe.probes.corruptions import Corruptions
from moeprobe.probes.corruptions.means import mean_values, means_of
from moeprobe.probes.engine.batch_sums import ForwardResult, load_all_views
from moeprobe.probes.engine.loop import RunBlock, run_batch
from moeprobe.probes.engine.measurement import Measurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.shard import BlockSizes
from moeprobe.results.folder import Result
from moeprobe.results.summaries import Combine
from moeprobe.results.sums import Accumulator
from moeprobe.runtime.progress import Advance

# An interrupted run loses no more than these.
_BLOCK_IMAGES = 256


class CorruptionsMeasurement(Measurement[Result]):
    """A sweep for each corruption, all with one clean pass."""

    probe: Corruptions

    def make_spec(self) -> RunSpec:
        """Return the run specification; ``specs`` makes one of each corruption of it.

        Raises:
            UserError: the baseline is none of the checkpoints, or nothing is known of its errors.
        """
        spec = super().make_spec()
        baseline, names = self.probe.baseline, [model.name for model in self.models]
        if baseline is not None and baseline not in names:
            raise UserError(f"{option('baseline')} names one of {', '.join(names)}; got {baseline!r}.")
        if baseline is not None and not (spec.of_output and spec.labeled and spec.dataset.class_names):
            raise UserError(
                f"{option('baseline')} divides errors, and there are no labels for the classes of all checkpoints."
            )
        return spec

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on; the kinds of the view are the probe's corruptions."""
        return super().make_request() | {"view": {"name": self.probe.view}}

    def specs(self, spec: RunSpec) -> list[RunSpec]:
        """Return the runs over each batch, in order: the output for clean images, then a sweep per corruption."""
        output = tuple(analysis for analysis in spec.analyses if isinstance(analysis, OutputAnalysis))
        clean = dataclasses.replace(spec, view_name=CLEAN, severities=(0.0,), analyses=output)
        swept = [
            dataclasses.replace(
                spec, view_name=name, view=Corruption(kind=kind, moves=moves), draws=self.probe.view
            )
            for name, kind, moves in self.probe.variants
        ]
        return [clean, *swept]

    def run_block(self, spec: RunSpec, model: Checkpoint) -> RunBlock:
        """Return what runs each batch of a block under all corruptions."""
        return partial(_run_block, specs=self.specs(spec))

    def block_sizes(self, model: Checkpoint) -> BlockSizes:
        """Return where the images are cut: blocks are smaller, since an image takes a hundred passes."""
        group = model.model.group_images
        return dataclasses.replace(super().block_sizes(model), block=max(_BLOCK_IMAGES // group, 1) * group)

    @property
    def passes(self) -> int:
        """Forward passes per image."""
        return 1 + len(self.probe.variants) * len(self.probe.severities)

    @property
    def more_images(self) -> int:
        """Images of all sweeps; the first time they are clean."""
        return self.num_images * len(self.probe.variants)

    def combine(self) -> Combine:
        """Return the function that takes the means."""
        means = means_of([name for name, *_ in self.probe.variants], self.probe.severities)
        return partial(mean_values, means=means, baseline=self.probe.baseline)


def _run_block(
    spec: RunSpec,
    checkpoint: Checkpoint,
    block: Sequence[int],
    progress: Advance | None,
    *,
    specs: Sequence[RunSpec],
) -> tuple[Accumulator, list[str]]:
    """Return the sums per image of some images, and the names of those that could not be read."""
    accumulator, skipped = Accumulator(), list[str]()
    of_output = bool(specs[0].analyses)
    layers = spec.layers_of(checkpoint.model)
    # The clean passes of a batch, by its images: a group that lost an image makes several batches of one.
    references: dict[tuple[str, ...], ForwardResult] = {}
    previous = 0
    for number, batch in load_all_views(specs, checkpoint, block, masks=True):
        if number == 0:
            if previous != 0:
                references.clear()
            skipped += batch.skipped
        previous = number
        if batch.image_ids:
            names = tuple(batch.image_ids)
            if number == 0:
                references[names] = checkpoint.model.trace(batch.views[0], layers=layers, logits=of_output)
            if number > 0 or of_output:
                run_batch(specs[number], checkpoint, batch, accumulator, reference=references[names])
        if progress is not None:
            progress(len(batch.image_ids) + len(batch.skipped))
    return accumulator, skipped
