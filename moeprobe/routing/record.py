"""What a model's routers decided, as plain data.

Axes: B images, T tokens (prefix tokens first), E experts, K choices.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.inputs.modality import IMAGE, TEXT, Modality
from moeprobe.runtime.characters import in_one_line

if TYPE_CHECKING:
    from torch import Tensor

Computed = TypeVar("Computed")


@dataclass(frozen=True)
class LayerRouting:
    """The routing of one MoE layer for a batch.

    Attributes:
        gates: ``(B, T, E)`` float32, a token's weight on each expert as the router gives it.
        scores: ``(B, T, E)`` what the choice is read off where that is not the gates, else None.
        selected: ``(B, T, K)`` int16, the choice before capacity, best first, -1 = none; K = E where experts choose
            their tokens, 0 where every expert gets a share of every token.
        processed: ``(B, T, K)`` bool, which choices fit their expert's capacity: "chose another" and "was dropped" stay
            apart.
        valid: ``(B, T)`` bool, False for padding, and for special tokens after a text.
        grid: layout of the tokens after the prefix in the image; None for a text.
        num_prefix_tokens: tokens before the patches (CLS, registers, or a prompt around a picture).
        gates_sum_to_one: whether a token's gates are a distribution over the experts.
        token_local: a token's choice does not depend on the other tokens of its group.
        router: the router's catalog name.
        slot: ``(B, T)`` the slot (expert · slots + place) that gives a token most, where slots hold mixtures of tokens;
            else None.
        experts_choose: experts take tokens, so that a token has any number of experts from none to E.
        ordered: ``selected`` is best first; else the first of several choices is no more than the others.
        places: ``(B,)`` float, capacity of all experts together, as an image's share of its group's;
            None where there is no limit, or it is not known.
        every_gate: the gates of all experts are the router's; else the other experts' gates may share the remainder
            of the token's sum.
        has_scores: what the choice is read off is here: ``scores``, or the gates where that is None.
        group_images: images whose tokens compete for the places of an expert; None = not known.
        leading: kinds of the prefix tokens, in their order, and how many there are of each; empty = all are one kind.
    """

    gates: Tensor
    scores: Tensor | None
    selected: Tensor
    processed: Tensor
    valid: Tensor
    grid: PatchGrid | None
    num_prefix_tokens: int
    gates_sum_to_one: bool
    token_local: bool
    router: str
    slot: Tensor | None = None
    experts_choose: bool = False
    ordered: bool = True
    every_gate: bool = True
    places: Tensor | None = None
    has_scores: bool = True
    group_images: int | None = 1
    leading: tuple[tuple[str, int], ...] = ()

    def __repr__(self) -> str:
        return f"LayerRouting({self.describe_shape()})"

    def describe_shape(self) -> str:
        """Return its shape in words."""
        inputs, tokens, experts = self.gates.shape
        return f"{inputs} x {tokens} tokens, {experts} experts, k = {self.top_k}"

    @property
    def modality(self) -> Modality:
        """What was routed: the patches of images, or the tokens of texts."""
        return TEXT if self.grid is None else IMAGE

    @property
    def num_experts(self) -> int:
        """E."""
        return self.gates.shape[-1]

    @property
    def top_k(self) -> int:
        """K: the most experts that a token can have; E where experts choose, 0 where all share every token."""
        return self.selected.shape[-1]

    @property
    def tokens_choose(self) -> bool:
        """Whether each token chooses K experts: neither do experts choose, nor do all share every token."""
        return self.top_k > 0 and not self.experts_choose

    @property
    def choices_per_token(self) -> int:
        """K where tokens choose, else 0: what tables call ``top_k``."""
        return self.top_k if self.tokens_choose else 0

    @cached_property
    def selected_mask(self) -> Tensor:
        """``(B, T, E)`` bool, which experts a token has by choice, before capacity, in no order."""
        return self._mask(self.selected >= 0)

    @cached_property
    def processed_mask(self) -> Tensor:
        """``(B, T, E)`` bool, which experts process a token; all False where every expert gets a share of each."""
        # A choice of -1 may still be marked as processed.
        return self._mask(self.processed & (self.selected >= 0))

    def selects_the_same(self, view: LayerRouting) -> Tensor:
        """Return for which tokens ``(B, T)`` the same set of experts is selected, in whatever order."""
        return (self.selected_mask == view.selected_mask).all(-1)

    def processed_the_same(self, view: LayerRouting) -> Tensor:
        """Return which tokens ``(B, T)`` are processed by the same set of experts."""
        return (self.processed_mask == view.processed_mask).all(-1)

    def of_each_input(self, change: Callable[[Tensor], Tensor]) -> LayerRouting:
        """Return the routing with a change of all that has an entry per input, such as a selection of inputs."""
        values = {name: getattr(self, name) for name in PER_INPUT}
        fields: dict[str, Any] = {name: change(value) for name, value in values.items() if value is not None}
        return replace(self, **fields)

    def _mask(self, which: Tensor) -> Tensor:
        import torch

        marks = torch.zeros(self.gates.shape, dtype=torch.int8, device=self.gates.device)
        # Added, not written: an absent choice is stored as expert 0, and must not undo it.
        return marks.scatter_add(-1, self.selected.long().clamp_min(0), which.to(torch.int8)) > 0

    @cached_property
    def weights(self) -> Tensor:
        """``(B, T, E)``, the combination weight of each expert for a token: the gates of processed choices.

        Where the router renormalizes, each token's are in proportion to it.
        """
        if self.top_k == 0:
            return self.gates
        return self.gates * self.processed_mask


def order_choices(selected: Tensor, processed: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
    """Re-sort choices ``(B, T, K)``, and whether they were processed, by score; ties to the lower expert.

    A router's own order of its choices means nothing; the scores ``(B, T, E)`` say which came first. Absent choices
    (-1) come last. The experts are returned as int16.

    A token chose experts 1 and 2; expert 2 has the higher score, but no capacity left:

    >>> import torch
    >>> from moeprobe.routing.record import order_choices
    >>> chosen, fits = torch.tensor([[[1, 2]]]), torch.tensor([[[True, False]]])
    >>> experts, processed = order_choices(chosen, fits, scores=torch.tensor([[[0.1, 0.3, 0.6]]]))
    >>> experts.tolist(), processed.tolist()
    ([[[2, 1]]], [[[False, True]]])
    """
    import torch

    num_experts = scores.shape[-1]
    # Absent ones last already here: an expert may score minus infinity, and is chosen all the same.
    # Sorting by expert first makes ties go to the lower one in the stable sort below.
    by_expert, order = selected.long().where(selected >= 0, num_experts).sort(dim=-1)
    absent = by_expert == num_experts
    selected_scores = scores.gather(-1, by_expert.masked_fill(absent, 0)).masked_fill(absent, -torch.inf)
    by_score = selected_scores.sort(dim=-1, descending=True, stable=True).indices
    experts = by_expert.masked_fill(absent, -1).gather(-1, by_score).to(torch.int16)
    return experts, processed.gather(-1, order.gather(-1, by_score))


@dataclass(frozen=True)
class RoutingTrace:
    """The routing of every traced layer of one forward pass, by layer name, in forward order."""

    layers: dict[str, LayerRouting]

    def __repr__(self) -> str:
        layers = "; ".join(f"{name}: {layer.describe_shape()}" for name, layer in self.layers.items())
        return in_one_line(f"RoutingTrace({layers})")


# What has an entry for each input and token.
PER_INPUT = ("gates", "scores", "selected", "processed", "valid", "slot", "places")


def join_batches(parts: Sequence[RoutingTrace]) -> RoutingTrace:
    """Return the routing of the images of all parts, in their order, as one batch."""
    if len(parts) == 1:
        return parts[0]
    layers = {}
    for name, first in parts[0].layers.items():
        records = [part.layers[name] for part in parts]
        fields: dict[str, Any] = {
            field: _cat([getattr(layer, field) for layer in records]) for field in PER_INPUT
        }
        layers[name] = replace(first, **fields)
    return RoutingTrace(layers)


def split(trace: RoutingTrace, sizes: Sequence[int]) -> list[RoutingTrace]:
    """Return the routing of so many images each, in their order: what ``join_batches`` puts together.

    Raises:
        UserError: it is of another number of images.
    """
    for name, layer in trace.layers.items():
        if len(layer.valid) != sum(sizes):
            raise UserError(
                f"The routing of {name} is of {len(layer.valid)} images, and {sum(sizes)} are given."
            )
    if len(sizes) == 1:
        return [trace]
    traces, start = [], 0
    for size in sizes:
        part = slice(start, start + size)
        traces.append(
            RoutingTrace(
                {name: layer.of_each_input(itemgetter(part)) for name, layer in trace.layers.items()}
            )
        )
        start += size
    return traces


def _cat(values: Sequence[Tensor | None]) -> Tensor | None:
    """Return the images of all parts; None where a routing has no such thing."""
    import torch

    return None if values[0] is None else torch.cat([value for value in values if value is not None])


def highest_gates(gates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the highest gate of tokens ``(..., E)``, the second, and the sum of the rest.

    >>> import torch
    >>> from moeprobe.routing.record import highest_gates
    >>> [round(float(part), 3) for part in highest_gates(torch.tensor([0.2, 0.5, 0.1, 0.2]))]
    [0.5, 0.2, 0.3]
    """
    highest, second = gates.topk(2, dim=-1).values.unbind(-1)
    # What is left of the row's own sum, not of one: a float32 softmax misses one by its rounding.
    return highest, second, (gates.sum(-1) - highest - second).clamp_min(0)


@dataclass(frozen=True)
class LayerPair:
    """One layer's routing of a reference and a view, and which of their patches show the same thing.

    ``reference_patch[b, j]`` and ``view_patch[b, j]`` ``(B, P)`` are the patches of pair j, both -1 where there is
    no partner. ``aligned``: pair j is patch j on both sides, for every image. ``view_first`` ``(B,)`` bool: the view
    is view 1 of the paper, the one that covers less of the source; None = it is the reference for every image, as it
    is where both cover the same. ``region`` ``(B, P)``: what view 1's patch of pair j shows, as a number of
    ``regions.REGIONS``; None where the images have no masks. ``symmetric``: both are random views of the images, so
    that statements on views hold for either. ``pixels`` ``(B, 3, S, S)`` are the view's, in [0, 1]; None where it
    is no image, or only its routing is known. ``generated`` ``(B, P)``: 1 where the token of pair j was generated, 0
    where it is one of the prompt, -1 where that is not known; None = of no token.
    ``token_ids`` ``(B, T)``: the reference's tokens in the vocabulary, -1 = not known; None = of no token.
    """

    reference: LayerRouting
    view: LayerRouting
    reference_patch: Tensor
    view_patch: Tensor
    aligned: bool
    view_first: Tensor | None = None
    region: Tensor | None = None
    symmetric: bool = False
    pixels: Tensor | None = None
    generated: Tensor | None = None
    token_ids: Tensor | None = None
    _computed: dict[Hashable, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def once(self, key: Hashable, compute: Callable[[], Computed]) -> Computed:
        """Return what ``compute`` returns, computed once for each key: several analyses start from the same."""
        if key not in self._computed:
            self._computed[key] = compute()
        computed: Computed = self._computed[key]
        return computed

    @property
    def views(self) -> tuple[LayerRouting, ...]:
        """The sides that are views: both of two random ones, but no clean reference."""
        return (self.reference, self.view) if self.symmetric else (self.view,)
