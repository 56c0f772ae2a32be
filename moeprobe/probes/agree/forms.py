"""Whether models can be forms of one: the same layers, experts, inputs and outputs; checked before any input is run."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TokenBatch
from moeprobe.probes.engine.batch_sums import load_batches, readable_batches
from moeprobe.probes.engine.checks import routers_of
from moeprobe.probes.engine.outputs import gives_scores
from moeprobe.probes.engine.run_spec import RunSpec, chosen_layers
from moeprobe.routing.capabilities import Rerouted, Scored, refusal_to_replay

_SO = "forms of one model have the same; compare different models by moeprobe align."


@dataclass(frozen=True)
class ModelForm:
    """What a model is found to be able to do, before it reads the inputs.

    Attributes:
        routers: layer -> number of experts, and how many a token chooses.
        writes: whether it gives the log-probability of each token of a text.
        answers: whether it gives class scores.
        refusal: why it cannot repeat the choices of another form; None where it can.
    """

    routers: Mapping[str, list[int]]
    writes: bool
    answers: bool
    refusal: str | None

    @classmethod
    def of(cls, model: Checkpoint, layers: tuple[str, ...] | None) -> "ModelForm":
        """Return it for one model, by passes of a blank input."""
        writes = _writes(model)
        answers = not writes and gives_scores(model)
        refusal: str | None = ""
        if writes:
            refusal = _refusal_to_replay_texts(model, layers)
        elif answers:
            refusal = refusal_to_replay(model.model)
        return cls(routers_of(model, layers), writes, answers, refusal)


def _writes(model: Checkpoint) -> bool:
    if not isinstance(model.model, Scored) or not isinstance(model.framing.blank(), TokenBatch):
        return False
    try:
        model.model.log_probabilities(model.framing.blank())
    except UserError:  # of a classifier of texts, say
        return False
    return True


def _refusal_to_replay_texts(model: Checkpoint, layers: tuple[str, ...] | None) -> str | None:
    if not isinstance(model.model, Rerouted):
        return ""
    try:
        model.model.check_replay(chosen_layers(model.model.layer_names, layers))
    except UserError as error:
        return f"{error}"
    return None


def check_forms(forms: Mapping[str, ModelForm]) -> None:
    """Raise ``UserError`` unless all forms have the layers and experts of the first, and give what it gives."""
    (first, reference), *forms_after = forms.items()
    for name, form in forms_after:
        if list(form.routers) != list(reference.routers):
            raise UserError(
                f"{name} has the MoE layers {', '.join(form.routers)}, and {first} has "
                f"{', '.join(reference.routers)}: {_SO}"
            )
        for layer, (num_experts, top_k) in form.routers.items():
            of_first = reference.routers[layer]
            if [num_experts, top_k] != of_first:
                raise UserError(
                    f"In {layer}, a token of {name} chooses {top_k} of {num_experts} experts, and one of {first} "
                    f"{of_first[1]} of {of_first[0]}: {_SO}"
                )
        if (form.writes, form.answers) != (reference.writes, reference.answers):
            raise UserError(f"{name} and {first} predict different things: {_SO}")


def check_inputs(spec: RunSpec, models: Sequence[Checkpoint]) -> None:
    """Raise ``UserError`` unless all forms get the same numbers for the first inputs."""
    batches = {model.name: _first_batch(spec, model) for model in models}
    (first, reference), *forms_after = batches.items()
    for name, inputs in forms_after:
        if isinstance(inputs, TokenBatch) and isinstance(reference, TokenBatch):
            check_tokens(reference.ids, inputs.ids, names=(first, name))
        elif isinstance(inputs, Tensor) and not torch.equal(inputs, reference):
            raise UserError(f"{name} crops or resizes images otherwise than {first}: {_SO}")


def check_tokens(reference: Tensor, ids: Tensor, *, names: tuple[str, str]) -> None:
    """Raise ``UserError`` unless two forms read the same ids ``(B, T)``."""
    if not torch.equal(reference.cpu(), ids.cpu()):
        raise UserError(
            f"{names[1]} reads other tokens than {names[0]}, since their tokenizers differ: {_SO}"
        )


def _first_batch(spec: RunSpec, model: Checkpoint) -> Any:
    sample = dataclasses.replace(spec, workers=0, skip_bad_images=True)
    batches = readable_batches(load_batches(sample, model, spec.indices[: spec.batch_size]), [], None)
    batch = next(batches, None)
    return None if batch is None else batch.views[0]
