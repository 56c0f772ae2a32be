"""What the perturbation does to the model's answer: accuracy, and agreement with the answer to the clean image."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from moeprobe.analyses.base import Columns, Metric, OutputAnalysis, OutputPair
from moeprobe.statistics import Ratio

_TOP = 5


class Output(OutputAnalysis):
    """Accuracy, top-5 accuracy and cross-entropy of the view, and how often it keeps the reference's prediction."""

    signature = "predicted"

    def sums(self, pair: OutputPair) -> dict[str, Tensor]:
        """Return per image: labelled, correct, correct among five, loss, agreement."""
        labelled = pair.labels >= 0
        target = pair.labels.clamp_min(0)
        rank = (pair.view > pair.view.gather(1, target[:, None])).sum(1)
        loss = F.cross_entropy(pair.view, target, reduction="none")
        columns = {
            "labelled": labelled.long(),
            "accuracy": ((pair.view.argmax(1) == target) & labelled).long(),
            "loss": loss.where(labelled, torch.zeros_like(loss)),
            "predicted": torch.ones_like(labelled, dtype=torch.long),
        }
        if pair.reference is not None:
            columns["prediction_agreement"] = (pair.view.argmax(1) == pair.reference.argmax(1)).long()
        if pair.view.shape[1] > _TOP:  # among five of five everything is right
            columns["top5_accuracy"] = ((rank < _TOP) & labelled).long()
        return columns

    def metrics(self, columns: Columns, *, aligned: bool) -> list[Metric]:
        """Return the ratios; nothing about labels where no image has one."""
        denominators = {
            "accuracy": "labelled",
            "top5_accuracy": "labelled",
            "loss": "labelled",
            "prediction_agreement": "predicted",
        }
        found = []
        for name, denominator in denominators.items():
            count = columns[denominator]
            if name in columns and count.sum() > 0:
                statistic = Ratio(columns[name].astype(np.float64), count.astype(np.float64))
                found.append(Metric(name, "", statistic, count))
        return found
