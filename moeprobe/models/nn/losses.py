"""Balancing losses of a router, each of every group alone: ``(G, S, E)`` in, ``(G,)`` out.

Axes: G groups, S tokens per group, E experts. Standard deviations divide by n (population).

Source: V-MoE (Riquelme et al. 2021), appendix A, and its released program.
"""

import torch
from torch import Tensor


def importance_loss(gates: Tensor) -> Tensor:
    """Return the squared coefficient of variation of the experts' summed gates; ``gates`` without noise."""
    return _squared_variation(gates.sum(1))


def load_loss(logits: Tensor, noisy_logits: Tensor, *, top_k: int, noise_scale: float) -> Tensor:
    """Return the squared coefficient of variation of the experts' expected loads under fresh noise.

    An expert's load is the mean probability that its clean logit plus new noise (standard deviation
    ``noise_scale``) passes the token's threshold, which is its ``top_k``-th largest noisy logit; the gradient flows
    through the threshold too.
    """
    threshold = noisy_logits.topk(top_k, dim=-1).values[..., -1:]
    probability = torch.special.ndtr((logits - threshold) / noise_scale)
    return _squared_variation(probability.mean(1))


def gshard_loss(gates: Tensor) -> Tensor:
    """Return E² · mean_e(share of first choices · mean gate), 1 when balanced (GShard; ``gates`` with noise)."""
    num_experts = gates.shape[-1]
    first = torch.nn.functional.one_hot(gates.argmax(-1), num_experts).to(gates.dtype).mean(1)
    return num_experts**2 * (first * gates.mean(1)).mean(-1)


def z_loss(logits: Tensor) -> Tensor:
    """Return the mean over tokens of logsumexp², which keeps logits small (Zoph et al. 2022; ``logits`` with noise)."""
    return logits.logsumexp(-1).square().mean(1)


def _squared_variation(amounts: Tensor) -> Tensor:
    return (amounts.std(-1, correction=0) / amounts.mean(-1)) ** 2
