"""How a kind of run declares its headlines, and joins an audit.

Without pandas, since ``--help`` is made of declarations. What counts as good is no part of a declaration: a property
names a scale, and the values of all scales are in ``judging/scales.py``.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

Which = tuple[str, str]  # metric, null
# The view of inputs that nothing perturbs.
CLEAN = "clean"


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
        concludes: whether anything is concluded from it.
    """

    metric: str
    null: str = ""
    at: str = "only"
    companions: tuple[tuple[str, Which], ...] = ()
    severity: str = "at severity {severity:g}, the {at} of the run"
    noun: str = ""
    beside: bool = False
    concludes: bool = True
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


# Audits: the properties that a kind of run judges, and its parameters there.

_NONE: Mapping[str, Any] = MappingProxyType({})


class Rule(enum.Enum):
    """How the numbers of a property become one verdict."""

    WORST = "by the layer, or the variant of the run, in which the number is worst"
    VARIANTS = "by each variant of the run: those that are in the best band in every layer"
    FIRST = "by the first layer, since patches of the last may not reach the answer"
    HIGHEST = "by the name of the highest of several numbers in the first layer"


@dataclass(frozen=True)
class Property:
    """Something that an audit says of a model, judged by a number of a run.

    Attributes:
        name: in tables, e.g. "crops".
        title: on the screen and on the page.
        numbers: the judged metrics; several only where the highest of them names the verdict.
        scale: which bands it is judged by, a name in ``judging.scales.SCALES``.
        rule: how the layers become one verdict.
        companion: judges this companion of the number in its place, e.g. "by chance".
        text_title: its title for language models; empty = the same.
        advice: word of a band -> what to do next.
        command: the command that gives more, with ``{models}`` and ``{data}``; empty = the probe's own.
        text_command: that for language models; empty = the same.
        compared: whether two models are compared by it.
        views: the views of the run that are judged; empty = all.
        of_pair: whether the numbers are about two models together; then they stand with the second.
        mean_view: what the column ``view`` calls the mean over the views, which stands beside; empty = there is none.
        trials: what the numbers of a layer count, in the plural; empty = tokens.
    """

    name: str
    title: str
    numbers: tuple[Headline | Agreement, ...]
    scale: str
    rule: Rule = Rule.WORST
    companion: str = ""
    text_title: str = ""
    advice: Mapping[str, str] = field(default_factory=lambda: _NONE)
    command: str = ""
    text_command: str = ""
    compared: bool = True
    views: tuple[str, ...] = ()
    of_pair: bool = False
    mean_view: str = ""
    trials: str = ""


@dataclass(frozen=True)
class AuditEntry:
    """How a kind of run joins an audit.

    Attributes:
        order: the smaller, the earlier it runs; what does not fit into the time is left out from the end.
        properties: what it judges; none = its figures alone are shown.
        images: parameters of the probe for models that read images; None = it does not join.
        texts: the same for language models.
        most_images: number of images after which more would not change a verdict; None = no bound.
        figures: names of its figures on the page, by their beginnings.
        statistics: forward passes of which statistics are made, which take time, too; None = all.
    """

    order: int
    properties: tuple[Property, ...] = ()
    images: Mapping[str, Any] | None = field(default_factory=lambda: _NONE)
    texts: Mapping[str, Any] | None = field(default_factory=lambda: _NONE)
    most_images: int | None = None
    figures: tuple[str, ...] = ()
    statistics: int | None = None
