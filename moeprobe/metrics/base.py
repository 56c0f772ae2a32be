"""What an aggregate analysis is: sums per image of one batch, and the statistics that such sums allow.

An analysis never sees the model. It gets traces (or class scores) of a reference and a view, and returns *sums and
counts per image*; ratios appear only when a whole data set is added up (``estimators``).

Axes: B images, P patches, K choices, n images of a whole run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from moeprobe.metrics.declaration import Estimator, Metric, MetricFamily
from moeprobe.metrics.stats.statistic import ImageCache

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting


# What a batch is to an analysis.
Subject = TypeVar("Subject")
# Per image: sums and counts (n,), or a short list (n, ...) where a statistic needs more than a sum.
Columns = Mapping[str, NDArray[np.generic]]
Computed = TypeVar("Computed")


class SharedColumns(dict[str, NDArray[np.generic]]):
    """Columns of some images, with what several analyses compute from them.

    Args:
        columns: of the images.
        image_caches: numbers of each image from when the columns were read before, by what they are of.
    """

    def __init__(self, columns: Columns, image_caches: dict[Hashable, ImageCache] | None = None) -> None:
        super().__init__(columns)
        self.computed: dict[Hashable, Any] = {}
        self.image_caches = {} if image_caches is None else image_caches


def compute_once(columns: Columns, key: Hashable, compute: Callable[[], Computed]) -> Computed:
    """Return what ``compute`` returns; of ``SharedColumns`` it is computed once for each key."""
    if not isinstance(columns, SharedColumns):
        return compute()
    if key not in columns.computed:
        columns.computed[key] = compute()
    computed: Computed = columns.computed[key]
    return computed


def image_cache(columns: Columns, key: Hashable) -> ImageCache:
    """Return where numbers of each image are kept; of ``SharedColumns`` until these are read again."""
    return (
        columns.image_caches.setdefault(key, ImageCache())
        if isinstance(columns, SharedColumns)
        else ImageCache()
    )


@dataclass(frozen=True)
class OutputPair:
    """Class scores ``(B, classes)`` of a reference (None: a view alone) and a view; labels ``(B,)``, -1 = none."""

    reference: Tensor | None
    view: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Corners:
    """Class scores ``(B, classes)`` for (pixels, routing), each clean or perturbed; labels ``(B,)``, -1 = none.

    ``logits`` belong to (clean, clean), (perturbed, clean), (clean, perturbed), (perturbed, perturbed).
    """

    logits: tuple[Tensor, Tensor, Tensor, Tensor]
    labels: Tensor


class Analysis(ABC):
    """A measurement that adds up over images.

    Attributes:
        signature: a column that its sums always have and no other analysis' do.
        trial_lists: beginnings of the columns that hold an entry per trial of an image; all others are numbers, or
            histograms, that add up.
        per_expert: a column that its sums always have, with an entry per expert of a layer; None = there is none.
        measures: the metrics that it computes.
        joins: kinds of runs that measure it although their probes do not name it, for plug-ins.
    """

    signature: ClassVar[str]
    trial_lists: ClassVar[tuple[str, ...]] = ()
    per_expert: ClassVar[str | None] = None
    measures: ClassVar[tuple[Metric | MetricFamily, ...]]
    joins: ClassVar[tuple[str, ...]] = ()

    @property
    def of_agreement(self) -> bool:
        """Whether it says how much two sides agree."""
        return any(isinstance(metric, Metric) and metric.agreement for metric in self.measures)

    @classmethod
    def facts(cls, table: DataFrame) -> dict[str, str]:
        """Return what ``table.json`` says of how the values in a table were counted; mostly nothing."""
        return {}

    @abstractmethod
    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return what the columns of a whole run allow to be said; ``aligned`` as in ``LayerPair``."""


def trial_lists(analyses: Sequence[Analysis]) -> tuple[str, ...]:
    """Return the ``trial_lists`` of all of them."""
    return tuple(name for analysis in analyses for name in analysis.trial_lists)


class LayerAnalysis(Analysis):
    """An analysis of routing, layer by layer."""

    @abstractmethod
    def applies(self, layer: LayerRouting) -> bool:
        """Whether the measurement means anything for this kind of routing; if not, there is no row."""

    @abstractmethod
    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return, for each kind of tokens (patch, prefix), columns with one entry per image of the batch."""


class ModelAnalysis(Analysis, Generic[Subject]):
    """An analysis of what the model makes of a batch in the end."""

    @abstractmethod
    def sums(self, subject: Subject) -> dict[str, Tensor]:
        """Return columns with one entry per image of the batch."""


class OutputAnalysis(ModelAnalysis[OutputPair]):
    """An analysis of the model's output."""


class CornerAnalysis(ModelAnalysis[Corners]):
    """An analysis of the model's output with pixels and routing exchanged; needs a model that can replay a routing."""
