"""Any torch module, made traceable by forward hooks on its routers.

    from moeprobe import api
    from moeprobe.adapters.hooks import Hooks

    model = Hooks(net, routers="blocks.*.mlp.gate", top_k=2, image_size=224, num_prefix_tokens=1, mean=..., std=...)
    result = api.noise_sweep([api.wrap(model, name="mine")], data="imagenet:PATH")

Axes: B images, T tokens of an image (prefix tokens first), E experts, K choices.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.base import Adapter, Checkpoint, wanted_layers
from moeprobe.adapters.hooks import factory
from moeprobe.adapters.hooks.factory import EARLIER, Activation, Place, Read, parse_settings
from moeprobe.adapters.hooks.module import HookedModule, move
from moeprobe.adapters.hooks.output import describe_output
from moeprobe.adapters.hooks.replay import replayed_scores, why_not_forced
from moeprobe.adapters.hooks.trial import RANDOM, batch_dependence, images_to_try, learn
from moeprobe.adapters.router_rows import as_array, name_rows, shapes_of, tensors_of
from moeprobe.errors import UserError
from moeprobe.inputs.images import Framing
from moeprobe.routing.gradients import loss_gradient
from moeprobe.routing.parts import Weight, weights_of
from moeprobe.routing.record import RoutingTrace, join_batches, split
from moeprobe.routing.router_rows import RouterRows, Start
from moeprobe.runtime.arguments import checked_class
from moeprobe.runtime.catalog import DATA
from moeprobe.runtime.torch_state import random_numbers_kept


@checked_class
class Hooks(Adapter):
    """Any torch module whose routers are submodules, read by forward hooks; no hook is left on it.

    On making it a few images are run, together and one by one: to find the routers' order and shapes, and whether an
    image's routing depends on its batch-mates. Where it does, or nobody can know, ``group_images`` images are run at a
    time. The choice is that of the top-k that follows a router, and is compared with what the experts do: one expert
    after the other is changed, and the tokens that change are those that it processes. A choice that is left out
    (a threshold, a capacity, a second expert that is never used) does not count as processed.

    Args:
        net: the model; it is called with normalized images ``(B, 3, image_size, image_size)``, in evaluation mode. What
            ``torch.compile`` or data parallelism has wrapped is taken out.
        routers: submodules that route, as a glob over their names (``"blocks.*.mlp.gate"``) or a class, itself or as
            ``"package.module.Class"``. None = the modules whose output is followed by a top-k.
        read: where in a router's output the logits are, or the experts it chose, or both, and their weights if it says
            so: ``{"logits": 0, "indices": 1, "weights": 2}``, by index, key or attribute; or a function of (module,
            arguments, output) that returns such a mapping to tensors. None = the output is the logits.
        activation: turns logits into gates: "softmax" (the default, unless detection has seen a sigmoid),
            "sigmoid", or "none" where the output is the gates.
        top_k: experts per token, where the router does not give its own indices and they were not detected.
        num_experts: experts, where the router gives no logits and no list of experts is beside it.
        image_size: side of the input in pixels.
        patch_size: side of a patch in pixels at the routers; of stages, by a glob over the routers' names. None = the
            patches are a square, as many as there are tokens.
        num_prefix_tokens: tokens before the patches (CLS, registers).
        sequence_first: the routers' tokens come before their images, ``(T, B, E)`` or flattened so.
        token_local: what a token chooses depends on no other image; None = tried out.
        mean: of the normalization, per channel, in units of [0, 1].
        std: of the normalization.
        crop_fraction: of an image's shorter side that is shown; None = the whole image, squashed.
        classes: names of the classes in the order of the scores, or the data set whose classes they are.
        output: where in the model's output the class scores, or features, are; None = they are the output.
        scores: a tensor (B, .) there is class scores; False = features, as a tensor of any other shape is.
        head: the submodule that reads the features, for ``fewshot``.
        group_images: images that are run at a time where they are not independent.
        before: the earlier name of ``activation``, still accepted.

    Raises:
        UserError: there are no such routers, they do not run exactly once, or their outputs do not fit the settings.
    """

    # There where ``head`` is set (``routing.Featured``).
    features: Callable[[Tensor], Tensor]

    def __init__(
        self,
        net: nn.Module,
        *,
        routers: str | type[nn.Module] | None = None,
        read: Read | None = None,
        activation: Activation | None = None,
        top_k: int | None = None,
        num_experts: int | None = None,
        image_size: int,
        patch_size: int | Mapping[str, int] | None = None,
        num_prefix_tokens: int = 0,
        sequence_first: bool = False,
        token_local: bool | None = None,
        mean: Sequence[float],
        std: Sequence[float],
        crop_fraction: float | None = None,
        classes: str | Sequence[str] | None = None,
        output: Place | None = None,
        scores: bool = True,
        head: str | None = None,
        group_images: int = 1,
        before: Activation | None = None,
    ) -> None:
        if not isinstance(net, nn.Module):
            raise UserError(f"Hooks takes a torch module; got {describe_output(net)}.")
        self.settings = parse_settings(
            {
                "routers": routers,
                "read": read,
                "activation": activation,
                "top_k": top_k,
                "num_experts": num_experts,
                "image_size": image_size,
                "patch_size": patch_size,
                "num_prefix_tokens": num_prefix_tokens,
                "sequence_first": sequence_first,
                "token_local": token_local,
                "mean": mean,
                "std": std,
                "crop_fraction": crop_fraction,
                "classes": classes,
                "output": output,
                "scores": scores,
                "head": head,
            }
            | ({} if before is None else {EARLIER: before})
        )
        self._module = HookedModule(net, self.settings)
        self.class_names = _class_names(self.settings.classes)
        images = images_to_try(image_size)
        with random_numbers_kept([self._module.device]):
            self._learn(images, group_images=group_images, head=head)

    def _learn(self, images: Tensor, *, group_images: int, head: str | None) -> None:
        """Find out how the model routes, by running a few images."""
        self._layers = learn(self._module, images)
        self.layer_names = tuple(self._layers)
        self._batch_dependence = batch_dependence(self._module, self._layers, images)
        self.group_images = 1
        self.group(group_images)
        trial = self._module.run(images, self._layers)
        self.output_kind = trial.kind
        if self.class_names:
            self._check_classes(trial.output)
        is_random = self._batch_dependence.startswith(RANDOM)
        self._unforced = why_not_forced(self._module, self._layers, images, trial.layers, is_random=is_random)
        if head is not None:
            self.features = self._features
            self.features(images)

    def group(self, group_images: int) -> None:
        """Run so many images at a time where they are not independent.

        Raises:
            UserError: the number is not positive.
        """
        if group_images < 1:
            raise UserError(f"A group needs at least one image; got group_images {group_images}.")
        self.group_images = group_images if self._batch_dependence else 1

    @property
    def model(self) -> nn.Module:
        """The module itself."""
        return self._module.net

    @property
    def framing(self) -> Framing:
        """How an image is brought to the input."""
        return Framing(self.settings.image_size, self.settings.crop_fraction)

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        return self._module.device

    def to(self, device: torch.device | str) -> "Hooks":
        """Move the model, in place; one that accelerate has spread over devices stays where it is."""
        move(self._module.net, device)
        return self

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        """Run the model; see ``routing.Traceable``."""
        selected_layers = {name: self._layers[name] for name in wanted_layers(layers, self.layer_names)}
        if not selected_layers and not logits:
            raise ValueError("Name at least one layer, or ask for the logits.")
        passes = [self._module.run(piece, selected_layers, logits=logits) for piece in self._pieces(images)]
        answers = [forward_pass.output for forward_pass in passes if forward_pass.output is not None]
        return (torch.cat(answers) if answers else None), join_batches(
            [RoutingTrace(forward_pass.layers) for forward_pass in passes]
        )

    def check_replay(self, layers: Sequence[str] | None = None) -> None:
        """Raise ``UserError`` unless these layers (None = all) can be made to repeat choices."""
        for name in wanted_layers(layers, self.layer_names):
            if name in self._unforced:
                raise UserError(f"The router {self._layers[name].module} {self._unforced[name]}.")

    def replay(self, images: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        """Run the model with choices made elsewhere; see ``routing.Replayable``."""
        self.check_replay(list(routing.layers))
        pieces = self._pieces(images)
        parts = split(routing, [len(piece) for piece in pieces])
        return torch.cat(
            [
                replayed_scores(self._module, self._layers, piece, part, gates=gates)
                for piece, part in zip(pieces, parts, strict=True)
            ]
        )

    def loss_gradient(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return how the loss depends on the pixels; see ``routing.Differentiable``."""
        return loss_gradient(self._module.differentiable_scores, images.to(self.device), targets)

    def weights(self) -> list[Weight]:
        """Return the parameters by the part that they are of; see ``routing.Weighed``."""
        return weights_of(self._module.net, routers=self.router_modules())

    def router_modules(self) -> list[nn.Module]:
        """Return the modules that route; see ``routing.HasRouterModules``."""
        return [self._module.net.get_submodule(layer.module) for layer in self._layers.values()]

    def router_rows(self) -> dict[str, RouterRows | None]:
        """Return the rows that routers score experts by; see ``routing.HasRouterRows``."""
        rows: dict[str, RouterRows | None] = {}
        for name, layer in self._layers.items():
            module = self._module.net.get_submodule(layer.module)
            tensors = tensors_of(module)
            names = name_rows(shapes_of(tensors), layer.num_experts)
            if names is None:
                rows[name] = None
                continue
            weight = as_array(tensors[names.rows])
            # A tensor of another name may be a temperature or a count: nothing says that gates get it.
            has_bias = bool(names.bias) and not names.is_bias_of_gates
            rows[name] = RouterRows(
                rows=weight,
                start=Start.of_linear(weight.shape[1]),
                bias=as_array(tensors[names.bias]).reshape(-1) if has_bias else None,
                top_k=layer.top_k if layer.by_gates else None,
                # A router of one's own may normalize rows, unless it is the linear layer itself.
                is_choice_by_scores=isinstance(module, nn.Linear),
            )
        return rows

    def checkpoint(self, name: str) -> Checkpoint:
        """Return the model as probes take it, called ``name``."""
        return Checkpoint(name, self, self.framing, self.class_names, provenance=self.provenance)

    @property
    def provenance(self) -> dict[str, Any]:
        """What a sidecar says of the model."""
        net, settings = self._module.net, self.settings.plain()
        origin_of_routers = (
            "detected: a top-k follows their outputs" if self.settings.routers is None else "as set"
        )
        return {
            "sha256": self._module.hash(self._layers),
            "capacity": "its own",
            "group_images": self.group_images,
            "training": {"imported": "hooks"},
            "model": type(net).__name__,
            "parameters": sum(parameter.numel() for parameter in net.parameters()),
            "routers": {name: layer.describe() for name, layer in self._layers.items()},
            "routers_found": origin_of_routers,
            "experts": {name: layer.use for name, layer in self._layers.items()},
            "batches": self._batch_dependence or "images do not depend on their batch-mates",
            "normalisation": {"mean": settings["mean"], "std": settings["std"]},
            "settings": settings,
        }

    @classmethod
    def open(
        cls, reference: str, *, device: torch.device, trained_capacity: bool, group_images: int
    ) -> Checkpoint:
        """Open ``package.module:factory`` or ``package.module:factory@settings.yaml``.

        The factory returns a torch module (then the settings are needed), a ``Hooks``, or a ``Checkpoint``. The limits
        of a foreign model's experts are its own, so ``trained_capacity`` changes nothing.

        Raises:
            UserError: it is not there, raises, returns something else, or the settings do not fit.
        """
        built = factory.make(reference)
        model, settings = built.value, built.settings
        if isinstance(model, nn.Module):
            if settings is None:
                raise UserError(
                    f"{built.factory} gives a {type(model).__name__}, of which nothing is known; say how it is probed "
                    f"in a YAML file, py:{built.factory}@settings.yaml, or let it return a moeprobe Hooks."
                )
            keywords = settings.model_dump(exclude={"name", "weights"})
            model = cls(move(model, device), **keywords, group_images=group_images)
        elif settings is not None:
            raise UserError(f"{built.factory} gives a {type(model).__name__}, which takes no settings file.")
        name = built.factory.rpartition(":")[2] if settings is None else settings.name
        if isinstance(model, Hooks):
            model.to(device).group(group_images)
            model = factory.with_code(model.checkpoint(name), built)
        if not isinstance(model, Checkpoint):
            raise UserError(
                f"{built.factory} gives {describe_output(model)}; it should return a torch module, a moeprobe Hooks, "
                "or a moeprobe.adapters.base.Checkpoint."
            )
        return dataclasses.replace(model, provenance=factory.of_files(built) | dict(model.provenance))

    def _check_classes(self, scores: Tensor | None) -> None:
        """Raise ``UserError`` unless there is a name for every class score."""
        assert scores is not None  # refused where classes are named
        if scores.shape[1] != len(self.class_names):
            raise UserError(
                f"The scores are about {scores.shape[1]:,} classes, and classes names {len(self.class_names):,}."
            )

    def _features(self, images: Tensor) -> Tensor:
        """Return what the head is called with; see ``routing.Featured``."""
        assert self.settings.head is not None
        return torch.cat([self._module.features(piece, self.settings.head) for piece in self._pieces(images)])

    def _pieces(self, images: Tensor) -> Sequence[Tensor]:
        """Return the images as they are run at a time."""
        return images.split(self.group_images) if self._batch_dependence else [images]


def _class_names(classes: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the classes, as given or from a data set.

    Raises:
        UserError: there is no such data set, or its images have no labels.
    """
    if not isinstance(classes, str):
        return tuple(classes or ())
    kind, _, location = classes.partition(":")
    names = DATA.get(kind)(split="test", location=location or None).class_names
    if names is None:
        raise UserError(f"The images of {classes} have no classes.")
    return tuple(names)
