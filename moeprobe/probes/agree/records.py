"""What one form of a model did on each batch, kept in files until another form has read the same inputs.

Forms may be too large to be in memory together, so each reads all inputs before the next does. A record keeps what
tokens chose, the gates of that, and selection margins: a few bytes per choice, and not every gate of every expert.

Axes: B inputs, T tokens, E experts, K choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from moeprobe.inputs.texts import TokenBatch
from moeprobe.metrics.analyses.selection import selection_margins
from moeprobe.routing.record import PER_INPUT, LayerRouting, RoutingTrace
from moeprobe.runtime.files import Scratch

# Selection margins of a layer are kept beside what it chose.
_MARGINS = "margins"


@dataclass(frozen=True)
class FormPass:
    """What a form did on a batch.

    Attributes:
        routing: of its layers; a record has the gates of chosen experts alone, and no scores.
        margins: layer -> selection margin ``(B, T)``, NaN where a token has none.
        ids: ``(B, T)`` what it read; None for images.
        scores: ``(B, classes)`` of images; None where it gives none.
        targets: ``(B,)`` the class whose log-probability is taken; None for texts.
        log_probs: ``(B, T)`` of the tokens of a text, or ``(B, 1)`` of the target; None where there are none.
        replayed: the same with the choices of the reference; None where they cannot be repeated.
    """

    routing: RoutingTrace
    margins: Mapping[str, Tensor]
    ids: Tensor | None = None
    scores: Tensor | None = None
    targets: Tensor | None = None
    log_probs: Tensor | None = None
    replayed: Tensor | None = None

    @classmethod
    def of(cls, routing: RoutingTrace, inputs: Any) -> "FormPass":
        """Return the routing of inputs, with its margins."""
        margins = {name: selection_margins(layer) for name, layer in routing.layers.items()}
        return cls(
            routing,
            {name: margin.float() for name, margin in margins.items() if margin is not None},
            ids=inputs.ids if isinstance(inputs, TokenBatch) else None,
        )


# What is kept beside the layers.
_OUTPUTS = ("ids", "scores", "targets", "log_probs", "replayed")


class Records:
    """The passes of one form, in a folder that disappears with this object."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self._numbers: dict[tuple[str, ...], int] = {}
        # By layer: what is the same in every batch, and the number of experts.
        self._facts: dict[str, tuple[dict[str, Any], int]] = {}

    def write(self, image_ids: Sequence[str], form_pass: FormPass) -> None:
        """Keep the pass of a batch."""
        tensors = {name: value for name in _OUTPUTS if (value := getattr(form_pass, name)) is not None}
        for number, (name, layer) in enumerate(form_pass.routing.layers.items()):
            tensors |= {f"{number}/{item}": value for item, value in _tensors_of(layer).items()}
            if name in form_pass.margins:
                tensors[f"{number}/{_MARGINS}"] = form_pass.margins[name]
            facts = {
                item.name: getattr(layer, item.name) for item in fields(layer) if item.name not in PER_INPUT
            }
            self._facts.setdefault(name, (facts, layer.num_experts))
        # Copies, since tensors of a file must not share memory.
        copies = {
            name: value.cpu().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()
        }
        save_file(copies, self._path(image_ids))

    def read(self, image_ids: Sequence[str], device: torch.device | None = None) -> FormPass:
        """Return the pass of a batch that was written."""
        tensors = {name: value.to(device) for name, value in load_file(self._path(image_ids)).items()}
        layers, margins = {}, {}
        for number, (name, (facts, num_experts)) in enumerate(self._facts.items()):
            of_layer = {
                item: tensors[f"{number}/{item}"]
                for item in (*PER_INPUT, _MARGINS)
                if f"{number}/{item}" in tensors
            }
            if _MARGINS in of_layer:
                margins[name] = of_layer.pop(_MARGINS)
            layers[name] = _rebuild(facts, of_layer, num_experts)
        outputs = {name: tensors[name] for name in _OUTPUTS if name in tensors}
        return FormPass(RoutingTrace(layers), margins, **outputs)

    def _path(self, image_ids: Sequence[str]) -> str:
        number = self._numbers.setdefault(tuple(image_ids), len(self._numbers))
        return str(self._scratch.path / f"{number}.safetensors")


def _tensors_of(layer: LayerRouting) -> dict[str, Tensor]:
    """Return the stored tensors of a layer, with all gates where every expert gets a share of every token."""
    values = {name: getattr(layer, name) for name in PER_INPUT if name != "scores"}
    if layer.top_k:
        index = layer.selected.long()
        values["gates"] = layer.gates.gather(-1, index.clamp_min(0)).masked_fill(index < 0, 0)
    return {name: value for name, value in values.items() if value is not None}


def _rebuild(facts: dict[str, Any], tensors: dict[str, Tensor], num_experts: int) -> LayerRouting:
    """Return a layer with the gates of its chosen experts, and zeros for the others."""
    layer_fields = {"scores": None, "slot": None, "places": None} | facts | tensors
    index = tensors["selected"].long()
    if index.shape[-1]:
        gates = tensors["gates"]
        # Added, not written: an absent choice is stored as expert 0, and must not undo it.
        every = gates.new_zeros(*index.shape[:2], num_experts).scatter_add(-1, index.clamp_min(0), gates)
        layer_fields |= {"gates": every, "gates_sum_to_one": False, "every_gate": False, "has_scores": False}
    return LayerRouting(**layer_fields)
