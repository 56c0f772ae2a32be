"""What does a layer lose without an expert, and what when one expert, or a wrong one, gets every token?

Sets are forced on all tokens of one layer at once, so a rise of the loss is an effect and no correlation. Later layers
choose as their routers do. Four kinds of sets: without one expert (the runner-up in its place), with one expert on
every token (in place of the last chosen one), another one drawn at random, and the experts relabeled along a cycle of
all. What is random is drawn for each input by itself, so intervals over inputs include it.

Of many experts, only some are banned and forced one by one. The means over all experts are then those of an expert that
is drawn for each input.

Axes: B inputs, E experts, N interventions of a kind: single experts, all or some, or the random draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprobe.errors import UserError
from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric, MetricFamily
from moeprobe.metrics.stats.statistic import Array
from moeprobe.metrics.token_kinds import EXPERTS

if TYPE_CHECKING:
    from torch import Tensor

# What is done to a layer, worded for the end of a sentence. The first two are about an expert (column expert).
INTERVENTIONS = {
    "without": "without an expert, the runner-up in its place",
    "forced": "with an expert on every token, in place of the last chosen one",
    "random": "with another set of each token, drawn at random",
    "permuted": "with each expert replaced by the next one on a cycle of all, drawn for each input",
}
# The same in a label, behind what is measured.
_LABELED = {
    "without": "without one expert",
    "forced": "with one expert forced",
    "random": "with random sets",
    "permuted": "with experts relabeled",
}
BANNED = "without"
PER_EXPERT = (BANNED, "forced")
# Ends the name of what is done with an expert that is drawn for each input.
DRAWN = "_drawn"
# Column of the experts that are measured one by one, the same for all inputs; it is absent where they are all.
_MEASURED_EXPERTS = "experts_measured"

# The numbers, each with its description, its label, and the rest of its declaration.
_MEASURED: dict[str, tuple[str, str, dict[str, Any]]] = {
    "price": (
        "rise of the loss by an intervention in one layer: for images the cross-entropy with the label, or without "
        "labels with the model's own answer; per token of a text its negative log-probability",
        "rise of the loss",
        {"unit": "nats", "better": "less"},
    ),
    "accuracy": (
        "accuracy under an intervention in one layer",
        "accuracy",
        {"of_labels": True, "better": "more"},
    ),
    "answer": ("share of images whose predicted class changes", "changed answers", {"better": "less"}),
}


def intervention_metric(measured: str, intervention: str) -> Metric:
    """Return the metric that is ``measured`` (price, accuracy, answer) under an intervention."""
    meaning, label, declared = _MEASURED[measured]
    of_expert = (
        " (column expert; empty: the mean over all of the layer)" if intervention in PER_EXPERT else ""
    )
    return Metric(
        f"experts_{measured}_{intervention}",
        about=f"{meaning}: {INTERVENTIONS[intervention]}{of_expert}",
        label=f"{label} {_LABELED[intervention]}",
        **declared,
    )


# Their rows follow from the prices of all experts of a checkpoint.
PRICE_BAND = Metric(
    "experts_price_band",
    about="the rise of the loss without an expert (column expert), with an interval that holds for all experts of the "
    "checkpoint at once",
    label="rise of the loss without one expert, all at once",
    unit="nats",
    better="less",
)
PRICE_BEYOND = Metric(
    "experts_price_beyond",
    about="share of inputs whose loss changes by more than a limit (column severity), up or down, without an expert "
    "(column expert); the limit is `--loss`, or 0.01 nats per image, or per token of a text",
    label="inputs that change by more",
    better="less",
    severity="change above",
)
DISPENSABLE = Metric(
    "experts_dispensable",
    about="whether an expert (column expert) may be banned alone at a rise of the loss below a limit (column "
    "severity): 1 where the upper end of experts_price_band is below it, else 0; without an expert: their number in "
    "the layer",
    label="number of experts that may go alone",
    unit="whole",
    better="",
    severity="loss below",
)
PRICE_AMONG = Metric(
    "experts_price_among",
    about="the rise of the loss without an expert (column expert) among all experts of its layer: shrunk towards their "
    "mean, by as much as its noise is of what prices vary by",
    label="rise of the loss without one expert, among all",
    unit="nats",
    better="less",
)
PRICES_DIFFER = Metric(
    "experts_prices_differ_p",
    about="p of equal prices of all experts of the layer, or within all layers (layer all): share of resamples of the "
    "inputs in which they would differ as much; trials are experts",
    label="p of equal prices",
    unit="probability",
    margin=False,
)
MISSED_RATE = Metric(
    "experts_missed_rate",
    about="least false discovery rate, among all experts of the checkpoint, at which an expert (column expert) is "
    "named as missed: its ban raises the loss (Benjamini and Hochberg)",
    label="false discovery rate of a missed expert",
    unit="probability",
    margin=False,
)


MEASURED_EXPERTS = Metric(
    "experts_measured",
    about="experts of the layer that are banned and forced one by one, drawn by their load, where they are not all; "
    "trials are all its experts",
    label="experts measured one by one",
    unit="whole",
)


@dataclass(frozen=True)
class Outcome:
    """What the interventions of one kind make of a batch.

    Attributes:
        price: ``(B, N)`` summed rise of the loss, in nats, of an input's trials.
        trials: ``(B,)`` 1 for an image with a label, or whose own answer is the loss; of a text its tokens that have a
            log-probability; else 0.
        correct: ``(B, N)`` whether the label is predicted; None = not known.
        answer: ``(B, N)`` whether another class is predicted than without the intervention; None = there is none.
    """

    price: Tensor
    trials: Tensor
    correct: Tensor | None
    answer: Tensor | None


@dataclass(frozen=True)
class Interventions:
    """What is done to a layer.

    Attributes:
        outcomes: by kind; those that end in ``DRAWN`` are of an expert drawn for each input.
        num_experts: E.
        measured: experts that ``PER_EXPERT`` are about; None = all.
    """

    outcomes: Mapping[str, Outcome]
    num_experts: int
    measured: Sequence[int] | None = None


class ExpertsAnalysis(ModelAnalysis[Interventions]):
    """Loss and answers when an expert is banned, forced on every token, or sets are random or relabeled.

    Two images, each without expert 0 and without expert 1. Their loss rises by 0.1 and 0.4, and by 0.3 and 0.2: 0.2
    without expert 0, 0.3 without expert 1, 0.25 on average:

    >>> import torch
    >>> from moeprobe.metrics.analyses.experts import INTERVENTIONS, ExpertsAnalysis, Interventions, Outcome
    >>> from moeprobe.metrics.by_hand import numbers
    >>> price, trials = torch.tensor([[0.1, 0.4], [0.3, 0.2]]), torch.ones(2, dtype=torch.int64)
    >>> outcomes = dict.fromkeys(INTERVENTIONS, Outcome(price, trials, None, None))
    >>> value = numbers(ExpertsAnalysis(), Interventions(outcomes, num_experts=2))
    >>> value["experts_price_without 0"], value["experts_price_without 1"], value["experts_price_without"]
    (0.2, 0.3, 0.25)
    """

    measures = (
        *(
            MetricFamily(
                f"experts_{measured}_{{intervention}}",
                rf"experts_{measured}_({'|'.join(INTERVENTIONS)})",
                partial(intervention_metric, measured),
                example=("without",),
            )
            for measured in _MEASURED
        ),
        PRICE_BAND,
        PRICE_BEYOND,
        DISPENSABLE,
        PRICE_AMONG,
        PRICES_DIFFER,
        MISSED_RATE,
        MEASURED_EXPERTS,
    )
    signature = "experts_trials_without"

    def sums(self, subject: Interventions) -> dict[str, Tensor]:
        """Return per input the trials, and for each intervention the summed price and answers."""
        import torch

        columns: dict[str, Tensor] = {}
        for intervention, outcome in subject.outcomes.items():
            columns[f"experts_trials_{intervention}"] = outcome.trials
            columns[f"experts_inputs_{intervention}"] = torch.ones_like(outcome.trials)
            measured = {"price": outcome.price, "accuracy": outcome.correct, "answer": outcome.answer}
            columns |= {
                f"experts_{name}_{intervention}": value.double()
                for name, value in measured.items()
                if value is not None
            }
        if subject.measured is not None:
            inputs = len(columns["experts_trials_without"])
            columns[_MEASURED_EXPERTS] = torch.tensor(subject.measured).expand(inputs, -1)
            columns[EXPERTS] = torch.full((inputs,), subject.num_experts)
        return columns

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over inputs and interventions of a kind, and by expert where each is about one."""
        estimators: list[Estimator] = []
        for intervention in INTERVENTIONS:
            for measured in _MEASURED:
                metric = intervention_metric(measured, intervention)
                trials = columns[f"experts_{'inputs' if measured == 'answer' else 'trials'}_{intervention}"]
                if metric.name not in columns or not trials.any():
                    continue
                estimate = metric.mean_of if measured == "price" else metric.share_of
                values = columns[metric.name].astype(np.float64)
                over_all = columns.get(f"{metric.name}{DRAWN}", values).astype(np.float64)
                estimators.append(estimate(over_all.sum(1), trials * over_all.shape[1]))
                if intervention in PER_EXPERT:
                    estimators += [
                        estimate(of_one, trials, expert=expert)
                        for expert, of_one in by_expert(columns, values)
                    ]
        return estimators


def by_expert(columns: Columns, values: Array) -> Iterator[tuple[int, Array]]:
    """Yield each expert that is measured by itself, and its values ``(n,)`` of those ``(n, N)`` of all of them."""
    measured = columns.get(_MEASURED_EXPERTS)
    if measured is not None and (measured != measured[0]).any():
        raise UserError(
            "Parts of this run measured other experts, since passes differ between devices or batch sizes; measure it "
            "again in one place."
        )
    experts = range(values.shape[1]) if measured is None else measured[0].tolist()
    yield from zip(experts, values.T, strict=True)


def sample_of(columns: Columns) -> tuple[int, int] | None:
    """Return how many experts of a layer are measured by themselves, and how many it has; None where all are."""
    if _MEASURED_EXPERTS not in columns:
        return None
    return columns[_MEASURED_EXPERTS].shape[1], int(columns[EXPERTS][0])
