"""What holds for every router of the catalog when it is probed; a new one is tested the moment its file exists."""

import pytest
import torch

from moeprobe.adapters.vmoe import Vmoe
from moeprobe.catalog import ROUTERS
from moeprobe.nn.dispatch import CapacityRule
from moeprobe.routing import LayerRouting, order_choices
from tests.routings import tiny

EVERY = pytest.mark.parametrize("name", ROUTERS.names())
WIDTH, NUM_EXPERTS, TOP_K = 12, 8, 2


def router(name: str, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return ROUTERS.get(name)(WIDTH, NUM_EXPERTS, TOP_K, **options).eval()


def tokens(groups: int = 3, size: int = 10) -> torch.Tensor:
    return torch.randn(groups, size, WIDTH, generator=torch.Generator().manual_seed(1))


def traced(name: str, count: int = 4) -> dict[str, LayerRouting]:
    model = Vmoe(tiny(router=name), mean=(0.5,) * 3, std=(0.5,) * 3, router_name=name)
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return model.trace(images[:count])[1].layers


@EVERY
def test_a_decision_is_one_record_of_matching_shapes(name: str) -> None:
    with torch.no_grad():
        found = router(name)(tokens())
    for field in ("logits", "noisy_logits", "gates", "clean_gates"):
        value = getattr(found, field)
        assert value.shape == (3, 10, NUM_EXPERTS) and value.dtype == torch.float32
        assert value.isfinite().all()
    assert found.selected.shape[:2] == (3, 10)
    assert found.selected.min() >= -1 and found.selected.max() < NUM_EXPERTS
    assert found.noise_scale == 0 and torch.equal(found.logits, found.noisy_logits)


@EVERY
def test_the_index_plan_is_the_dense_plan(name: str) -> None:
    for factor in (None, 0.5):
        with torch.no_grad():
            plan = router(name, eval_capacity=CapacityRule(factor))(tokens()).plan
        dispatch, combine = plan.dense()
        assert dispatch.sum(1).max() <= 1  # a slot holds one token
        assert (combine[~dispatch] == 0).all()
        assert dispatch.sum() == plan.kept.sum()
        if factor is None:
            assert plan.kept.all()
        elif plan.capacity is not None:
            assert not plan.kept.all() and dispatch.sum((1, 3)).max() <= plan.capacity


@EVERY
def test_gates_are_what_the_router_says_of_them(name: str) -> None:
    with torch.no_grad():
        gates = router(name)(tokens()).gates
    assert (gates >= 0).all()
    if ROUTERS.get(name).gates_sum_to_one:
        torch.testing.assert_close(gates.sum(-1), torch.ones(3, 10))


@EVERY
def test_token_local_routers_do_not_look_at_other_tokens(name: str) -> None:
    made = router(name)
    with torch.no_grad():
        whole = made(tokens())
        alone = made(tokens()[1:2, 4:5])
    if ROUTERS.get(name).token_local:
        torch.testing.assert_close(alone.gates[0, 0], whole.gates[1, 4])
        assert torch.equal(alone.selected[0, 0], whole.selected[1, 4])


@EVERY
def test_traces_are_the_same_twice_and_for_any_batch(name: str) -> None:
    first, again, smaller = traced(name), traced(name), traced(name, count=2)
    assert list(first) == ["blocks.1", "blocks.3"]
    for layer, found in first.items():
        assert torch.equal(found.gates, again[layer].gates)
        torch.testing.assert_close(smaller[layer].gates, found.gates[:2], rtol=1e-4, atol=1e-6)
        assert found.router == name
        assert found.selected.dtype == torch.int16 and found.processed.shape == found.selected.shape
        assert found.processed.dtype == torch.bool and found.valid.dtype == torch.bool
        assert found.num_prefix_tokens + found.grid.num_patches == found.gates.shape[1]  # type: ignore[union-attr]


@EVERY
def test_choices_of_a_trace_are_ordered_by_score(name: str) -> None:
    for found in traced(name).values():
        scores = found.gates if found.scores is None else found.scores
        experts, processed = order_choices(found.selected.flip(-1), found.processed.flip(-1), scores)
        assert torch.equal(experts, found.selected) and torch.equal(processed, found.processed)


@EVERY
def test_it_trains(name: str) -> None:
    made = router(name).train()
    found = made(tokens().requires_grad_(), torch.randn(3, 10, NUM_EXPERTS))
    assert (found.noise_scale > 0) == (not torch.equal(found.logits, found.noisy_logits))
    (found.gates * torch.randn(3, 10, NUM_EXPERTS)).sum().backward()
    assert all(parameter.grad is not None for parameter in made.parameters())
