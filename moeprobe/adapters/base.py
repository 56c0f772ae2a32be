"""A model to be probed, as adapters hand it over, and what adapters share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.inputs.texts import TextFraming
from moeprobe.routing.capabilities import Traceable
from moeprobe.runtime.arguments import checked_class
from moeprobe.runtime.catalog import describe_unknown

if TYPE_CHECKING:
    import torch


def wanted_layers(layers: Sequence[str] | None, available: Sequence[str]) -> list[str]:
    """Return the requested layers of a model in the model's order; None = all.

    Raises:
        UserError: it has no layer of some name.
    """
    for name in layers or ():
        if name not in available:
            raise UserError(describe_unknown("MoE layer", name, available))
    return [name for name in available if layers is None or name in layers]


def layers_before(names: Sequence[str], available: Sequence[str]) -> dict[str, str]:
    """Return the model's MoE layer before each of the named ones; the model's first has none."""
    before = {name: earlier for earlier, name in pairwise(available)}
    return {name: before[name] for name in names if name in before}


class PassEnd(BaseException):
    """All that was wanted of a forward pass is there, so a hook ends it.

    No ``Exception``: it is no error, and a model that catches its own errors must not catch it.
    """


class Adapter(ABC):
    """What opens models of a kind by name, ``scheme:reference``; a plug-in's scheme is its name in the catalog.

    Attributes:
        takes_settings: whether ``open`` reads settings ``,key=value`` after a reference; otherwise they are refused.
    """

    takes_settings: ClassVar[bool] = False

    @classmethod
    @abstractmethod
    def open(
        cls, reference: str, *, device: "torch.device", trained_capacity: bool, group_images: int
    ) -> "Checkpoint":
        """Return the model that a reference means, on a device.

        Args:
            reference: the text after the colon.
            device: where the model is to run.
            trained_capacity: keep the capacity that the model evaluates with, instead of no limit.
            group_images: images that compete for that capacity.

        Raises:
            UserError: there is none, or it cannot be probed.
        """

    @classmethod
    def describe_unopened(cls, reference: str) -> dict[str, Any] | None:
        """Describe a model without its weights; None = it has to be opened.

        Args:
            reference: the text after the colon.

        Raises:
            UserError: there is none, or it cannot be probed.
        """
        return None


AnyFraming = Framing | TextFraming


@checked_class
@dataclass(frozen=True)
class Checkpoint:
    """A model made traceable, and what the tables say of it.

    Attributes:
        name: what the tables call it, unless two have one name.
        model: the traceable model.
        framing: how an unperturbed image, or text, is brought to its input.
        class_names: what its scores are about; empty if unknown.
        train_seed: seed of its training, None if unknown.
        group: name shared by checkpoints that differ in their training seed alone.
        provenance: path, sha256, training, ...: for the sidecar.
    """

    name: str
    model: Traceable
    framing: AnyFraming
    class_names: tuple[str, ...] = ()
    train_seed: int | None = None
    group: str = ""
    provenance: Mapping[str, Any] = field(default_factory=dict)


# What a probe takes for a checkpoint, and one of them or several.
Model = Checkpoint | str | Path
Models = Model | Sequence[Model]
