"""Gates and class scores that are not finite (NaN, infinity): refused where a model returns them, or left out.

A choice among gates that are no numbers is no choice, and a class among such scores no answer: counted as one it may
look like a perfect match. Axes: B images, T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import Modality

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerRouting


# Column of the sums: 1 for an image that was left out for this.
COLUMN = "not_finite"


def gates_are_not(layer: LayerRouting) -> Tensor:
    """Return which images ``(B,)`` have a token, no padding, whose gates, or scores of experts, are no numbers.

    A gate is never infinite; an expert may score minus infinity.
    """
    bad = ~layer.gates.isfinite().all(-1)
    if layer.scores is not None:
        bad = bad | layer.scores.isnan().any(-1) | layer.scores.isposinf().any(-1)
    return (bad & layer.valid).any(1)


def scores_are_not(logits: Tensor) -> Tensor:
    """Return which images ``(B,)`` have no highest class score ``(B, classes)``; some may be minus infinity."""
    return ~logits.amax(1).isfinite()


def check(
    routing: Mapping[str, LayerRouting], logits: Tensor | None, image_ids: Sequence[str], *, checkpoint: str
) -> None:
    """Refuse what a model returned for images if it is not finite, the first layer first.

    Raises:
        UserError: some of it is not; the sentence names checkpoint, layer and image.
    """
    for name, layer in routing.items():
        refuse(gates_are_not(layer), image_ids, checkpoint=checkpoint, layer=name, modality=layer.modality)
    if logits is not None:
        refuse(scores_are_not(logits), image_ids, checkpoint=checkpoint)


def refuse(
    bad: Tensor,
    image_ids: Sequence[str],
    *,
    checkpoint: str,
    layer: str = "",
    modality: Modality | None = None,
) -> None:
    """Raise ``UserError`` if any image is bad ``(B,)``; without a ``layer`` it is about the class scores."""
    if not bool(bad.any()):
        return
    first = image_ids[int(bad.int().argmax())]
    what = f"gates of {layer}" if layer else "class scores"
    unit = f"{modality.name} " if modality is not None else ""
    raise UserError(
        f"The {what} of {checkpoint} are not finite (NaN or infinity) for {unit}{first}, so nothing can be "
        f"measured: its training may have diverged, or its weights are damaged; {option('allow_not_finite')} "
        "leaves such inputs out and flags every number that lacks them."
    )


def settle_scores(
    logits: Sequence[Tensor | None], image_ids: Sequence[str], *, checkpoint: str, allow: bool
) -> dict[str, Tensor]:
    """Return a column for the sums of class scores ``(B, classes)`` if images may be left out, else nothing.

    Raises:
        UserError: scores of an image are not finite, and ``allow`` is off.
    """
    import torch

    bad = torch.stack([scores_are_not(scores) for scores in logits if scores is not None]).any(0)
    if not allow:
        refuse(bad, image_ids, checkpoint=checkpoint)
        return {}
    return {COLUMN: bad.long()}
