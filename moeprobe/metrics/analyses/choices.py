"""Is the router right? The loss with the router's choice beside the loss with other choices in its place.

One token of one layer gets each of some other choices, one after the other: another expert (k = 1), or the set with one
expert exchanged (k > 1). All else stays, and later layers choose as their routers do. The *options* of a token are the
router's choice and the tried others.

The best option is picked with the losses in sight, so it is better than the router's choice even where the router could
not know better. Numbers about the best option therefore stand beside what a random option shows. The rank of the
router's choice, and its lead over the mean of the others, pick nothing.

Axes: B inputs, N sampled tokens of a batch, M tried others, O = 1 + M options.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.statistic import PartOf, Ratio, Share

if TYPE_CHECKING:
    from torch import Tensor

# Losses that differ by no more are equal: float32 makes as much of nothing.
ROUNDING = 1e-5
_NULL = "option"
# The flag of a share of what a choice can gain, where none gains anything.
NO_STAKES = "no_stakes"

RANK = Metric(
    "choice_rank",
    about="share of the tried other choices that are worse than the router's choice, equal ones count half; of tokens "
    "that have options of unlike loss. By chance 0.5",
    label="other choices that are worse",
    noun="share of other choices that are worse than the router's",
    better="more",
    nulls=(_NULL,),
)
RIGHT = Metric(
    "choice_right",
    about="share of tokens for which no tried other choice is better than the router's by more than `--delta` nats; "
    "the others are those for which another choice is better",
    label="no other choice is better",
    noun="share of tokens for which no other choice is better",
    better="more",
    nulls=(_NULL,),
)
LEAD = Metric(
    "choice_lead",
    about="mean loss with the tried other choices less the loss with the router's choice; 0 for a router that chooses "
    "at random, and nothing is picked",
    label="lead of the router's choice",
    unit="nats",
    better="more",
)
REGRET = Metric(
    "choice_regret",
    about="loss with the router's choice less the loss with the best option, on average. The best is picked with the "
    "losses in sight, so a router that is as good as can be has a regret, too, and more options give more of it",
    label="regret",
    unit="nats",
    better="less",
)
REGRET_RANDOM = Metric(
    "choice_regret_random",
    about="the regret of an option that is drawn at random, in expectation",
    label="regret of a random option",
    unit="nats",
    below="choice_regret",
)
GAIN = Metric(
    "choice_gain",
    about="share of a random option's regret that the router's choice avoids: 0 = as a random one, 1 = always the best",
    label="share of the possible gain",
    unit="other",
    better="more",
)
CORRELATION = Metric(
    "choice_correlation",
    about="rank correlation (Spearman) of an option's gates and its quality (less loss), over the options of a token, "
    "on average over tokens whose options differ in both; of a set, the sum of its gates. By chance 0",
    label="correlation of gates and quality",
    unit="other",
    better="more",
)
STAKES = Metric(
    "choice_stakes",
    about=f"share of tokens for which some tried choice moves the loss by more than rounding ({ROUNDING:g} nats)",
    label="tokens for which the choice matters",
)
# Columns: metric -> the tokens that it is about.
_OF_ALL, _OF_MOVED, _OF_RANKED = "choice_tokens", "choice_tokens_moved", "choice_tokens_ranked"
_RIGHT_RANDOM = "choice_right_random"
_SUMS = {
    RANK.name: _OF_MOVED,
    RIGHT.name: _OF_ALL,
    _RIGHT_RANDOM: _OF_ALL,
    LEAD.name: _OF_ALL,
    REGRET.name: _OF_ALL,
    REGRET_RANDOM.name: _OF_ALL,
    STAKES.name: _OF_ALL,
    CORRELATION.name: _OF_RANKED,
}


@dataclass(frozen=True)
class TriedChoices:
    """What other choices do to the loss, for the sampled tokens of a batch at one layer.

    Attributes:
        inputs: B.
        source: ``(N,)`` the input of each token.
        weight: ``(N,)`` tokens of the input that it stands for.
        rise: ``(N, M)`` the loss with each tried choice less that with the router's, in nats; NaN where an input has
            no label.
        gates: ``(N, O)`` gates of the options, the router's choice first.
        delta: nats by which another choice must be better.
    """

    inputs: int
    source: Tensor
    weight: Tensor
    rise: Tensor
    gates: Tensor
    delta: float

    def among(self, tokens: Tensor) -> TriedChoices:
        """Return the choices of some tokens ``(N,)`` alone."""
        return replace(
            self,
            source=self.source[tokens],
            weight=self.weight[tokens],
            rise=self.rise[tokens],
            gates=self.gates[tokens],
        )


@dataclass(frozen=True)
class _GainShare(PartOf):
    """The share of a random option's regret that a choice avoids."""

    undefined: ClassVar[str] = NO_STAKES


class ChoicesAnalysis(ModelAnalysis[TriedChoices]):
    """How the router's choice compares with others in its place: rank, lead, regret, and whether gates say it.

    Two tokens with two other choices. The first token loses 0.2 and 0.4 by them; the second would gain 0.1 by one and
    lose 0.2 by the other. So 3 of 4 are worse, one token is right, and the regret is 0.1 / 2. A random option of the
    first has a regret of (0 + 0.2 + 0.4) / 3, of the second (0.1 + 0 + 0.3) / 3:

    >>> import torch
    >>> from moeprobe.metrics.analyses.choices import ChoicesAnalysis, TriedChoices
    >>> from moeprobe.metrics.by_hand import numbers
    >>> rise = torch.tensor([[0.2, 0.4], [-0.1, 0.2]])
    >>> gates = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.3, 0.2]])
    >>> tried = TriedChoices(2, torch.tensor([0, 1]), torch.ones(2), rise, gates, delta=0.01)
    >>> value = numbers(ChoicesAnalysis(), tried)
    >>> value["choice_rank"], value["choice_right"], value["choice_regret"], value["choice_regret_random"]
    (0.75, 0.5, 0.05, 0.167)
    >>> value["choice_lead"], value["choice_correlation"]
    (0.175, 0.75)
    """

    measures = (RANK, RIGHT, LEAD, REGRET, REGRET_RANDOM, GAIN, CORRELATION, STAKES)
    signature = _OF_ALL

    def sums(self, subject: TriedChoices) -> dict[str, Tensor]:
        """Return, per input, the tokens that numbers are about, their weights, and weighted sums."""
        import torch

        # Without a label there is no loss.
        with_losses = subject.among(subject.rise.isfinite().all(1))
        weight, rise = with_losses.weight.double(), with_losses.rise.double()
        loss = torch.cat([torch.zeros_like(rise[:, :1]), rise], 1)
        best = loss.amin(1, keepdim=True)
        correlation = _rank_correlation(with_losses.gates.double(), -loss)
        is_moved = (rise.abs() > ROUNDING).any(1)
        tokens = {
            _OF_ALL: torch.ones_like(is_moved),
            _OF_MOVED: is_moved,
            _OF_RANKED: correlation.isfinite() & is_moved,
        }
        excess = loss - best
        values = {
            RANK.name: ((rise > ROUNDING).double() + (rise.abs() <= ROUNDING) / 2).mean(1),
            RIGHT.name: excess[:, 0] <= subject.delta,
            _RIGHT_RANDOM: (excess <= subject.delta).double().mean(1),
            LEAD.name: rise.mean(1),
            REGRET.name: excess[:, 0],
            REGRET_RANDOM.name: excess.mean(1),
            STAKES.name: is_moved,
            CORRELATION.name: correlation.nan_to_num(0),
        }

        def by_input(of_tokens: Tensor) -> Tensor:
            total = torch.zeros(subject.inputs, dtype=torch.float64, device=weight.device)
            return total.index_add(0, with_losses.source, of_tokens.double())

        columns = {name: by_input(mask).long() for name, mask in tokens.items()}
        columns |= {f"{name}_weight": by_input(weight * mask) for name, mask in tokens.items()}
        return columns | {
            name: by_input(weight * value.double() * tokens[_SUMS[name]]) for name, value in values.items()
        }

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the means over tokens, and chance levels of random options."""
        estimators = []
        weights = {name: columns[f"{name}_weight"].astype(np.float64) for name in set(_SUMS.values())}
        for metric in self.measures:
            if metric is GAIN:
                estimators.append(metric.raw(_gain(columns, weights[_OF_ALL]), columns[_OF_ALL]))
                continue
            tokens_column = _SUMS[metric.name]
            if not columns[tokens_column].any() and tokens_column != _OF_ALL:
                continue
            mean = metric.share_of if metric.unit == "share" else metric.mean_of
            estimators.append(
                mean(columns[metric.name], columns[tokens_column], weight=weights[tokens_column])
            )
        if columns[_OF_MOVED].any():
            moved_weights = weights[_OF_MOVED]
            share = Share(columns[RANK.name].astype(np.float64), moved_weights)
            estimators += RANK.chance_and_kappa(
                _NULL, Ratio(moved_weights / 2, moved_weights), share, columns[_OF_MOVED]
            )
        all_weights = weights[_OF_ALL]
        right, random = (
            Share(columns[name].astype(np.float64), all_weights) for name in (RIGHT.name, _RIGHT_RANDOM)
        )
        return [*estimators, *RIGHT.chance_and_kappa(_NULL, random, right, columns[_OF_ALL])]


def _gain(columns: Columns, weight: np.ndarray) -> _GainShare:
    """Return the share of a random option's regret that the choice avoids."""
    random, regret = (columns[metric.name].astype(np.float64) for metric in (REGRET_RANDOM, REGRET))
    return _GainShare(random - regret, random, weight, ROUNDING)


def _rank_correlation(first: Tensor, second: Tensor) -> Tensor:
    """Return Spearman's correlation of two numbers of the options ``(N, O)``; NaN where one of them is constant."""
    ranks = []
    for values in (first, second):
        # Equal values share the mean of their ranks.
        num_below = (values[:, None] < values[..., None]).sum(-1)
        num_equal = (values[:, None] == values[..., None]).sum(-1)
        rank = num_below + (num_equal - 1) / 2
        ranks.append(rank - rank.mean(1, keepdim=True))
    product = (ranks[0] * ranks[1]).sum(1)
    # 0 / 0 where ranks are all equal.
    return product / (ranks[0].square().sum(1) * ranks[1].square().sum(1)).sqrt()
