"""Fit the alignment of two trainings' experts, layer by layer: to one half of the inputs, and to the other.

The sets of all tokens of a layer are in memory, as sparse rows, so that inputs can be exchanged.

Axes: n inputs, P tokens after the prefix, E experts of the first training, F of the second.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.metrics.stats.alignment import (
    JointCounts,
    Numbers,
    ReorderedInputs,
    joint_counts,
    permuted_orders,
)
from moeprobe.metrics.token_kinds import Paired, patches
from moeprobe.recorded.engine.describe import most_tokens
from moeprobe.recorded.engine.input_sums import INPUTS_AT_ONCE
from moeprobe.recordings.pairs import NamedTrace, pair
from moeprobe.routing.record import LayerPair, LayerRouting
from moeprobe.runtime.seeds import generator


@dataclass(frozen=True)
class Halves:
    """The two halves of the inputs; each cluster is in one of them.

    Attributes:
        ids: inputs; inputs of a cluster stand together.
        clusters: ``(n,)`` number of each one's cluster.
        second: ``(n,)`` bool, which are in the second half.
    """

    ids: Sequence[str]
    clusters: Numbers
    second: NDArray[np.bool_]

    @classmethod
    def of(cls, ids: Sequence[str], clusters: Mapping[str, str], *, seed: int) -> "Halves":
        """Return random halves that belong to (seed, clusters).

        Raises:
            UserError: there is one cluster alone.
        """
        ordered = sorted(ids, key=lambda name: (clusters.get(name, name), name))
        names = sorted({clusters.get(name, name) for name in ids})
        if len(names) < 2:
            raise UserError(
                "An alignment is fitted to one half of the inputs and judged on the other: two at least."
            )
        number = {name: index for index, name in enumerate(names)}
        of_input = np.array([number[clusters.get(name, name)] for name in ordered])
        order = generator(seed, "align halves").permutation(len(names))
        return cls(ordered, of_input, order[of_input] < len(names) // 2)


@dataclass(frozen=True)
class Fit:
    """The alignment of a layer of two trainings.

    Attributes:
        joint: common tokens of their experts, on all inputs.
        numbers: new numbers of the second training's experts ``(F,)``, fitted to the first half and to the second.
        fitted: κ on the inputs that the alignment is fitted to, which are all.
        unrelated: ``(R,)`` the same with the second training's inputs in random orders.
        same_numbers: κ if experts are compared by their numbers; None where there are not as many.
    """

    joint: JointCounts
    numbers: tuple[Numbers, Numbers]
    fitted: float
    unrelated: NDArray[np.float64]
    same_numbers: float | None

    @property
    def p(self) -> float:
        """Share of the orders with as large a κ; the observed one is among them."""
        return float((1 + (self.unrelated >= self.fitted).sum()) / (1 + len(self.unrelated)))

    @property
    def same_alignment(self) -> float:
        """Share of the second training's experts with tokens that both halves align alike."""
        alive = self.joint.second > 0
        return float((self.numbers[0] == self.numbers[1])[alive].mean())


def fit_layer(
    traces: tuple[NamedTrace, NamedTrace], layer: str, halves: Halves, *, orders: int, seed: int
) -> Fit:
    """Align the experts of a layer of two trainings.

    Args:
        traces: of both, of the same inputs.
        layer: which.
        halves: of the inputs.
        orders: R, random orders of the inputs.
        seed: of the orders.
    """
    first, second = _sets(traces, layer, halves.ids)
    num_places = first.shape[0] // len(halves.ids)
    in_second = np.repeat(halves.second, num_places)
    of_halves = [joint_counts(first[which], second[which]) for which in (~in_second, in_second)]
    joint = of_halves[0] + of_halves[1]
    reordered, unrelated = ReorderedInputs(first, second, inputs=len(halves.ids)), []
    for order in permuted_orders(halves.clusters, generator(seed, "align orders"), orders):
        counts = reordered.joint_counts(order)
        unrelated.append(counts.kappa(counts.align()))
    num_first, num_second = joint.common.shape
    return Fit(
        joint,
        (of_halves[0].align(), of_halves[1].align()),
        joint.kappa(joint.align()),
        np.array(unrelated),
        joint.kappa(np.arange(num_second)) if num_first == num_second else None,
    )


def _sets(traces: tuple[NamedTrace, NamedTrace], layer: str, ids: Sequence[str]) -> list[sparse.csr_array]:
    """Return the sets of all tokens of both trainings ``(n · P, experts + 1)``; the last column marks tokens."""
    longest = most_tokens(traces, layer, ids)
    rows: list[list[sparse.csr_array]] = [[], []]
    for start in range(0, len(ids), INPUTS_AT_ONCE):
        blocks = [
            trace_view.trace.read(layer, ids[start : start + INPUTS_AT_ONCE], num_tokens=longest)
            for trace_view in traces
        ]
        subject = pair(*blocks, view_trace=traces[1])
        paired = patches(subject)
        rows[0].append(_rows(paired.of_reference(subject.reference.selected_mask), paired))
        rows[1].append(_rows(paired.of_view(subject.view.selected_mask), paired))
    return [sparse.vstack(parts, format="csr") for parts in rows]


def _rows(member: Tensor, paired: Paired) -> sparse.csr_array:
    present = paired.present[..., None]
    with_mark = torch.cat([member & present, present], -1).flatten(0, 1)
    return sparse.csr_array(with_mark.numpy().astype(np.int32))


def with_numbers(pair: LayerPair, numbers: Tensor) -> LayerPair:
    """Return a pair whose view's experts have new numbers ``(B, F)``, by input; gates are left out."""
    reference, view = pair.reference, pair.view
    num_experts = max(reference.num_experts, view.num_experts)
    old = view.selected.long()
    new = numbers.gather(1, old.clamp_min(0).flatten(1)).view_as(old).where(old >= 0, -1)
    # Sets without an order have the lowest first, and what is absent last.
    order = new.where(new >= 0, num_experts).argsort(dim=-1, stable=True)
    if view.ordered:
        order = torch.arange(old.shape[-1]).expand_as(order)
    renumbered = dataclasses.replace(
        view,
        selected=new.gather(-1, order).to(view.selected.dtype),
        processed=view.processed.gather(-1, order),
    )
    return dataclasses.replace(
        pair, reference=_without_gates(reference, num_experts), view=_without_gates(renumbered, num_experts)
    )


def _without_gates(routing: LayerRouting, num_experts: int) -> LayerRouting:
    return dataclasses.replace(
        routing,
        # One zero that stands for all.
        gates=torch.zeros(1).expand(*routing.valid.shape, num_experts),
        gates_sum_to_one=False,
        every_gate=False,
        scores=None,
    )
