"""The router and its balancing losses against loops and against the released program."""

import numpy as np
import pytest
import torch

from moeprobe.errors import UserError
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.rules.linear import top_choices
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.models.training.objectives.base import gshard_loss, importance_loss, load_loss
from tests.golden import GRADIENTS, assert_golden, golden
from tests.models.nn import references
from tests.models.nn.dense_form import dense

CASES = ["a_k1", "b_k2", "c_k2_bpr", "d_k2_nostd", "e_k1_det", "f_k2_det"]


def losses(decision: Decision) -> dict[str, torch.Tensor]:
    found = {
        "importance_loss": importance_loss(decision.clean_gates),
        "gshard_loss": gshard_loss(decision.gates),
    }
    if decision.noise_scale > 0:
        found["load_loss"] = load_loss(
            decision.logits,
            decision.noisy_logits,
            top_k=decision.selected.shape[-1],
            noise_scale=decision.noise_scale,
        )
    return found


@pytest.mark.golden
@pytest.mark.parametrize("name", CASES)
def test_released_router(name: str) -> None:
    arrays = golden(f"router/{name}.npz")
    case = next(c for c in golden("router/cases.json") if c["file"] == f"{name}.npz")
    rule = CapacityRule(
        case["dispatcher"]["capacity_factor"], multiple_of=case["dispatcher"]["capacity_multiple_of"] or 0
    )
    router = SoftmaxTokenChoice(
        case["D"],
        case["E"],
        case["K"],
        noise_std=case["noise_std"],
        capacity=rule,
        batch_priority=case["dispatcher"]["batch_priority"],
    )
    router.gate.weight.data = torch.from_numpy(arrays["kernel"].T.copy())
    inputs = torch.from_numpy(arrays["inputs"]).requires_grad_()
    noise = torch.from_numpy(arrays["standard_normal"]) if "standard_normal" in arrays else None
    decision = router(inputs, noise)

    assert_golden(decision.clean_gates, arrays["gates_clean"])
    assert_golden(decision.gates, arrays["gates"])
    dispatch, combine = dense(decision.plan)
    np.testing.assert_array_equal(dispatch.numpy(), arrays["dispatch_weights"])
    assert_golden(combine, arrays["combine_weights"])

    found = losses(decision)
    assert set(found) == {key.removeprefix("metric/") for key in arrays if key.startswith("metric/")} - {
        "auxiliary_loss"
    }
    found["auxiliary_loss"] = 0.005 * (found["importance_loss"] + found.get("load_loss", torch.tensor(0.0)))
    targets = {metric: value.mean() for metric, value in found.items()}
    for metric, value in found.items():
        assert_golden(value, arrays[f"metric/{metric}"])
    targets["combine"] = (combine * torch.from_numpy(arrays["combine_cotangent"])).sum()
    for metric, target in targets.items():
        kernel, given = torch.autograd.grad(target, [router.gate.weight, inputs], retain_graph=True)
        assert_golden(kernel.T, arrays[f"grad_kernel/{metric}"], GRADIENTS)
        assert_golden(given, arrays[f"grad_inputs/{metric}"], GRADIENTS)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_router_is_the_formula(top_k: int) -> None:
    torch.manual_seed(top_k)
    router = SoftmaxTokenChoice(6, 5, top_k, noise_std=1.5).train()
    inputs, noise = torch.randn(2, 9, 6), torch.randn(2, 9, 5)
    decision = router(inputs, noise)
    logits = inputs.double().numpy() @ router.gate.weight.detach().double().numpy().T
    noisy = logits + 1.5 / 5 * noise.double().numpy()
    assert_golden(decision.gates, references.softmax(noisy))
    assert_golden(decision.clean_gates, references.softmax(logits))
    expected = [[references.ranking(row)[:top_k] for row in group] for group in noisy]
    np.testing.assert_array_equal(decision.selected.numpy(), expected)
    found = losses(decision)
    assert_golden(found["importance_loss"], references.importance(references.softmax(logits)))
    assert_golden(found["gshard_loss"], references.gshard(references.softmax(noisy)))
    assert_golden(found["load_loss"], references.load(logits, noisy, top_k=top_k, noise_scale=0.3))


def test_losses_have_the_right_gradient() -> None:
    """Among them the gradient through the load loss's threshold, which is a noisy logit itself."""
    torch.manual_seed(0)
    logits = torch.randn(2, 7, 4, dtype=torch.float64, requires_grad=True)
    noise = 0.25 * torch.randn(2, 7, 4, dtype=torch.float64)

    def load(x: torch.Tensor) -> torch.Tensor:
        return load_loss(x, x + noise, top_k=2, noise_scale=0.25)

    assert torch.autograd.gradcheck(load, logits)
    assert torch.autograd.gradcheck(lambda x: importance_loss(x.softmax(-1)), logits)


def test_balanced_routing_has_no_importance_loss_and_collapsed_has_the_most() -> None:
    balanced = torch.eye(4).repeat(1, 3, 1)
    collapsed = torch.tensor([1.0, 0, 0, 0]).expand(1, 12, 4)
    assert float(importance_loss(balanced)) == 0
    # amounts (12, 0, 0, 0): mean 3, variance (81 + 3·9) / 4 = 27, 27 / 9 = 3 = E - 1.
    assert float(importance_loss(collapsed)) == pytest.approx(3)


def test_no_noise_in_evaluation_means_clean_gates() -> None:
    decision = SoftmaxTokenChoice(4, 3, 1).eval()(torch.randn(1, 5, 4))
    assert decision.noise_scale == 0
    torch.testing.assert_close(decision.gates, decision.clean_gates, rtol=0, atol=0)


def test_router_stays_in_float32_under_autocast() -> None:
    router = SoftmaxTokenChoice(8, 4, 2)
    tokens = torch.randn(1, 6, 8)
    with torch.autocast("cpu", torch.bfloat16):
        inside = router(tokens)
    torch.testing.assert_close(inside.gates, router(tokens).gates, rtol=0, atol=0)


def test_ties_take_the_lower_expert() -> None:
    assert top_choices(torch.tensor([[0.2, 0.4, 0.4, 0.4]]), 2).tolist() == [[1, 2]]
    assert top_choices(torch.tensor([[0.2, 0.4, 0.4]]), 1).tolist() == [[1]]


@pytest.mark.parametrize("special", [None, 0.5, -torch.inf, torch.nan])
@pytest.mark.parametrize("top_k", [2, 3, 5, 6])
def test_the_best_choices_are_the_first_of_a_stable_sort(top_k: int, special: float | None) -> None:
    """Ties and all, also where the last choice ties with the first that is left out."""
    scores = torch.rand(300, 6, generator=torch.Generator().manual_seed(0))
    if special is not None:
        scores[torch.rand(300, 6, generator=torch.Generator().manual_seed(1)) < 0.4] = special
    expected = scores.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    assert torch.equal(top_choices(scores, top_k), expected)


@pytest.mark.parametrize("top_k", [0, 5])
def test_more_choices_than_experts_are_refused(top_k: int) -> None:
    with pytest.raises(UserError, match="between 1 and the 4 experts"):
        SoftmaxTokenChoice(8, 4, top_k)
