"""AutoAugment with its geometry tracked: the policy that was found on CIFAR-10."""

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps

from moeprobe.inputs import geometry
from moeprobe.inputs.geometry import Map
from moeprobe.inputs.images import Framing, Sample, render, to_tensor
from moeprobe.inputs.views.base import PairView
from moeprobe.inputs.views.crops import ASPECT, Range, check_ranges, draw_crop
from moeprobe.inputs.views.randaugment import COLOR, GEOMETRIC

# Operation, probability, and magnitude, 0 to 9 (0 where it has none): the 25 sub-policies, two operations each.
POLICY = (
    (("invert", 0.1, 0), ("contrast", 0.2, 6)),
    (("rotate", 0.7, 2), ("translate_x", 0.3, 9)),
    (("sharpness", 0.8, 1), ("sharpness", 0.9, 3)),
    (("shear_y", 0.5, 8), ("translate_y", 0.7, 9)),
    (("auto_contrast", 0.5, 0), ("equalize", 0.9, 0)),
    (("shear_y", 0.2, 7), ("posterize", 0.3, 7)),
    (("color", 0.4, 3), ("brightness", 0.6, 7)),
    (("sharpness", 0.3, 9), ("brightness", 0.7, 9)),
    (("equalize", 0.6, 0), ("equalize", 0.5, 0)),
    (("contrast", 0.6, 7), ("sharpness", 0.6, 5)),
    (("color", 0.7, 7), ("translate_x", 0.5, 8)),
    (("equalize", 0.3, 0), ("auto_contrast", 0.4, 0)),
    (("translate_y", 0.4, 3), ("sharpness", 0.2, 6)),
    (("brightness", 0.9, 6), ("color", 0.2, 8)),
    (("solarize", 0.5, 2), ("invert", 0.0, 0)),
    (("equalize", 0.2, 0), ("auto_contrast", 0.6, 0)),
    (("equalize", 0.2, 0), ("equalize", 0.6, 0)),
    (("color", 0.9, 9), ("equalize", 0.6, 0)),
    (("auto_contrast", 0.8, 0), ("solarize", 0.2, 8)),
    (("brightness", 0.1, 3), ("color", 0.7, 0)),
    (("solarize", 0.4, 5), ("auto_contrast", 0.9, 0)),
    (("translate_y", 0.9, 9), ("translate_y", 0.7, 9)),
    (("auto_contrast", 0.9, 0), ("solarize", 0.8, 3)),
    (("equalize", 0.8, 0), ("invert", 0.1, 0)),
    (("translate_y", 0.7, 9), ("auto_contrast", 0.9, 0)),
)
_LARGEST = 9
# Operations that go either way.
_SIGNED = ("brightness", "color", "contrast", "sharpness")
_BRIGHTEST = 255
# A share of the frame's side: 150 pixels of 331, the image size that the policy was first published for.
_TRANSLATION = 150 / 331


@dataclass(frozen=True)
class Autoaugment(PairView):
    """One of the 25 pairs of operations that AutoAugment found on CIFAR-10, drawn anew for each view.

    Each operation has a probability and a magnitude of its own; movements and enhancements go either way. Before it,
    each view is mirrored half the time if ``flip``, as where the policy was found, and cropped to a share of the image
    with ``area``.

    As in ``randaugment`` all movements are composed into one map and the source is resampled once, bilinearly; the
    color operations follow in the order of the policy. Empty pixels are gray 128. The magnitudes follow
    torchvision's policy; a shift is a share of the frame, not whole pixels.

    Source: Cubuk et al. 2019, "AutoAugment: Learning Augmentation Strategies from Data", and its program.
    """

    area: Range | None = None
    aspect: Range = ASPECT
    flip: bool = True

    def __post_init__(self) -> None:
        check_ranges(aspect=self.aspect, **({} if self.area is None else {"area": self.area}))

    def pair(
        self, image: Image.Image, *, framing: Framing, rng: np.random.Generator
    ) -> tuple[Sample, Sample]:
        """Return two views of ``image``, each augmented on its own."""
        return self._view(image, framing, rng), self._view(image, framing, rng)

    def _view(self, image: Image.Image, framing: Framing, rng: np.random.Generator) -> Sample:
        if self.area is None:
            to_source = framing.to_source(image)
            if self.flip and rng.random() < 0.5:
                to_source = to_source @ geometry.horizontal_flip(framing.size)
        else:
            to_source = draw_crop(
                image, size=framing.size, area=self.area, aspect=self.aspect, flip=self.flip, rng=rng
            )
        policy = POLICY[int(rng.integers(len(POLICY)))]
        draws = rng.random((len(policy), 2))
        steps = [
            (name, (1 if sign < 0.5 else -1) * magnitude / _LARGEST)
            for (name, probability, magnitude), (chance, sign) in zip(policy, draws, strict=True)
            if chance < probability
        ]
        return augment(image, to_source, steps, framing.size)


def augment(image: Image.Image, base: Map, steps: list[tuple[str, float]], size: int) -> Sample:
    """Return the view after operations with amounts in [-1, 1]: movements in one resampling, then the others."""
    to_source = base
    for name, amount in steps:
        if name in GEOMETRIC:
            # A later operation reads from what an earlier one wrote, so its map is applied first: on the right.
            to_source = to_source @ _movement(name, amount, size)
    view = render(image, to_source, size)
    for name, amount in steps:
        if name not in GEOMETRIC:
            view = _recolor(view, name, amount)
    return Sample(to_tensor(view), to_source)


def _movement(name: str, amount: float, size: int) -> Map:
    shift = _TRANSLATION * size * amount
    if name == "translate_x":
        return geometry.translation(shift, 0)
    return geometry.translation(0, shift) if name == "translate_y" else GEOMETRIC[name](amount, size)


def _recolor(view: Image.Image, name: str, amount: float) -> Image.Image:
    if name == "solarize":
        # What is as bright as a whole threshold is inverted, which a last digit must not undo.
        threshold = round(_BRIGHTEST * (1 - abs(amount)), 6)
        return ImageOps.solarize(view, threshold)  # type: ignore[arg-type]
    if name in _SIGNED:
        return COLOR[name](view, amount)
    return COLOR[name](view, abs(amount) if name == "posterize" else 1.0)
