"""The size of a language model's embeddings, in which noise is measured, and noise added to them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.inputs.tokens import TokenBatch


def root_mean_square(embedding: Any) -> float:
    """Return the root mean square of the embeddings of all tokens, as the embedding gives them."""
    number, width = embedding.weight.shape
    ids = torch.arange(number, device=embedding.weight.device)
    with torch.inference_mode():
        squares = [embedding(part).double().square().sum() for part in ids.split(4096)]
    return float((sum(squares) / (number * width)) ** 0.5)


@contextmanager
def noise_added(embedding: nn.Module, texts: TokenBatch, *, unit: float) -> Iterator[None]:
    """Add the noise of texts, in units of ``unit``, to what an embedding gives."""
    if texts.noise is None or texts.sigma is None:
        yield
        return
    noise = texts.noise * (texts.sigma * unit)[:, None, None]

    def add(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        return output + noise.to(output.dtype)

    handle = embedding.register_forward_hook(add)
    try:
        yield
    finally:
        handle.remove()
