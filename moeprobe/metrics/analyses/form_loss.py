"""What another form of a model does to the loss, and how much of that comes from choosing other experts.

With f(a, r) the log-probability of a token by the arithmetic of form a, routed as form r chose, the gap is
|f(view, view) − f(reference, reference)|. As in ``attribution``, routing's part of it is the mean over the two orders
in which arithmetic and routing can be exchanged, here of g(a, r) = |f(a, r) − f(reference, reference)|:

    ½ g(reference, view) + ½ [g(view, view) − g(view, reference)]

Axes: B inputs, T tokens, n inputs of a whole run.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import PartOf

if TYPE_CHECKING:
    from torch import Tensor

# Nats that are the rounding of log-probabilities in float32.
_ROUNDING = 1e-5
_OF = "of the next token of a text; for images of the label, or of the reference's own answer where there is no label"


def _metric(name: str, description: str, label: str, *, better: bool = False) -> Metric:
    side = {"better": "less"} if better else {}
    return Metric(name, about=description, label=label, unit="nats", margin=False, **side)  # type: ignore[arg-type]


LOSS_RISE = _metric(
    "loss_rise",
    f"by how much the log-probability is lower than in the reference, on average: {_OF}",
    "rise of the loss",
    better=True,
)
LOSS_GAP = _metric(
    "loss_gap",
    f"absolute difference of log-probability from the reference, on average: {_OF}",
    "absolute change of log-probability",
    better=True,
)
GAP_ARITHMETIC = _metric(
    "loss_gap_arithmetic",
    "loss_gap where the form repeats the reference's choices of experts: what arithmetic alone changes",
    "  with the reference's routing",
)
GAP_CHOICES = _metric(
    "loss_gap_choices",
    "loss_gap of the reference itself where it repeats the form's choices of experts: what choices alone change",
    "  of the reference with its routing",
)
GAP_ROUTING = _metric(
    "loss_gap_routing",
    "the part of loss_gap that goes with the choices of experts: the mean over both orders of exchanging arithmetic "
    "and choices",
    "  due to routing",
)
GAP_SHARE = Metric(
    "loss_gap_routing_share",
    about=f"loss_gap_routing divided by loss_gap; none where loss_gap or its interval reaches {_ROUNDING:g} nats: that "
    "is rounding",
    label="  share due to routing",
    unit="other",
    margin=False,
)


@dataclass(frozen=True)
class FormLosses:
    """Log-probabilities ``(B, T)``, NaN where a token has none.

    Attributes:
        reference: f(reference, reference).
        view: f(view, view).
        arithmetic: f(view, reference), the form with the reference's choices; None = not known.
        choices: f(reference, view), the reference with the form's choices; None = not known.
    """

    reference: Tensor
    view: Tensor
    arithmetic: Tensor | None = None
    choices: Tensor | None = None


class FormLoss(ModelAnalysis[FormLosses]):
    """Rise of the loss in another form of a model, its absolute change, and routing's part of that.

    One token at −1.0 in the reference and at −1.6 in the form: −1.2 with the reference's choices, and −1.3 by the
    reference with the form's. Routing has ½ · 0.3 + ½ (0.6 − 0.2):

    >>> import torch
    >>> from moeprobe.metrics.analyses.form_loss import FormLoss, FormLosses
    >>> from moeprobe.metrics.by_hand import numbers
    >>> value = numbers(FormLoss(), FormLosses(*(torch.tensor([[x]]) for x in (-1.0, -1.6, -1.2, -1.3))))
    >>> value["loss_rise"], value["loss_gap"], value["loss_gap_routing"], value["loss_gap_routing_share"]
    (0.6, 0.6, 0.35, 0.583)
    """

    measures = (LOSS_RISE, LOSS_GAP, GAP_ARITHMETIC, GAP_CHOICES, GAP_ROUTING, GAP_SHARE)
    signature = "form_tokens"

    def sums(self, subject: FormLosses) -> dict[str, Tensor]:
        """Return sums over the tokens of each input ``(B,)``."""
        reference, view = subject.reference, subject.view
        sides = [side for side in (subject.arithmetic, subject.choices) if side is not None]
        nothing = reference.isnan() | view.isnan()
        for side in sides:
            nothing = nothing | side.isnan()

        def change(side: Tensor) -> Tensor:
            return (side - reference).double().masked_fill(nothing, 0)

        columns = {
            "form_tokens": (~nothing).sum(1),
            LOSS_RISE.name: -change(view).sum(1),
            LOSS_GAP.name: change(view).abs().sum(1),
        }
        if subject.arithmetic is not None:
            columns[GAP_ARITHMETIC.name] = change(subject.arithmetic).abs().sum(1)
        if subject.choices is not None:
            columns[GAP_CHOICES.name] = change(subject.choices).abs().sum(1)
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means, and routing's part where both forms can repeat the other's choices."""
        trials = columns["form_tokens"]
        sums = {
            metric: columns[metric.name].astype(np.float64)
            for metric in (LOSS_RISE, LOSS_GAP, GAP_ARITHMETIC, GAP_CHOICES)
            if metric.name in columns
        }
        estimators = [metric.mean_of(total, trials) for metric, total in sums.items()]
        if GAP_ARITHMETIC in sums and GAP_CHOICES in sums:
            gap = sums[LOSS_GAP]
            routing = (sums[GAP_CHOICES] + gap - sums[GAP_ARITHMETIC]) / 2
            share = PartOf(routing, gap, trials.astype(np.float64), _ROUNDING)
            estimators += [GAP_ROUTING.mean_of(routing, trials), GAP_SHARE.raw(share, trials)]
        return estimators
