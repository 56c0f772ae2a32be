"""AutoAugment against torchvision's: the policy, each operation, and where the pixels go."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, InterpolationMode
from torchvision.transforms.autoaugment import _apply_op

from moeprobe.inputs import geometry
from moeprobe.inputs.images import Framing
from moeprobe.inputs.views import autoaugment
from moeprobe.inputs.views.autoaugment import POLICY, Autoaugment, augment
from moeprobe.inputs.views.randaugment import GEOMETRIC
from moeprobe.runtime.seeds import generator

SIZE = 36
THEIRS = AutoAugment(AutoAugmentPolicy.CIFAR10)
# Each operation of the policy with each of its magnitudes.
STEPS = sorted({(name, magnitude) for pair in POLICY for name, _, magnitude in pair})
COLORS = [step for step in STEPS if step[0] not in GEOMETRIC]
MOVES = [step for step in STEPS if step[0] in GEOMETRIC]


def their_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))


def their_magnitude(name: str, magnitude: int) -> float:
    magnitudes, _ = THEIRS._augmentation_space(10, (SIZE, SIZE))[their_name(name)]
    return float(magnitudes[magnitude] if magnitudes.ndim else magnitudes)


def picture(*, smooth: bool = False) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    image = Image.fromarray(values)
    return image.filter(ImageFilter.GaussianBlur(2)) if smooth else image


def pixels(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def test_the_policy_is_the_published_one() -> None:
    theirs = [
        tuple((name, probability, magnitude or 0) for name, probability, magnitude in pair)
        for pair in THEIRS._get_policies(AutoAugmentPolicy.CIFAR10)
    ]
    ours = [tuple((their_name(name), *rest) for name, *rest in pair) for pair in POLICY]
    assert len(ours) == 25 and ours == theirs


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("name", "magnitude"), COLORS)
def test_colors_change_as_torchvision_changes_them(name: str, magnitude: int, sign: int) -> None:
    _, signed = THEIRS._augmentation_space(10, (SIZE, SIZE))[their_name(name)]
    amount = their_magnitude(name, magnitude) * (sign if signed else 1)
    expected = _apply_op(picture(), their_name(name), amount, InterpolationMode.NEAREST, None)
    found = augment(picture(), geometry.identity(), [(name, sign * magnitude / 9)], SIZE)
    # Theirs are factors in float32, and what is as bright as a whole number is cut off.
    differences = ((found.pixels * 255).round() - pixels(expected)).abs()
    assert differences.max() <= 1 and differences.mean() < 0.25
    assert np.array_equal(found.to_source, geometry.identity())


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("name", "magnitude"), MOVES)
def test_pixels_move_as_far_as_torchvision_moves_them(name: str, magnitude: int, sign: int) -> None:
    """Either way is drawn as often, so that only how far matters; theirs goes by whole pixels."""
    amount = their_magnitude(name, magnitude)
    found = (
        augment(picture(smooth=True), geometry.identity(), [(name, sign * magnitude / 9)], SIZE).pixels * 255
    )
    differences = []
    for theirs in (amount, -amount):
        moved = _apply_op(
            picture(smooth=True), their_name(name), theirs, InterpolationMode.BILINEAR, [128, 128, 128]
        )
        differences.append((found - pixels(moved)).abs().mean().item())
    assert min(differences) < 0.4 * max(differences), differences


def test_each_pair_is_drawn_as_often_and_each_operation_as_its_probability_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[list[tuple[str, float]]] = []

    def remember(image: Image.Image, base: np.ndarray, steps: list[tuple[str, float]], size: int) -> None:
        drawn.append(steps)

    monkeypatch.setattr(autoaugment, "augment", remember)
    image = picture()
    for draw in range(2500):
        Autoaugment().pair(image, framing=Framing(SIZE), rng=generator(0, "test", draw=draw))
    counts = Counter(name for steps in drawn for name, _ in steps)
    for name in {name for pair in POLICY for name, *_ in pair}:
        expected = 5000 / 25 * sum(p for pair in POLICY for own, p, _ in pair if own == name)
        assert abs(counts[name] - expected) < 5 * max(expected, 1) ** 0.5, name
    signs = [amount > 0 for steps in drawn for name, amount in steps if name == "translate_y"]
    assert abs(sum(signs) - len(signs) / 2) < 5 * (len(signs) / 4) ** 0.5


def test_crops_and_mirroring_come_first() -> None:
    image, framing = picture(), Framing(SIZE)
    flips = 0
    for draw in range(40):
        for sample in Autoaugment(flip=True).pair(image, framing=framing, rng=generator(0, "t", draw=draw)):
            flips += np.linalg.det(sample.to_source) < 0
        crop = Autoaugment(area=(0.2, 0.3), flip=False).pair(
            image, framing=framing, rng=generator(0, "t", draw=draw)
        )
        assert all(0.19 < geometry.source_area(one.to_source[None])[0] < 0.31 for one in crop)
    assert 20 < flips < 60
