"""The cosine router against a loop in float64."""

import math

import numpy as np
import pytest
import torch
from scipy.special import softmax

from moeprobe.models.nn.routers.cosine_token_choice import CosineTokenChoice


def tokens() -> torch.Tensor:
    return torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("temperature", "used"), [(0.3, 0.3), (0.001, 0.01)])
def test_gates_are_a_softmax_over_cosines(temperature: float, used: float) -> None:
    """The temperature does not fall below 0.01."""
    torch.manual_seed(1)
    router = CosineTokenChoice(6, 4, 2, projection_width=3, temperature=temperature).eval()
    with torch.no_grad():
        router.projection.bias.normal_()
        found = router(tokens())
    p = {name: value.detach().double().numpy() for name, value in router.named_parameters()}
    assert math.isclose(p["log_scale"][0], -math.log(temperature), rel_tol=1e-6)
    expected = np.zeros((2, 5, 4))
    for group, token, expert in np.ndindex(2, 5, 4):
        projected = p["projection.weight"] @ tokens()[group, token].double().numpy() + p["projection.bias"]
        direction = p["directions"][:, expert]
        cosine = projected @ direction / np.linalg.norm(projected) / np.linalg.norm(direction)
        expected[group, token, expert] = cosine / used
    np.testing.assert_allclose(found.logits.numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.gates.numpy(), softmax(expected, axis=-1), rtol=1e-3, atol=1e-6)
    assert np.array_equal(found.selected.numpy(), np.argsort(-expected, axis=-1)[..., :2])


def test_how_long_a_token_is_says_nothing() -> None:
    router = CosineTokenChoice(6, 4, 1, projection_width=3).eval()
    with torch.no_grad():
        one, other = router(tokens()), router(7 * tokens())
    torch.testing.assert_close(one.gates, other.gates)


def test_noise_is_that_of_v_moe() -> None:
    router = CosineTokenChoice(6, 4, 2, noise_std=2.0).train()
    noise = torch.randn(2, 5, 4)
    with torch.no_grad():
        found = router(tokens(), noise)
    torch.testing.assert_close(found.noisy_logits, found.logits + noise * 2 / 4)
    assert found.noise_scale == 0.5
