"""The object of an image stays, and its ground is mixed with another."""

import numpy as np
import pytest
import torch
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.data.shapes import Shapes
from moeprobe.inputs.images import Framing
from moeprobe.inputs.regions import foreground
from moeprobe.inputs.views.ground import Ground
from moeprobe.runtime.seeds import generator

FRAMING = Framing(32)


def _grounds(severities: list[float], draw: int = 0) -> tuple[torch.Tensor, list[torch.Tensor]]:
    example = Shapes(split="test", location="64").example(3)
    assert example.mask is not None
    samples = Ground().perturb(
        example.image, framing=FRAMING, severities=severities, rng=generator(0, "ground", draw=draw)
    )
    is_object = torch.from_numpy(foreground(example.mask, samples[0].to_source, 32))
    assert 0.05 < is_object.float().mean() < 0.95
    return is_object, [sample.pixels for sample in samples]


def test_only_the_ground_changes_and_in_proportion_to_the_severity() -> None:
    is_object, (clean, half, whole) = _grounds([0, 0.5, 1])
    for mixed in (half, whole):
        assert torch.equal(mixed[:, is_object], clean[:, is_object])
    ground = ~is_object
    torch.testing.assert_close(half[:, ground], (clean[:, ground] + whole[:, ground]) / 2)
    assert ((whole - clean).abs().amax(0) > 1e-3)[ground].float().mean() > 0.95


def test_nothing_of_the_old_ground_is_left_at_severity_1() -> None:
    """Two images with the same object and draw end with the same ground, whatever theirs was."""
    image = np.zeros((32, 32, 3), dtype=np.uint8)
    mask = np.zeros((32, 32), dtype=bool)
    mask[8:20, 8:20] = True
    ends = []
    for gray in (0, 200):
        image[~mask] = gray
        source = Image.fromarray(image)
        source.info["foreground"] = mask
        (made,) = Ground().perturb(source, framing=FRAMING, severities=[1], rng=generator(0, "ground"))
        ends.append(made.pixels)
    assert torch.equal(*ends)


def test_another_draw_is_another_ground() -> None:
    is_object, (first,) = _grounds([1])
    _, (second,) = _grounds([1], draw=1)
    assert (first != second).any(0)[~is_object].float().mean() > 0.9


def test_data_without_masks_are_one_sentence() -> None:
    with pytest.raises(UserError, match=r"which pixels show the object.*folder of masks"):
        Ground().perturb(
            Image.new("RGB", (8, 8)), framing=FRAMING, severities=[1], rng=generator(0, "ground")
        )
