"""Mixup against its formula."""

import numpy as np
import torch

from moeprobe.models.training.mixup import mixup
from moeprobe.runtime.seeds import generator


def test_each_row_is_mixed_with_the_next_and_so_is_its_label() -> None:
    images = torch.arange(4.0)[:, None, None, None].expand(4, 3, 2, 2)
    targets = torch.eye(4)
    rng = generator(0, "mixup", draw=3)
    share = generator(0, "mixup", draw=3).dirichlet([0.2, 0.2]).max()
    assert 0.5 <= share < 0.999
    mixed, soft = mixup(images, targets, concentration=0.2, rng=rng)
    for row in range(4):
        following = (row + 1) % 4
        np.testing.assert_allclose(mixed[row].numpy(), share * row + (1 - share) * following, rtol=1e-5)
        expected = np.zeros(4)
        expected[row], expected[following] = share, 1 - share
        np.testing.assert_allclose(soft[row].numpy(), expected, rtol=1e-5)


def test_the_partner_of_a_view_is_of_another_image() -> None:
    """Rows 0 and 1 are views of image 0: mixed with each other, their label would not be mixed at all."""
    images = torch.arange(6.0)[:, None]
    targets = torch.eye(3).repeat_interleave(2, 0)
    _, soft = mixup(images, targets, concentration=1.0, rng=np.random.default_rng(0), num_views=2)
    assert ((soft > 0).sum(1) == 2).all()
    mixed, _ = mixup(images, targets, concentration=1.0, rng=np.random.default_rng(0), num_views=2)
    share = float(soft[0, 0])
    np.testing.assert_allclose(mixed[1].item(), share * 1 + (1 - share) * 3, rtol=1e-5)


def test_the_larger_weight_stays() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        _, soft = mixup(torch.zeros(2, 1), torch.eye(2), concentration=0.2, rng=rng)
        assert float(soft[0, 0]) >= 0.5
        assert float(soft.sum()) == 2
