"""The baselines that cannot learn: a hash of the token, and a gate that stays as it was drawn."""

import numpy as np
import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.models.config import MoeConfig
from moeprobe.models.nn.routers.hash import Hash, priorities
from moeprobe.models.nn.routers.random_fixed import RandomFixed
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.models.nn.sparse import make_router
from moeprobe.models.training.objectives.balanced import Balanced
from moeprobe.models.training.objectives.jsd import Jsd
from moeprobe.models.training.objectives.prc import Prc
from tests.models.training.deciding import random_views


def mixed(word: int) -> int:
    """The same 32-bit mixing with Python's unbounded integers."""
    for _ in range(2):
        word = ((word ^ (word >> 16)) * 0x45D9F3B) % 2**32
    return word ^ (word >> 16)


@pytest.mark.parametrize(("bits", "top_k", "num_experts"), [(1, 1, 2), (8, 2, 8), (32, 3, 5), (6, 4, 4)])
def test_the_hash_is_the_plain_loop(bits: int, top_k: int, num_experts: int) -> None:
    torch.manual_seed(bits)
    router = Hash(6, num_experts, top_k, bits=bits)
    tokens = torch.randn(2, 30, 6)
    found = router(tokens)
    signs = tokens.double().numpy() @ router.projections.double().numpy().T > 0
    for group in range(2):
        for token in range(30):
            code = sum(1 << bit for bit in range(bits) if signs[group, token, bit])
            words = [mixed(mixed(code) ^ mixed(expert + 1)) >> 8 for expert in range(num_experts)]
            ranked = sorted(range(num_experts), key=lambda expert: (-words[expert], expert))
            assert found.selected[group, token].tolist() == ranked[:top_k]
            np.testing.assert_array_equal(found.logits[group, token].numpy(), np.array(words) / 2**24)
            weights = [(expert in ranked[:top_k]) / top_k for expert in range(num_experts)]
            np.testing.assert_allclose(found.gates[group, token].numpy(), weights, rtol=1e-7)


def test_codes_are_spread_evenly_over_experts() -> None:
    """4,096 codes over 8 experts: 512 each, standard deviation √(4096 · 1/8 · 7/8) = 21; each pair of choices 73."""
    first, second = priorities(torch.arange(4096), 8).argsort(-1, descending=True)[:, :2].unbind(-1)
    assert (torch.bincount(first, minlength=8) - 512).abs().max() < 4 * 21
    pairs = torch.bincount(8 * first + second, minlength=64).view(8, 8)
    assert pairs.diagonal().sum() == 0
    assert (pairs[~torch.eye(8, dtype=torch.bool)] - 4096 / 56).abs().max() < 4.5 * (4096 / 56) ** 0.5


def test_near_tokens_meet_and_length_does_not_matter() -> None:
    torch.manual_seed(0)
    router = Hash(16, 8, 1)
    tokens = torch.randn(1, 500, 16)

    def kept(other: torch.Tensor) -> float:
        return float((router(other).selected == router(tokens).selected).double().mean())

    assert kept(3 * tokens) == 1
    near, far = kept(tokens + 0.05 * torch.randn(1, 500, 16)), kept(torch.randn(1, 500, 16))
    # An angle of .05 turns one of 8 signs with probability 1 − (1 − .05 / π)^8 = .12; strangers meet one time in 8.
    assert near > 0.85 and far < 0.2


@pytest.mark.parametrize("bits", [0, 33])
def test_a_hash_of_no_or_too_many_bits_is_refused(bits: int) -> None:
    with pytest.raises(UserError, match=f"between 1 and 32 bits; got {bits}"):
        Hash(4, 3, bits=bits)


def test_the_fixed_gate_routes_as_a_learned_one_and_has_no_parameters() -> None:
    torch.manual_seed(0)
    fixed = RandomFixed(6, 5, 2).train()
    assert not list(fixed.parameters()) and list(fixed.state_dict()) == ["gate.weight"]
    learned = SoftmaxTokenChoice(6, 5, 2).train()
    learned.load_state_dict(fixed.state_dict())
    tokens = torch.randn(2, 20, 6)
    first, second = fixed(tokens), learned(tokens)
    assert torch.equal(first.gates, second.gates) and torch.equal(first.selected, second.selected)
    assert torch.equal(first.plan.weight, second.plan.weight)


def test_construction_seeds_what_is_fixed() -> None:
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append((RandomFixed(6, 5).gate.weight, Hash(6, 5).projections))
    for same, again, other in zip(*drawn, strict=True):
        assert torch.equal(same, again) and not torch.equal(same, other)


@pytest.mark.parametrize("name", ["hash", "random_fixed"])
@pytest.mark.parametrize("option", [{"noise_std": 1.0}, {"batch_priority": True}])
def test_there_is_no_noise_to_configure(name: str, option: dict[str, float]) -> None:
    with pytest.raises(UserError, match=f"no parameter of the router '{name}' called '{next(iter(option))}'"):
        make_router(MoeConfig.model_validate({"router": name} | option), 4, num_tokens=9)


@pytest.mark.parametrize("objective", [Balanced(), Balanced(0, 0, 1.0), Balanced(0, 0, 0, 1.0), Prc(), Jsd()])
def test_a_loss_on_gates_that_cannot_learn_is_refused(objective: Balanced | Prc | Jsd) -> None:
    views = random_views()
    tokens = torch.randn(1, 8 * 10, 6, requires_grad=True)
    with pytest.raises(UserError, match=r"cannot learn.*objective\.importance_weight=0"):
        objective.terms({"blocks.1": Hash(6, 4).train()(tokens)}, views)
    # Behind a fixed gate it is the tokens that learn.
    terms = objective.terms({"blocks.1": RandomFixed(6, 4).train()(tokens)}, views)
    (gradient,) = torch.autograd.grad(torch.stack([term.value for term in terms.values()]).sum(), tokens)
    assert gradient.abs().sum() > 0


def test_without_losses_a_hash_is_trained_like_any() -> None:
    tokens = torch.randn(1, 80, 6, requires_grad=True)
    decisions = {"blocks.1": Hash(6, 4).train()(tokens)}
    assert Balanced(importance_weight=0, load_weight=0).terms(decisions, random_views()) == {}
