"""How a kind of run declares its headlines. Without pandas, since ``--help`` is made of declarations."""

from dataclasses import dataclass

Which = tuple[str, str]  # metric, null


@dataclass(frozen=True)
class Headline:
    """A number that is read first: of the first MoE layer, or of the output.

    The first layer, since the routing of patches there reaches the answer: where the head reads the class token alone,
    patch routing in the last block does not.

    Attributes:
        metric: its name in tables.
        null: the chance level that it is about; empty = none.
        at: which severity is meant where a run has several: "only", "weakest", "strongest"; "mean" = their mean.
        view: the view that it is about, where a run has several, or of these the first that it has; empty = all.
        companions: numbers without which it is not understood: noun -> metric and null.
        severity: phrase for the severity.
        noun: what it is called in the middle of a sentence; empty = as its metric says.
        beside: whether nothing is concluded of the headline before it without this one.
    """

    metric: str
    null: str = ""
    at: str = "only"
    companions: tuple[tuple[str, Which], ...] = ()
    severity: str = "at severity {severity:g}, the {at} of the run"
    noun: str = ""
    beside: bool = False
    view: str | tuple[str, ...] = ""

    @property
    def which(self) -> Which:
        """Metric and null."""
        return self.metric, self.null


@dataclass(frozen=True)
class Agreement:
    """The headline of what measures agreement: the first kind of it that all checkpoints have, beyond chance.

    With several experts per token, κ of their sets stands beside it, also within the image. Fields as in ``Headline``.
    """

    at: str = "only"
    view: str | tuple[str, ...] = ""
    severity: str = Headline.severity
