"""What is decided or taught from outside during training.

By class: every token of an image goes to the expert of its label's group, with all the weight. By a teacher: the gates
are drawn near to the gates of the checkpoint that a stage starts from. By the dense model that was upcycled: the
features of every token are drawn near to its.

Source: C. Teo, "Exploring Mixture of Experts and Sparse Vision Transformers", sections 3.2 and 4.4. Its distillation
has the task's loss alone; the divergence from the teacher's gates is an option of ours.

Axes: B rows of a batch, T tokens, D width, E experts.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.checkpoint import load
from moeprobe.models.config import TrainConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import Choices, capture, moe_layers, replaying
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.timm import VisionTransformer
from moeprobe.models.training.start import upcycle_from
from moeprobe.runtime.files import display_path


class ByClass:
    """Sends all tokens of an image to the expert of its class.

    Args:
        model: whose routers choose one expert per token, without a limit on capacity.
        groups: the classes of each expert; none = routers choose as ever.

    Raises:
        UserError: the groups do not fit the classes or the model.
    """

    def __init__(self, model: VisionTransformer, groups: Sequence[Sequence[int]]) -> None:
        self._layers = moe_layers(model) if groups else {}
        self._tokens = model.patch_embed.num_patches + model.num_prefix_tokens
        self._expert = torch.full((model.num_classes,), -1)
        if not groups:
            return
        if sorted(label for group in groups for label in group) != list(range(model.num_classes)):
            raise UserError(
                f"route_by_class names every class from 0 to {model.num_classes - 1} once; got {groups}."
            )
        if not self._layers:
            raise UserError("route_by_class is about experts, and a dense model has none; leave it out.")
        for name, layer in self._layers.items():
            router = layer.router
            if router.num_experts != len(groups):
                raise UserError(
                    f"route_by_class has classes for {len(groups)} experts, and {name} has {router.num_experts}."
                )
            if router.top_k != 1 or router.capacity.factor is not None:
                raise UserError(
                    "route_by_class sends each token to one expert, however many come: set a router of token choice, "
                    "model.top_k=1 and model.capacity_factor=none."
                )
        for expert, group in enumerate(groups):
            self._expert[list(group)] = expert

    def __call__(self, model: VisionTransformer, labels: Tensor) -> AbstractContextManager[None]:
        """Return a context in which the rows of the next pass, labeled ``(B,)``, are routed by class."""
        if not self._layers:
            return nullcontext()
        experts = self._expert.to(labels.device)[labels][:, None, None].expand(-1, self._tokens, 1)
        (number,) = {layer.router.num_experts for layer in self._layers.values()}
        gates = torch.nn.functional.one_hot(experts[..., 0], number).float()
        choices = Choices(experts, torch.ones_like(experts, dtype=torch.bool), gates)
        return replaying(model, dict.fromkeys(self._layers, choices))


class Teacher:
    """The model that a stage starts from, as it was: what its gates say of the same images.

    Args:
        config: of the training; its ``kl_weight`` is above 0.
        model: that learns.

    Raises:
        UserError: there is no such checkpoint, or its layers or gates are not comparable.
    """

    def __init__(self, config: TrainConfig, model: VisionTransformer) -> None:
        if config.initialise is None:
            raise UserError(
                "kl_weight is about the gates of initialise.checkpoint; name one, or leave it out."
            )
        source = config.initialise.checkpoint
        teacher, _ = load(source)
        self._model = teacher.to(next(model.parameters()).device).eval().requires_grad_(False)
        theirs, student_layers = moe_layers(self._model), moe_layers(model)
        for name, layer in student_layers.items():
            teacher_layer = theirs.get(name)
            if teacher_layer is None or teacher_layer.router.num_experts != layer.router.num_experts:
                raise UserError(
                    f"{display_path(Path(source))} has no gates of as many experts in {name}; set kl_weight to 0."
                )
            if not (layer.router.gates_sum_to_one and teacher_layer.router.gates_sum_to_one):
                raise UserError(
                    f"The gates of {name} are no distribution over the experts, here or in "
                    f"{display_path(Path(source))}; set kl_weight to 0."
                )
        if not student_layers:
            raise UserError("kl_weight is about gates, and a dense model has none; set it to 0.")

    def divergence(self, images: Tensor, decisions: Mapping[str, Decision]) -> Tensor:
        """Return KL(teacher ‖ own gates) of images ``(B, 3, H, W)``: mean over tokens, summed over layers."""
        with torch.no_grad(), capture(self._model) as theirs:
            self._model(images)
        return torch.stack(
            [
                gate_divergence(theirs[name].clean_gates, decision.clean_gates)
                for name, decision in decisions.items()
            ]
        ).sum()


def gate_divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """Return the mean over tokens of KL(teacher ‖ student), of gates ``(…, E)`` that each sum to one; in nats."""
    teacher, student = (gates.float().flatten(0, -2) for gates in (teacher, student))
    smallest = torch.finfo(student.dtype).tiny
    logs = teacher.clamp_min(smallest).log() - student.clamp_min(smallest).log()
    return (teacher * logs).sum(-1).mean()


class DenseTeacher:
    """The dense model that was upcycled: what its last norm says of every token of the same images.

    Args:
        config: of the training; its ``feature_weight`` is above 0.
        model: that learns.

    Raises:
        UserError: the training does not start from a dense model, or its weights cannot be read.
    """

    def __init__(self, config: TrainConfig, model: VisionTransformer) -> None:
        if config.model.upcycle is None:
            raise UserError(
                "feature_weight is about the features of the dense model that model.upcycle names; name one, or leave "
                "it out."
            )
        dense = config.model.model_copy(update={"layers": [], "num_classes": model.num_classes})
        # What it would draw for parameters that are then replaced must not change what the training draws.
        with torch.random.fork_rng(devices=[]):
            teacher = build_model(dense)
        upcycle_from(teacher, dense)
        self._model = teacher.to(next(model.parameters()).device).eval().requires_grad_(False)

    def distance(self, images: Tensor, features: Tensor) -> Tensor:
        """Return 1 minus the cosine between both models' tokens, mean over tokens.

        Args:
            images: ``(B, 3, H, W)``, normalized.
            features: ``(B, T, D)`` of the model that learns, see ``last_features``.
        """
        with torch.no_grad():
            theirs: Tensor = self._model.forward_features(images)
        return 1 - torch.nn.functional.cosine_similarity(features.float(), theirs.float(), dim=-1).mean()


@contextmanager
def last_features(model: VisionTransformer) -> Iterator[list[Tensor]]:
    """Collect what leaves the last norm of each pass inside the context, ``(B, T, D)``."""
    features: list[Tensor] = []
    handle = model.norm.register_forward_hook(lambda _norm, _inputs, tokens: features.append(tokens))
    try:
        yield features
    finally:
        handle.remove()
