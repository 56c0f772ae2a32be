"""How many tokens are routed otherwise in at least one layer, and where does it begin?

Beside it stands what layers that differ independently of each other would give, 1 − Π_l (1 − p_l): where fewer tokens
are affected, differences gather on the same tokens.

Sequences only. Axes: L layers, B texts, J tokens, n texts of a whole run, R resamples.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import Array, Totals, divide

if TYPE_CHECKING:
    from torch import Tensor

PAIRS_DIFFER = Metric(
    "pairs_differ",
    about="share of the pairs of a token and a layer in which the token's set of experts differs",
    label="pairs of token and layer that differ",
    short="pairs differ",
    better="less",
    rank=15,
)
TOKENS_TOUCHED = Metric(
    "tokens_touched",
    about="share of the tokens whose set of experts differs in at least one layer",
    label="tokens affected in at least one layer",
    short="affected",
    better="less",
    rank=16,
    headline=True,
)
INDEPENDENT = Metric(
    "tokens_touched_independent",
    about="what tokens_touched would be if layers differed independently of each other, 1 − Π (1 − p) over the layers",
    label="  by independent layers",
)
TOUCHED_RATIO = Metric(
    "tokens_touched_ratio",
    about="tokens_touched divided by tokens_touched_independent: below 1 where differences gather on the same tokens",
    label="  observed / independent",
    unit="other",
)
SEQUENCES_TOUCHED = Metric(
    "sequences_touched",
    about="share of the sequences in which any token differs in any layer",
    label="sequences affected",
    better="less",
)
FIRST_POSITION = Metric(
    "first_touched_position",
    about="position, from 0, of the first token that differs in any layer, on average over the sequences that have "
    "one; sequences without one, mostly the short ones, have no part in it",
    label="first affected position",
    unit="count",
)


@dataclass(frozen=True)
class Differences:
    """What differs in some kind of tokens: ``differs`` ``(L, B, J)`` in each layer, ``trial`` ``(B, J)`` of which."""

    differs: Tensor
    trial: Tensor

    @cached_property
    def first_layer(self) -> Tensor:
        """``(B, J)`` the first layer in which a trial differs; L where it differs in none, or there is no trial."""
        import torch

        num_layers = len(self.differs)
        first = torch.full_like(self.trial, num_layers, dtype=torch.int64)
        for layer in reversed(range(num_layers)):
            first.masked_fill_(self.differs[layer], layer)
        return first.masked_fill(~self.trial, num_layers)


@dataclass(frozen=True)
class AnyOf:
    """1 − Π_l (1 − p_l), where p_l is how often thing l happens: Σ hits_l / Σ trials.

    Attributes:
        hits: ``(n, L)`` how often each happened in an image.
        trials: ``(n,)`` out of how many.
    """

    hits: Array
    trials: Array

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        rates = divide(self.hits.T @ weights, self.trials @ weights)
        return 1 - (1 - rates).prod(0)

    def totals(self) -> Totals:
        """Return the sums of the hits, then the sum of the trials."""
        return np.append(self.hits.sum(0), self.trials.sum())

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all images."""
        return float(1 - (1 - divide(totals[:-1], totals[-1])).prod())

    def influence(self, totals: Totals | None = None) -> Array:
        """Return Σ_l dp_l Π_{m ≠ l} (1 − p_m)."""
        totals = self.totals() if totals is None else totals
        rates = divide(totals[:-1], totals[-1])
        of_rates = divide(self.hits - self.trials[:, None] * rates, totals[-1])
        without = np.array([np.delete(1 - rates, layer).prod() for layer in range(len(rates))])
        return of_rates @ without


@dataclass(frozen=True)
class Observed:
    """How often at least one happened, divided by how often it would if they were independent (``AnyOf``).

    Attributes:
        hits: ``(n,)`` how often at least one happened.
        independent: what it would be.
    """

    hits: Array
    independent: AnyOf

    def evaluate(self, weights: Array) -> Array:
        """Return it under each set of weights."""
        observed = divide(self.hits @ weights, self.independent.trials @ weights)
        return divide(observed, self.independent.evaluate(weights))

    def totals(self) -> Totals:
        """Return the sum of ``hits``, and the totals of the other."""
        return np.array([self.hits.sum()]), self.independent.totals()

    def value(self, totals: Totals) -> float:
        """Return it for the sums of all images."""
        (hits,), independent_totals = totals
        return float(divide(divide(hits, independent_totals[-1]), self.independent.value(independent_totals)))

    def influence(self, totals: Totals | None = None) -> Array:
        """Return (do − value · de) / e."""
        totals = self.totals() if totals is None else totals
        (hits,), independent_totals = totals
        observed = divide(hits, independent_totals[-1])
        of_observed = divide(self.hits - observed * self.independent.trials, independent_totals[-1])
        expected = self.independent.value(independent_totals)
        return divide(
            of_observed - self.value(totals) * self.independent.influence(independent_totals), expected
        )


class Touched(ModelAnalysis[Differences]):
    """Pairs of token and layer that differ, tokens affected in at least one layer, and where differences begin.

    Four tokens and two layers: tokens 0 and 1 differ in the first layer, token 1 in the second too. That is 3 of 8
    pairs and 2 of 4 tokens. Independent layers would give 1 − (1 − 2/4) (1 − 1/4):

    >>> import torch
    >>> from moeprobe.metrics.analyses.touched import Differences, Touched
    >>> from moeprobe.metrics.by_hand import numbers
    >>> differs = torch.tensor([[[1, 1, 0, 0]], [[0, 1, 0, 0]]], dtype=torch.bool)
    >>> value = numbers(Touched(), Differences(differs, torch.ones(1, 4, dtype=torch.bool)))
    >>> value["pairs_differ"], value["tokens_touched"], value["tokens_touched_independent"]
    (0.375, 0.5, 0.625)
    """

    measures = (
        PAIRS_DIFFER,
        TOKENS_TOUCHED,
        INDEPENDENT,
        TOUCHED_RATIO,
        SEQUENCES_TOUCHED,
        FIRST_POSITION,
    )
    signature = "touched_trials"

    def sums(self, subject: Differences) -> dict[str, Tensor]:
        """Return counts per text ``(B,)``, and by layer ``(B, L)``."""
        differs = subject.differs & subject.trial
        affected = differs.any(0)
        has_affected = affected.any(1)
        # The first True; of a text without one it is no place.
        first = affected.long().argmax(1)
        return {
            "touched_trials": subject.trial.sum(1),
            "touched": affected.sum(1),
            "touched_by_layer": differs.sum(2).T,
            "touched_texts": has_affected.long(),
            "touched_any_trial": subject.trial.any(1).long(),
            "touched_first": first * has_affected,
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the shares, the share by independent layers, and the mean first place."""
        trials = columns["touched_trials"]
        number = trials.astype(np.float64)
        affected, by_layer = (columns[name].astype(np.float64) for name in ("touched", "touched_by_layer"))
        texts = columns["touched_texts"]
        independent = AnyOf(by_layer, number)
        return [
            PAIRS_DIFFER.share_of(by_layer.sum(1), trials * by_layer.shape[1]),
            TOKENS_TOUCHED.share_of(affected, trials),
            INDEPENDENT.raw(independent, trials),
            TOUCHED_RATIO.raw(Observed(affected, independent), trials),
            SEQUENCES_TOUCHED.share_of(texts, columns["touched_any_trial"]),
            FIRST_POSITION.mean_of(columns["touched_first"], texts),
        ]
