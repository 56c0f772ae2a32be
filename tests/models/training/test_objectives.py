"""The objectives against loops in NumPy float64, their gradients, and the released program's numbers."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Correspondence
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.models.training.objectives.balanced import Balanced
from moeprobe.models.training.objectives.base import BatchViews, Objective
from moeprobe.models.training.objectives.jsd import Jsd
from moeprobe.models.training.objectives.prc import Prc
from moeprobe.models.training.objectives.prc_released import PrcReleased
from moeprobe.models.training.objectives.variation import Variation, image_variation, token_variation
from moeprobe.models.training.optimize import total_loss
from tests.golden import GRADIENTS, assert_golden, golden
from tests.models.nn import references as nn_references
from tests.models.training import references
from tests.models.training.deciding import GRID, random_views, route

SEEDS = pytest.mark.parametrize("seed", range(3))


def values(objective: Objective, views: BatchViews, **settings: Any) -> tuple[dict[str, Tensor], np.ndarray]:
    """The values of the terms, and the clean gates that they are of."""
    routed = route(views, **settings)
    terms = objective.terms({"blocks.1": routed.decision}, views)
    return {name: term.value.detach() for name, term in terms.items()}, routed.gates(
        2 * len(views.source_size)
    )


@SEEDS
def test_prc_is_a_loop_over_all_pairs_of_the_batch(seed: int) -> None:
    """S is of the whole batch, whatever the groups; the smaller view comes first, also where it is the second."""
    views = random_views(seed=seed)
    for num_groups in (1, 2, 4):
        found, gates = values(Prc(), views, num_groups=num_groups, seed=seed)
        pairs = list(references.pairs(views))
        assert {pair[0] % 2 for pair in pairs} == {0, 1}, "either view is the smaller one somewhere"
        assert 0 < len(pairs) < 4 * 9, "some patches have no partner"
        matrix = references.correlation(gates, pairs)
        assert np.abs(matrix - matrix.T).max() > 0.01, "roles would not matter"
        assert_golden(found["prc_diagonal"], references.diagonal(matrix))
        assert_golden(found["prc_offdiagonal"], references.offdiagonal(matrix))


@SEEDS
def test_noisy_prc_is_the_same_loop_over_the_gates_with_noise(seed: int) -> None:
    views = random_views(seed=seed)
    routed = route(views, noisy=True, seed=seed)
    decision, pairs = routed.decision, list(references.pairs(views))
    logits = decision.noisy_logits.detach().double().numpy()
    gates = np.exp(logits - logits.max(-1, keepdims=True))
    gates = (gates / gates.sum(-1, keepdims=True)).reshape(2 * len(views.source_size), -1, gates.shape[-1])
    found = Prc(noisy=True).terms({"blocks.1": decision}, views)
    clean = Prc().terms({"blocks.1": decision}, views)
    matrix = references.correlation(gates, pairs)
    for name, expected in (
        ("prc_diagonal", references.diagonal(matrix)),
        ("prc_offdiagonal", references.offdiagonal(matrix)),
    ):
        assert_golden(found[name].value.detach(), expected)
        assert abs(float(clean[name].value.detach()) - expected) > 1e-3 * expected, "noise would not matter"


@SEEDS
def test_roles_that_are_mixed_up_would_show(seed: int) -> None:
    """The loss does not see a transposed S, so images whose second view is the smaller one must be told apart."""
    views = random_views(seed=seed)
    found, gates = values(Prc(), views, seed=seed)
    wrong = [(p[2], p[3], p[0], p[1], p[4]) if p[0] % 2 else p for p in references.pairs(views)]
    mistaken = references.offdiagonal(references.correlation(gates, wrong))
    assert abs(float(found["prc_offdiagonal"]) - mistaken) > 1e-4 * mistaken


@SEEDS
@pytest.mark.parametrize("class_pair", [True, False])
def test_released_prc_is_a_loop_over_slots(seed: int, class_pair: bool) -> None:
    views = random_views(seed=seed)
    found, gates = values(PrcReleased(class_pair=class_pair), views, seed=seed)
    pairs = list(references.pairs(views, released=True, class_pair=class_pair))
    expected = references.slot_diagonal(gates, pairs, 9 + class_pair)
    assert_golden(found["prc_diagonal"], expected)
    assert_golden(found["prc_offdiagonal"], references.offdiagonal(references.correlation(gates, pairs)))


def test_released_prc_takes_the_second_of_equal_views_for_the_smaller() -> None:
    views = random_views(2)
    same = views.to_source[0]
    views = BatchViews([same, same @ geometry.translation(5.0, 0.0)], views.source_size, GRID, 1)
    found, gates = values(PrcReleased(), views)
    pairs = list(references.pairs(views, released=True, class_pair=True))
    assert {pair[0] % 2 for pair in pairs} == {1}
    assert_golden(found["prc_diagonal"], references.slot_diagonal(gates, pairs, 10))


@SEEDS
def test_jsd_is_a_loop_over_pairs(seed: int) -> None:
    views = random_views(seed=seed)
    found, gates = values(Jsd(), views, seed=seed, noisy=True)
    assert_golden(found["jsd"], references.divergence(gates, list(references.pairs(views))))
    balanced, _ = values(Balanced(), views, seed=seed, noisy=True)
    assert found["importance"] == balanced["importance"] and found["load"] == balanced["load"]


@SEEDS
def test_balancing_is_the_mean_over_groups(seed: int) -> None:
    views = random_views(seed=seed)
    routed = route(views, num_groups=4, seed=seed, noisy=True)
    terms = Balanced().terms({"blocks.1": routed.decision}, views)
    groups = routed.gates(8).reshape(4, -1, 4)
    assert routed.noise is not None
    # The load sees differences of logits alone, so the constant that softmax takes away does not matter.
    logits = np.log(groups)
    noisy = logits + 0.25 * routed.noise.double().numpy()
    load = nn_references.load(logits, noisy, top_k=2, noise_scale=0.25)
    assert_golden(terms["importance"].value, nn_references.importance(groups).mean())
    assert_golden(terms["load"].value, load.mean())


def test_without_noise_there_is_no_load_loss() -> None:
    found, _ = values(Balanced(), random_views())
    assert set(found) == {"importance"}


@pytest.mark.parametrize(
    "objective", [Prc(), PrcReleased(class_pair=False), Jsd()], ids=lambda o: type(o).__name__
)
def test_without_a_pair_there_is_nothing_to_compare(objective: Objective) -> None:
    views = random_views(apart=True)
    assert not list(references.pairs(views))
    routed = route(views, noisy=True)
    terms = objective.terms({"blocks.1": routed.decision}, views)
    compared = {name: term.value for name, term in terms.items() if name not in ("importance", "load")}
    assert compared and all(value.item() == 0 for value in compared.values())
    torch.stack(list(compared.values())).sum().backward()
    assert routed.tokens.grad is not None and (routed.tokens.grad == 0).all()


@pytest.mark.parametrize(
    "objective", [Prc(), PrcReleased(), Jsd(), Balanced()], ids=lambda o: type(o).__name__
)
def test_gradients(objective: Objective) -> None:
    """Through both views, in float64, against finite differences."""
    views = random_views(2, seed=3)
    made = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 20, 3, generator=made, dtype=torch.float64)
    tokens = torch.randn(4, 10, 3, generator=made, dtype=torch.float64, requires_grad=True)
    kernel = torch.randn(3, 3, generator=made, dtype=torch.float64, requires_grad=True)
    router = SoftmaxTokenChoice(3, 3, 2).double()

    def terms(tokens: Tensor, kernel: Tensor) -> Tensor:
        decision = torch.func.functional_call(
            router, {"gate.weight": kernel}, (tokens.reshape(2, 20, 3), noise)
        )
        return torch.stack([t.value for t in objective.terms({"blocks.1": decision}, views).values()])

    assert torch.autograd.gradcheck(terms, (tokens, kernel))
    both = torch.autograd.grad(terms(tokens, kernel).sum(), tokens)[0]
    assert all(both[row].abs().sum() > 0 for row in range(4)), "a view has no gradient"


def test_a_class_pair_needs_a_class_token() -> None:
    with pytest.raises(UserError, match=r"objective\.class_pair"):
        values(PrcReleased(), random_views(prefix=0))


@pytest.mark.golden
@pytest.mark.parametrize("objective", [PrcReleased(), Prc()], ids=lambda o: type(o).__name__)
def test_released_values_and_gradients(objective: Objective, monkeypatch: pytest.MonkeyPatch) -> None:
    """8 images at 384 pixels, 145 tokens with the class token's pair, 8 experts.

    The paper's diagonal on the same inputs is 0.76394, the released one 0.99826.
    """
    arrays = golden("prc/loss_384_E8.npz")
    first, second = (arrays["patch_correspondence"][..., side].astype(np.int64) for side in (0, 1))
    pairs = Correspondence(first, second, np.zeros(8, dtype=bool))
    for rule in ("correspond", "correspond_released"):
        monkeypatch.setattr(geometry, rule, lambda *_args, **_kwargs: pairs)
    # The numbers given are positions in the token sequence, so the rule that would add the prefix is told of none.
    views = BatchViews(
        [np.zeros((8, 3, 3))] * 2, np.zeros((8, 2)), GRID, int(isinstance(objective, PrcReleased))
    )
    inputs = torch.from_numpy(arrays["inputs"]).requires_grad_()
    router = SoftmaxTokenChoice(32, 8, 2)
    with torch.no_grad():
        router.gate.weight.copy_(torch.from_numpy(arrays["kernel"].T.copy()))
    terms = objective.terms({"blocks.5": router(inputs.reshape(2, -1, 32))}, views)
    assert_golden(terms["prc_offdiagonal"].value, arrays["metric/matrix_top1_offdiagonal"])
    if isinstance(objective, Prc):
        assert terms["prc_diagonal"].value.item() == pytest.approx(0.76394, abs=5e-6)
        return
    assert terms["prc_diagonal"].value.item() == pytest.approx(0.9982605, abs=1e-6)
    wanted = {
        "matrix_top1_diagonal": terms["prc_diagonal"].value,
        "matrix_top1_offdiagonal": terms["prc_offdiagonal"].value,
        "auxiliary_loss": total_loss(torch.tensor(0.0), terms),
    }
    for name, value in wanted.items():
        assert_golden(value, np.mean(arrays[f"metric/{name}"]))
        to_inputs, to_kernel = torch.autograd.grad(value, (inputs, router.gate.weight), retain_graph=True)
        assert_golden(to_inputs, arrays[f"grad_inputs/{name}"], GRADIENTS)
        assert_golden(to_kernel.T, arrays[f"grad_kernel/{name}"], GRADIENTS)


@SEEDS
def test_variation_is_a_loop_over_tokens_and_over_experts(seed: int) -> None:
    views = random_views(seed=seed)
    for num_groups in (1, 2, 4):
        found, gates = values(
            Variation(token_epsilon=0.03, image_epsilon=0.2), views, num_groups=num_groups, seed=seed
        )
        rows, length, num_experts = gates.shape
        assert (rows, length, num_experts) == (8, 10, 4)
        tokens = []
        for row, token in np.ndindex(rows, length):
            mean = sum(gates[row, token]) / num_experts
            variance = sum((gate - mean) ** 2 for gate in gates[row, token]) / num_experts
            tokens.append(mean / (variance + 0.03))
        assert_golden(found["token_inverse_variation"], np.mean(tokens))
        experts = []
        for expert in range(num_experts):
            loads = [sum(gates[row, token, expert] for token in range(1, length)) for row in range(rows)]
            mean = sum(loads) / rows
            experts.append(mean / (sum((load - mean) ** 2 for load in loads) / rows + 0.2))
        assert_golden(found["image_inverse_variation"], np.mean(experts))


def test_variation_of_gates_that_are_even_or_sure() -> None:
    """μ is 1/E: even gates give 1 / (E ε), one expert with all the weight (1/E) / ((E − 1)/E² + ε), about E/(E − 1)."""
    even, sure = torch.full((3, 4), 0.25), torch.eye(4)[:3]
    assert token_variation(even, epsilon=1e-6).item() == pytest.approx(250_000, rel=1e-6)
    assert token_variation(even, epsilon=1e-2).item() == pytest.approx(25)
    assert token_variation(sure, epsilon=1e-9).item() == pytest.approx(4 / 3, rel=1e-6)


def test_a_large_epsilon_rewards_dead_experts() -> None:
    """Two images of 8 patches: both constraints hold dead experts for perfect where ε is no small part of μ²."""
    by_image = torch.zeros(2, 8, 2)
    by_image[0, :, 0] = by_image[1, :, 1] = 1
    dead = torch.zeros(2, 8, 2)
    dead[..., 0] = 1
    assert image_variation(by_image, epsilon=1e-2) < image_variation(dead, epsilon=1e-2)
    assert image_variation(by_image, epsilon=1000.0) > 0.9 * image_variation(dead, epsilon=1000.0)
    nearly = dead.clone()
    nearly[..., 1], nearly[..., 0] = 1e-9, 1 - 1e-9
    of_dead_expert = image_variation(nearly[..., 1:], epsilon=1e-2)
    assert of_dead_expert < 1e-6 < image_variation(by_image[..., 1:], epsilon=1e-2)


def test_the_gradient_of_variation_is_that_of_differences() -> None:
    views = random_views()
    routed = route(views, dtype=torch.float64)
    for name, term in Variation().terms({"blocks.1": routed.decision}, views).items():
        (gradient,) = torch.autograd.grad(term.value, routed.kernel, retain_graph=True)
        step, place = 1e-6, (1, 2)
        ends = []
        for sign in (1, -1):
            kernel = routed.kernel.detach().clone()
            kernel[place] += sign * step
            gates = (routed.tokens.detach() @ kernel.T).softmax(-1)
            ends.append(
                token_variation(gates, epsilon=1e-2)
                if name.startswith("token")
                else image_variation(gates[:, 1:], epsilon=1e-2)
            )
        slope = (ends[0] - ends[1]).item() / (2 * step)
        assert gradient[place].item() == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize(
    "setting", [{"token_epsilon": 0.0}, {"image_epsilon": float("nan")}, {"token_weight": -1.0}]
)
def test_variation_refuses_what_is_no_constraint(setting: dict[str, float]) -> None:
    with pytest.raises(UserError, match=rf"objective\.{next(iter(setting))} must be a"):
        Variation(**setting)
