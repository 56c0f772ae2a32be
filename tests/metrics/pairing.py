"""Pairs of routings made up for the tests of analyses, and a slow way round to what is compared in them."""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch

from moeprobe.metrics.base import LayerAnalysis
from moeprobe.routing.record import LayerPair, LayerRouting


def scattered(reference: LayerRouting, view: LayerRouting, seed: int = 0) -> LayerPair:
    """Pairs as crops make them: other patches on either side, several to one, some without a partner."""
    assert view.grid is not None
    random = torch.Generator().manual_seed(seed)
    num_patches = view.grid.num_patches
    shape = (len(view.gates), num_patches)
    sides = [torch.randint(0, num_patches, shape, generator=random) for _ in range(2)]
    none = torch.rand(shape, generator=random) < 0.3
    return LayerPair(
        reference, view, sides[0].masked_fill(none, -1), sides[1].masked_fill(none, -1), aligned=False
    )


def tokens_of(pair: LayerPair, tokens: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield every pair of tokens as (image, place, token of the reference, of the view), without padding."""
    prefix = pair.reference.num_prefix_tokens
    places = prefix if tokens == "prefix" else pair.reference_patch.shape[1]
    for image, place in itertools.product(range(len(pair.view.gates)), range(places)):
        one, other = place, place
        if tokens == "patch":
            one, other = (int(patch[image, place]) for patch in (pair.reference_patch, pair.view_patch))
            if -1 in (one, other):
                continue
            one, other = one + prefix, other + prefix
        if pair.reference.valid[image, one] and pair.view.valid[image, other]:
            yield image, place, one, other


def with_tokens(pair: LayerPair, seed: int = 5) -> LayerPair:
    """The pair with token ids of few different tokens, some of them unknown."""
    random = torch.Generator().manual_seed(seed)
    ids = torch.randint(-1, 4, pair.reference.valid.shape, generator=random)
    # A vocabulary may have more tokens than there are strata.
    return replace(pair, token_ids=torch.where(ids == 3, 2**30, ids))


def token_id(pair: LayerPair, tokens: str, image: int, place: int) -> int:
    """The token of a pair on the side of the reference; those beyond all strata are as good as unknown."""
    assert pair.token_ids is not None
    one = next(one for i, j, one, _ in tokens_of(pair, tokens) if (i, j) == (image, place))
    number = int(pair.token_ids[image, one])
    return -1 if number == 2**30 else number


def values(
    analysis: LayerAnalysis,
    pair: LayerPair,
    tokens: str,
    weights: np.ndarray,
    labels: np.ndarray | None = None,
) -> Mapping[tuple[str, str, int | None], tuple[np.ndarray, list[int]]]:
    """Return (metric, null, expert) -> its values under weights ``(n, R)``, and its trials per image."""
    columns = {name: column.numpy() for name, column in analysis.sums(pair)[tokens].items()}
    columns["label"] = np.zeros(len(weights), dtype=int) if labels is None else labels
    found = analysis.estimators(columns, aligned=pair.aligned)
    return {
        (metric.name, metric.null, metric.expert): (
            metric.statistic.evaluate(weights),
            metric.trials.tolist(),
        )
        for metric in found
    }


def mean(numbers: list[tuple[float, float]]) -> float:
    """Return Σ weight · value / Σ weight of (weight, value); NaN of nothing."""
    total = sum(weight for weight, _ in numbers)
    return sum(weight * value for weight, value in numbers) / total if total else float("nan")


def kappa(match: float, chance: float) -> float:
    """Return (m − c) / (1 − c); NaN where chance is 1, or there is none."""
    return float("nan") if not chance < 1 - 1e-9 else (match - chance) / (1 - chance)


def chance(
    trials: list[tuple[int, int, object, object]],
    weight: np.ndarray,
    *,
    null: str,
    labels: np.ndarray,
    pair: LayerPair,
    tokens: str,
    alike: Callable[[object, object], float | None],
) -> tuple[float, float]:
    """Return the mean likeness of the trials that have a chance level, and that level, draw by draw.

    ``alike`` says how alike two sides are; None where the two are no trial.
    """
    stratum = {
        "pooled": lambda trial: 0,
        "position": lambda trial: trial[1],
        "image": lambda trial: trial[0],
        "class": lambda trial: (labels[trial[0]], trial[1] if pair.aligned else 0),
        "token": lambda trial: token_id(pair, tokens, trial[0], trial[1]),
    }[null]
    shown = {(image, place): own for image, place, *own in tokens_of(pair, tokens)}

    def another(a: tuple[int, int, object, object], b: tuple[int, int, object, object]) -> bool:
        """Between images an image is paired with others alone; in an image, pairs without a token in common."""
        if null != "image":
            return a[0] != b[0]
        return all(one != other for one, other in zip(shown[a[:2]], shown[b[:2]], strict=True))

    strata: dict[object, list[tuple[int, int, object, object]]] = {}
    for trial in trials:
        strata.setdefault(stratum(trial), []).append(trial)
    match, numbers = [], []
    for inside in strata.values():
        if not any(another(a, b) for a, b in itertools.product(inside, inside)):
            continue
        own = [(weight[trial[0]], alike(trial[2], trial[3])) for trial in inside]
        match += [(w, value) for w, value in own if value is not None]
        draws = [
            (weight[a[0]] * weight[b[0]], alike(a[2], b[3]))
            for a, b in itertools.product(inside, inside)
            if another(a, b)
        ]
        size, every = sum(weight[trial[0]] for trial in inside), sum(w for w, _ in draws)
        if every:
            numbers += [(w * size / every, value) for w, value in draws if value is not None]
    return mean(match), mean(numbers)
