"""A model with some of its weights rounded, for the time of a block of code."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import Tensor

from moeprobe.models.nn.quantize import quantized
from moeprobe.routing.capabilities import Weighed
from moeprobe.routing.parts import Weight

# Bytes of rounded weights that are kept, so that each batch does not round them again.
_KEPT = 2**30


class Rounding:
    """Rounds the weights of one model.

    Args:
        model: whose; it is as before after every ``of``.
    """

    def __init__(self, model: Weighed) -> None:
        self._weights: list[Weight] = model.weights()
        self._kept: dict[tuple[int, str], Tensor] = {}
        self._bytes = 0

    @contextmanager
    def of(self, parts: Sequence[str], name: str) -> Iterator[None]:
        """Let the weights of these parts be as a format holds them."""
        chosen = [(place, one) for place, one in enumerate(self._weights) if one.part in parts]
        own = [(one.parameter, one.parameter.data) for _, one in chosen]
        try:
            for place, one in chosen:
                one.parameter.data = self._rounded(place, one, name)
            yield
        finally:
            for parameter, before in own:
                parameter.data = before

    def _rounded(self, place: int, weight: Weight, name: str) -> Tensor:
        kept = self._kept.get((place, name))
        if kept is None:
            kept = quantized(weight.parameter.data, name, inputs=weight.inputs)
            size = kept.numel() * kept.element_size()
            if self._bytes + size <= _KEPT:
                self._kept[place, name], self._bytes = kept, self._bytes + size
        return kept
