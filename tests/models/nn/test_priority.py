"""Priority routing against a loop over pairs, and against V-MoE's router where there is room for all."""

from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprobe.adapters.vmoe import Vmoe
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.priority import Priority, assign
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from tests.models.nn import references
from tests.models.nn.test_dispatch import HAND
from tests.routing.routings import tiny


@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 12),
    experts=st.integers(1, 8),
    top_k=st.integers(1, 8),
    capacity=st.integers(1, 13),
    levels=st.sampled_from([1, 2, 4, 1000]),
    seed=st.integers(0, 9999),
)
@settings(deadline=None, max_examples=150)
def test_it_is_the_plain_loop(
    groups: int, size: int, experts: int, top_k: int, capacity: int, levels: int, seed: int
) -> None:
    """Few levels make many ties."""
    gates = np.random.default_rng(seed).integers(1, levels + 1, (groups, size, experts)) / levels
    top_k = min(top_k, experts)
    selected, held = (
        side.numpy() for side in assign(torch.from_numpy(gates), top_k=top_k, capacity=capacity)
    )
    for group in range(groups):
        expected = references.priority(gates[group], top_k=top_k, capacity=capacity)
        for token in range(size):
            ranked = references.ranking(gates[group, token])
            refused = [expert for expert in ranked if not expected[token, expert]]
            listed = [*np.flatnonzero(expected[token]), *refused[: top_k - expected[token].sum()]]
            assert selected[group, token].tolist() == sorted(listed, key=ranked.index)
            assert held[group, token].tolist() == expected[token, selected[group, token]].tolist()


@pytest.mark.parametrize(("top_k", "capacity"), [(1, 13), (2, 25), (2, 10), (3, 40)])
def test_nobody_would_rather_have_one_another(top_k: int, capacity: int) -> None:
    """Stability: an expert that does not hold a token is full of better ones, or the token has k better experts."""
    gates = (
        torch.randn(1, 100, 8, generator=torch.Generator().manual_seed(0)) + torch.arange(8) / 3
    ).softmax(-1)
    selected, held = assign(gates, top_k=top_k, capacity=capacity)
    holds = torch.zeros(100, 8, dtype=torch.bool).scatter(-1, selected[0], held[0])
    assert holds.sum(0).max() == capacity and holds.sum(1).max() == top_k
    for token, expert in (~holds).nonzero().tolist():
        gate = gates[0, token, expert]
        full = (gates[0, holds[:, expert], expert] > gate).sum() == capacity
        content = (gates[0, token, holds[token]] > gate).sum() == top_k
        assert full or content


def test_hand_example() -> None:
    """Experts with two places each, one choice per token.

    Expert 0 is asked by 0, 1, 2, 3, 5 (.70 .60 .80 .50 .90) and keeps 5 and 2; the others ask expert 1 (.20 .30 .45),
    which keeps 3 and 1; token 0 goes to its last choice, beside token 4.
    """
    selected, held = assign(torch.tensor([HAND]), top_k=1, capacity=2)
    assert selected.flatten().tolist() == [2, 1, 0, 1, 2, 0] and held.all()


def test_a_token_that_comes_late_pushes_out_a_worse_one() -> None:
    """Expert 0 keeps token 0 (.9 > .6); token 1 goes on to expert 1, where .4 > .3 pushes token 2 on to expert 2."""
    gates = torch.tensor([[[0.9, 0.1, 0.0], [0.6, 0.4, 0.0], [0.2, 0.3, 0.1]]])
    selected, held = assign(gates, top_k=1, capacity=1)
    assert selected.flatten().tolist() == [0, 1, 2] and held.all()


def test_overflow_is_another_choice_and_only_what_nobody_takes_is_dropped() -> None:
    """Two experts with one place each and three tokens: the least wanted one finds no room, and had asked both."""
    gates = torch.tensor([[[0.9, 0.1], [0.8, 0.2], [0.7, 0.3]]])
    selected, held = assign(gates, top_k=1, capacity=1)
    # Greedily: (0, expert 0) at .9, then (2, expert 1) at .3; token 1 would like expert 0 best.
    assert selected.flatten().tolist() == [0, 0, 1]
    assert held.flatten().tolist() == [True, False, True]


@pytest.mark.parametrize("noisy", [True, False])
@pytest.mark.parametrize("factor", [None, 8.0])
def test_with_room_for_all_it_is_softmax_token_choice(noisy: bool, factor: float | None) -> None:
    """Bit for bit without a limit; the same choices and weights where the limit is not felt."""
    torch.manual_seed(0)
    rule = CapacityRule(factor)
    routers = [kind(6, 5, 2, capacity=rule, eval_capacity=rule) for kind in (Priority, SoftmaxTokenChoice)]
    routers[0].load_state_dict(routers[1].state_dict())
    noise = torch.randn(2, 20, 5) if noisy else None
    tokens = torch.randn(2, 20, 6)
    first, second = (router(tokens, noise) for router in routers)
    for name in ("gates", "clean_gates", "selected", "processed", "logits", "noisy_logits"):
        assert torch.equal(getattr(first, name), getattr(second, name)), name
    for field in fields(first.plan):
        got, expected = getattr(first.plan, field.name), getattr(second.plan, field.name)
        assert torch.equal(got, expected) if isinstance(got, torch.Tensor) else got == expected


def test_probing_keeps_the_limit() -> None:
    """Where a token goes depends on the room, so lifting the limit would probe another router."""
    arguments = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "router_name": "priority"}
    limited = Vmoe(tiny(router="priority"), **arguments)  # type: ignore[arg-type]
    assert set(limited.capacity_factors.values()) == {1.05}
    lifted = Vmoe(tiny(router="priority", eval_capacity_factor="none"), **arguments)  # type: ignore[arg-type]
    assert set(lifted.capacity_factors.values()) == {None}
    images = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    layers = [model.trace(images)[1].layers["blocks.1"] for model in (limited, lifted)]
    assert torch.equal(layers[0].gates, layers[1].gates)
    assert not torch.equal(layers[0].selected, layers[1].selected)
    assert layers[0].processed.all(), "whoever finds no room at the first choice finds it elsewhere"
    # 17 tokens · 2 choices · 1.05 / 8 experts = 4.5: a limit of 8, the next multiple of 4.
    loads = [
        torch.stack([torch.bincount(row.flatten().int(), minlength=8) for row in one.selected])
        for one in layers
    ]
    assert loads[0].max() == 8 < loads[1].max()
