"""What a view is: pixels, and the map that says where each of them came from (of texts: ``text``).

A view acts on the *source*, the image as the data set gives it (RGB, 8 bits, any size), and resamples it once to the
model's input. Its random numbers come from the generator it is handed; library functions only resample.

Where in the chain it acts: pixels are in [0, 1], *before* the model's normalization, which is inside the model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from moeprobe.errors import UserError
from moeprobe.inputs.modality import IMAGE, Modality

# What a view acts on, how that is brought to a model's input, and what comes out.
Source = TypeVar("Source")
Frame = TypeVar("Frame")
Made = TypeVar("Made")
# What makes the views of one source: an image and its name -> ``Sample``s, a text and its name -> ``TextSample``s.
Recipe = Callable[[Any, str], list[Any]]


def check_severities(severities: Sequence[float], *, low: float, high: float, what: str) -> None:
    """Raise ``UserError`` unless every severity is in ``[low, high]`` (not-a-number and infinity never do)."""
    for severity in severities:
        if not (low <= severity <= high and math.isfinite(severity)):
            bounds = f"at least {low:g}" if high == float("inf") else f"between {low:g} and {high:g}"
            raise UserError(f"{what} must be {bounds}; got {severity}.")


@dataclass(frozen=True)
class Amounts:
    """What severities may be: from ``low`` to ``high``; ``name`` is what a sentence calls one."""

    low: float
    high: float
    name: str

    def check(self, severities: Sequence[float]) -> None:
        """Raise ``UserError`` unless every severity is one of these amounts."""
        check_severities(severities, low=self.low, high=self.high, what=self.name)


# Ten times the range of what it is added to: of that nothing is left but noise, clipped to both ends.
STANDARD_DEVIATION = Amounts(0, 10, "A standard deviation")


class View:
    """A family of perturbations; a frozen dataclass whose fields are its parameters.

    Attributes:
        modality: what it perturbs.
        aligned: the patch grid never moves, so patch p of one view always corresponds to patch p of the other.
        random: two draws of the same image differ.
        needs: what an image must carry beside its pixels, a key of Pillow's ``Image.info``; empty: nothing.
    """

    modality: ClassVar[Modality] = IMAGE
    aligned: ClassVar[bool] = False
    random: ClassVar[bool] = True
    needs: ClassVar[str] = ""


class SeverityView(View, ABC, Generic[Source, Frame, Made]):
    """A view that grows with a severity and is compared with the clean image (or text).

    Attributes:
        severities: the default steps of a sweep, starting at the severity that changes nothing.
        unit: what a severity is measured in.
        amounts: what a severity may be; None = any number, or what ``check`` says.
    """

    severities: ClassVar[tuple[float, ...]]
    unit: ClassVar[str]
    amounts: ClassVar[Amounts | None] = None

    def check(self, severities: Sequence[float]) -> None:
        """Raise ``UserError`` where a severity is out of range; runs call it before any model is loaded."""
        if self.amounts is not None:
            self.amounts.check(severities)

    @abstractmethod
    def perturb(
        self, source: Source, *, framing: Frame, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Made]:
        """Return ``source`` at each severity, all from *one* draw, so that a sweep is nested along its severities.

        Raises:
            UserError: a severity is out of range.
        """


class PairView(View, ABC, Generic[Source, Frame, Made]):
    """A view that yields two random versions of one image (or text), to be compared with each other (or trained on)."""

    @abstractmethod
    def pair(self, source: Source, *, framing: Frame, rng: np.random.Generator) -> tuple[Made, Made]:
        """Return two random views of ``source``."""
