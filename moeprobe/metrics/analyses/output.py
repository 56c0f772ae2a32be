"""What the perturbation does to the model's answer: accuracy, and agreement with the answer to the clean image."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, OutputAnalysis, OutputPair
from moeprobe.metrics.declaration import Metric
from moeprobe.routing.finite import scores_are_not

if TYPE_CHECKING:
    from torch import Tensor


_TOP = 5

ACCURACY = Metric(
    "accuracy",
    about="share of labeled inputs whose class has the highest score",
    better="more",
    rank=10,
    headline=True,
    of_labels=True,
)
TOP5_ACCURACY = Metric(
    "top5_accuracy",
    about="share of labeled inputs whose class is among the five with the highest scores",
    label="top-5 accuracy",
    better="more",
    of_labels=True,
)
PREDICTION_AGREEMENT = Metric(
    "prediction_agreement",
    about="share of inputs with the same predicted class as the clean input",
    label="same prediction as clean",
    better="more",
    rank=12,
    headline=True,
)
LOSS = Metric(
    "loss",
    about="mean cross-entropy of the class scores with the label, with the natural logarithm",
    label="cross-entropy",
    better="less",
    unit="nats",
    rank=13,
    headline=True,
    of_labels=True,
)


class Output(OutputAnalysis):
    """Accuracy, top-5 accuracy and cross-entropy of the view, and how often it keeps the reference's prediction.

    Two of three images are right, and two have the answer to the clean image. The probabilities of their classes are
    0.8, 0.5 and 0.2, and the loss is the mean of −log of these, (0.223 + 0.693 + 1.609) / 3:

    >>> import torch
    >>> from moeprobe.metrics.analyses.output import Output
    >>> from moeprobe.metrics.base import OutputPair
    >>> from moeprobe.metrics.by_hand import numbers
    >>> clean = torch.tensor([[0.7, 0.3], [0.4, 0.6], [0.9, 0.1]]).log()
    >>> view = torch.tensor([[0.8, 0.2], [0.5, 0.5], [0.8, 0.2]]).log()
    >>> numbers(Output(), OutputPair(clean, view, labels=torch.tensor([0, 0, 1])))
    {'accuracy': 0.667, 'loss': 0.842, 'prediction_agreement': 0.667}
    """

    measures = (
        ACCURACY,
        TOP5_ACCURACY,
        LOSS,
        PREDICTION_AGREEMENT,
    )
    signature = "predicted"

    def sums(self, pair: OutputPair) -> dict[str, Tensor]:
        """Return per image: labeled, correct, correct among five, loss, agreement.

        Scores without a highest one (NaN) are no answer, and no trial.
        """
        import torch
        import torch.nn.functional as F

        answered = ~scores_are_not(pair.view)
        labeled = (pair.labels >= 0) & answered
        target = pair.labels.clamp_min(0)
        rank = _rank(pair.view, target)
        loss = F.cross_entropy(pair.view, target, reduction="none")
        comparable = answered
        if pair.reference is not None:
            comparable = answered & ~scores_are_not(pair.reference)
        columns = {
            "labelled": labeled.long(),
            "accuracy": ((rank == 0) & labeled).long(),
            "loss": loss.where(labeled, torch.zeros_like(loss)),
            "predicted": comparable.long(),
        }
        if pair.reference is not None:
            agree = pair.view.argmax(1) == pair.reference.argmax(1)
            columns["prediction_agreement"] = (agree & comparable).long()
        if pair.view.shape[1] > _TOP:  # among five of five everything is right
            columns["top5_accuracy"] = ((rank < _TOP) & labeled).long()
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the ratios; nothing about labels where no image has one. Without a single answer there is no value."""
        denominators = dict.fromkeys((ACCURACY, TOP5_ACCURACY, LOSS), "labelled")
        denominators[PREDICTION_AGREEMENT] = "predicted"
        estimators, unanswered = [], not columns["predicted"].any()
        for metric, denominator in denominators.items():
            count = columns[denominator]
            if metric.name in columns and (unanswered or count.sum() > 0):
                estimate = metric.mean_of if metric is LOSS else metric.share_of
                estimators.append(estimate(columns[metric.name], count))
        return estimators


def _rank(scores: Tensor, target: Tensor) -> Tensor:
    """Return the place ``(B,)`` of a class among the scores ``(B, classes)``, from 0 on; ties to the lower class.

    So does ``argmax``. To count the better ones alone would put every class of equal scores first.
    """
    import torch

    target_score = scores.gather(1, target[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < target[:, None]
    return ((scores > target_score) | ((scores == target_score) & lower)).sum(1)
