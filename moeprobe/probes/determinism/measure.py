"""The work of ``determinism``: each batch is run once, then in other ways: in parts, in another order, padded.

Results keep the batch's own order. Axes: B inputs, T tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import CLEAN
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.modality import IMAGE
from moeprobe.inputs.texts import TokenBatch
from moeprobe.probes.determinism import Determinism
from moeprobe.probes.engine.batch_sums import ForwardResult, layer_sums, output_sums
from moeprobe.probes.engine.measurement import BatchSums, Sums, VariantsMeasurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.results.sums import Cell
from moeprobe.routing.capabilities import Traceable
from moeprobe.routing.record import RoutingTrace, join_batches


@dataclass(frozen=True)
class Way:
    """A way of running a batch.

    Attributes:
        name: in the column ``view``.
        size: inputs of a part; None = all at once.
        reversed: whether the last input comes first.
        padding: tokens of padding added to texts.
    """

    name: str
    size: int | None = None
    reversed: bool = False
    padding: int = 0


def ways(*, sizes: Sequence[int], padding: int, repeats: int) -> list[Way]:
    """Return all ways: repeats, then every size of batches, place in the batch, and padding."""
    ways_of_running = [Way(f"again {number}") for number in range(1, repeats + 1)]
    for size in (None, *sizes):
        for turned in (False, True) if size != 1 else (False,):
            for added in dict.fromkeys((0, padding)):
                words = [
                    "batch as run" if size is None else f"batch {size}",
                    *(["reversed"] if turned else []),
                    *([f"padding {added}"] if added else []),
                ]
                if (size, turned, added) != (None, False, 0):
                    ways_of_running.append(Way(" ".join(words), size, turned, added))
    return ways_of_running


def run(model: Traceable, inputs: Any, way: Way, *, layers: list[str] | None, logits: bool) -> ForwardResult:
    """Return the scores and the routing of inputs, each in its place, run in a way."""
    number, length = len(inputs), inputs.ids.shape[1] if isinstance(inputs, TokenBatch) else None
    arranged = add_padding(inputs, way.padding) if way.padding else inputs
    arranged = _reverse_batch(arranged) if way.reversed else arranged
    size = way.size or number
    passes = [
        model.trace(arranged[start : start + size], layers=layers, logits=logits)
        for start in range(0, number, size)
    ]
    parts = [scores for scores, _ in passes if scores is not None]
    scores = torch.cat(parts) if parts else None
    routing = join_batches([part for _, part in passes])
    if way.reversed:
        scores = None if scores is None else scores.flip(0)
    return scores, _in_batch_order(routing, turned=way.reversed, length=length)


def add_padding(texts: TokenBatch, number: int) -> TokenBatch:
    """Return texts with so many tokens of padding more."""
    padding_right = (0, number)
    pad = torch.nn.functional.pad
    noise = None if texts.noise is None else pad(texts.noise, (0, 0, *padding_right))
    marks: dict[str, Any] = {
        name: pad(getattr(texts, name), padding_right) for name in ("ids", "present", "ordinary")
    }
    return replace(texts, noise=noise, **marks)


def _reverse_batch(inputs: Any) -> Any:
    if isinstance(inputs, Tensor):
        return inputs.flip(0)
    marks: dict[str, Any] = {
        name: value.flip(0) for name, value in vars(inputs).items() if isinstance(value, Tensor)
    }
    return replace(inputs, **marks)


def _in_batch_order(routing: RoutingTrace, *, turned: bool, length: int | None) -> RoutingTrace:
    """Return a routing in the order of the batch, without tokens that were added."""

    def settle(value: Tensor) -> Tensor:
        value = value.flip(0) if turned else value
        return value if length is None or value.ndim < 2 else value[:, :length]

    return RoutingTrace({name: layer.of_each_input(settle) for name, layer in routing.layers.items()})


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
