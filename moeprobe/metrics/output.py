"""What the perturbation does to the model's answer: accuracy, and agreement with the answer to the clean image."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moeprobe.metrics.base import Columns, Estimator, OutputAnalysis, OutputPair
from moeprobe.metrics.stats.bootstrap import Ratio, Share
from moeprobe.routing.finite import scores_are_not

_TOP = 5
_OF_LABELS = ("accuracy", "top5_accuracy", "loss")


class Output(OutputAnalysis):
    """Accuracy, top-5 accuracy and cross-entropy of the view, and how often it keeps the reference's prediction."""

    signature = "predicted"
    named = _OF_LABELS

    def sums(self, pair: OutputPair) -> dict[str, Tensor]:
        """Return per image: labelled, correct, correct among five, loss, agreement.

        Scores without a highest one (NaN) are no answer, and no trial.
        """
        answered = ~scores_are_not(pair.view)
        labelled = (pair.labels >= 0) & answered
        target = pair.labels.clamp_min(0)
        rank = _rank(pair.view, target)
        loss = F.cross_entropy(pair.view, target, reduction="none")
        both = answered
        if pair.reference is not None:
            both = answered & ~scores_are_not(pair.reference)
        columns = {
            "labelled": labelled.long(),
            "accuracy": ((rank == 0) & labelled).long(),
            "loss": loss.where(labelled, torch.zeros_like(loss)),
            "predicted": both.long(),
        }
        if pair.reference is not None:
            agree = pair.view.argmax(1) == pair.reference.argmax(1)
            columns["prediction_agreement"] = (agree & both).long()
        if pair.view.shape[1] > _TOP:  # among five of five everything is right
            columns["top5_accuracy"] = ((rank < _TOP) & labelled).long()
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the ratios; nothing about labels where no image has one. Without a single answer there is no value."""
        denominators = dict.fromkeys(_OF_LABELS, "labelled") | {"prediction_agreement": "predicted"}
        found, unanswered = [], not columns["predicted"].any()
        for name, denominator in denominators.items():
            count = columns[denominator]
            if name in columns and (unanswered or count.sum() > 0):
                kind = Ratio if name == "loss" else Share
                statistic = kind(columns[name].astype(np.float64), count.astype(np.float64))
                found.append(Estimator(name, "", statistic, count))
        return found


def _rank(scores: Tensor, target: Tensor) -> Tensor:
    """Return the place ``(B,)`` of a class among the scores ``(B, classes)``, from 0 on; ties to the lower class.

    So does ``argmax``. To count the better ones alone would put every class of equal scores first.
    """
    own = scores.gather(1, target[:, None])
    lower = torch.arange(scores.shape[1], device=scores.device) < target[:, None]
    return ((scores > own) | ((scores == own) & lower)).sum(1)
