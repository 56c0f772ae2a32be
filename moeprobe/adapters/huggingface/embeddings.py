"""The size of a language model's embeddings, in which noise is measured."""

from typing import Any

import torch


def root_mean_square(embedding: Any) -> float:
    """Return the root mean square of the embeddings of all tokens, as the embedding gives them."""
    number, width = embedding.weight.shape
    ids = torch.arange(number, device=embedding.weight.device)
    with torch.inference_mode():
        squares = [embedding(part).double().square().sum() for part in ids.split(4096)]
    return float((sum(squares) / (number * width)) ** 0.5)
