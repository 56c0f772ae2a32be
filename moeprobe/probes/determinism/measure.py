"""The work of ``determinism``: each batch is run once, then in other ways."""

from functools import partial

from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.modality import IMAGE
from moeprobe.probes.base import CLEAN
from moeprobe.probes.determinism import Determinism
from moeprobe.probes.determinism.ways import Way, run, ways
from moeprobe.probes.engine.batch_sums import layer_sums, output_sums
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.engine.variants import BatchSums, Sums, VariantsMeasurement
from moeprobe.results.sums import Cell


class DeterminismMeasurement(VariantsMeasurement):
    """Passes over the same inputs in other batches."""

    probe: Determinism

    def check_models(self) -> None:
        """Raise ``UserError`` where batches would cut the groups in which images compete."""
        for model in self.models:
            group = model.model.group_images
            odd = [size for size in self.probe.batches if size % group]
            if odd:
                raise UserError(
                    f"In {model.name} {group} images compete for capacity; {option('batches')} takes multiples of "
                    f"{group}, and got {odd[0]}."
                )

    @property
    def ways(self) -> list[Way]:
        """How each batch is run; images have no padding."""
        texts = self.models[0].framing.modality is not IMAGE
        padding = self.probe.padding if texts else 0
        return ways(sizes=self.probe.batches, padding=padding, repeats=self.probe.repeats)

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch: as it is, then in every way."""
        return partial(_batch_sums, spec, model, self.ways)

    @property
    def passes(self) -> int:
        """Forward passes per input."""
        return 1 + len(self.ways)


def _batch_sums(
    spec: RunSpec, checkpoint: Checkpoint, several: list[Way], batch: Batch | TextBatch
) -> dict[str, Sums]:
    """Return the sums of a batch by way."""
    model, inputs = checkpoint.model, batch.views[0]
    layers = spec.layers_of(model)
    first = model.trace(inputs, layers=layers, logits=spec.of_output)

    def output(before: Tensor | None, scores: Tensor | None) -> Sums:
        if not spec.of_output:
            return {}
        return {Cell(): output_sums(spec, checkpoint, batch, before, scores)}

    sums = {CLEAN: output(None, first[0])}
    for way in several:
        scores, routing = run(model, inputs, way, layers=layers, logits=spec.of_output)
        sums[way.name] = layer_sums(spec, checkpoint, batch, first[1], routing, 0)
        sums[way.name] |= output(first[0], scores)
    return sums
