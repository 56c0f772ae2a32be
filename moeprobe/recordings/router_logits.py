"""Logits of routers, as somebody saved them: made gates, and the experts that they choose.

Axes: T tokens, K experts per token, E experts.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.readers.base import Weights

# Functions from logits to gates.
FUNCTIONS = ("softmax", "sigmoid")


def gates_of(logits: NDArray[np.float32], function: str) -> NDArray[np.float32]:
    """Return gates ``(T, E)`` of logits; ``function``: one of ``FUNCTIONS``."""
    # The highest logit is taken off, as exp overflows.
    if function == "sigmoid":
        powers = np.exp(-np.abs(logits))
        return np.where(logits >= 0, 1, powers) / (1 + powers)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def highest_experts(logits: NDArray[np.float32], top_k: int) -> NDArray[np.int64]:
    """Return the K experts ``(T, K)`` of the highest logits, the highest first; ties go to the lower expert."""
    return np.argsort(-logits, axis=-1, kind="stable")[:, :top_k]


def weights_of(
    logits: NDArray[np.float32],
    experts: NDArray[np.int16],
    function: str,
    bias: NDArray[np.float32] | None = None,
) -> Weights:
    """Return the gates of the chosen experts, and of all.

    Args:
        logits: ``(T, E)``.
        experts: ``(T, K)`` chosen experts, -1 = none.
        function: one of ``FUNCTIONS``.
        bias: ``(E,)`` added to the gates before the choice; None = there is none.
    """
    gates = gates_of(logits, function)
    scores = logits if bias is None else gates + bias
    indices = experts.astype(np.int64).clip(0)
    chosen_scores = np.take_along_axis(scores, indices, -1)
    other_scores = scores.copy()
    np.put_along_axis(other_scores, indices, -np.inf, -1)
    is_choice = experts.shape[1] < logits.shape[1]
    lower = int((chosen_scores.min(-1) < other_scores.max(-1)).sum()) if is_choice else 0
    of_chosen = np.take_along_axis(gates, indices, -1).astype(np.float32)
    of_chosen[experts < 0] = 0
    return Weights(
        of_chosen,
        chosen_scores.astype(np.float32),
        ordered_by="gates" if bias is None else "scores",
        all_gates=gates.astype(np.float32),
        sum_to_one=function == "softmax",
        lower=lower,
    )


def weights_by_layer(
    logits: Sequence[NDArray[np.float32]], function: str
) -> Callable[[int, NDArray[np.int16]], Weights]:
    """Return what gives the weights of one layer's experts; ``logits``: ``(T, E)`` of each layer with experts."""
    return lambda layer, experts: weights_of(logits[layer], experts, function)


def check_logits(layers: Sequence[NDArray[np.float32]], what: str) -> None:
    """Raise ``Fault`` where a logit of a layer is no finite number."""
    if not all(np.isfinite(logits).all() for logits in layers):
        raise Fault(f"{what} holds logits that are no finite numbers")
