"""The sets of a layer's tokens along a nested noise: when each changes first, and how likely its margin said it was.

The pair of experts whose scores decide comes from the clean input: the last chosen and the first not chosen. Its
difference is the margin, and may fall below 0 under noise. In logits it is linear in the router's input.

Axes: B images, T tokens, E experts, J tokens of a kind.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy import special
from torch import Tensor

from moeprobe.metrics.analyses.critical_noise import CriticalNoiseAnalysis, NoiseResponse
from moeprobe.metrics.analyses.flip_prediction import FlipPredictionAnalysis, PredictedFlips, columns_by_bin
from moeprobe.metrics.analyses.selection import (
    has_margins,
    logit_margins,
    selection_margins,
    selection_scores,
)
from moeprobe.metrics.analyses.set_survival import SetSurvivalAnalysis, Survivors
from moeprobe.metrics.token_kinds import Paired
from moeprobe.results.sums import Cell
from moeprobe.routing.record import LayerRouting

_Sums = dict[Cell, dict[str, Tensor]]


@dataclass(frozen=True)
class TokenMargins:
    """The margins of a layer's tokens, on the CPU.

    Attributes:
        margin: ``(B, T)`` float64 of the clean input, NaN where a token has none.
        sensitivity: ``(B, T)`` float64 standard deviation of the margin per σ of noise.
        draws: how many draws of noise say so.
    """

    margin: Tensor
    sensitivity: Tensor
    draws: int

    @property
    def critical(self) -> Tensor:
        """Margin over sensitivity ``(B, T)``: the σ whose noise moves the margin by as much as it is."""
        return self.margin / self.sensitivity

    def probability(self, sigma: float) -> Tensor:
        """Return how likely each set is to change ``(B, T)`` under noise of standard deviation ``sigma``.

        The sensitivity is itself estimated, so the tail is Student's, with a degree of freedom for each draw.
        """
        tail = special.stdtr(self.draws, -(self.critical / sigma).numpy())
        return torch.from_numpy(np.asarray(tail))


def is_predictable(layer: LayerRouting) -> bool:
    """Whether tokens choose, and all scores are known that decide which set they have."""
    return layer.tokens_choose and layer.every_gate and has_margins(layer)


class MarginDraws:
    """The margins of a layer's clean tokens, and how each draw of small noise moves them.

    Args:
        clean: the routing of the clean input.
    """

    def __init__(self, clean: LayerRouting) -> None:
        of_logits = logit_margins(clean)
        margin = selection_margins(clean) if of_logits is None else of_logits
        assert margin is not None
        self._margin, self._in_logits = margin, of_logits is not None
        scores = selection_scores(clean, in_logits=self._in_logits)
        self._last = scores.masked_fill(~clean.selected_mask, torch.inf).argmin(-1, keepdim=True)
        self._next = scores.masked_fill(clean.selected_mask, -torch.inf).argmax(-1, keepdim=True)
        self._squares, self._draws = torch.zeros_like(margin), 0

    def add(self, noisy: LayerRouting) -> None:
        """Add the routing of the same input under another draw of noise."""
        scores = selection_scores(noisy, in_logits=self._in_logits)
        margin = (scores.gather(-1, self._last) - scores.gather(-1, self._next)).squeeze(-1)
        # Around the clean margin: to first order noise moves it to either side alike.
        self._squares += (margin - self._margin).square()
        self._draws += 1

    def margins(self, sigma: float) -> TokenMargins:
        """Return margins and sensitivities; ``sigma`` is the standard deviation of the noise of all draws."""
        sensitivity = (self._squares / self._draws).sqrt() / sigma
        return TokenMargins(self._margin.cpu(), sensitivity.cpu(), self._draws)


class SetCurve:
    """One layer of a batch along the levels of the noise, which are added in their order.

    Args:
        cell: of the layer.
        clean: its routing of the clean input.
        kinds: tokens of each kind.
        margins: of the clean input.
        levels: standard deviations of the noise, rising.
    """

    def __init__(
        self,
        cell: Cell,
        clean: LayerRouting,
        kinds: Mapping[str, Paired],
        margins: TokenMargins,
        levels: tuple[float, ...],
    ) -> None:
        self._cell, self._clean, self._kinds = cell, clean, kinds
        self._margins, self._levels = margins, levels
        # The number of the first level at which a set differs.
        self._first = torch.full(margins.margin.shape, len(levels))

    def grow(self, noisy: LayerRouting, number: int) -> _Sums:
        """Return the sums of level ``number``, whose routing is ``noisy``."""
        changed = ~self._clean.selects_the_same(noisy).cpu()
        self._first[changed & (self._first > number)] = number
        sigma = self._levels[number]
        probability = self._margins.probability(sigma)
        sums: _Sums = {}
        for kind, tokens in self._kinds.items():
            cell = dataclasses.replace(self._cell, severity=sigma, tokens=kind)
            survives = tokens.of_reference(self._first) > number
            predicted = predict(self._margins, tokens, tokens.of_reference(changed), probability)
            columns = FlipPredictionAnalysis().sums(predicted)
            sums[cell] = SetSurvivalAnalysis().sums(Survivors(tokens.present, survives)) | columns
            if kind == self._clean.modality.token:
                sums |= {
                    dataclasses.replace(cell, tokens=name): of_bin
                    for name, of_bin in columns_by_bin(columns).items()
                }
        return sums

    def critical(self) -> _Sums:
        """Return the sums of all levels together, once all are added."""
        sums = {}
        for kind, tokens in self._kinds.items():
            first, margin, sensitivity = (
                tokens.of_reference(values)
                for values in (self._first, self._margins.margin, self._margins.sensitivity)
            )
            noise = NoiseResponse(tokens.present, first, self._levels, margin, sensitivity)
            sums[dataclasses.replace(self._cell, tokens=kind)] = CriticalNoiseAnalysis().sums(noise)
        return sums


def predict(
    margins: TokenMargins, tokens: Paired, flips: Tensor, probability: Tensor | None = None
) -> PredictedFlips:
    """Return the prediction for tokens of a kind.

    Args:
        margins: of all tokens ``(B, T)``.
        tokens: the tokens, by their numbers in the reference.
        flips: ``(B, J)`` which of them have another set.
        probability: ``(B, T)`` of a flip of each token; None = the perturbation has no σ.
    """
    margin, critical = (tokens.of_reference(values) for values in (margins.margin, margins.critical))
    probabilities = None if probability is None else tokens.of_reference(probability)
    return PredictedFlips(tokens.present, flips, margin, critical, probabilities)
