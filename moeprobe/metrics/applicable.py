"""Which metrics have a value where routing is of a kind: found out by computing them on an example."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics import registry
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.runtime import catalog

if TYPE_CHECKING:
    from moeprobe.routing.pairs import LayerPair


def applicable(pair: LayerPair) -> list[registry.Declaration]:
    """Return the metrics and families that say anything of a layer like this, in the registry's order."""
    metrics = []
    for name, measures in registry.by_analysis():
        analysis = catalog.ANALYSES.get(name)() if name else None
        if not isinstance(analysis, LayerAnalysis) or not analysis.applies(pair.view):
            continue
        computed = {
            estimator.name
            for columns in analysis.sums(pair).values()
            for estimator in analysis.estimators(
                {key: column.numpy() for key, column in columns.items()}
                | {"label": np.arange(len(pair.view.gates)) % 2},
                aligned=pair.aligned,
            )
        }
        metrics += [
            declaration
            for declaration in measures
            if any(registry.covers(declaration, column) for column in computed)
        ]
    return metrics
