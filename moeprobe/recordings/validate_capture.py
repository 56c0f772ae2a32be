"""Routed experts as a server captured them, checked and made the choices of a trace.

A server does not say in which order it sends the experts of a token: they are a set, and are sorted here by their
numbers, so that nothing can depend on the order. Who knows better says by what they are ordered.

Axes: T rows, L layers (those with experts), K experts per token.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprobe.recordings.faults import BITS, bits_of_zeros
from moeprobe.recordings.format import beside, sorted_sets
from moeprobe.recordings.log_rows import Fault
from moeprobe.recordings.model_config import MoeShape
from moeprobe.recordings.readers.base import Capture

# Numbers of one request, as many as a gigabyte of int32 has.
_MOST = 2**28


@dataclass(frozen=True)
class Routed:
    """The choices of one request.

    T includes the rows before ``start``.

    Attributes:
        experts: ``(T, L, K)``, -1 last where there is none; the rows before ``start`` are all -1. Sorted by their
            numbers, unless they are ordered.
        prompt: tokens of the prompt; None where the response does not say.
        unset: rows of the capture with nothing in any layer (-1, or the highest number of an unsigned type).
        zeros: rows of the capture that are zero in every layer, and so were not captured.
        prompt_zero: whether these are the rows of the prompt, all of them.
        before: rows before ``start``, which were not asked for.
        lacking: rows fewer than there should be; negative for more, 0 where the response does not say.
    """

    experts: NDArray[np.int16]
    unset: int
    zeros: int
    prompt_zero: bool
    before: int
    lacking: int
    prompt: int | None

    @property
    def generated(self) -> NDArray[np.bool_] | None:
        """``(T,)`` which tokens were generated."""
        return None if self.prompt is None else np.arange(len(self.experts)) >= self.prompt

    @property
    def anything(self) -> bool:
        """Whether any token has an expert."""
        return bool((self.experts >= 0).any())


def decode_choices(capture: Capture, shape: MoeShape, *, ordered: bool = False) -> Routed:
    """Return the choices of a capture; ``ordered``: somebody knows that the best comes first.

    Raises:
        Fault: it does not fit the model, or cannot be what a router chose.
    """
    assert capture.ids is not None
    ids = capture.ids
    if ids.size == 0:
        ids = np.zeros((0, len(shape.sparse), shape.top_k), np.uint8)
    if (capture.start + len(ids)) * len(shape.sparse) * shape.top_k > _MOST:
        raise Fault(
            f"the rows {capture.start:,} to {capture.start + len(ids):,} of {len(shape.sparse)} layers and "
            f"{shape.top_k} experts are more than the {_MOST:,} numbers that a request may have"
        )
    ids = _sparse_layers(ids, shape)
    empty = None if _are_experts(ids, shape) else _empty(ids, shape)
    if empty is not None:
        _check_range(ids, empty, shape)
    experts = _by_layer(ids)
    if empty is not None:
        experts[empty] = -1
    as_sets = sorted_sets(experts)
    # In order the first is -1 where all are, and the last is 0 where all are.
    unset = int((as_sets[..., 0] < 0).all(1).sum())
    zero = _zero_rows((as_sets[..., -1] == 0).all(1), shape, capture.stated.prompt, capture.start)
    experts[zero] = as_sets[zero] = -1
    _check_layers(as_sets, shape)
    _check_twice(as_sets, shape)
    if ordered:
        _check_gaps(experts, shape)
    else:
        experts = as_sets
    prompt = (capture.stated.prompt or 0) - capture.start
    prompt_zero = 0 < prompt < len(zero) and bool(zero[:prompt].all())
    if capture.start:
        experts = np.concatenate([np.full((capture.start, *experts.shape[1:]), -1, np.int16), experts])
    return Routed(
        experts=experts,
        unset=unset,
        zeros=int(zero.sum()),
        prompt_zero=prompt_zero,
        before=capture.start,
        lacking=_lacking(capture, len(ids)),
        prompt=capture.stated.prompt,
    )


def improbable(tokens: int, shape: MoeShape) -> bool:
    """Whether so many tokens that are zero in every layer were not captured."""
    return bits_of_zeros(tokens, len(shape.sparse), shape.top_k, shape.num_experts) >= BITS


def _sparse_layers(ids: NDArray[np.integer], shape: MoeShape) -> NDArray[np.integer]:
    """Return ``(T, L, K)`` of the layers with experts; where there are all layers, the others must be empty."""
    _, layers, top_k = ids.shape
    if top_k != shape.top_k:
        raise Fault(f"a token has {top_k} experts, and num_experts_per_tok of the model is {shape.top_k}")
    if layers == len(shape.sparse):
        return ids
    if layers != shape.num_layers:
        raise Fault(
            f"there are {layers} layers, and the model has {shape.num_layers} hidden layers, {len(shape.sparse)} of "
            f"them with experts; {shape.mtp_cause(layers) or 'is this the config.json of the model that was served?'}"
        )
    for layer in shape.dense:
        if not (_empty(ids[:, layer], shape) | (ids[:, layer] == 0)).all():
            raise Fault(
                f"layers.{layer} has experts, and is dense by the model's config.json: "
                + (
                    shape.mtp_cause(layers)
                    or "known as layers shifted by one, or another model's config.json"
                )
            )
    return ids[:, list(shape.sparse)]


def _are_experts(ids: NDArray[np.integer], shape: MoeShape) -> bool:
    """Whether every number is an expert's, and none can mean that there is none."""
    highest = min(shape.num_experts, int(np.iinfo(ids.dtype).max)) - 1
    return bool(ids.min(initial=0) >= 0 and ids.max(initial=0) <= highest)


def _by_layer(ids: NDArray[np.integer]) -> NDArray[np.int16]:
    """Return choices ``(T, L, K)``, in memory one layer after the other: a trace has a row for each."""
    return np.ascontiguousarray(ids.transpose(1, 0, 2), dtype=np.int16).transpose(1, 0, 2)


def _empty(ids: NDArray[np.integer], shape: MoeShape) -> NDArray[np.bool_]:
    """Return where there is no expert: -1, or the highest number of an unsigned type where it can be no expert."""
    if ids.dtype.kind == "i":
        return ids == -1
    highest = int(np.iinfo(ids.dtype).max)
    filled = ids == highest
    if highest >= shape.num_experts:
        return filled
    # 255 is an expert of 256: only where it stands twice for a token it is none.
    return filled & (filled.sum(-1, keepdims=True) > 1)


def _check_range(ids: NDArray[np.integer], empty: NDArray[np.bool_], shape: MoeShape) -> None:
    beyond = ~empty & ((ids < 0) | (ids >= shape.num_experts))
    if beyond.any():
        token, layer, _ = (int(index) for index in np.argwhere(beyond)[0])
        raise Fault(
            f"row {token} of {shape.names[layer]} has expert {ids[beyond][0]}, and the model has experts 0 to "
            f"{shape.num_experts - 1}: known as physical ids of replicated experts, fused shared experts, or another "
            "model's config.json"
        )


def _zero_rows(zero: NDArray[np.bool_], shape: MoeShape, prompt: int | None, start: int) -> NDArray[np.bool_]:
    """Return which of the rows ``(T,)`` that are zero in every layer no router chose."""
    if shape.top_k > 1:
        return zero
    # With one expert per token, zero is an expert: all rows, or all of the prompt, and enough of them.
    for rows in (len(zero), (prompt or 0) - start):
        if rows > 0 and zero[:rows].all() and improbable(rows, shape):
            return zero & (np.arange(len(zero)) < rows)
    return np.zeros(len(zero), bool)


def _check_layers(sets: NDArray[np.int16], shape: MoeShape) -> None:
    """Raise ``Fault`` where a layer is zero in all rows, and the others are not."""
    if shape.top_k < 2:
        return
    zero = (sets[..., -1] == 0)[(sets[..., 0] >= 0).any(1)]
    for layer in np.flatnonzero(zero.all(0)) if len(zero) else ():
        raise Fault(
            f"{shape.names[layer]} is zero in all rows, and has experts by the model's config.json: known as a "
            "dense layer that was filled with zeros, so layers shifted by one, or another model's config.json"
        )


def _check_twice(sets: NDArray[np.int16], shape: MoeShape) -> None:
    # As they lie in memory.
    by_layer = sets.transpose(1, 0, 2)
    twice = beside(np.equal, by_layer) & (by_layer >= 0)
    if twice.any():
        token, layer, slot = (int(index) for index in np.argwhere(twice.transpose(1, 0, 2))[0])
        raise Fault(
            f"row {token} of {shape.names[layer]} has expert {sets[token, layer, slot]} twice, which no "
            "router chooses: known as a duplicate expert, of buffers that were written in part or of layers and "
            "experts per token in another order"
        )


def _check_gaps(experts: NDArray[np.int16], shape: MoeShape) -> None:
    """Raise ``Fault`` where an expert stands after an absent one."""
    gaps = (experts[..., 1:] >= 0) & (experts[..., :-1] < 0)
    if gaps.any():
        token, layer, _ = (int(index) for index in np.argwhere(gaps)[0])
        raise Fault(
            f"row {token} of {shape.names[layer]} has an expert after an absent one (-1), which no order by score has"
        )


def _lacking(capture: Capture, rows: int) -> int:
    """Return how many rows fewer there are than the response states."""
    prompt, generated = capture.stated.prompt, capture.stated.generated
    if prompt is None or generated is None:
        return 0
    expected = max(prompt + generated - 1, 0) - capture.start
    return 0 if capture.last and rows == expected + 1 else expected - rows
