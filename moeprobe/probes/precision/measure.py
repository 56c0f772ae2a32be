"""The work of ``precision``: each batch is run as it is, then with each rounding of the weights."""

import dataclasses
from functools import partial
from typing import Any

from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.text_batches import TextBatch
from moeprobe.metrics.log_probability import LogProbabilities, LogProbability
from moeprobe.probes.base import CLEAN
from moeprobe.probes.engine.batch_sums import Pass, layer_sums, output_sums
from moeprobe.probes.engine.question import Question
from moeprobe.probes.engine.variants import BatchSums, Sums, VariantsMeasurement
from moeprobe.probes.precision import Precision
from moeprobe.probes.precision.rounded import Rounding
from moeprobe.results.sums import Cell
from moeprobe.routing.capabilities import Scored, Weighed


class PrecisionMeasurement(VariantsMeasurement):
    """Passes with the weights of some part of the model rounded."""

    probe: Precision

    def check_models(self) -> None:
        """Raise ``UserError`` unless the models say what their weights are of."""
        for model in self.models:
            if not isinstance(model.model, Weighed):
                raise UserError(f"{model.name} does not say which of its weights are routers and experts.")
            missing = set(self.probe.parts) - {one.part for one in model.model.weights()}
            if missing:
                raise UserError(
                    f"{model.name} has no weights of {', '.join(sorted(missing))}; choose other --parts."
                )

    def make_question(self) -> Question:
        """Return what is asked, without log-probabilities where nothing is generated."""
        question = super().make_question()
        scored = question.of_output and all(isinstance(model.model, Scored) for model in self.models)
        analyses = tuple(one for one in question.analyses if scored or not isinstance(one, LogProbability))
        return dataclasses.replace(question, analyses=analyses)

    def make_request(self) -> dict[str, Any]:
        """Return what determines the numbers."""
        request = super().make_request()
        if not any(isinstance(one, LogProbability) for one in self.question.analyses):
            request["analyses"] = [name for name in request["analyses"] if name != "log_probability"]
        return request

    def batch_sums(self, question: Question, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch: of the model as it is, then of each rounding."""
        assert isinstance(model.model, Weighed)
        return partial(_batch_sums, question, model, Rounding(model.model), self.probe)

    @property
    def passes(self) -> int:
        """Forward passes per image; log-probabilities take one more each."""
        scored = any(isinstance(one, LogProbability) for one in self.question.analyses)
        return (1 + len(self.probe.variants)) * (2 if scored else 1)


def _batch_sums(
    question: Question,
    checkpoint: Checkpoint,
    rounding: Rounding,
    probe: Precision,
    batch: Batch | TextBatch,
) -> dict[str, Sums]:
    """Return the sums of the batch by view: of the model as it is, then of each rounding against it."""
    model = checkpoint.model
    layers = question.layers_of(model)
    scored = any(isinstance(one, LogProbability) for one in question.analyses)

    def run() -> tuple[Pass, Tensor | None]:
        own = model.trace(batch.views[0], layers=layers, logits=question.of_output)
        return own, model.log_probabilities(batch.views[0]) if scored and isinstance(model, Scored) else None

    def of_model(compared: tuple[Pass, Tensor | None] | None, found: tuple[Pass, Tensor | None]) -> Sums:
        columns: dict[str, Tensor] = {}
        if question.of_output:
            before = None if compared is None else compared[0][0]
            columns = output_sums(question, checkpoint, batch, before, found[0][0])
        if found[1] is not None:
            earlier = None if compared is None else compared[1]
            columns |= LogProbability().sums(LogProbabilities(earlier, found[1]))
        return {Cell(): columns} if columns else {}

    clean = run()
    sums = {CLEAN: of_model(None, clean)}
    for name, parts, form in probe.variants:
        with rounding.of(parts, form):
            view = run()
        sums[name] = layer_sums(question, checkpoint, batch, clean[0][1], view[0][1], 0)
        sums[name] |= of_model(clean, view)
    return sums
