"""The work of ``margins``: each input clean, under growing noise, and under draws of small noise."""

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError, option
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.open import open_view
from moeprobe.inputs.view_names import parse_view
from moeprobe.inputs.views.base import PairView, SeverityView
from moeprobe.metrics.analyses.flip_prediction import FlipPredictionAnalysis
from moeprobe.metrics.analyses.set_survival import SURVIVAL, SURVIVAL_BAND, SetSurvivalAnalysis
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.families import Difference, difference_error, judge
from moeprobe.metrics.stats.linearized import multiply_influences
from moeprobe.metrics.token_kinds import Paired, by_token_kind, unlike
from moeprobe.probes.engine.batch_sums import layer_sums
from moeprobe.probes.engine.checks import check_some_layer
from moeprobe.probes.engine.measurement import BatchSums, ExtendedView, Sums, VariantsMeasurement
from moeprobe.probes.engine.run_spec import RunSpec
from moeprobe.probes.margins import BFLOAT16, Margins
from moeprobe.probes.margins.curve import MarginDraws, SetCurve, is_predictable, predict
from moeprobe.results import summaries
from moeprobe.results.columns import SIMULTANEOUS
from moeprobe.results.stored import SumsStore
from moeprobe.results.sums import Cell
from moeprobe.results.values import CellValues, Evaluator
from moeprobe.routing import finite
from moeprobe.routing.correspondence import pair_up
from moeprobe.routing.other_dtype import in_dtype
from moeprobe.routing.record import LayerPair, LayerRouting, RoutingTrace

# Noises that grow with their severity from one draw, so that margins predict what they change.
NOISES = ("gaussian_noise", "embedding_noise")


@dataclass(frozen=True)
class Transfer:
    """Another perturbation whose flips margins are to predict.

    Attributes:
        name: in the column ``view``.
        view: what perturbs; None = the clean inputs, run in bfloat16.
        severity: of the view; NaN where it has none.
    """

    name: str
    view: SeverityView[Any, Any, Any] | PairView[Any, Any, Any] | None
    severity: float

    @property
    def aligned(self) -> bool:
        """Whether it leaves patches where they are."""
        return self.view is None or self.view.aligned

    def perturb(self, source: Any, *, framing: Any, rng: np.random.Generator) -> list[Any]:
        """Return the perturbed input; of a pair of views the second, of no view nothing."""
        if self.view is None:
            return []
        if isinstance(self.view, PairView):
            return [self.view.pair(source, framing=framing, rng=rng)[1]]
        return self.view.perturb(source, framing=framing, severities=[self.severity], rng=rng)


@dataclass(frozen=True)
class NoiseDraws(ExtendedView):
    """All levels of one draw of noise, then independent draws at one small level, then the other perturbation."""

    draws: int
    small: float
    transfer: Transfer | None

    def perturb(
        self, source: Any, *, framing: Any, severities: Sequence[float], rng: np.random.Generator
    ) -> list[Any]:
        """Return ``source`` at each level, then with each small draw, then perturbed otherwise."""
        views = self.view.perturb(source, framing=framing, severities=severities, rng=rng)
        for _ in range(self.draws):
            views += self.view.perturb(source, framing=framing, severities=[self.small], rng=rng)
        return views + (
            [] if self.transfer is None else self.transfer.perturb(source, framing=framing, rng=rng)
        )


class MarginsMeasurement(VariantsMeasurement):
    """Passes under growing noise, and under draws of small noise."""

    probe: Margins
    masks: ClassVar[bool] = True

    def check_models(self) -> None:
        """Raise ``UserError`` unless tokens of the models choose sets by scores that are known."""
        check_some_layer(
            self.models,
            self.options.layers,
            is_predictable,
            missing="does a token's set have a margin",
            condition="by scores that are all known. Use sweep, which needs none.",
        )

    def make_spec(self) -> RunSpec:
        """Return the run specification, with the levels of the noise that change anything, rising."""
        spec = super().make_spec()
        if spec.view_name not in NOISES:
            raise UserError(
                f"{option('view')} takes {' or '.join(NOISES)}, since margins predict flips by noise; got "
                f"{spec.view_name!r}. Name other views by {option('transfer')}."
            )
        levels = tuple(sorted(severity for severity in spec.severities if severity > 0))
        if not levels:
            raise UserError(f"{option('severities', flag='--sigmas')} takes at least one level above 0.")
        self._transfer = _open_transfer(self.probe, spec)
        spec = dataclasses.replace(spec, severities=levels)
        # A pass in another precision loads nothing more; counted as if it did.
        more_views = self.probe.draws + (self._transfer is not None)
        return spec.with_workers(self.models, self.options, more_views=more_views)

    def loaded_view(self, view: PairView | SeverityView | None) -> NoiseDraws:
        """Return the noise, with the small draws and the other perturbation behind it."""
        assert isinstance(view, SeverityView)
        return NoiseDraws(view, self.probe.draws, self.probe.small, self._transfer)

    def batch_sums(self, spec: RunSpec, model: Checkpoint) -> BatchSums:
        """Return what gives the sums of a batch."""
        return partial(_batch_sums, spec, model, self.probe, self._transfer)

    @property
    def passes(self) -> int:
        """Forward passes per input."""
        return 1 + len(self.spec.severities) + self.probe.draws + (self._transfer is not None)

    def more_rows(self, sums: SumsStore, info: summaries.About) -> list[dict[str, Any]]:
        """Return the survival of sets with intervals that hold at all levels of a curve at once."""
        view = self.spec.view_name
        survival = [cell for cell in sums if cell.cell.view == view and not np.isnan(cell.cell.severity)]
        evaluate = Evaluator(
            (SetSurvivalAnalysis(),), aligned=True, seed=info.seed, influences=True, unit_of=info.unit_of
        )
        lines = []
        # One checkpoint at a time, since a curve holds an influence per input.
        for checkpoint in sorted({cell.checkpoint for cell in survival}):
            curves: dict[tuple[str, str], list[CellValues]] = {}
            # In the order of their file, in which neighbors share what is read at once.
            for cell in survival:
                if cell.checkpoint == checkpoint:
                    curves.setdefault((cell.cell.layer, cell.cell.tokens), []).append(evaluate(cell))
            lines += [line for curve in sorted(curves) for line in _band(curves[curve], info)]
        return lines


def _open_transfer(probe: Margins, spec: RunSpec) -> Transfer | None:
    """Return the other perturbation of the run.

    Raises:
        UserError: there is no such view, or it does not fit the data.
    """
    if probe.transfer is None:
        return None
    view = None if probe.transfer == BFLOAT16 else open_view(probe.transfer, dataset=spec.dataset)
    name = BFLOAT16 if view is None else parse_view(probe.transfer).name
    if not isinstance(view, SeverityView):
        if probe.transfer_severity is not None:
            raise UserError(f"{name} has no severity; leave {option('transfer_severity')} out.")
        return Transfer(name, view, float("nan"))
    if view.modality is not spec.dataset.modality:
        raise UserError(
            f"The view {name!r} perturbs {view.modality.plural}, and the data hold {spec.dataset.modality.plural}; "
            f"name another by {option('transfer')}."
        )
    if name == spec.view_name:
        raise UserError(f"{name} is the noise of the run itself; name another view by {option('transfer')}.")
    strongest = view.severities[-1]
    severity = strongest if probe.transfer_severity is None else probe.transfer_severity
    view.check([severity])
    return Transfer(name, view, severity)


def _batch_sums(
    spec: RunSpec, checkpoint: Checkpoint, probe: Margins, transfer: Transfer | None, batch: Batch | TextBatch
) -> dict[str, Sums]:
    """Return the sums of a batch, of each layer and kind of tokens."""
    model = checkpoint.model
    layers = spec.layers_of(model)

    def trace(view: int) -> RoutingTrace:
        routing = model.trace(batch.views[view], layers=layers, logits=False)[1]
        finite.check(routing.layers, None, batch.image_ids, checkpoint=checkpoint.name)
        return routing

    traced = trace(0).layers
    clean = RoutingTrace({name: layer for name, layer in traced.items() if is_predictable(layer)})
    sums = layer_sums(spec, checkpoint, batch, clean, clean, 0)
    first_draw = 1 + len(spec.severities)
    draws = {name: MarginDraws(layer) for name, layer in clean.layers.items()}
    for number in range(first_draw, first_draw + probe.draws):
        noisy = trace(number)
        for name, layer_draws in draws.items():
            layer_draws.add(noisy.layers[name])
    margins = {name: layer_draws.margins(probe.small) for name, layer_draws in draws.items()}
    curves = {
        name: SetCurve(
            _cell(spec, checkpoint, name, layer),
            layer,
            _kinds(pair_up(batch, layer, layer, 0, aligned=True, symmetric=False)),
            margins[name],
            spec.severities,
        )
        for name, layer in clean.layers.items()
    }
    for number, _ in enumerate(spec.severities):
        noisy = trace(1 + number)
        for name, curve in curves.items():
            sums |= curve.grow(noisy.layers[name], number)
    for curve in curves.values():
        for cell, columns in curve.critical().items():
            sums[cell] = sums.get(cell, {}) | columns
    by_view = {spec.view_name: sums}
    if transfer is not None:
        by_view[transfer.name] = {}
        number = 0 if transfer.view is None else first_draw + probe.draws
        device = next(iter(clean.layers.values())).gates.device
        with nullcontext() if transfer.view is not None else in_dtype(device, torch.bfloat16):
            perturbed = trace(number)
        for name, layer in clean.layers.items():
            pair = pair_up(
                batch, layer, perturbed.layers[name], number, aligned=transfer.aligned, symmetric=False
            )
            cell = dataclasses.replace(_cell(spec, checkpoint, name, layer), severity=transfer.severity)
            by_view[transfer.name] |= {
                dataclasses.replace(cell, tokens=kind): FlipPredictionAnalysis().sums(
                    predict(margins[name], tokens, unlike(pair, tokens))
                )
                for kind, tokens in _kinds(pair).items()
            }
    return by_view


def _cell(spec: RunSpec, checkpoint: Checkpoint, name: str, layer: LayerRouting) -> Cell:
    """Return the cell of a layer."""
    return Cell(spec.label_of(checkpoint.model, name), layer.router, layer.choices_per_token)


def _kinds(pair: LayerPair) -> dict[str, Paired]:
    """Return the tokens of each kind, on the CPU, where margins are."""
    return {
        kind: dataclasses.replace(
            tokens,
            reference=tokens.reference.cpu(),
            view=tokens.view.cpu(),
            present=tokens.present.cpu(),
        )
        for kind, tokens in by_token_kind(pair).items()
    }


def _band(curve: Iterable[CellValues], info: summaries.About) -> list[dict[str, Any]]:
    """Return the lines of one survival curve with intervals that hold at all its levels at once."""
    name = NumberName(SURVIVAL.name, "")
    # Tokens of a bin of the prediction have no curve: at each level they are others.
    values = [value for value in curve if name in value.numbers]
    pointwise = replicates = [value.numbers[name] for value in values]
    errors = [
        # As of a difference: for CLS tokens an image is one trial, whose grain belongs to the error.
        difference_error(number, number, value.influences[name])
        for value, number in zip(values, replicates, strict=True)
    ]
    if any(number.influence is not None for number in replicates):
        replicates = multiply_influences(replicates, seed=info.seed)
    judged = judge([Difference(number, error) for number, error in zip(replicates, errors, strict=True)])
    band = NumberName(SURVIVAL_BAND.name, "")
    rows = [
        summaries.row(info, value.checkpoint, value.cell, band, number)
        for value, number in zip(values, pointwise, strict=True)
    ]
    for row, verdict in zip(rows, judged, strict=True):
        if row["interval"]:
            # Never inside the interval of the level alone, which knows what shares of 0 and 1 may hide.
            low, high = max(verdict.sim_low, 0.0), min(verdict.sim_high, 1.0)
            row |= {"ci_low": np.fmin(low, row["ci_low"]), "ci_high": np.fmax(high, row["ci_high"])}
            row["interval"] = SIMULTANEOUS
    return rows
