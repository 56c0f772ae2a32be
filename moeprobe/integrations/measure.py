"""From the routing of a probe set to what a monitor records.

Axes: B inputs of a batch, n inputs of the probe set, T tokens, E experts.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.modality import ORDINARY
from moeprobe.integrations.probe_set import ProbeSet
from moeprobe.metrics import registry
from moeprobe.metrics.analyses.load import DEAD_EXPERTS, LOAD_ENTROPY, LoadAnalysis
from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.analyses.selection import SELECTION_MARGIN, SelectionAnalysis
from moeprobe.metrics.analyses.set_match import SetMatch
from moeprobe.metrics.analyses.slot_match import SlotMatch
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.metrics.declaration import CHANCE, KAPPA, Estimator, NumberName
from moeprobe.metrics.stats.bootstrap import Estimate, Replicates
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.metrics.stats.statistic import standard_error
from moeprobe.probes.engine.batch_sums import layer_sums, to_host
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.results.values import estimators
from moeprobe.routing.record import LayerRouting, RoutingTrace

# Whichever applies to a layer first says how much two routings of it agree.
AGREEMENTS: tuple[type[LayerAnalysis], ...] = (Match, SetMatch, SlotMatch)
# What else is measured of the clean inputs.
OF_ONE_PASS = (LOAD_ENTROPY, DEAD_EXPERTS, SELECTION_MARGIN)
# By layer the columns of its ordinary tokens ``(n, ...)``.
LayerColumns = dict[str, dict[str, NDArray[np.generic]]]


@dataclass(frozen=True)
class LayerAgreement:
    """How much two routings of a layer agree.

    Attributes:
        metric: which match: of the set of experts of a token, where tokens choose several.
        match: the share that matches.
        chance: the same by chance.
        kappa: the match beyond chance, with the influence of each input.
    """

    metric: str
    match: float
    chance: float
    kappa: Replicates

    def plain(self) -> dict[str, Any]:
        """Return it as JSON has it; an interval is given from 20 inputs on."""
        estimate = self.kappa.interval()
        return {
            "metric": self.metric,
            "match": self.match,
            "chance": self.chance,
            "kappa": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "flag": estimate.flag,
        }


def agreement_analyses(layers: Iterable[LayerRouting]) -> tuple[LayerAnalysis, ...]:
    """Return the analyses that say of some layers how much two routings agree, one for each layer."""
    needed = {next((kind for kind in AGREEMENTS if kind().applies(layer)), None) for layer in layers}
    return tuple(kind() for kind in AGREEMENTS if kind in needed)


def trace_all(
    checkpoint: Checkpoint, probe_set: ProbeSet, name: str, *, view_index: int = 0
) -> list[RoutingTrace]:
    """Return the routing of each batch of a view."""
    return [
        checkpoint.model.trace(batch.views[view_index], logits=False)[1] for batch in probe_set.batches[name]
    ]


def agreements(
    checkpoint: Checkpoint,
    spec: RunSpec,
    batches: Sequence[Batch | TextBatch],
    sides: Sequence[Sequence[RoutingTrace]],
) -> dict[str, LayerAgreement]:
    """Return by layer how much two routings of some batches agree; layers of which nothing can be said are left out.

    Args:
        checkpoint: whose routing it is.
        spec: of the view; of no view the tokens stay where they are.
        batches: with the views.
        sides: the routing of each batch, of the reference and of the view.
    """
    analyses = agreement_analyses(sides[0][0].layers.values())
    spec = dataclasses.replace(spec, analyses=analyses)
    columns = _columns(checkpoint, spec, batches, sides, view_index=0 if spec.view is None else 1)
    of_layers = {
        layer: _agreement(estimators(values, analyses, aligned=spec.aligned or spec.view is None))
        for layer, values in columns.items()
    }
    return {layer: agreement for layer, agreement in of_layers.items() if agreement is not None}


def of_one_pass(
    checkpoint: Checkpoint,
    spec: RunSpec,
    batches: Sequence[Batch | TextBatch],
    traces: Sequence[RoutingTrace],
) -> dict[str, dict[str, float]]:
    """Return by layer the load, the dead experts and the selection margin of the clean inputs, where they exist."""
    analyses = (LoadAnalysis(), SelectionAnalysis())
    columns = _columns(
        checkpoint, dataclasses.replace(spec, analyses=analyses), batches, (traces, traces), view_index=0
    )
    numbers: dict[str, dict[str, float]] = {}
    for layer, values in columns.items():
        by_name = {estimator.key: estimator for estimator in estimators(values, analyses, aligned=True)}
        numbers[layer] = {
            metric.name: _value(by_name[key])
            for metric in OF_ONE_PASS
            if (key := NumberName(metric.name, "")) in by_name
        }
    return numbers


def mean_kappa(of_layers: Iterable[LayerAgreement]) -> Estimate:
    """Return the mean of κ over layers, with an interval over inputs: the same inputs are in all of its terms."""
    kappas = [agreement.kappa for agreement in of_layers if np.isfinite(agreement.kappa.point)]
    if not kappas:
        return Estimate(np.nan, np.nan, np.nan, "collapsed")
    influences = [kappa.influence for kappa in kappas if kappa.influence is not None]
    influence = np.mean(influences, axis=0)
    images = min(kappa.images for kappa in kappas)
    mean = Replicates(
        point=float(np.mean([kappa.point for kappa in kappas])),
        values=np.empty(0),
        images=images,
        trials=sum(kappa.trials for kappa in kappas),
        grain=max(kappa.grain for kappa in kappas),
        error=standard_error(influence, images),
    )
    return mean.interval()


def _columns(
    checkpoint: Checkpoint,
    spec: RunSpec,
    batches: Sequence[Batch | TextBatch],
    sides: Sequence[Sequence[RoutingTrace]],
    *,
    view_index: int,
) -> LayerColumns:
    """Return the sums per input of all batches."""
    chunks: dict[str, list[dict[str, NDArray[np.generic]]]] = {}
    for batch, reference, view in zip(batches, *sides, strict=True):
        for cell, columns in layer_sums(spec, checkpoint, batch, reference, view, view_index).items():
            if cell.tokens in ORDINARY:
                chunks.setdefault(cell.layer, []).append(
                    {name: to_host(column) for name, column in columns.items()}
                )
    return {
        layer: {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for layer, parts in chunks.items()
    }


def _agreement(of_layer: Sequence[Estimator]) -> LayerAgreement | None:
    """Return the agreement that is read first among estimators of a layer; None if there is none."""
    measured = [("", estimator.name) for estimator in of_layer]
    metric = registry.set_match(measured) or registry.agreement(measured)
    by_name = {estimator.key: estimator for estimator in of_layer}
    kappa = by_name.get(NumberName(f"{metric}{KAPPA}", "pooled"))
    if kappa is None:
        return None
    return LayerAgreement(
        metric,
        _value(by_name[NumberName(metric, "")]),
        _value(by_name[NumberName(f"{metric}{CHANCE}", "pooled")]),
        linearize_all(kappa.statistic, kappa.used_trials),
    )


def _value(estimator: Estimator) -> float:
    trials = estimator.used_trials
    return float(estimator.statistic.evaluate(np.ones((len(trials), 1)))[0]) if trials.any() else np.nan
