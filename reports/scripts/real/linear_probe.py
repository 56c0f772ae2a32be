"""A linear probe of the dense model's class token, which says what interventions on the sparse models cost.

Their own heads learned 98 photographs by heart: on others they are sure of wrong answers, so that a few photographs
would carry any mean of losses. And each model has another head. So one probe, fitted to the dense model alone, stands
in the place of all heads: costs are in the same nats for all models, which are trained to keep the dense one's tokens.
"""

import dataclasses
import hashlib
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from torch import nn

from moeprobe import api
from moeprobe.models.config import load as load_config
from reports.scripts.objectives import MODELS
from reports.scripts.real.dense import Photographs, start_of, tokens_of
from reports.scripts.real.train import SEEDS, checkpoint

# Inverse strengths of the l2 penalty, and parts of the training photographs that judge them: the smallest class has 4.
_STRENGTHS, _PARTS = tuple(10.0 ** np.arange(-5, 3)), 4
# More than any of them takes.
_STEPS = 10_000


def fit(tokens: NDArray[np.float32], labels: NDArray[np.int64]) -> nn.Linear:
    """Return a logistic regression with an l2 penalty, whose strength has the least loss on parts left out.

    Args:
        tokens: ``(n, D)`` class tokens.
        labels: ``(n,)`` from 0 on, none left out.
    """

    def held_out_loss(strength: float) -> float:
        regression = LogisticRegression(C=strength, max_iter=_STEPS)
        parts = StratifiedKFold(_PARTS, shuffle=True, random_state=0)
        return -float(cross_val_score(regression, tokens, labels, cv=parts, scoring="neg_log_loss").mean())

    strength = min(_STRENGTHS, key=held_out_loss)
    fitted = LogisticRegression(C=strength, max_iter=_STEPS).fit(tokens, labels)
    probe = nn.Linear(tokens.shape[1], len(fitted.classes_))
    with torch.no_grad():
        probe.weight.copy_(torch.from_numpy(fitted.coef_))
        probe.bias.copy_(torch.from_numpy(fitted.intercept_))
    return probe


def dense_probe(root: Path) -> nn.Linear:
    """Return the probe of the dense model's class tokens of the training photographs."""
    config = load_config("photographs-baseline").model
    photographs = Photographs.of(root, config)
    is_train = photographs.split == "train"
    dense = start_of(root, config, layers=[])
    tokens = tokens_of(dense, photographs.pixels[torch.from_numpy(is_train)], config)[:, 0]
    return fit(tokens.numpy(), photographs.labels[is_train])


def with_probe(path: Path, probe: nn.Linear) -> api.Checkpoint:
    """Return a trained model whose head is the probe; its hash is of both."""
    checkpoint = api.load_model(path, device="cpu")
    checkpoint.model.model.head = probe  # type: ignore[attr-defined]
    digest = hashlib.sha256(checkpoint.provenance["sha256"].encode())
    for parameter in probe.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return dataclasses.replace(checkpoint, provenance={**checkpoint.provenance, "sha256": digest.hexdigest()})


def probed_models(root: Path) -> list[api.Checkpoint]:
    """Return all trained models with the probe as their head, pair after pair."""
    probe = dense_probe(root)
    return [with_probe(checkpoint(root, model, seed), probe) for seed in SEEDS for model in MODELS]
