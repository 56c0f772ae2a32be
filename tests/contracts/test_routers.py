"""What holds for every router of the catalog; a new one is tested the moment its file exists."""

from pathlib import Path

import pytest
import torch

from moeprobe.adapters.vmoe import Vmoe
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.config import ModelConfig, MoeConfig
from moeprobe.models.nn.dispatch import run_experts
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.plans import DispatchPlan
from moeprobe.models.nn.routers.base import Decision, Router
from moeprobe.models.nn.sparse import make_router
from moeprobe.routing.record import LayerRouting, order_choices
from moeprobe.runtime.catalog import ROUTERS
from tests.models.nn.dense_form import dense
from tests.models.training.tiny import trainer
from tests.routing.routings import tiny

EVERY = pytest.mark.parametrize("name", ROUTERS.names())
GROUPS, SIZE, WIDTH, NUM_EXPERTS = 3, 10, 12, 8


def router(name: str, *, num_experts: int = NUM_EXPERTS, width: int = WIDTH, **options: object) -> Router:
    torch.manual_seed(0)
    config = MoeConfig.model_validate({"num_experts": num_experts, "router": name} | options)
    return make_router(config, width, num_tokens=SIZE).eval()


def tokens(groups: int = GROUPS, size: int = SIZE, width: int = WIDTH) -> torch.Tensor:
    return torch.randn(groups, size, width, generator=torch.Generator().manual_seed(1))


def decide(made: Router, given: torch.Tensor, noise: torch.Tensor | None = None) -> Decision:
    with torch.no_grad():
        found: Decision = made(given, noise)
    return found


def model(name: str) -> Vmoe:
    return Vmoe(tiny(router=name), mean=(0.5,) * 3, std=(0.5,) * 3, router_name=name)


def traced(name: str, count: int = 4) -> dict[str, LayerRouting]:
    images = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    return model(name).trace(images[:count])[1].layers


@EVERY
def test_a_decision_is_one_record_of_matching_shapes(name: str) -> None:
    made = router(name)
    found = decide(made, tokens())
    for field in ("logits", "noisy_logits", "gates", "clean_gates"):
        value = getattr(found, field)
        experts = made.num_logits if "logits" in field else NUM_EXPERTS
        assert value.shape == (GROUPS, SIZE, experts) and value.dtype == torch.float32
        assert value.isfinite().all()
    assert found.scores is None or found.scores.shape == (GROUPS, SIZE, NUM_EXPERTS)
    assert found.selected.shape[:2] == (GROUPS, SIZE) and found.selected.shape == found.processed.shape
    assert ((found.selected >= -1) & (found.selected < NUM_EXPERTS)).all()
    assert not (found.processed & (found.selected < 0)).any()
    assert found.noise_scale == 0 and torch.equal(found.logits, found.noisy_logits)
    assert found.top_k == made.top_k and (made.top_k is None or found.selected.shape[-1] == made.top_k)


@EVERY
@pytest.mark.parametrize("factor", [1.0, 0.5])
def test_the_index_plan_is_the_dense_plan(name: str, factor: float) -> None:
    """The papers' form: out[t] = Σ_e Σ_c C[t,e,c] · expert_e(Σ_s D[s,e,c] x[s])."""
    given = tokens()
    made = router(name, capacity_factor=factor, eval_capacity_factor=factor)
    found = decide(made, given)
    dispatch, combine = dense(found.plan)
    torch.manual_seed(2)
    experts = MlpExperts(NUM_EXPERTS, WIDTH, 16)
    with torch.no_grad():
        slots = torch.einsum("gsec,gsd->egcd", dispatch.float(), given)
        outputs = experts(slots.flatten(1, 2)).view_as(slots)
        expected = torch.einsum("gsec,egcd->gsd", combine, outputs)
        got = run_experts(experts, given.flatten(0, 1), found.plan).view_as(given)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@EVERY
def test_a_slot_of_a_sparse_router_holds_one_token_and_no_expert_takes_too_many(name: str) -> None:
    made = router(name, capacity_factor=0.5, eval_capacity_factor=0.5)
    found = decide(made, tokens())
    if not isinstance(found.plan, DispatchPlan):
        return
    dispatch, combine = dense(found.plan)
    assert dispatch.sum(1).max() <= 1
    assert (combine[~dispatch] == 0).all()
    assert found.plan.capacity is not None
    assert dispatch.sum((1, 3)).max() <= found.plan.capacity
    # What was processed, token by token, is what the plan holds.
    held = torch.zeros(GROUPS, SIZE, NUM_EXPERTS, dtype=torch.bool)
    group, token, choice = found.processed.nonzero(as_tuple=True)
    held[group, token, found.selected[group, token, choice]] = True
    assert torch.equal(held, dispatch.any(-1))


@EVERY
def test_without_a_limit_nothing_is_dropped_where_tokens_choose(name: str) -> None:
    if _chooses(name):
        found = decide(router(name, eval_capacity_factor="none"), tokens())
        assert found.processed.all() and (found.selected >= 0).all()


@EVERY
def test_gates_are_what_the_router_says_of_them(name: str) -> None:
    made = router(name)
    gates = decide(made, tokens()).gates
    assert (gates >= 0).all()
    if made.gates_sum_to_one:
        torch.testing.assert_close(gates.sum(-1), torch.ones(GROUPS, SIZE), rtol=1e-5, atol=1e-5)


@EVERY
def test_token_local_routers_do_not_look_at_other_tokens(name: str) -> None:
    made = router(name)
    whole, alone = decide(made, tokens()), decide(made, tokens()[1:2, 4:5])
    same = torch.allclose(alone.gates[0, 0], whole.gates[1, 4]) and torch.equal(
        alone.selected[0, 0], whole.selected[1, 4]
    )
    assert same or not made.token_local


@EVERY
def test_groups_do_not_meet(name: str) -> None:
    made = router(name)
    whole, alone = decide(made, tokens()), decide(made, tokens()[1:2])
    torch.testing.assert_close(alone.gates, whole.gates[1:2], rtol=1e-5, atol=1e-6)
    assert torch.equal(alone.selected, whole.selected[1:2])


@EVERY
def test_the_same_twice(name: str) -> None:
    first, second = (decide(router(name), tokens()) for _ in range(2))
    assert torch.equal(first.gates, second.gates) and torch.equal(first.selected, second.selected)


@EVERY
@pytest.mark.parametrize(("size", "num_experts"), [(1, 8), (3, 8), (10, 1), (7, 2)])
def test_odd_sizes(name: str, size: int, num_experts: int) -> None:
    made = router(
        name, num_experts=num_experts, **({"top_k": 1} if num_experts == 1 and _chooses(name) else {})
    )
    found = decide(made, tokens(size=size))
    assert found.gates.shape == (GROUPS, size, num_experts) and found.gates.isfinite().all()
    experts = MlpExperts(num_experts, WIDTH, 16)
    with torch.no_grad():
        assert run_experts(experts, tokens(size=size).flatten(0, 1), found.plan).isfinite().all()


@EVERY
def test_all_ties(name: str) -> None:
    """Equal tokens: gates are finite, and who is taken depends on nothing but order."""
    made = router(name)
    equal = tokens()[:, :1].expand(-1, SIZE, -1).contiguous()
    found = decide(made, equal)
    assert found.gates.isfinite().all()
    assert torch.equal(found.selected, decide(made, equal).selected)


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
        assert found.weights.shape == found.gates.shape


@EVERY
def test_choices_of_a_trace_are_ordered_by_score(name: str) -> None:
    for found in traced(name).values():
        scores = found.gates if found.scores is None else found.scores
        experts, processed = order_choices(found.selected.flip(-1), found.processed.flip(-1), scores)
        assert torch.equal(experts, found.selected) and torch.equal(processed, found.processed)


@EVERY
def test_it_trains(name: str) -> None:
    """The output's gradient reaches every parameter of the router that is trained."""
    made = router(name).train()
    noise = torch.randn(GROUPS, SIZE, made.num_logits) if made.noise_std else None
    given = tokens().requires_grad_()
    found = made(given, noise)
    assert (found.noise_scale > 0) == (not torch.equal(found.logits, found.noisy_logits))
    torch.manual_seed(2)
    run_experts(MlpExperts(NUM_EXPERTS, WIDTH, 16), given.flatten(0, 1), found.plan).square().sum().backward()
    trained = [parameter for parameter in made.parameters() if parameter.requires_grad]
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in trained)


@EVERY
def test_a_run_of_it_trains(name: str, tmp_path: Path) -> None:
    unbalanced = {"name": "balanced", "importance_weight": 0.0, "load_weight": 0.0}
    plain = {"image_size": 16, "num_experts": 4, "router": name}
    run = trainer(tmp_path, model=plain, objective=unbalanced, steps=4)
    before = {key: value.clone() for key, value in run.model.state_dict().items()}
    run.run()
    for key, value in run.model.state_dict().items():
        fixed = key not in dict(run.model.named_parameters())
        assert value.isfinite().all() and (not fixed or torch.equal(value, before[key]))


@EVERY
def test_autocast_leaves_the_decision_in_float32(name: str) -> None:
    made = router(name)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = decide(made, tokens())
    assert found.gates.dtype == torch.float32
    assert torch.equal(found.gates, decide(made, tokens()).gates)


@EVERY
def test_a_checkpoint_goes_round(name: str, tmp_path: Path) -> None:
    config = ModelConfig.model_validate({"num_classes": 10, "router": name})
    built = tiny(router=name).eval()
    checkpoint.save(tmp_path / "run/last.safetensors", built, config=config, training={}, class_names=())
    again, info = checkpoint.load(tmp_path / "run")
    images = torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        assert torch.equal(again.eval()(images), built(images))
    assert info.model.router_name == name


def _chooses(name: str) -> bool:
    return router(name).top_k is not None
