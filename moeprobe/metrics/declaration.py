"""The declaration of a metric: its name, meaning and limits, next to the analysis that computes it.

Everything that names a metric reads its declaration through ``metrics.registry``: tables, figures, verdicts, reports,
``moeprobe explain`` and the docs. Nothing here needs torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.stats.kappa import Kappa
from moeprobe.metrics.stats.statistic import MeanLoss, Ratio, Share

if TYPE_CHECKING:
    from moeprobe.metrics.stats.statistic import Statistic

CHANCE, KAPPA = "_chance", "_kappa"
# Units of which 0.02 is as much, whatever is measured: a margin in them means something.
_SHARES = ("share", "gate", "distance")


@dataclass(frozen=True)
class Null:
    """A chance level.

    Attributes:
        kappa: what the κ against it is called (``{source}`` is image or text).
        about: what it is drawn from.
        between: whether it relates one input to other inputs, so that a single input has no value.
    """

    kappa: str
    about: str
    between: bool = True


NULLS = {
    "pooled": Null("κ", "the two sides' own frequencies, drawn independently"),
    "position": Null(
        "κ, position",
        "the same at each patch position, since a position embedding alone can route; where the grid does not move",
    ),
    "image": Null(
        "κ, within {source}",
        "another patch of the same image, since a router may know little more than which image a patch is in",
        between=False,
    ),
    "class": Null(
        "κ, within class",
        "other images of the same class, since a router may know little more than the class; with --class-null",
    ),
    "token": Null(
        "κ, token id",
        "the same token of the vocabulary in other texts, since a router may know little more than which token it is; "
        "where token ids are known",
    ),
    "random": Null(
        "κ",
        "two random sets of the same sizes: of keys that a query of a sparse-attention indexer sees, or of the experts "
        "of a layer; hypergeometric, exact",
        between=False,
    ),
    "recency": Null(
        "κ, recency",
        "of a sparse-attention indexer: the selection of another request's query at the same position, since an "
        "indexer may know little more than how far back a key is",
    ),
    "sequence": Null(
        "κ, same sequence",
        "for reuse by the next token: two tokens of the same sequence that are not next to each other, since a text "
        "keeps some experts busy in whatever order its tokens are; exact, over all such pairs",
        between=False,
    ),
    "even": Null(
        "κ, even router",
        "a router that draws each token's k of E experts evenly: for reuse within n tokens 1 − (1 − k / E)^n, for a "
        "cache of C experts C / E, for m experts loaded ahead m / E; exact",
        between=False,
    ),
    "busiest": Null(
        "κ, busiest experts",
        "for experts that are loaded ahead: as many of the busiest experts of other requests, whatever the token",
        between=False,
    ),
    "option": Null(
        "κ, random choice",
        "for the choice of experts: one of the token's options, the router's or a tried other, drawn at random; exact",
        between=False,
    ),
    "eviction": Null(
        "κ, random eviction",
        "for caches of experts: a cache of the same size that evicts at random, in expectation (mean field)",
        between=False,
    ),
}


class NumberName(NamedTuple):
    """What tells the numbers of one cell apart: metric, null, and the experts that a number is about."""

    metric: str
    null: str
    expert: int | None = None
    expert_b: int | None = None


@dataclass(frozen=True)
class Estimator:
    """How one number of a table follows from sums per image.

    Attributes:
        name: its ``metric`` column.
        null: which null it is about (a key of ``NULLS``), empty where it is about none.
        statistic: how it follows from the sums.
        denominator: per image ``(n,)``; None = the statistic counts its trials, on request.
        expert: the expert it is about; None where it is about none.
        expert_b: the second expert, where it is about two.
    """

    name: str
    null: str
    statistic: Statistic
    denominator: NDArray[np.generic] | None
    expert: int | None = None
    expert_b: int | None = None

    @property
    def key(self) -> NumberName:
        """Which number of a cell it estimates."""
        return NumberName(self.name, self.null, self.expert, self.expert_b)

    @cached_property
    def trials(self) -> NDArray[np.generic]:
        """Its denominator, per image ``(n,)``."""
        if self.denominator is not None:
            return self.denominator
        statistic: Any = self.statistic
        trials: NDArray[np.generic] = statistic.counted_trials()
        return trials

    @property
    def between_images(self) -> bool:
        """Whether it relates one image to other images, so that a single image has no value."""
        return bool(self.null) and (self.null not in NULLS or NULLS[self.null].between)

    @property
    def used_trials(self) -> NDArray[np.generic]:
        """Its trials ``(n,)``; none where it takes another image and there is none."""
        alone = self.between_images and np.count_nonzero(self.trials) <= 1
        return np.zeros_like(self.trials) if alone else self.trials


@dataclass(frozen=True)
class Metric:
    """One name of the column ``metric``, and all that is said of it anywhere.

    Attributes:
        name: in tables.
        about: what it is, for somebody who reads a table; no full stop.
        label: what a line of a table calls it; empty = the name.
        short: the heading of a narrow column; empty = the label.
        noun: what it is called in the middle of a sentence; empty = the label.
        better: which side is better; empty = neither, decided and not forgotten. For a ``_kappa`` more always is.
        unit: what the value counts; "whole": whole numbers of something, "count": such numbers on average; "nats": a
            mean of losses, which a few images may carry.
        margin: whether a margin in shares means anything where the unit allows it.
        nulls: which chance levels its ``_chance`` and ``_kappa`` may have, the first one read first; none without.
        rank: its place in the order of reading, the lowest first.
        headline: whether it is read first of a comparison.
        agreement: whether it says how much two sides agree. The first one that all checkpoints have is read first.
        along: whether it has a column in tables of the routing along a severity: "any", or only where all "tokens
            choose", or only for "others" (a headline of those says nothing where tokens choose).
        secondary: whether the value and one kappa are enough at first.
        of_labels: whether it is about labels, and so not known in advance of an input that is not perturbed.
        below: the metric below whose line it is printed.
        collapse_of: whose kappa says that it has collapsed; empty = its own.
        collapsed_at_zero: whether 0 says that everything goes to one choice.
        one_expert: whether it is the top-1 match, or 1 minus it, with one expert per token and enough capacity.
        severity: what tables that are read call the column ``severity``, by what it holds for this metric.
    """

    name: str
    about: str
    label: str = ""
    short: str = ""
    noun: str = ""
    better: Literal["more", "less", ""] = ""
    unit: Literal[
        "share", "gate", "distance", "probability", "nats", "count", "whole", "seconds", "other"
    ] = "share"
    margin: bool = True
    nulls: tuple[str, ...] = ()
    rank: int = 100
    headline: bool = False
    agreement: bool = False
    along: Literal["any", "tokens choose", "others", ""] = ""
    secondary: bool = False
    of_labels: bool = False
    below: str = ""
    collapse_of: str = ""
    collapsed_at_zero: bool = False
    one_expert: bool = False
    severity: str = "severity"

    def __post_init__(self) -> None:
        label = self.label or self.name.replace("_", " ")
        filled = {"label": label, "short": self.short or label, "noun": self.noun or label}
        for name, text in filled.items():
            object.__setattr__(self, name, text)

    @property
    def has_margin(self) -> bool:
        """Whether a margin in shares means anything for it."""
        return self.margin and self.unit in _SHARES

    def raw(
        self,
        statistic: Statistic,
        trials: NDArray[np.generic],
        *,
        expert: int | None = None,
        expert_b: int | None = None,
    ) -> Estimator:
        """Return the estimator of its value; ``trials`` ``(n,)`` as in ``Estimator``."""
        return Estimator(self.name, "", statistic, trials, expert, expert_b)

    def share_of(
        self,
        sums: NDArray[np.generic],
        trials: NDArray[np.generic],
        *,
        expert: int | None = None,
        weight: NDArray[np.generic] | None = None,
    ) -> Estimator:
        """Return the estimator of sums over trials ``(n,)``, where no sum is below 0 or above its trials.

        ``weight`` ``(n,)``: what the trials stand for, which the sums are over; None = the trials themselves.
        """
        share = Share(sums.astype(np.float64), (trials if weight is None else weight).astype(np.float64))
        return self.raw(share, trials, expert=expert)

    def mean_of(
        self,
        sums: NDArray[np.generic],
        trials: NDArray[np.generic],
        *,
        expert: int | None = None,
        weight: NDArray[np.generic] | None = None,
    ) -> Estimator:
        """Return the estimator of sums over trials ``(n,)``, of any size and sign; ``weight`` as in ``share_of``.

        A number in nats is a loss, whose mean a few images may carry.
        """
        kind = MeanLoss if self.unit == "nats" else Ratio
        mean = kind(sums.astype(np.float64), (trials if weight is None else weight).astype(np.float64))
        return self.raw(mean, trials, expert=expert)

    def chance_and_kappa(
        self, null: str, chance: Statistic, match: Statistic, trials: NDArray[np.generic] | None
    ) -> list[Estimator]:
        """Return a chance level, and kappa of the match of the same trials ``(n,)``; None = they count these."""
        return self.against(null, chance, Kappa(match, chance), trials)

    def against(
        self, null: str, chance: Statistic, kappa: Statistic, trials: NDArray[np.generic] | None
    ) -> list[Estimator]:
        """Return a chance level and a kappa of the same trials ``(n,)``, each by its own statistic."""
        return [
            Estimator(f"{self.name}{CHANCE}", null, chance, trials),
            Estimator(f"{self.name}{KAPPA}", null, kappa, trials),
        ]


@dataclass(frozen=True)
class MetricFamily:
    """Metrics whose names hold a number or a word.

    Attributes:
        name: how all of them are written, e.g. ``top{k}_match``.
        pattern: a regular expression that their whole names match.
        make: returns the metric for the groups of the pattern.
        example: the groups of one of them.
    """

    name: str
    pattern: str
    make: Callable[..., Metric]
    example: tuple[str, ...]

    def find(self, name: str) -> Metric | None:
        """Return the metric of a name; None if it is none of these."""
        groups = self.groups(name)
        return None if groups is None else self.make(*groups)

    def groups(self, name: str) -> tuple[str, ...] | None:
        """Return the part of the name that distinguishes one of them; None if it is none of these."""
        match = re.fullmatch(self.pattern, name)
        return None if match is None else match.groups()

    @property
    def representative(self) -> Metric:
        """One of the metrics, to say what all of them are."""
        return self.make(*self.example)

    @property
    def about(self) -> str:
        """What they are, by one of them."""
        metric = self.representative
        return f"e.g. {metric.name}: {metric.about}"
