"""What are the features worth to somebody with a few labeled images? Accuracy of a classifier fitted to them.

The scores come from a regression on frozen features, not from the model's head. Draws of the training images are cells
of their own, and are put together per image.

Axes: B images, n images of a run, d draws put together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, OutputAnalysis, OutputPair
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.alike import same
from moeprobe.metrics.stats.chance.levels import Chance
from moeprobe.metrics.stats.chance.strata import single_stratum
from moeprobe.metrics.stats.chance.trials import Trials
from moeprobe.metrics.stats.statistic import Share

if TYPE_CHECKING:
    from torch import Tensor


FEWSHOT_ACCURACY = Metric(
    "fewshot_accuracy",
    about="share of inputs that ridge regression on the frozen features of a few training images classifies correctly",
    label="few-shot accuracy",
    short="accuracy",
    better="more",
    nulls=("pooled",),
    rank=11,
    headline=True,
    of_labels=True,
    severity="shots",
)


class FewshotAnalysis(OutputAnalysis):
    """Accuracy of a classifier fitted to the features of few images, by chance, and beyond chance.

    Three of four images are classified correctly, as 0, 0, 1, 0 where they are 0, 0, 1, 1. A prediction is the class
    of another image in 5 of 12 pairs, so κ = (3/4 − 5/12) / (1 − 5/12) = 4/7:

    >>> import torch
    >>> from moeprobe.metrics.analyses.fewshot import FewshotAnalysis
    >>> from moeprobe.metrics.base import OutputPair
    >>> from moeprobe.metrics.by_hand import numbers
    >>> scores = torch.tensor([[2.0, 1.0], [2.0, 1.0], [1.0, 2.0], [2.0, 1.0]])
    >>> numbers(FewshotAnalysis(), OutputPair(None, scores, torch.tensor([0, 0, 1, 1])))
    {'fewshot_accuracy': 0.75, 'fewshot_accuracy_chance pooled': 0.417, 'fewshot_accuracy_kappa pooled': 0.571}
    """

    measures = (FEWSHOT_ACCURACY,)
    signature = "fewshot_predicted"
    trial_lists = ("fewshot_class", "fewshot_predicted")

    def sums(self, pair: OutputPair) -> dict[str, Tensor]:
        """Return per image: whether it is labeled, whether it is right, its class and the predicted one, -1 = none."""
        labeled = pair.labels >= 0
        predicted = pair.view.argmax(1)
        return {
            "fewshot_trials": labeled.long(),
            "fewshot_accuracy": ((predicted == pair.labels) & labeled).long(),
            "fewshot_class": pair.labels[:, None],
            "fewshot_predicted": predicted.masked_fill(~labeled, -1)[:, None],
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return accuracy, how often a prediction is the class of *another* image in its draw, and kappa.

        Another one, since an image has one prediction: its pair with itself would count for a whole 1 / n.
        """
        trials = columns["fewshot_trials"]
        if trials.sum() == 0:
            return []
        classes, predicted = (columns[f"fewshot_{name}"].astype(np.int64) for name in ("class", "predicted"))
        image, draw = np.nonzero(classes >= 0)
        accuracy = Share(columns["fewshot_accuracy"].astype(np.float64), trials.astype(np.float64))
        predictions = Trials(
            image, same(classes[image, draw], predicted[image, draw]), num_images=len(trials)
        )
        # An image's class is the same in every draw, so that to keep them apart would change nothing.
        chance = Chance(predictions, single_stratum(len(image)))
        return [
            FEWSHOT_ACCURACY.raw(accuracy, trials),
            *FEWSHOT_ACCURACY.chance_and_kappa("pooled", chance, accuracy, trials),
        ]
