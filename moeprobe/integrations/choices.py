"""The choices of a probe set at one step, which later ones are compared with; the state of a monitor are two of them.

Axes: B inputs of a batch, T tokens, K choices.
"""

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.inputs.batches import Batch, TextBatch
from moeprobe.inputs.texts import TokenBatch
from moeprobe.routing.finite import gates_are_not
from moeprobe.routing.record import LayerRouting, RoutingTrace

# What a comparison reads of a layer; what else it needs is the same at every step.
_FIELDS = ("selected", "processed", "valid", "slot")
# In names of tensors.
_SEPARATOR = "/"
# How names of a state begin.
_INPUTS, _FIRST, _LAST = "inputs", "first/", "last/"


@dataclass(frozen=True)
class RecordedChoices:
    """The choices of a probe set at one step.

    Attributes:
        step: of the training.
        batches: of each batch by layer the fields of its routing, on the CPU.
    """

    step: int
    batches: Sequence[Mapping[str, Mapping[str, Tensor]]]

    @classmethod
    def of(cls, step: int, traces: Iterable[RoutingTrace]) -> "RecordedChoices":
        """Return the choices of some routing."""
        return cls(step, [{name: _fields(layer) for name, layer in trace.layers.items()} for trace in traces])

    def traces(self, like: Sequence[RoutingTrace]) -> list[RoutingTrace]:
        """Return them as routing without gates; ``like`` is routing of the same batches at another step."""
        return [
            RoutingTrace({name: _with(layer, batch[name]) for name, layer in trace.layers.items()})
            for batch, trace in zip(self.batches, like, strict=True)
        ]

    def tensors(self) -> dict[str, Tensor]:
        """Return them by name: ``step``, and ``BATCH/LAYER/FIELD``."""
        return {"step": torch.tensor(self.step)} | {
            _SEPARATOR.join((str(number), layer, field)): value
            for number, batch in enumerate(self.batches)
            for layer, fields in batch.items()
            for field, value in fields.items()
        }

    @property
    def layers(self) -> list[str]:
        """The names of the MoE layers."""
        return sorted({layer for batch in self.batches for layer in batch})

    @property
    def layout(self) -> dict[str, tuple[torch.Size, torch.dtype, torch.layout]]:
        """Shape and type of each tensor, which are the same at every step of a training."""
        return {name: (value.shape, value.dtype, value.layout) for name, value in self.tensors().items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "RecordedChoices":
        """Return what ``tensors`` made; raises ``ValueError`` or ``LookupError`` where it did not make them."""
        batches: dict[int, dict[str, dict[str, Tensor]]] = {}
        for name, value in tensors.items():
            if name != "step":
                number, *path, field = name.split(_SEPARATOR)
                layer = _SEPARATOR.join(path)
                batches.setdefault(int(number), {}).setdefault(layer, {})[field] = value
        return cls(int(tensors["step"]), [batches[number] for number in sorted(batches)])


def state_of(
    first: RecordedChoices, last: RecordedChoices, batches: Iterable[Batch | TextBatch]
) -> dict[str, Tensor]:
    """Return the choices of the first and the last record as tensors by name, with a hash of the inputs."""
    return {_INPUTS: digest(batches)} | {
        f"{prefix}{name}": value
        for prefix, choices in ((_FIRST, first), (_LAST, last))
        for name, value in choices.tensors().items()
    }


def choices_of(
    state: Mapping[str, Tensor], batches: Iterable[Batch | TextBatch], present: RecordedChoices
) -> tuple[RecordedChoices, RecordedChoices]:
    """Return the first and last choices of a state.

    Args:
        state: what ``state_of`` returned.
        batches: the inputs now.
        present: their choices now.

    Raises:
        UserError: it is something else, or of other inputs or of another model.
    """
    try:
        is_of_inputs = torch.equal(state[_INPUTS].cpu(), digest(batches))
        first, last = (
            RecordedChoices.from_tensors(
                {name[len(prefix) :]: state[name].cpu() for name in state if name.startswith(prefix)}
            )
            for prefix in (_FIRST, _LAST)
        )
    # What other containers, names and tensors raise; torch raises RuntimeError.
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError):
        raise UserError("This is no state of a monitor; give what its state_dict returned.") from None
    if not is_of_inputs:
        raise UserError(
            "The state of the monitor is of another probe set; give the same data, split, limit, seed and "
            "batch_size as before, or leave the state out."
        )
    for choices in (first, last):
        if choices.layers != present.layers:
            raise UserError(
                f"The state of the monitor is of another model, with MoE layers {', '.join(choices.layers)}; leave "
                "the state out."
            )
        if choices.layout != present.layout:
            raise UserError(
                "The state of the monitor is of a model with other tokens or choices per token; leave the state out."
            )
    return first, last


def digest(batches: Iterable[Batch | TextBatch]) -> Tensor:
    """Return a hash of the inputs of some batches, ``(32,)`` uint8: pixels or token ids."""
    hashed = hashlib.sha256()
    for batch in batches:
        inputs = batch.views[0]
        tensor = inputs.ids if isinstance(inputs, TokenBatch) else inputs
        hashed.update(repr(tuple(tensor.shape)).encode())
        hashed.update(tensor.cpu().contiguous().numpy().tobytes())
    return torch.frombuffer(bytearray(hashed.digest()), dtype=torch.uint8)


def _fields(layer: LayerRouting) -> dict[str, Tensor]:
    fields = {name: value.cpu() for name in _FIELDS if (value := getattr(layer, name)) is not None}
    # An input without finite gates has chosen nothing that could be compared.
    fields["valid"] = fields["valid"] & ~gates_are_not(layer).cpu()[:, None]
    return fields


def _with(layer: LayerRouting, fields: Mapping[str, Any]) -> LayerRouting:
    no_gates = torch.zeros(()).expand(layer.gates.shape)
    return dataclasses.replace(layer, gates=no_gates, scores=None, places=None, **fields)
