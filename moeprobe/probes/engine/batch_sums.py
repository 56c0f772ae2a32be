"""The sums that the analyses of a run make of one batch, per image; and pixels and routing exchanged in it."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UnreadableError, UserError, option
from moeprobe.inputs.batches import Batch, Loading, TextBatch, batches_of_recipes
from moeprobe.inputs.data.base import Example
from moeprobe.metrics.base import (
    CornerAnalysis,
    Corners,
    LayerAnalysis,
    ModelAnalysis,
    OutputAnalysis,
    OutputPair,
    Subject,
)
from moeprobe.probes.engine.run_spec import RunSpec, recipe
from moeprobe.results.sums import Cell
from moeprobe.routing import finite
from moeprobe.routing.capabilities import Replayable
from moeprobe.routing.correspondence import pair_up, settle
from moeprobe.routing.record import LayerPair, RoutingTrace
from moeprobe.runtime.progress import Advance

# What one forward pass gives: class scores, if asked for, and routing.
ForwardResult = tuple[Tensor | None, RoutingTrace]


def readable_examples(spec: RunSpec) -> Iterator[Example]:
    """Yield the inputs of the run one by one, without unreadable ones if they are to be skipped."""
    for index in spec.indices:
        try:
            example = spec.dataset.example(index)
        except UserError:
            if not spec.skip_bad_images:
                raise
        else:
            yield example


def labels_of(spec: RunSpec, batch: Batch | TextBatch) -> Tensor:
    """Return the labels that the model's scores are about."""
    return batch.labels if spec.labeled else torch.full_like(batch.labels, -1)


def log_probability(scores: Tensor, target: Tensor) -> Tensor:
    """Return the log-probability ``(B,)`` of a class of each image, in double precision."""
    return scores.double().log_softmax(-1).gather(-1, target[:, None]).squeeze(-1)


def to_host(column: Tensor) -> NDArray[np.generic]:
    """Return a column as the tables keep it: float32 belongs to the device, and ends there."""
    array = column.cpu().numpy()
    # Sums are added up over thousands of images, where float32 would lose digits.
    return array.astype(np.float64) if column.is_floating_point() else array


def layer_sums(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    reference: RoutingTrace,
    view: RoutingTrace,
    view_index: int,
) -> dict[Cell, dict[str, Tensor]]:
    """Return what the analyses say of each layer of the reference and view ``view_index``."""
    sums_by_cell: dict[Cell, dict[str, Tensor]] = {}
    analyses = [analysis for analysis in spec.analyses if isinstance(analysis, LayerAnalysis)]
    for name, pair, left_out in layer_pairs(spec, checkpoint, batch, reference, view, view_index):
        label = spec.label_of(checkpoint.model, name)
        sums_by_cell |= {
            cell: columns | left_out for cell, columns in sums_of_layer(analyses, label, pair).items()
        }
    return sums_by_cell


def layer_pairs(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    reference: RoutingTrace,
    view: RoutingTrace,
    view_index: int,
) -> Iterator[tuple[str, LayerPair, dict[str, Tensor]]]:
    """Yield each layer's name and pair, and the column of ``correspondence.settle``."""
    for name, layer in view.layers.items():
        pair, left_out = settle(
            pair_up(
                batch,
                reference.layers[name],
                layer,
                view_index,
                aligned=spec.aligned,
                symmetric=spec.is_pair,
            ),
            batch.image_ids,
            checkpoint=checkpoint.name,
            layer=name,
            allow=spec.allow_not_finite,
        )
        yield name, pair, left_out


def sums_of_layer(
    analyses: Iterable[LayerAnalysis], name: str, pair: LayerPair
) -> dict[Cell, dict[str, Tensor]]:
    """Return the sums of the analyses that apply to a layer, for each kind of tokens."""
    sums_by_cell: dict[Cell, dict[str, Tensor]] = {}
    layer = pair.view
    for analysis in analyses:
        if analysis.applies(layer):
            for tokens, columns in analysis.sums(pair).items():
                cell = Cell(layer=name, router=layer.router, top_k=layer.choices_per_token, tokens=tokens)
                sums_by_cell.setdefault(cell, {}).update(columns)
    return sums_by_cell


def output_sums(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    reference: Tensor | None,
    view: Tensor | None,
) -> dict[str, Tensor]:
    """Return what the analyses say of the class scores; ``reference`` None = of the view alone."""
    assert view is not None
    pair = OutputPair(reference, view, labels_of(spec, batch).to(view.device))
    return sums_of_output(spec, pair, batch.image_ids, checkpoint=checkpoint.name)


def sums_of_output(
    spec: RunSpec, pair: OutputPair, image_ids: Sequence[str], *, checkpoint: str
) -> dict[str, Tensor]:
    """Return the sums of the class scores; images whose scores are not finite are left out, or refused."""
    left_out = finite.settle_scores(
        (pair.reference, pair.view), image_ids, checkpoint=checkpoint, allow=spec.allow_not_finite
    )
    analyses = (analysis for analysis in spec.analyses if isinstance(analysis, OutputAnalysis))
    return _sums(analyses, pair) | left_out


def corner_sums(
    spec: RunSpec,
    checkpoint: Checkpoint,
    batch: Batch | TextBatch,
    clean: ForwardResult,
    perturbed: ForwardResult,
    view_index: int,
) -> dict[str, Tensor]:
    """Return the sums of pixels and routing exchanged; view ``view_index`` is the perturbed one, 0 the clean one."""
    model = checkpoint.model
    assert isinstance(model, Replayable)
    assert clean[0] is not None
    assert perturbed[0] is not None
    logits = exchange(
        model,
        (batch.views[0], clean[0], clean[1]),
        (batch.views[view_index], perturbed[0], perturbed[1]),
        gates=spec.replayed_gates,
    )
    left_out = finite.settle_scores(
        logits, batch.image_ids, checkpoint=checkpoint.name, allow=spec.allow_not_finite
    )
    corners = Corners(logits, labels_of(spec, batch).to(clean[0].device))
    analyses = (analysis for analysis in spec.analyses if isinstance(analysis, CornerAnalysis))
    return _sums(analyses, corners) | left_out


def _sums(analyses: Iterable[ModelAnalysis[Subject]], subject: Subject) -> dict[str, Tensor]:
    """Return the columns of all of these analyses."""
    columns: dict[str, Tensor] = {}
    for analysis in analyses:
        columns |= analysis.sums(subject)
    return columns


# One forward pass: pixels (B, 3, S, S) (or texts), class scores (B, classes), routing.
ForwardPass = tuple[Any, Tensor, RoutingTrace]


def exchange(
    model: Replayable, clean: ForwardPass, perturbed: ForwardPass, *, gates: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the class scores of (pixels, routing): clean clean, perturbed clean, clean perturbed, perturbed perturbed.

    ``gates`` as in ``capabilities.Replayable``.
    """
    return (
        clean[1],
        _replay(model, perturbed, clean[2], gates),
        _replay(model, clean, perturbed[2], gates),
        perturbed[1],
    )


def _replay(model: Replayable, own_pass: ForwardPass, replayed_routing: RoutingTrace, gates: str) -> Tensor:
    pixels, scores, routing = own_pass
    # Its own routing changes nothing, so a pass is saved, and rounding with it.
    if replayed_routing is routing:
        return scores
    replayed = model.replay(pixels, replayed_routing, gates=gates)
    # Replayed gates change the weights of experts too, so every image may change.
    if gates == "replayed":
        return replayed
    # An image whose routing is the same anyway is not changed by the rounding of its batch-mates' switches.
    return scores.where(_same_routing(routing, replayed_routing)[:, None], replayed)


def _same_routing(first: RoutingTrace, second: RoutingTrace) -> Tensor:
    """Return for which images ``(B,)`` every token of every layer has the same experts, selected and at work.

    In whatever order they are selected: what the layers give for a token is a sum over its experts.
    """
    pairs = [(layer, second.layers[name]) for name, layer in first.layers.items()]
    same = [
        layer.selects_the_same(second_layer) & layer.processed_the_same(second_layer)
        for layer, second_layer in pairs
    ]
    return torch.stack([tokens.all(1) for tokens in same]).all(0)


def load_batches(
    spec: RunSpec, checkpoint: Checkpoint, block: Sequence[int], *, masks: bool = False
) -> Iterator[Any]:
    """Yield the batches of some images, with the views of the run; arguments and errors as of ``batches``."""
    for _, batch in load_all_views([spec], checkpoint, block, masks=masks):
        yield batch


def load_all_views(
    specs: Sequence[RunSpec], checkpoint: Checkpoint, block: Sequence[int], *, masks: bool = False
) -> Iterator[tuple[int, Any]]:
    """Yield each batch of some images with the views of every run, and the number of the run.

    The runs differ in their views alone. Arguments and errors as of ``batches_of_recipes``.
    """
    spec = specs[0]
    try:
        yield from batches_of_recipes(
            spec.dataset,
            block,
            [recipe(each, checkpoint.framing) for each in specs],
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
