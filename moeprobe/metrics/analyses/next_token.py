"""Does the next token of a sequence use the same experts? And how long ago was an expert last used?

The reuse of a token is the share of its k experts that the next token has too. Chance levels: independent draws with
the experts' loads in other sequences (pooled), the next position of other sequences (position), and tokens of the same
sequence that are not next to each other (sequence). The last one is the strictest: a text keeps some experts busy
throughout, whatever the order of its tokens.

An expert that was used n tokens ago or less is found by a cache that holds the experts of the last n tokens. Such
shares count choices whose n tokens before are present, so that the beginning of a sequence does not lower them. By
chance, a router that draws evenly reaches 1 − (1 − k / E)^n.

Axes: B sequences, J tokens, K choices of a token, E experts, M pairs of a token and the next, n sequences of a run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis, image_cache
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.nulls import Nulls, against_chance, levels
from moeprobe.metrics.stats.alike import overlap
from moeprobe.metrics.stats.chance.strata import Strata, single_stratum
from moeprobe.metrics.stats.chance.trials import Trials
from moeprobe.metrics.stats.statistic import Array, Integers, Ratio, Share
from moeprobe.metrics.token_kinds import EXPERTS, NO_PAIR

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.metrics.sequences import ExpertUses, Sequences

NEXT_TOKEN_REUSE = Metric(
    "next_token_reuse",
    about="share of a token's experts that the next token of the sequence has too; the column tokens also splits it "
    "by prompt and generated, of which both tokens are then",
    label="experts that the next token reuses",
    short="reuse",
    noun="reuse of experts by the next token",
    nulls=("pooled", "position", "sequence"),
    rank=42,
)
# Numbers of tokens within which an expert is looked for.
DISTANCES = (1, 2, 4, 8, 16)


def _within(tokens: str) -> Metric:
    last = "token" if tokens == "1" else f"{tokens} tokens"
    return Metric(
        f"reuse_within_{tokens}",
        about=f"share of the choices of an expert that the last {last} of the sequence used too; of tokens that have "
        "as many before them",
        label=f"choices of an expert of the last {last}",
        short=f"within {tokens}",
        nulls=("even",),
        rank=43,
    )


REUSE_WITHIN = MetricFamily("reuse_within_{n}", r"reuse_within_(\d+)", _within, ("8",))


class NextToken(ModelAnalysis["Sequences"]):
    """Share of a token's experts that the next token reuses, and of choices whose expert was used shortly before.

    Two sequences, 0 0 0 1 and 1 1 1 0. The next token has the same expert in 4 of 6 pairs. Tokens of a sequence that
    are not neighbors have it in 1 of 3 pairs, so κ = (2/3 − 1/3) / (1 − 1/3):

    >>> import torch
    >>> from moeprobe.metrics.analyses.next_token import NextToken
    >>> from moeprobe.metrics.by_hand import numbers
    >>> from moeprobe.metrics.sequences import Sequences
    >>> experts = torch.tensor([[[0], [0], [0], [1]], [[1], [1], [1], [0]]], dtype=torch.int16)
    >>> value = numbers(NextToken(), Sequences(experts, torch.ones(2, 4, dtype=torch.bool), num_experts=2))
    >>> [value[f"next_token_reuse{name}"] for name in ("", "_chance sequence", "_kappa sequence")]
    [0.667, 0.333, 0.5]
    """

    measures = (NEXT_TOKEN_REUSE, REUSE_WITHIN)
    signature = "reuse_pairs"
    trial_lists = ("sequence_selected",)

    def sums(self, subject: Sequences) -> dict[str, Tensor]:
        """Return the choices of each sequence ``(B, J + 1, K)``, and counts of reuse per sequence."""
        import torch

        uses = subject.uses
        hits, trials = _count_reuse(uses)
        rows, tokens, top_k = subject.experts.shape
        # Sequences of one request are joined to one list: behind each a place stays empty, so that its last token and
        # the first of the next one are no pair.
        selected = np.full((rows, tokens + 1, top_k), NO_PAIR, np.int16)
        present = subject.present.numpy()[..., None]
        np.copyto(selected[:, :-1], subject.experts.numpy(), where=present)
        columns: dict[str, NDArray[Any]] = {
            "reuse_hits": hits,
            "reuse_trials": trials,
            EXPERTS: np.full(len(hits), subject.num_experts),
            **_of_other_tokens(uses, top_k),
            "sequence_selected": selected,
        }
        return {name: torch.from_numpy(column) for name, column in columns.items()}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return reuse by the next token with its chance levels, then the shares within some tokens."""
        top_k, num_experts = columns["sequence_selected"].shape[2], int(columns[EXPERTS].max(initial=1))
        trials, position = _pairs(columns, num_experts)
        between = {
            "pooled": single_stratum(len(position)),
            "position": Strata(
                position, size=columns["sequence_selected"].shape[1], single=True, of_sequences=True
            ),
        }
        reuse = Share(trials.hits_of_image, trials.number.astype(np.float64))
        by_others, by_next = (columns[name].astype(np.float64) for name in ("reuse_others", "reuse_beside"))
        several = columns["reuse_several"]
        estimators = [
            NEXT_TOKEN_REUSE.raw(reuse, trials.number),
            *against_chance(NEXT_TOKEN_REUSE, levels(trials, Nulls(between, None))),
            *NEXT_TOKEN_REUSE.chance_and_kappa(
                "sequence",
                Share(by_others, several.astype(np.float64)),
                Share(by_next, several.astype(np.float64)),
                several,
            ),
        ]
        for index, distance in enumerate(DISTANCES):
            number = columns["reuse_trials"][:, index]
            share = Share(columns["reuse_hits"][:, index].astype(np.float64), number.astype(np.float64))
            even = 1 - (1 - top_k / num_experts) ** distance
            metric = REUSE_WITHIN.make(str(distance))
            estimators += [
                metric.raw(share, number),
                *metric.chance_and_kappa(
                    "even", Ratio(even * number, number.astype(np.float64)), share, number
                ),
            ]
        return estimators


def _pairs(columns: Columns, num_experts: int) -> tuple[Trials, Integers]:
    """Return the pairs of a token and the next, with the share of experts in common, and where in the sequence."""
    selected = columns["sequence_selected"]
    present = selected[..., 0] != NO_PAIR
    is_pair = present[:, :-1] & present[:, 1:]
    image, position = np.nonzero(is_pair)
    token, following = selected[:, :-1][is_pair], selected[:, 1:][is_pair]
    trials = Trials(
        image,
        overlap(token, following, num_experts=num_experts),
        num_images=len(selected),
        cache=image_cache(columns, NEXT_TOKEN_REUSE.name),
    )
    return trials, position


def _count_reuse(uses: ExpertUses) -> tuple[Integers, Integers]:
    """Return how many choices have an expert of the last tokens, and of how many ``(B, distances)``."""
    # As an unsigned number the gap of a missing choice is above all others.
    gap, hits, trials = uses.gap.view(np.uint32), [], []
    for distance in DISTANCES:
        is_trial = uses.before >= distance
        hits.append(uses.by_sequence(is_trial * (gap < distance).sum(0, dtype=np.int32)))
        trials.append(uses.by_sequence(is_trial * uses.choices))
    return np.stack(hits, axis=1), np.stack(trials, axis=1)


def _of_other_tokens(uses: ExpertUses, top_k: int) -> dict[str, NDArray[Any]]:
    """Return per sequence the pairs of neighboring tokens, their reuse, and the reuse of tokens that are no neighbors.

    All pairs of tokens of a sequence have Σ_e c_e² experts in common, c_e = the tokens that use expert e. Pairs of a
    token with itself and with its neighbors are subtracted.
    """
    unit_values = np.ones(len(uses.before), np.int32)
    tokens, pairs = uses.by_sequence(unit_values), uses.by_sequence(uses.before > 0)
    token_counts = uses.by_expert(unit_values)
    beside = uses.by_sequence((uses.gap == 0).sum(0, dtype=np.int32))
    common = (token_counts**2).sum(1) - token_counts.sum(1) - 2 * beside
    other_pairs = tokens**2 - tokens - 2 * pairs
    several = np.where(other_pairs > 0, pairs, 0)
    of_others: Array = common / np.maximum(other_pairs * top_k, 1)
    return {
        "reuse_pairs": pairs,
        "reuse_several": several,
        "reuse_others": of_others * several,
        "reuse_beside": np.where(several > 0, beside, 0) / top_k,
    }
