"""Agreement of the keys that two captures of a sparse-attention indexer select, with chance by t and K.

A query that sees t keys selects K of them. Queries with t <= K select every key whatever the indexer is, and are no
trials. Chance is the overlap of random sets of that size (``stats.hypergeometric``), which depends on the query. Most
indexers prefer near keys, so a second chance level takes the selection of another request's query at the same position.

Axes: B requests, J queries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.kappa import Kappa
from moeprobe.metrics.stats.statistic import Ratio, Share

if TYPE_CHECKING:
    from torch import Tensor

KEY_JACCARD = Metric(
    "key_jaccard",
    about="overlap of the sets of keys that a query selects in two captures of a sparse-attention indexer, "
    "intersection over union",
    label="overlap of selected keys",
    short="key overlap",
    better="more",
    nulls=("random", "recency"),
    rank=30,
)
KEYS_LOST = Metric(
    "keys_lost",
    about="share of the keys that a query selects in the first capture and not in the second; by chance 1 − K / t",
    label="selected keys lost",
    short="keys lost",
    better="less",
    nulls=("random",),
    rank=31,
)
ATTENTION_LOST = Metric(
    "attention_lost",
    about="share of the first capture's scores (attention that selected keys get) on keys that the second does not "
    "select; where scores are given",
    label="attention on lost keys",
    short="attention lost",
    better="less",
    rank=32,
)


@dataclass(frozen=True)
class KeyOverlap:
    """Queries of some requests in one layer, each ``(B, J)``.

    Attributes:
        jaccard: index of the two selections; NaN where there is no trial.
        chance: its expectation for random sets.
        lost: share of the first selection that the second does not have.
        lost_chance: its expectation.
        recency: index of the first selection and another request's at the same position; NaN where there is none.
        attention_lost: share of the first's scores on lost keys; NaN where there are no scores.
    """

    jaccard: Tensor
    chance: Tensor
    lost: Tensor
    lost_chance: Tensor
    recency: Tensor
    attention_lost: Tensor


class IndexerAnalysis(ModelAnalysis[KeyOverlap]):
    """Agreement of the keys that two captures of an indexer select.

    Two queries select keys with an overlap of 0.8 and 0.6, where random sets would have 0.3 and 0.1: κ =
    (0.7 − 0.2) / (1 − 0.2). They lose 0.1 and 0.3 of their keys, and random sets 0.5 and 0.9: κ = 1 − 0.2 / 0.7:

    >>> import torch
    >>> from moeprobe.metrics.analyses.indexer import IndexerAnalysis, KeyOverlap
    >>> from moeprobe.metrics.by_hand import numbers
    >>> values = [[0.8, 0.6]], [[0.3, 0.1]], [[0.1, 0.3]], [[0.5, 0.9]], [[torch.nan] * 2], [[torch.nan] * 2]
    >>> value = numbers(IndexerAnalysis(), KeyOverlap(*map(torch.tensor, values)))
    >>> value["key_jaccard"], value["key_jaccard_kappa random"], value["keys_lost"], value["keys_lost_kappa random"]
    (0.7, 0.625, 0.2, 0.714)
    """

    measures = (KEY_JACCARD, KEYS_LOST, ATTENTION_LOST)
    signature = "key_trials"

    def sums(self, subject: KeyOverlap) -> dict[str, Tensor]:
        """Return sums over the queries of each request ``(B,)``."""
        trial = ~subject.jaccard.isnan()
        beside = trial & ~subject.recency.isnan()
        weighted = trial & ~subject.attention_lost.isnan()
        parts = {
            "key_jaccard": (subject.jaccard, trial),
            "key_jaccard_random": (subject.chance, trial),
            "keys_lost": (subject.lost, trial),
            "keys_lost_random": (subject.lost_chance, trial),
            "recency_jaccard": (subject.jaccard, beside),
            "recency_chance": (subject.recency, beside),
            "attention_lost": (subject.attention_lost, weighted),
        }
        counts = {"key_trials": trial, "recency_trials": beside, "attention_trials": weighted}
        return {name: which.sum(1) for name, which in counts.items()} | {
            name: values.where(which, 0.0).double().sum(1) for name, (values, which) in parts.items()
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over all queries, with chance and κ."""
        sums = {name: column.astype(np.float64) for name, column in columns.items()}
        trials, beside = columns["key_trials"], columns["recency_trials"]
        overlap = Share(sums["key_jaccard"], sums["key_trials"])
        lost_chance = Ratio(sums["keys_lost_random"], sums["key_trials"])
        common, common_chance = (
            kind(sums["key_trials"] - sums[name], sums["key_trials"])
            for kind, name in ((Share, "keys_lost"), (Ratio, "keys_lost_random"))
        )
        estimators = [
            KEY_JACCARD.raw(overlap, trials),
            *KEY_JACCARD.chance_and_kappa(
                "random", Ratio(sums["key_jaccard_random"], sums["key_trials"]), overlap, trials
            ),
            KEYS_LOST.share_of(columns["keys_lost"], trials),
            *KEYS_LOST.against("random", lost_chance, Kappa(common, common_chance), trials),
        ]
        if beside.any():
            estimators += KEY_JACCARD.chance_and_kappa(
                "recency",
                Ratio(sums["recency_chance"], sums["recency_trials"]),
                Share(sums["recency_jaccard"], sums["recency_trials"]),
                beside,
            )
        if columns["attention_trials"].any():
            estimators.append(ATTENTION_LOST.share_of(columns["attention_lost"], columns["attention_trials"]))
        return estimators
