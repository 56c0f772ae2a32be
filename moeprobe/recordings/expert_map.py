"""Map the experts of a checkpoint to a pruned or merged one's: a JSON file.

For each layer an object from the old number of an expert to the new one, or to null where it was removed; or one object
for all layers. A list says the same: its element e is of old expert e.

    {"layers.0": {"0": 0, "1": null, "2": 1, "3": 1}, "layers.1": [null, 0, 1, 1]}

Axes: B inputs, T tokens, P tokens after the prefix, K choices, E old experts, N new ones.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.recordings.reading import TraceFile
from moeprobe.routing.record import LayerPair, LayerRouting
from moeprobe.runtime.files import read_json


@dataclasses.dataclass(frozen=True)
class ExpertMap:
    """By layer the new number ``(E,)`` of each old expert, -1 = it was removed."""

    layers: Mapping[str, Tensor]
    path: Path

    def of(self, layer: str) -> Tensor:
        """Return the map of a layer ``(E,)``."""
        return self.layers[layer]


def read_expert_map(path: Path, old: TraceFile, new: Sequence[TraceFile], layers: Sequence[str]) -> ExpertMap:
    """Return what a file says of the layers of traces.

    Args:
        path: the file.
        old: the trace whose experts are the old ones.
        new: those whose experts are the new ones.
        layers: which layers.

    Raises:
        UserError: it cannot be read, lacks a layer or an expert, or names one that there is not.
    """
    content = read_json(path)
    if not isinstance(content, dict | list) or not content:
        raise UserError(
            f"{path} maps no experts: expected an object of layers, each from old experts to new ones."
        )
    by_layer = isinstance(content, dict) and all(isinstance(value, dict | list) for value in content.values())
    if by_layer:
        for name in content:
            if name not in old.layers:
                raise UserError(f"{path} maps layer {name}, and {old.path} has {', '.join(old.layers)}.")
        for name in layers:
            if name not in content:
                raise UserError(
                    f"{path} lacks layer {name}; choose the layers that it has with {option('layers')}."
                )
    numbers_by_layer = {}
    for name in layers:
        entries: Any = content[name] if isinstance(content, dict) and by_layer else content
        numbers = _numbers(path, name, entries, old.layers[name].num_experts)
        for trace in new:
            num_experts = trace.layers[name].num_experts
            if max(numbers) >= num_experts:
                raise UserError(
                    f"{path}, {name}: new expert {max(numbers)} is none of the {num_experts} of {trace.path} (0 to "
                    f"{num_experts - 1})."
                )
        if max(numbers) < 0:
            raise UserError(f"{path}, {name}: every expert was removed, so there is nothing to compare.")
        numbers_by_layer[name] = torch.tensor(numbers)
    return ExpertMap(numbers_by_layer, path)


def _numbers(path: Path, layer: str, content: Any, num_experts: int) -> list[int]:
    """Return the new number of each old expert."""
    if isinstance(content, list):
        content = {str(number): value for number, value in enumerate(content)}
    assert isinstance(content, dict)
    for key in content:
        if not (key.isascii() and key.isdigit() and int(key[:9]) < num_experts and str(int(key)) == key):
            raise UserError(
                f"{path}, {layer}: {key[:40]!r} is none of the {num_experts} old experts (0 to {num_experts - 1})."
            )
    numbers = []
    for expert in range(num_experts):
        if str(expert) not in content:
            raise UserError(
                f"{path}, {layer}: old expert {expert} is missing; say null of one that was removed."
            )
        value = content[str(expert)]
        if value is not None and (type(value) is not int or not 0 <= value < 2**15):
            raise UserError(
                f"{path}, {layer}: old expert {expert} becomes the number of a new one, or null; got {str(value)[:40]}."
            )
        numbers.append(-1 if value is None else value)
    return numbers


@dataclasses.dataclass(frozen=True)
class Renumbered:
    """A pair whose reference's experts have their new numbers, with each token's remaining choices.

    Attributes:
        pair: reference and view.
        removed: ``(B, P)`` tokens whose reference chose an expert that was removed.
        merged: ``(B, P)`` tokens of which two experts became one.
        added: ``(B, P)`` tokens whose view chose an expert that no old one became.
    """

    pair: LayerPair
    removed: Tensor
    merged: Tensor
    added: Tensor

    def of(self, tokens: Tensor) -> LayerPair:
        """Return the pair with some of its tokens ``(B, P)`` alone."""
        patches = self.pair.view_patch.where(tokens, -1)
        return dataclasses.replace(self.pair, reference_patch=patches, view_patch=patches)


def with_new_experts(pair: LayerPair, new: Tensor) -> Renumbered:
    """Return a pair whose reference's experts have their new numbers.

    Args:
        pair: a reference with old experts, and a view with new ones, tokens in place.
        new: ``(E,)`` of each old expert, -1 = it was removed.
    """
    reference, view = pair.reference, pair.view
    experts, had = _renumber(reference.selected, new)
    removed = (had & (experts < 0)).any(-1)
    twice = (experts[..., :, None] == experts[..., None, :]) & (experts >= 0)[..., None]
    again = twice.tril(-1).any(-1)
    is_target = torch.zeros(view.num_experts, dtype=torch.bool)
    is_target[new[new >= 0]] = True
    view_experts = view.selected.long()
    added = ((view_experts >= 0) & ~is_target[view_experts.clamp_min(0)]).any(-1)
    experts = experts.masked_fill(again, -1)
    # What is left comes first: in its order, or of sets the lowest first.
    last = torch.full_like(experts, 2**15)
    order = (torch.zeros_like(experts) if reference.ordered else experts).where(experts >= 0, last)
    order = order.sort(dim=-1, stable=True).indices
    mapped = dataclasses.replace(
        reference,
        gates=_gates(reference, new, view.num_experts),
        gates_sum_to_one=False,
        every_gate=False,
        scores=None,
        selected=experts.gather(-1, order).to(reference.selected.dtype),
        processed=(reference.processed & (experts >= 0)).gather(-1, order),
    )
    prefix = view.num_prefix_tokens
    reasons = (which[:, prefix:] for which in (removed, again.any(-1), added))
    return Renumbered(dataclasses.replace(pair, reference=mapped), *reasons)


def _renumber(selected: Tensor, new: Tensor) -> tuple[Tensor, Tensor]:
    """Return choices by their new numbers, and which there were."""
    old = selected.long()
    had = old >= 0
    return torch.where(had, new[old.clamp_min(0)], -1), had


def _gates(reference: LayerRouting, new: Tensor, num_experts: int) -> Tensor:
    """Return the gates ``(B, T, N)``: of experts that became one the sum, of those that were removed none."""
    remaining = new >= 0
    gates = reference.gates[..., remaining]
    merged = gates.new_zeros(*gates.shape[:-1], num_experts)
    return merged.index_add(-1, new[remaining], gates)
