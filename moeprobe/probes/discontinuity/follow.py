"""Follow the output of a model along a severity: fine steps, switches found by bisection, jumps measured by replay.

Axes: N severities, L MoE layers, T tokens, K choices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.data.base import Example
from moeprobe.inputs.views.base import SeverityView
from moeprobe.metrics.analyses.discontinuity import Path, PathAnalysis
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.routing import finite
from moeprobe.routing.capabilities import Replayable
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.progress import Advance
from moeprobe.runtime.seeds import generator

# A switch is located to this share of the range of severities.
TOLERANCE = 1e-4

# Following an image takes hundreds of passes, so that little is lost when a run is interrupted.
BLOCK_IMAGES = 16


@dataclass(frozen=True)
class _Subject:
    """One image under a view, as one model sees it; ``names`` names checkpoint and image."""

    names: tuple[str, str]
    model: Replayable
    layers: list[str] | None
    perturb: Callable[[Sequence[float]], Tensor]
    batch_size: int

    def pieces(self, severity: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        """Return severities ``(N,)`` in pieces that fit a batch."""
        return [
            severity[start : start + self.batch_size] for start in range(0, len(severity), self.batch_size)
        ]


def run_block(
    spec: RunSpec, checkpoint: Checkpoint, block: Sequence[int], progress: Advance | None
) -> tuple[Accumulator, list[str]]:
    """Return the sums per image of some images, and the names of unreadable ones; see ``engine.loop.run``."""
    accumulator = Accumulator()
    skipped: list[str] = []
    for index in block:
        try:
            example = spec.dataset.example(index)
        except UserError:
            if not spec.skip_bad_images:
                raise
            skipped.append(spec.dataset.image_ids[index])
        else:
            path = follow(spec, checkpoint, example)
            for analysis in spec.analyses:
                assert isinstance(analysis, PathAnalysis)
                columns = {name: column.numpy() for name, column in analysis.sums([path]).items()}
                accumulator.add(Cell(view=spec.view_name), [path.image_id], columns)
        if progress is not None:
            progress(1)
    return accumulator, skipped


def follow(spec: RunSpec, checkpoint: Checkpoint, example: Example) -> Path:
    """Return the path of one image through the probe's severities."""
    model = checkpoint.model
    assert isinstance(model, Replayable)
    subject = _Subject(
        names=(checkpoint.name, example.image_id),
        model=model,
        layers=spec.layers_of(model),
        perturb=partial(_perturb, example.image, example.image_id, spec=spec, checkpoint=checkpoint),
        batch_size=spec.batch_size,
    )
    severity = np.asarray(spec.severities, dtype=np.float64)
    scores, routing_choices = _run(subject, severity)
    target = int(scores[0].argmax())
    before, after = _bisect(subject, severity, routing_choices)
    jump, tokens = _jumps(subject, before, after, target=target)
    return Path(
        image_id=example.image_id,
        checkpoint=checkpoint.name,
        target=target,
        severity=severity,
        probability=scores.softmax(1)[:, target].numpy(),
        switch=after,
        jump=jump,
        tokens=tokens,
    )


def _perturb(
    image: Image.Image,
    image_id: str,
    severities: Sequence[float],
    *,
    spec: RunSpec,
    checkpoint: Checkpoint,
) -> Tensor:
    """Return the image at each severity ``(N, 3, S, S)``; always the same draw."""
    assert isinstance(spec.view, SeverityView)
    rng = generator(spec.seed, spec.view_name, image_id)
    samples = spec.view.perturb(image, framing=checkpoint.framing, severities=list(severities), rng=rng)
    return torch.stack([sample.pixels for sample in samples])


def _run(subject: _Subject, severity: NDArray[np.float64]) -> tuple[Tensor, Tensor]:
    """Return the class scores ``(N, classes)`` in float64 and the experts at work ``(N, ...)``, on the CPU."""
    scores, routing_choices = [], []
    for piece in subject.pieces(severity):
        logits, routing = subject.model.trace(subject.perturb(piece.tolist()), layers=subject.layers)
        assert logits is not None
        name, image_id = subject.names
        finite.check(routing.layers, logits, [image_id] * len(piece), checkpoint=name)
        scores.append(logits.cpu().double())
        routing_choices.append(
            torch.cat([_experts(layer).flatten(1) for layer in routing.layers.values()], dim=1)
        )
    return torch.cat(scores), torch.cat(routing_choices)


def _experts(layer: LayerRouting) -> Tensor:
    """Return which experts ``(N, T, E)`` work on each token.

    Raises:
        UserError: every expert works on every token.
    """
    if layer.top_k == 0:
        raise UserError(
            f"With {layer.router} every expert has a share of every token, so none switches; use: moeprobe sweep."
        )
    return layer.processed_mask.cpu()


def _bisect(
    subject: _Subject, severity: NDArray[np.float64], routing_choices: Tensor
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends ``(M,)`` and ``(M,)`` of short intervals across which some token switches.

    Every interval whose ends differ is halved, and so is each half whose ends differ, all of a round at once. A token
    that switches there and back between two of the first steps is not seen.
    """
    tolerance = TOLERANCE * (severity[-1] - severity[0])
    differ = (routing_choices[1:] != routing_choices[:-1]).any(1).numpy()
    low, right = severity[:-1][differ], severity[1:][differ]
    chosen_left, chosen_right = routing_choices[:-1][differ], routing_choices[1:][differ]
    while len(low) and (right - low).max() > tolerance:
        middle = (low + right) / 2
        _, chosen_middle = _run(subject, middle)
        low, right = np.concatenate([low, middle]), np.concatenate([middle, right])
        chosen_left, chosen_right = (
            torch.cat([chosen_left, chosen_middle]),
            torch.cat([chosen_middle, chosen_right]),
        )
        differ = (chosen_left != chosen_right).any(1).numpy()
        low, right, chosen_left, chosen_right = (
            low[differ],
            right[differ],
            chosen_left[differ],
            chosen_right[differ],
        )
    order = np.argsort(low)
    return low[order], right[order]


def _jumps(
    subject: _Subject, before: NDArray[np.float64], after: NDArray[np.float64], *, target: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the jumps ``(M,)``, f(x; routing after) − f(x; routing before) at x = after, and tokens ``(M, L)``."""
    model, layers = subject.model, subject.layers
    num_layers = len(model.layer_names if layers is None else layers)
    jumps, tokens = [np.empty(0)], [np.empty((0, num_layers), dtype=np.int64)]
    for start, end in zip(subject.pieces(before), subject.pieces(after), strict=True):
        _, earlier = model.trace(subject.perturb(start.tolist()), layers=layers, logits=False)
        pixels = subject.perturb(end.tolist())
        clean_scores, later = model.trace(pixels, layers=layers)
        assert clean_scores is not None
        replayed = model.replay(pixels, earlier)
        probabilities = [scores.cpu().double().softmax(1)[:, target] for scores in (clean_scores, replayed)]
        jumps.append((probabilities[0] - probabilities[1]).numpy())
        tokens.append(_count_switched(earlier, later))
    return np.concatenate(jumps), np.concatenate(tokens)


def _count_switched(first: RoutingTrace, two: RoutingTrace) -> NDArray[np.int64]:
    """Return how many tokens ``(N, L)`` of each layer work with other experts."""
    counts = [
        (~layer.processed_the_same(two.layers[name])).sum(1).cpu() for name, layer in first.layers.items()
    ]
    return torch.stack(counts, dim=1).numpy()
