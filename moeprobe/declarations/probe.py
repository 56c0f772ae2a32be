"""The declaration of a probe, read by everything that names, runs, draws or prints it."""

import enum
from abc import ABC
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from moeprobe.declarations.kinds import resolve
from moeprobe.declarations.question import Question

if TYPE_CHECKING:
    from moeprobe.adapters.base import Checkpoint
    from moeprobe.declarations.options import Options
    from moeprobe.probes.engine.run import ProbeWork

R = TypeVar("R")


class Views(enum.Enum):
    """What a probe perturbs."""

    NONE = "clean inputs alone"
    PAIRS = "two random views of an input"
    SEVERITIES = "a view with a severity, against the clean input"
    ANY = "either, or none"


@dataclass(frozen=True, kw_only=True)
class Probe(Question[R], ABC, Generic[R]):
    """A question to checkpoints: its fields are its parameters, its docstring is the help; ``R`` is what it returns.

    A plain loop over images needs no more than its analyses; what measures otherwise names its ``work``.

    Attributes:
        views: what it perturbs; its field ``view`` says how, and its severities say how far.
        needs_routing: whether dense models, which have no MoE layer, are refused.
        labels_required: whether data without the model's classes are refused.
        optional: analyses that are left out where no model has scores.
        leaves_out: whether it can do without single inputs whose gates or scores are not finite.
        noise_floor: whether clean images are run again unchanged.
        refuses_precision: why its passes are in float32 alone, as the end of a sentence; empty = they need not be.
        refuses_parallel: why it needs a whole model in each process, as the end of a sentence; empty = it does not.
        compares: whether ``compare`` can measure checkpoints by it.
        timed: whether its images per second are read, so that they are measured with care.
        ends_with: the step after the forward passes that a plan counts.
        at_least: whether there are more passes than are known beforehand.
        resumes: whether an interrupted run resumes where it stopped.
        splits: whether it can be measured in shards.
        colorless: figures in which checkpoints have no colors, and which ``draw`` does not make.
        work: ``module:class`` of what ``prepare`` returns, a ``Measurement``; imported when a run begins.

    Raises:
        UserError: a field has a value of another type, or out of range.
    """

    views: ClassVar[Views] = Views.NONE
    needs_routing: ClassVar[bool] = True
    labels_required: ClassVar[bool] = False
    optional: ClassVar[tuple[str, ...]] = ()
    leaves_out: ClassVar[bool] = True
    noise_floor: ClassVar[bool] = False
    refuses_precision: ClassVar[str] = ""
    refuses_parallel: ClassVar[str] = ""
    compares: ClassVar[bool] = True
    timed: ClassVar[bool] = False
    ends_with: ClassVar[str] = "the statistics"
    at_least: ClassVar[bool] = False
    resumes: ClassVar[bool] = True
    splits: ClassVar[bool] = True
    colorless: ClassVar[tuple[str, ...]] = ()
    work: ClassVar[str] = "moeprobe.probes.engine.measurement:Measurement"

    def check_models(self, models: Sequence[Any]) -> None:
        """Raise ``UserError`` where there are too few models, before any is loaded."""

    def needs_all_models(self) -> bool:
        """Whether it uses several models in turn for one input, so that all must be in memory at once."""
        return False

    def check_data(self, kind: type, data: str) -> None:
        """Raise ``UserError`` where a data set of this class, named ``data``, does not suit, before it is opened."""

    def learn(self, model: "Checkpoint", options: "Options") -> None:
        """Make the passes that checks need of a model that was just loaded; others will take its place in memory."""
        resolve(self.work).learn(self, model, options)

    def prepare(self, models: Sequence["Checkpoint"], data: str | None, options: "Options") -> "ProbeWork[R]":
        """Return the work, with all checked that can be checked before it is done; raises ``UserError``."""
        return resolve(self.work)(self, models, data, options)
