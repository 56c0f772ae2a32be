"""What does a flip cost: another set of experts for one token of one layer, everything else as in the clean pass?

A *flip* is forced on the model, so its price is an effect and no correlation. Prices may be negative: another set may
serve an image better. A mean price near 0 therefore does not say that flips do nothing; ``flip_size`` does.

Tokens are sampled, and each stands for as many as could have been drawn in its image (its *weight*), so that means are
over all flips of the images, whatever number of them was measured.

Axes: B images, T tokens.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric, MetricFamily

if TYPE_CHECKING:
    from torch import Tensor

# Parts of the patches by their margin.
DECILES = 10
# Nats that the log-probability must move for a flip to count as one that matters.
BEYOND = 0.01
# Which set is forced on a token, worded for the middle of a sentence.
FORCED = {
    "runner_up": "the runner-up in place of the last chosen expert",
    "first": "the runner-up in place of the first chosen expert",
    "random": "another set drawn at random",
    "view": "the set chosen under the perturbation",
}
# What follows in labels; of the leading set nothing.
LABELS = {
    "runner_up": "",
    "first": ", first replaced",
    "random": ", random set",
    "view": ", perturbed set",
}


@dataclass(frozen=True)
class ForcedFlips:
    """Flips to one kind of set, of the tokens of a batch at one layer; where the weight is 0, none was forced.

    Attributes:
        weight: ``(B, T)`` tokens of the image that the flip stands for.
        price: ``(B, T)`` rise of the cross-entropy with the label, in nats; NaN where an image has none.
        fall: ``(B, T)`` fall of the log-probability of the class predicted for the clean image, in nats.
        answer: ``(B, T)`` bool, whether another class is predicted.
        output: ``(B, T)`` norm of the change of the layer's output, over the norm of the output; None = not known.
    """

    weight: Tensor
    price: Tensor
    fall: Tensor
    answer: Tensor
    output: Tensor | None

    def among(self, tokens: Tensor) -> ForcedFlips:
        """Return the flips of some tokens ``(B, T)`` alone."""
        return replace(self, weight=self.weight * tokens)


# The numbers, each with its description, its label, and the rest of its declaration.
_MEASURED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "price": (
        "rise of the cross-entropy with the label by a flip of one token in this layer, on average; the "
        "log-probability of the true class falls by as much",
        "price of a flip",
        {"unit": "nats", "better": "less", "of_labels": True},
    ),
    "fall": (
        "fall of the log-probability of the class predicted for the clean input by a flip, on average",
        "fall by a flip",
        {"unit": "nats", "better": "less"},
    ),
    "size": (
        "how far a flip moves that log-probability, up or down, on average",
        "size of a flip",
        {"unit": "nats", "better": "less"},
    ),
    "beyond": (
        f"share of flips of one token in this layer that move that log-probability by more than {BEYOND:g} nats, up or "
        "down",
        f"flips beyond {BEYOND:g} nats",
        {"better": "less"},
    ),
    "answer": (
        "share of flips of one token in this layer that change the predicted class",
        "flips that change the answer",
        {"better": "less"},
    ),
    "output": (
        "norm of the change of the layer's output at the token by a flip, over the norm of that output, on average",
        "change of the output",
        {"unit": "other"},
    ),
}


# Those of the above that count flips.
_SHARES = ("beyond", "answer")


def flip_metric(measured: str, forced: str) -> Metric:
    """Return the metric that is ``measured`` (price, fall, size, beyond, answer, output) of flips to a kind of set."""
    meaning, label, declared = _MEASURED[measured]
    return Metric(
        f"flip_{measured}_{forced}",
        about=f"{meaning}: {FORCED[forced]}",
        label=f"{label}{LABELS[forced]}",
        **declared,
    )


class FlipsAnalysis(ModelAnalysis[Mapping[str, ForcedFlips]]):
    """What forced flips of single tokens do to the loss, the answer and the layer's output, by the kind of set.

    Two flips in an image, the first of which stands for three tokens: (3 · 0.2 − 1 · 0.2) / 4 is the mean fall, the
    mean size (3 · 0.2 + 1 · 0.2) / 4, and the first alone changes the answer:

    >>> import torch
    >>> from moeprobe.metrics.analyses.flips import FlipsAnalysis, ForcedFlips
    >>> from moeprobe.metrics.by_hand import numbers
    >>> fall = torch.tensor([[0.2, -0.2]])
    >>> flips = ForcedFlips(torch.tensor([[3.0, 1.0]]), fall, fall, torch.tensor([[True, False]]), output=None)
    >>> value = numbers(FlipsAnalysis(), {"runner_up": flips})
    >>> value["flip_fall_runner_up"], value["flip_size_runner_up"], value["flip_answer_runner_up"]
    (0.1, 0.2, 0.75)
    """

    measures = tuple(
        MetricFamily(
            f"flip_{measured}_{{set}}",
            rf"flip_{measured}_({'|'.join(FORCED)})",
            partial(flip_metric, measured),
            example=("runner_up",),
        )
        for measured in _MEASURED
    )
    signature = "flips_runner_up"

    def sums(self, subject: Mapping[str, ForcedFlips]) -> dict[str, Tensor]:
        """Return per image, for each kind of set, flips, their weights, and weighted sums of what they do."""
        columns: dict[str, Tensor] = {}
        for forced, flips in subject.items():
            weight = flips.weight.double()
            is_labeled = flips.price.isfinite()
            columns |= {
                f"flips_{forced}": (weight > 0).sum(1),
                f"flips_weight_{forced}": weight.sum(1),
                f"flips_labeled_{forced}": ((weight > 0) & is_labeled).sum(1),
                f"flips_labeled_weight_{forced}": (weight * is_labeled).sum(1),
            }
            values = {
                "price": flips.price.masked_fill(~is_labeled, 0),
                "fall": flips.fall,
                "size": flips.fall.abs(),
                "beyond": flips.fall.abs() > BEYOND,
                "answer": flips.answer,
                "output": flips.output,
            }
            # Masked, not multiplied: nothing is known of tokens that were not flipped.
            columns |= {
                flip_metric(name, forced).name: (weight * value.double()).masked_fill(weight == 0, 0).sum(1)
                for name, value in values.items()
                if value is not None
            }
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over flips."""
        estimators = []
        for forced, measured in itertools.product(FORCED, _MEASURED):
            metric = flip_metric(measured, forced)
            if metric.name not in columns:
                continue
            labeled = "_labeled" if measured == "price" else ""
            trials = columns[f"flips{labeled}_{forced}"]
            if trials.any() or not labeled:
                weight = columns[f"flips{labeled}_weight_{forced}"]
                mean = metric.share_of if measured in _SHARES else metric.mean_of
                estimators.append(mean(columns[metric.name], trials, weight=weight))
        return estimators
