"""Do the experts that are hot in one window of requests stay hot? Loads of windows that follow one another.

An eighth of the experts is hot in a window: those with the most choices in it. Chance is two random sets of as many
experts (hypergeometric). A second level shuffles the requests: how much the load changes from window to window where
time does not matter. Whether it changes with time is tested over all layers at once (``load_course``).

Axes: B requests, E experts, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.hot_experts import (
    BeyondLevel,
    FixedLevel,
    HotOverlap,
    LoadChange,
    LoadCorrelation,
    NextLoad,
    Shuffled,
    Windowed,
    num_hot,
)
from moeprobe.metrics.stats.hypergeometric import expected_jaccard

if TYPE_CHECKING:
    from torch import Tensor

HOT_OVERLAP = Metric(
    "hot_overlap",
    about="overlap of the hot experts (the eighth with the most choices) of one window of requests and the next, "
    "intersection over union; mean over windows",
    label="overlap of hot experts, next window",
    short="hot overlap",
    noun="overlap of the hot experts of one window and the next",
    nulls=("random",),
    rank=35,
)
HOT_OVERLAP_SHUFFLED = Metric(
    "hot_overlap_shuffled",
    about="hot_overlap with the requests shuffled: what it is where time does not matter; the interval holds 95 % of "
    "the shuffles",
    label="overlap of hot experts, requests shuffled",
    rank=36,
)
HOT_OVERLAP_ENDS = Metric(
    "hot_overlap_ends",
    about="overlap of the hot experts of the first window of requests and the last, intersection over union",
    label="overlap of hot experts, first and last window",
    nulls=("random",),
    rank=37,
)
HOT_NEXT_SHARE = Metric(
    "hot_next_share",
    about="share of the choices that go to the experts that were hot in the window before; by chance the share of hot "
    "experts",
    label="choices of experts hot in the window before",
    short="next load",
    nulls=("random",),
    rank=38,
)
LOAD_CORRELATION = Metric(
    "load_correlation",
    about="correlation (Pearson) of the experts' loads in one window of requests and the next, mean over windows",
    label="correlation of loads, next window",
    unit="other",
    rank=39,
)
LOAD_CHANGE = Metric(
    "load_change",
    about="share of the choices that go to other experts in the next window of requests (total variation distance of "
    "the experts' shares), mean over windows",
    label="change of the load, next window",
    short="change",
    unit="share",
    rank=40,
)
LOAD_CHANGE_SHUFFLED = Metric(
    "load_change_shuffled",
    about="load_change with the requests shuffled; the interval holds 95 % of the shuffles, so that one layer in 40 "
    "lies above it by chance (load_course_p tests all of them)",
    label="change of the load, requests shuffled",
    rank=41,
)


@dataclass(frozen=True)
class WindowLoads:
    """Choices of some requests in one layer.

    Attributes:
        choices: of each expert ``(B, E)``.
        window: 1 in the window of each request ``(B, W)``.
    """

    choices: Tensor
    window: Tensor


class HotExperts(ModelAnalysis[WindowLoads]):
    """Persistence of hot experts over windows of requests.

    Two windows of one request each. Expert 0 is the hot one of two in the first, expert 1 in the second: no overlap,
    where two random experts have a half. Expert 0 falls from 0.8 to 0.4 of the choices, so that 0.4 of them move:

    >>> import torch
    >>> from moeprobe.metrics.analyses.hot_experts import HotExperts, WindowLoads
    >>> from moeprobe.metrics.by_hand import numbers
    >>> value = numbers(HotExperts(), WindowLoads(torch.tensor([[8, 2], [4, 6]]), torch.tensor([[1, 0], [0, 1]])))
    >>> [value[name] for name in ("hot_overlap", "hot_overlap_chance random", "hot_next_share", "load_change")]
    [0.0, 0.5, 0.4, 0.4]
    """

    measures = (
        HOT_OVERLAP,
        HOT_OVERLAP_SHUFFLED,
        HOT_OVERLAP_ENDS,
        HOT_NEXT_SHARE,
        LOAD_CORRELATION,
        LOAD_CHANGE,
        LOAD_CHANGE_SHUFFLED,
    )
    signature = "expert_choices"

    def sums(self, subject: WindowLoads) -> dict[str, Tensor]:
        """Return the choices by expert, and the window of each request."""
        return {"expert_choices": subject.choices, "request_window": subject.window}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return overlaps, next share and correlation, with their levels."""
        choices, window = columns["expert_choices"], columns["request_window"]
        images, experts = choices.shape
        trials = choices.sum(1)
        windowed = Windowed(choices.astype(np.float64), window.argmax(1), window.shape[1])
        hot = num_hot(experts)
        overlap, ends = HotOverlap(windowed), HotOverlap(windowed, ends=True)
        random = FixedLevel(float(expected_jaccard(np.array([experts]), hot, hot)[0]), images)
        share, even = NextLoad(windowed), FixedLevel(hot / experts, images)
        change = LoadChange(windowed)
        return [
            HOT_OVERLAP.raw(overlap, trials),
            *HOT_OVERLAP.against("random", random, BeyondLevel(overlap, random), trials),
            HOT_OVERLAP_SHUFFLED.raw(Shuffled(overlap), trials),
            HOT_OVERLAP_ENDS.raw(ends, trials),
            *HOT_OVERLAP_ENDS.against("random", random, BeyondLevel(ends, random), trials),
            HOT_NEXT_SHARE.raw(share, trials),
            *HOT_NEXT_SHARE.against("random", even, BeyondLevel(share, even), trials),
            LOAD_CORRELATION.raw(LoadCorrelation(windowed), trials),
            LOAD_CHANGE.raw(change, trials),
            LOAD_CHANGE_SHUFFLED.raw(Shuffled(change), trials),
        ]
