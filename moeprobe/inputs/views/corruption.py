"""The corruptions of ImageNet-C."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from PIL import Image

from moeprobe.errors import UserError
from moeprobe.inputs.corruptions import MOVING, NAMES
from moeprobe.inputs.images import Framing, Sample
from moeprobe.inputs.views.base import Amounts, SeverityView
from moeprobe.runtime.catalog import describe_unknown
from moeprobe.runtime.seeds import generator

if TYPE_CHECKING:
    from moeprobe.inputs.corruptions.resampling import Pixels

_STRONGEST = 5


@dataclass(frozen=True)
class Corruption(SeverityView):
    """One of the 19 corruptions of ImageNet-C, at severities 1 to 5: write corruption,kind=snow.

    It acts on the clean view, at the model's input size; 0 changes nothing. ``inputs/corruptions`` has a function for
    each kind, with the published constants. Severities of an image share their random numbers.

    Patches are compared at their places. Glass blur, zoom blur and elastic transform move content between patches:
    ``moves=false`` is their geometric control, which resamples alike and moves nothing by a whole pixel.
    """

    kind: str = "fog"
    moves: bool = True

    aligned: ClassVar[bool] = True
    severities: ClassVar[tuple[float, ...]] = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
    unit: ClassVar[str] = "severity of ImageNet-C"
    amounts: ClassVar[Amounts] = Amounts(0, _STRONGEST, "The severity of a corruption")

    def __post_init__(self) -> None:
        if self.kind not in NAMES:
            raise UserError(describe_unknown("corruption", self.kind, NAMES))
        if not self.moves and self.kind not in MOVING:
            raise UserError(
                f"The corruption {self.kind!r} moves nothing, so it needs no control; use moves=false with "
                f"{', '.join(MOVING)}."
            )

    def check(self, severities: Sequence[float]) -> None:
        """Raise ``UserError`` unless every severity is a whole number from 0 to 5."""
        super().check(severities)
        for severity in severities:
            if severity != int(severity):
                raise UserError(f"The severity of a corruption must be a whole number; got {severity}.")

    def perturb(
        self, image: Image.Image, *, framing: Framing, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Sample]:
        """Return ``image`` at each severity.

        Raises:
            UserError: a severity is no whole number from 0 to 5.
        """
        import torch

        self.check(severities)
        # One draw from the image's generator; severities then share its numbers.
        clean, seed = framing.clean(image), int(rng.integers(2**63))
        pixels, function = clean.pixels.numpy(), self._function()

        def corrupt(severity: int) -> torch.Tensor:
            if severity == 0:
                return clean.pixels
            # The same generator for each severity, so that only the strength differs.
            changed = function(pixels, severity, generator(seed, self.kind))
            return torch.from_numpy(np.ascontiguousarray(changed.clip(0, 1), dtype=np.float32))

        return [Sample(corrupt(int(severity)), clean.to_source) for severity in severities]

    def _function(self) -> Callable[["Pixels", int, np.random.Generator], "Pixels"]:
        """Return the function of the kind, found by its name."""
        from moeprobe.inputs.corruptions import blur, digital, noise, weather

        for module in (noise, blur, weather, digital):
            if hasattr(module, self.kind):
                function: Callable[..., Pixels] = getattr(module, self.kind)
                return function if self.moves else partial(function, moves=False)
        raise AssertionError(self.kind)
