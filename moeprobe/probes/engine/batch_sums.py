"""What the analyses of a question say of one batch: sums per image, layer by layer and of the output."""

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.batches import Batch
from moeprobe.inputs.text_batches import TextBatch
from moeprobe.metrics.base import (
    CornerAnalysis,
    Corners,
    LayerAnalysis,
    ModelAnalysis,
    OutputAnalysis,
    OutputPair,
    Subject,
)
from moeprobe.probes.engine.question import Question
from moeprobe.probes.engine.replay import exchange
from moeprobe.results.sums import Cell
from moeprobe.routing import finite
from moeprobe.routing.capabilities import Replayable
from moeprobe.routing.correspondence import pair_up, settle
from moeprobe.routing.pairs import LayerPair
from moeprobe.routing.record import RoutingTrace

# Class scores, if wanted, and routing.
Pass = tuple[Tensor | None, RoutingTrace]


def labels_of(question: Question, batch: Batch | TextBatch) -> Tensor:
    """Return the labels that the model's scores are about."""
    return batch.labels if question.labeled else torch.full_like(batch.labels, -1)


def to_host(column: Tensor) -> NDArray[np.generic]:
    """Return a column as the tables keep it: float32 belongs to the device, and ends there."""
    array = column.cpu().numpy()
    return array.astype(np.float64) if column.is_floating_point() else array


def layer_sums(
    question: Question,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    reference: RoutingTrace,
    view: RoutingTrace,
    shown: int,
) -> dict[Cell, dict[str, Tensor]]:
    """Return what the analyses say of each layer of the reference and view ``shown``."""
    found: dict[Cell, dict[str, Tensor]] = {}
    analyses = [analysis for analysis in question.analyses if isinstance(analysis, LayerAnalysis)]
    for name, layer in view.layers.items():
        pair, left_out = settle(
            pair_up(
                batch,
                reference.layers[name],
                layer,
                shown,
                aligned=question.aligned,
                symmetric=question.is_pair,
            ),
            batch.image_ids,
            checkpoint=checkpoint.name,
            layer=name,
            allow=question.allow_not_finite,
        )
        label = question.label_of(checkpoint.model, name)
        found |= {cell: columns | left_out for cell, columns in sums_of_layer(analyses, label, pair).items()}
    return found


def sums_of_layer(
    analyses: Iterable[LayerAnalysis], name: str, pair: LayerPair
) -> dict[Cell, dict[str, Tensor]]:
    """Return what those of the analyses that apply to a layer say of it, for each kind of tokens."""
    found: dict[Cell, dict[str, Tensor]] = {}
    layer = pair.view
    for analysis in analyses:
        if analysis.applies(layer):
            for tokens, columns in analysis.sums(pair).items():
                cell = Cell(layer=name, router=layer.router, top_k=layer.choices_per_token, tokens=tokens)
                found.setdefault(cell, {}).update(columns)
    return found


def output_sums(
    question: Question,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    reference: Tensor | None,
    view: Tensor | None,
) -> dict[str, Tensor]:
    """Return what the analyses say of the class scores; ``reference`` None = of the view alone."""
    assert view is not None
    left_out = finite.settle_scores(
        (reference, view), batch.image_ids, checkpoint=checkpoint.name, allow=question.allow_not_finite
    )
    pair = OutputPair(reference, view, labels_of(question, batch).to(view.device))
    analyses = (analysis for analysis in question.analyses if isinstance(analysis, OutputAnalysis))
    return _sums(analyses, pair) | left_out


def corner_sums(
    question: Question,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    clean: Pass,
    perturbed: Pass,
    shown: int,
) -> dict[str, Tensor]:
    """Return the sums of pixels and routing exchanged; view ``shown`` is the perturbed one, 0 the clean one."""
    model = checkpoint.model
    assert isinstance(model, Replayable)
    assert clean[0] is not None
    assert perturbed[0] is not None
    logits = exchange(
        model,
        (batch.views[0], clean[0], clean[1]),
        (batch.views[shown], perturbed[0], perturbed[1]),
        gates=question.replayed_gates,
    )
    left_out = finite.settle_scores(
        logits, batch.image_ids, checkpoint=checkpoint.name, allow=question.allow_not_finite
    )
    corners = Corners(logits, labels_of(question, batch).to(clean[0].device))
    analyses = (analysis for analysis in question.analyses if isinstance(analysis, CornerAnalysis))
    return _sums(analyses, corners) | left_out


def _sums(analyses: Iterable[ModelAnalysis[Subject]], subject: Subject) -> dict[str, Tensor]:
    """Return the columns of all of these analyses."""
    columns: dict[str, Tensor] = {}
    for analysis in analyses:
        columns |= analysis.sums(subject)
    return columns
