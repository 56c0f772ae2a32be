"""The work of ``precision``: each batch is run as it is, then with each rounding of the weights."""

import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations import CLEAN, Probe
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.metrics.analyses.log_probability import LogProbabilities, LogProbability
from moeprobe.models.nn.quantize import quantize_weight
from moeprobe.probes.engine.batch_sums import layer_sums, output_sums
from moeprobe.probes.engine.blank_passes import once
from moeprobe.probes.engine.measurement import BatchSums, Sums, VariantsMeasurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.precision import Precision
from moeprobe.results.sums import Cell
from moeprobe.routing.capabilities import Scored, Weighed
from moeprobe.routing.parts import Weight
from moeprobe.routing.record import RoutingTrace

# Bytes of rounded weights that are kept, so that each batch does not round them again.
_KEPT = 2**30


class Rounding:
    """Rounds the weights of one model.

    Args:
        model: whose; it is as before after every ``of``.
    """

    def __init__(self, model: Weighed) -> None:
        self._model = model
        self._kept: dict[tuple[int, str], Tensor] = {}
        self._bytes = 0

    @contextmanager
    def of(self, parts: Sequence[str], name: str) -> Iterator[None]:
        """Let the weights of these parts be as a format holds them."""
        # Looked up each time: where models take turns in memory, this reads the weights, as other parameters.
        weights = enumerate(self._model.weights())
        selected = [(index, weight) for index, weight in weights if weight.part in parts]
        originals = [(weight.parameter, weight.parameter.data) for _, weight in selected]
        try:
            for index, weight in selected:
                weight.parameter.data = self._rounded_weight(index, weight, name)
            yield
        finally:
            for parameter, before in originals:
                parameter.data = before

    def _rounded_weight(self, index: int, weight: Weight, name: str) -> Tensor:
        cached = self._kept.get((index, name))
        if cached is None:
            cached = quantize_weight(weight.parameter.data, name, inputs=weight.inputs)
            size = cached.numel() * cached.element_size()
            if self._bytes + size <= _KEPT:
                self._kept[index, name], self._bytes = cached, self._bytes + size
        return cached


class PrecisionMeasurement(VariantsMeasurement):
    """Passes with the weights of some part of the model rounded."""

    probe: Precision

    @classmethod
    def learn(cls, probe: Probe[Any], model: Checkpoint, options: Options) -> None:
        """Make the passes over a blank input that the checks need, and note which parts there are."""
        super().learn(probe, model, options)
        if isinstance(model.model, Weighed):
            _look_at_weights(model)

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models say what their weights are of."""
        for model in self.models:
            if not isinstance(model.model, Weighed):
                raise UserError(f"{model.name} does not say which of its weights are routers and experts.")
            parts, have_memory = _look_at_weights(model)
            if not have_memory:
                raise UserError(
                    f"Some weights of {model.name} are in memory only while their layer runs, so none can be rounded; "
                    f"let memory hold all of it ({option('max_memory')}), or use a smaller model."
                )
            missing = set(self.probe.parts) - parts
            if missing:
                raise UserError(
                    f"{model.name} has no weights of {', '.join(sorted(missing))}; choose other {option('parts')}."
                )

    def make_spec(self) -> RunSpec:
        """Return the run specification, without log-probabilities where nothing is generated."""
        spec = super().make_spec()
        has_log_probabilities = spec.of_output and all(
            isinstance(model.model, Scored) for model in self.models
        )
        analyses = tuple(
            analysis
            for analysis in spec.analyses
            if has_log_probabilities or not isinstance(analysis, LogProbability)
        )
        return dataclasses.replace(spec, analyses=analyses)

    def make_request(self) -> dict[str, Any]:
        """Return everything that the numbers depend on."""
        request = super().make_request()
        if not _has_log_probabilities(self.spec):
            request["analyses"] = [name for name in request["analyses"] if name != "log_probability"]
        return request

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch: of the model as it is, then of each rounding."""
        assert isinstance(model.model, Weighed)
        return partial(_batch_sums, spec, model, Rounding(model.model), self.probe)

    @property
    def passes(self) -> int:
        """Forward passes per image; log-probabilities take one more each."""
        return (1 + len(self.probe.variants)) * (2 if _has_log_probabilities(self.spec) else 1)


def _look_at_weights(checkpoint: Checkpoint) -> tuple[set[str], bool]:
    """Return the parts that a model has weights of, and whether all weights are in memory."""
    model = checkpoint.model
    assert isinstance(model, Weighed)

    def look() -> tuple[set[str], bool]:
        weights = model.weights()
        return {weight.part for weight in weights}, not any(weight.parameter.is_meta for weight in weights)

    return once(checkpoint, "weights", look)


def _has_log_probabilities(spec: RunSpec) -> bool:
    return any(isinstance(analysis, LogProbability) for analysis in spec.analyses)


class _Output(NamedTuple):
    """What a model answers, where it is asked for."""

    scores: Tensor | None
    log_probabilities: Tensor | None


def _batch_sums(
    spec: RunSpec,
    checkpoint: Checkpoint,
    rounding: Rounding,
    probe: Precision,
    batch: Batch | TextBatch,
) -> dict[str, Sums]:
    """Return the sums of the batch by view: of the model as it is, then of each rounding against it."""
    model, inputs = checkpoint.model, batch.views[0]
    layers = spec.layers_of(model)

    def run() -> tuple[RoutingTrace, _Output]:
        scores, routing = model.trace(inputs, layers=layers, logits=spec.of_output)
        log_probabilities = None
        if isinstance(model, Scored) and _has_log_probabilities(spec):
            log_probabilities = model.log_probabilities(inputs)
        return routing, _Output(scores, log_probabilities)

    def of_output(before: _Output, after: _Output) -> Sums:
        columns: dict[str, Tensor] = {}
        if spec.of_output:
            columns = output_sums(spec, checkpoint, batch, before.scores, after.scores)
        if after.log_probabilities is not None:
            columns |= LogProbability().sums(
                LogProbabilities(before.log_probabilities, after.log_probabilities)
            )
        return {Cell(): columns} if columns else {}

    clean_routing, clean = run()
    sums = {CLEAN: of_output(_Output(None, None), clean)}
    for name, parts, form in probe.variants:
        with rounding.of(parts, form):
            routing, rounded = run()
        sums[name] = layer_sums(spec, checkpoint, batch, clean_routing, routing, 0)
        sums[name] |= of_output(clean, rounded)
    return sums
