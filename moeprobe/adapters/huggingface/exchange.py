"""Put a choice that was made elsewhere into what a router of ``transformers`` gives out, in the form that it has there.

Routers whose experts get whole numbers and weights are handled where the experts are called (``replay``). The other
routers give out one of two forms (see ``outputs``), which their block reads as it would read the router's own:

* *dense*: a weight for each expert, or a mark for each expert and one weight;
* *sorted*: the places of all choices sorted by expert, the token and weight of each, and how many each expert got.

Axes: N tokens of a batch, E experts, K choices.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from moeprobe.adapters.huggingface.outputs import OutputReader, find_dense, find_sorted

FORMS = ("dense", "sorted")


def exchange_choice(
    reader: OutputReader, outputs: Sequence[Any], index: Tensor, weights: Tensor
) -> tuple[Any, ...] | None:
    """Return the outputs of a router with other experts ``(N, K)`` and weights; None where they lack the form.

    Args:
        reader: how the router is read.
        outputs: as the router gave them.
        index: ``(N, K)`` experts; where a weight is 0, no expert.
        weights: ``(N, K)``.
    """
    exchange = _exchange_dense if reader.form == "dense" else _exchange_sorted
    return exchange(reader, list(outputs), index, weights)


def _exchange_dense(
    reader: OutputReader, outputs: list[Any], index: Tensor, weights: Tensor
) -> tuple[Any, ...] | None:
    num_tokens = len(index)
    sizes = (num_tokens, reader.num_experts)
    positions = [
        position
        for position, value in enumerate(outputs)
        if isinstance(value, Tensor) and position != reader.logits_at
    ]
    # A weight says more than a mark, so it comes first, as in reading.
    positions.sort(key=lambda position: not outputs[position].is_floating_point())
    position = next(
        (position for position in positions if find_dense([outputs[position]], *sizes) is not None), None
    )
    if position is None:
        return None
    dense = torch.zeros(sizes, device=index.device)
    is_weighted = outputs[position].is_floating_point()
    dense.scatter_add_(1, index, weights.float() if is_weighted else (weights != 0).float())
    outputs[position] = dense.to(outputs[position].dtype).reshape(outputs[position].shape)
    if not is_weighted:
        single = next(
            (
                candidate
                for candidate in positions
                if outputs[candidate].is_floating_point() and outputs[candidate].numel() == weights.numel()
            ),
            None,
        )
        if single is None:
            return None
        outputs[single] = weights.to(outputs[single].dtype).reshape(outputs[single].shape)
    return tuple(outputs)


def _exchange_sorted(
    reader: OutputReader, outputs: list[Any], index: Tensor, weights: Tensor
) -> tuple[Any, ...] | None:
    own_order, own_counts = find_sorted(outputs, len(index), reader.num_experts)
    if not len(own_order):
        return None
    order = index.flatten().argsort(stable=True)
    counts = index.flatten().bincount(minlength=reader.num_experts).tolist()
    own_tokens = own_order // index.shape[1]
    new: list[Any] = []
    has_weights = False
    for value in outputs:
        if value is own_counts:
            new.append(counts)
        elif not isinstance(value, Tensor) or value.shape != own_order.shape:
            new.append(value)
        elif value.is_floating_point():
            has_weights = True
            new.append(weights.flatten()[order].to(value.dtype))
        elif torch.equal(value, own_order):
            new.append(order.to(value.dtype))
        elif torch.equal(value, own_tokens):
            new.append((order // index.shape[1]).to(value.dtype))
        else:
            return None
    return tuple(new) if has_weights else None
