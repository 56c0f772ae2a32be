"""How many different experts does an input use? An input is a request or, in counts of a server, a step of a batch.

It needs counts of choices and no tokens, so it is known of any recording: ``distinct_experts`` says the same of a few
consecutive tokens.

Axes: B samples of one or several inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from moeprobe.metrics.base import Columns, Estimator, ModelAnalysis
from moeprobe.metrics.declaration import Metric

if TYPE_CHECKING:
    from torch import Tensor

DISTINCT_EXPERTS_OF_INPUT = Metric(
    "distinct_experts_of_input",
    about="different experts that an input uses, on average: all tokens of a request, or of a step of a server's "
    "counts, together",
    label="distinct experts of an input",
    short="distinct",
    unit="count",
    rank=47,
)


@dataclass(frozen=True)
class InputUses:
    """What the inputs of some samples use in one layer.

    Attributes:
        experts: ``(B,)`` different experts of each input, added up.
        inputs: ``(B,)`` inputs with any choice.
    """

    experts: Tensor
    inputs: Tensor


class InputExperts(ModelAnalysis[InputUses]):
    """Different experts that an input uses.

    Two samples: one request with 3 different experts, and three requests with 7 together, 10 / 4:

    >>> import torch
    >>> from moeprobe.metrics.analyses.input_experts import InputExperts, InputUses
    >>> from moeprobe.metrics.by_hand import numbers
    >>> numbers(InputExperts(), InputUses(experts=torch.tensor([3, 7]), inputs=torch.tensor([1, 3])))
    {'distinct_experts_of_input': 2.5}
    """

    measures = (DISTINCT_EXPERTS_OF_INPUT,)
    signature = "input_experts"

    def sums(self, subject: InputUses) -> dict[str, Tensor]:
        """Return the experts and the inputs of each sample."""
        return {"input_experts": subject.experts, "input_number": subject.inputs}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the mean."""
        return [DISTINCT_EXPERTS_OF_INPUT.mean_of(columns["input_experts"], columns["input_number"])]
