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
        selected = [(index, weight) for index, weight in enumerate(self._weights) if weight.part in parts]
        originals = [(weight.parameter, weight.parameter.data) for _, weight in selected]
        try:
            for index, weight in selected:
                weight.parameter.data = self._rounded(index, weight, name)
            yield
        finally:
            for parameter, before in originals:
                parameter.data = before

    def _rounded(self, index: int, weight: Weight, name: str) -> Tensor:
        cached = self._kept.get((index, name))
        if cached is None:
            cached = quantized(weight.parameter.data, name, inputs=weight.inputs)
            size = cached.numel() * cached.element_size()
            if self._bytes + size <= _KEPT:
                self._kept[index, name], self._bytes = cached, self._bytes + size
        return cached
