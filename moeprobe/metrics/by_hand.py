"""Routings of a few tokens that are typed by hand, and what an analysis says of them.

The worked examples of the metrics are written with these functions. They also serve to try a metric of one's own.

Axes: B images, T patches, K choices, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprobe.inputs.geometry import PatchGrid

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.base import LayerAnalysis, ModelAnalysis
    from moeprobe.routing.record import LayerPair, LayerRouting

# Digits that a reader compares with a number worked out by hand.
_DIGITS = 3


def route(
    experts: Sequence[Any], *, num_experts: int = 0, gates: Sequence[Any] | None = None, **fields: Any
) -> LayerRouting:
    """Return a routing of images whose patches choose ``experts``.

    Two images of two patches each, with one expert per patch:

    >>> from moeprobe.metrics.by_hand import route
    >>> route([[0, 1], [2, 1]])
    LayerRouting(2 x 2 tokens, 3 experts, k = 1)

    Args:
        experts: ``(B, T)``, or ``(B, T, K)`` with the best first; -1 = none.
        num_experts: E; 0 = the highest number of an expert, and one more.
        gates: ``(B, T, E)``; None = chosen experts share a patch evenly.
        fields: other fields of ``LayerRouting``, lists or plain values.
    """
    import torch

    from moeprobe.routing.record import LayerRouting

    selected = torch.tensor(experts, dtype=torch.int16)
    if selected.ndim == 2:
        selected = selected[..., None]
    if gates is None:
        size = num_experts or int(selected.max()) + 1
        members = torch.nn.functional.one_hot(selected.long() + 1, size + 1)[..., 1:].sum(2)
        weights = members / members.sum(-1, keepdim=True).clamp_min(1)
    else:
        weights = torch.tensor(gates, dtype=torch.float32)
    standard: dict[str, Any] = {
        "gates": weights,
        "scores": None,
        "selected": selected,
        "processed": selected >= 0,
        "valid": torch.ones(selected.shape[:2], dtype=torch.bool),
        "grid": PatchGrid(1, selected.shape[1] - fields.get("num_prefix_tokens", 0), 1),
        "num_prefix_tokens": 0,
        "gates_sum_to_one": True,
        "token_local": True,
        "router": "by_hand",
    }
    tensors = {name: torch.tensor(value) for name, value in fields.items() if isinstance(value, list)}
    return LayerRouting(**standard | fields | tensors)


def pair(reference: LayerRouting, view: LayerRouting | None = None, **fields: Any) -> LayerPair:
    """Return two routings of the same images in which nothing moves: patch j of one is patch j of the other.

    Args:
        reference: the first routing.
        view: the second; None = there is only one, which takes both places.
        fields: other fields of ``LayerPair``.
    """
    import torch

    from moeprobe.routing.record import LayerPair

    inputs, tokens = reference.valid.shape
    patches = torch.arange(tokens - reference.num_prefix_tokens).expand(inputs, -1)
    standard: dict[str, Any] = {"reference_patch": patches, "view_patch": patches, "aligned": True}
    return LayerPair(reference, view or reference, **standard | fields)


def numbers(
    analysis: LayerAnalysis | ModelAnalysis[Any], subject: Any, *, labels: Sequence[int] | None = None
) -> dict[str, float]:
    """Return what an analysis says of one batch: the numbers of a table, rounded to three digits.

    Five patches change their expert in two cases:

    >>> from moeprobe.metrics.analyses.disagreement import Disagreement
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> numbers(Disagreement(), pair(route([[0, 1, 1, 0, 2]]), route([[0, 1, 2, 0, 1]])))
    {'choice_differs': 0.4}

    Args:
        analysis: the one to compute.
        subject: a batch, as the ``sums`` of the analysis take it.
        labels: the class of each image, where it is known.

    Returns:
        By the name of the metric, the chance level that it is about and the experts, divided by spaces.
    """
    columns = {name: column.numpy() for name, column in _sums(analysis, subject).items()}
    if labels is not None:
        columns["label"] = np.array(labels)
    estimators = analysis.estimators(columns, aligned=getattr(subject, "aligned", True))
    return {
        " ".join(str(part) for part in each.key if part not in ("", None)): round(
            float(each.statistic.evaluate(np.ones((len(each.trials), 1)))[0]), _DIGITS
        )
        for each in estimators
    }


def _sums(analysis: LayerAnalysis | ModelAnalysis[Any], subject: Any) -> dict[str, Tensor]:
    """Return the columns of the ordinary tokens, which stand first, where there are several kinds."""
    sums: dict[str, Any] = analysis.sums(subject)
    kinds = [columns for columns in sums.values() if isinstance(columns, dict)]
    return kinds[0] if kinds else sums
