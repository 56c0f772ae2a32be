"""Our own sparse timm transformers, made traceable."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.base import layers_before, wanted_layers
from moeprobe.adapters.router_rows import as_array
from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.models.config import ROUTER
from moeprobe.models.nn.capture import Choices, capture, capture_inputs, capture_trunks, moe_layers, replaying
from moeprobe.models.nn.experts import ExpertLinear
from moeprobe.models.nn.plans import CapacityRule, DispatchPlan, SoftPlan
from moeprobe.models.nn.routers.base import Decision
from moeprobe.routing.capabilities import Trunk
from moeprobe.routing.gradients import gradient_of, loss_gradient
from moeprobe.routing.parts import Weight, weights_of
from moeprobe.routing.record import LayerRouting, RoutingTrace, order_choices
from moeprobe.routing.router_rows import RouterRows


class Vmoe:
    """A timm ``VisionTransformer`` with MoE layers (``nn.vit.make_sparse``) or without, ready to be probed.

    Args:
        model: a ``VisionTransformer``; put into evaluation mode; its routers' evaluation capacity is replaced.
        mean: of the normalization, per channel, in units of [0, 1].
        std: of the normalization.
        router_name: catalog name of the routers.
        trained_capacity: keep the capacity that the model evaluates with; False lifts every limit.
        group_images: images that share a group where something depends on it (a limit, or routers that couple
            tokens); the groups of training do not matter here.

    Raises:
        UserError: ``group_images`` is not positive.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        mean: Sequence[float],
        std: Sequence[float],
        router_name: str = ROUTER,
        trained_capacity: bool = False,
        group_images: int = 1,
    ) -> None:
        self.model: Any = model.eval().requires_grad_(False)
        self._layers = moe_layers(model)
        if group_images < 1:
            raise UserError(f"A group needs at least one image; got group_images {group_images}.")
        routers = [layer.router for layer in self._layers.values()]
        # Mixtures are of one image's tokens: no number of images changes them.
        meeting = [router for router in routers if not router.mixes_tokens]
        if not trained_capacity:
            for router in routers:
                # Where experts take a fixed number of tokens, that number is the choice itself.
                if not router.fills_experts:
                    router.eval_capacity = CapacityRule(None)
        self.capacity_factors = {
            name: layer.router.eval_capacity.factor for name, layer in self._layers.items()
        }
        limited = any(router.eval_capacity.factor is not None for router in meeting)
        coupled = limited or not all(router.token_local for router in meeting)
        self.group_images = group_images if coupled else 1
        for layer in self._layers.values():
            layer.group_images = self.group_images
        self.layer_names = tuple(self._layers)
        self.router_name = router_name
        self.grids = self._lay_out()
        embedding: Any = model.patch_embed
        self.image_size: tuple[int, int] = tuple(embedding.img_size)
        self._mean = torch.tensor(mean).view(3, 1, 1)
        self._std = torch.tensor(std).view(3, 1, 1)

    def _lay_out(self) -> dict[str, PatchGrid]:
        """Return the layout of each MoE layer's tokens in the image, without the prefix."""
        rows, columns = self.model.patch_embed.grid_size
        return dict.fromkeys(self.layer_names, PatchGrid(rows, columns, self.model.patch_embed.patch_size[0]))

    @property
    def device(self) -> torch.device:
        """Where the model's parameters are."""
        device: torch.device = next(self.model.parameters()).device
        return device

    def to(self, device: torch.device | str) -> "Vmoe":
        """Move the model, in place."""
        self.model.to(device)
        self._mean, self._std = self._mean.to(device), self._std.to(device)
        return self

    def trace(
        self, images: Tensor, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        """Run the model; see ``routing.Traceable``."""
        selected_layers = wanted_layers(layers, self.layer_names)
        if not selected_layers and not logits:
            raise ValueError("Name at least one layer, or ask for the logits.")
        output: Tensor | None = None
        with (
            torch.inference_mode(),
            capture(self.model, stop_after=None if logits else selected_layers[-1]) as decisions,
        ):
            output = self._forward(images)
        traced = {name: self._routing(name, decisions[name], len(images)) for name in selected_layers}
        return output, RoutingTrace(traced)

    def replay(self, images: Tensor, routing: RoutingTrace, *, gates: str = "recomputed") -> Tensor:
        """Run the model with choices made elsewhere; see ``routing.Replayable``."""
        if gates not in ("recomputed", "replayed"):
            raise ValueError(f"gates is recomputed or replayed, not {gates!r}.")
        with torch.inference_mode(), replaying(self.model, self._choices(routing, len(images), gates)):
            return self._forward(images)

    def _choices(self, routing: RoutingTrace, num_images: int, gates: str) -> dict[str, Choices]:
        """Return what layers are to repeat; raises ``UserError`` where the routing is not one of this model."""
        choices = {}
        for name in wanted_layers(list(routing.layers), self.layer_names):
            layer = routing.layers[name]
            expected = (
                num_images,
                self.grids[name].num_patches + layer.num_prefix_tokens,
                layer.num_experts,
            )
            if tuple(layer.gates.shape) != expected or layer.top_k == 0:
                raise UserError(
                    f"The routing of {name} is for {tuple(layer.gates.shape)} gates and {layer.top_k} choices; "
                    f"it can be replayed for {expected} gates and at least one choice."
                )
            replayed = layer.gates if gates == "replayed" else None
            choices[name] = Choices(layer.selected, layer.processed, replayed)
        return choices

    def trunks(self, images: Tensor, *, layers: Sequence[str] | None = None) -> dict[str, Trunk]:
        """Run the model up to its layers; see ``routing.Resumable``."""
        selected_layers = wanted_layers(layers, self.layer_names)
        with torch.inference_mode(), capture_trunks(self.model, selected_layers) as trunks:
            self._forward(images)
        return {name: Trunk(*trunks[name]) for name in selected_layers}

    def resume(
        self, layer: str, hidden: Tensor, routing: RoutingTrace, *, gates: str = "recomputed"
    ) -> tuple[Tensor, Tensor]:
        """Run the rest of the model; see ``routing.Resumable``."""
        outputs: list[Tensor] = []
        handle = self._layers[layer].register_forward_hook(lambda *call: outputs.append(call[-1]))
        try:
            with (
                torch.inference_mode(),
                replaying(self.model, self._choices(routing, len(hidden), gates)),
            ):
                return self._scores_from(layer, hidden), outputs[0]
        finally:
            handle.remove()

    def reached_from(self, layer: str, hidden: Tensor) -> Tensor:
        """Follow the gradient of the class scores back to the layer; see ``routing.Resumable``."""
        probes: list[Tensor] = []

        def add_probe(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
            probes.append(torch.zeros_like(output, requires_grad=True))
            return output + probes[0]

        handle = self._layers[layer].register_forward_hook(add_probe)
        try:
            with torch.inference_mode(False), torch.enable_grad():
                scores = self._scores_from(layer, hidden.clone())
                # Scores of unlike weight: the sum of all may not depend on anything.
                weights = torch.arange(1, scores.shape[1] + 1, device=scores.device)
                (gradient,) = torch.autograd.grad((scores * weights).sum(), probes)
        finally:
            handle.remove()
        return (gradient != 0).any(-1).any(0)

    def _scores_from(self, layer: str, hidden: Tensor) -> Tensor:
        """Return the class scores of what enters the block of a layer."""
        for module in self._modules_from(layer):
            hidden = module(hidden)
        scores: Tensor = self.model.forward_head(self.model.norm(hidden))
        return scores.float()

    def _modules_from(self, layer: str) -> Iterable[nn.Module]:
        """Return the block of a layer and all modules after it, up to the last normalization."""
        blocks = list(self.model.blocks)
        return blocks[blocks.index(self.model.get_submodule(layer)) :]

    def features(self, images: Tensor) -> Tensor:
        """Return what the head reads, the pre-logits where the model has them; see ``routing.Featured``."""
        with torch.inference_mode():
            tokens = self.model.forward_features(self._normalize(images))
            features: Tensor = self.model.forward_head(tokens, pre_logits=True)
        return features.float()

    def loss_gradient(self, images: Tensor, targets: Tensor) -> Tensor:
        """Return how the loss depends on the pixels; see ``routing.Differentiable``."""
        return loss_gradient(self._forward, images.to(self.device), targets)

    def routing_gradient(
        self,
        images: Tensor,
        objective: Callable[[Tensor, RoutingTrace], Tensor],
        *,
        layers: Sequence[str] | None = None,
    ) -> Tensor:
        """Return how an objective depends on the pixels; see ``routing.Steerable``."""
        selected_layers = wanted_layers(layers, self.layer_names)

        def values(pixels: Tensor) -> Tensor:
            with capture(self.model) as decisions:
                scores = self._forward(pixels)
            traced = {name: self._routing(name, decisions[name], len(pixels)) for name in selected_layers}
            return objective(scores, RoutingTrace(traced))

        return gradient_of(values, images.to(self.device))

    def weights(self) -> list[Weight]:
        """Return the parameters by the part that they are of; see ``routing.Weighed``."""
        layers = self._layers.values()
        return weights_of(
            self.model,
            routers=[layer.router for layer in layers],
            experts=[layer.experts for layer in layers],
            is_transposed=lambda module: isinstance(module, ExpertLinear),
        )

    def router_rows(self) -> dict[str, RouterRows | None]:
        """Return the rows that routers score experts by; see ``routing.HasRouterRows``."""
        # A column for each number of a patch, in the space of the tokens.
        embedding = as_array(self.model.patch_embed.proj.weight.flatten(1).T)
        rows: dict[str, RouterRows | None] = {}
        for name, layer in self._layers.items():
            expert_rows = layer.router.expert_rows()
            if expert_rows is None:
                rows[name] = None
                continue
            weight, bias = as_array(expert_rows.weight), expert_rows.bias
            rows[name] = RouterRows(
                rows=weight,
                start=expert_rows.start,
                bias=None if bias is None else as_array(bias),
                top_k=layer.router.top_k,
                is_choice_by_scores=expert_rows.is_choice_by_scores,
                embedding=embedding if weight.shape[1] == embedding.shape[1] else None,
            )
        return rows

    def router_inputs(self, images: Tensor, *, layers: Sequence[str] | None = None) -> dict[str, Tensor]:
        """Return the tokens that each router sees; see ``routing.Routable``."""
        selected_layers = wanted_layers(layers, self.layer_names)
        with torch.inference_mode(), capture_inputs(self.model, stop_after=selected_layers[-1]) as inputs:
            self._forward(images)
        return {name: inputs[name] for name in selected_layers}

    def route(self, layer: str, tokens: Tensor) -> LayerRouting:
        """Ask one router alone; see ``routing.Routable``."""
        (name,) = wanted_layers([layer], self.layer_names)
        with torch.inference_mode():
            decision = self._layers[name].route(tokens)
        return self._routing(name, decision, len(tokens))

    def trace_ahead(
        self, images: Tensor, *, layers: Sequence[str] | None = None
    ) -> tuple[RoutingTrace, dict[str, Tensor]]:
        """Apply each router to the input of the one before, too; see ``routing.AheadRoutable``."""
        names = wanted_layers(layers, self.layer_names)
        before = layers_before(names, self.layer_names)
        inputs = self.router_inputs(images, layers=[*names, *before.values()])
        routing = RoutingTrace({name: self.route(name, inputs[name]) for name in names})
        ahead = {name: self.route(name, inputs[earlier]) for name, earlier in before.items()}
        return routing, {
            name: layer.gates if layer.scores is None else layer.scores for name, layer in ahead.items()
        }

    def expert_outputs(self, layer: str, tokens: Tensor) -> Tensor:
        """Run all experts of a layer on the same tokens; see ``routing.Separable``."""
        (name,) = wanted_layers([layer], self.layer_names)
        experts = self._layers[name].experts
        with torch.inference_mode():
            outputs = experts.run_padded(tokens.flatten(0, 1).expand(experts.num_experts, -1, -1))
        return outputs.unflatten(1, tokens.shape[:2]).permute(1, 2, 0, 3)

    def _forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.model(self._normalize(images))
        return logits.float()

    def _normalize(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or images.shape[1] != 3 or tuple(images.shape[2:]) != self.image_size:
            raise UserError(
                f"The model takes images (B, 3, {self.image_size[0]}, {self.image_size[1]}); "
                f"got {tuple(images.shape)}."
            )
        return (images.to(self.device) - self._mean) / self._std

    def _routing(self, name: str, decision: Decision, num_images: int) -> LayerRouting:
        gates = decision.gates.reshape(num_images, -1, decision.gates.shape[-1]).float()
        scores = None if decision.scores is None else decision.scores.reshape(gates.shape).float()
        choices = (num_images, gates.shape[1], decision.selected.shape[-1])
        selected, processed = order_choices(
            decision.selected.reshape(choices),
            decision.processed.reshape(choices),
            gates if scores is None else scores,
        )
        slot = None
        if isinstance(decision.plan, SoftPlan):
            slot = decision.plan.combine.flatten(2).argmax(-1).reshape(gates.shape[:2])
        slots_per_image = None
        if isinstance(decision.plan, DispatchPlan) and decision.plan.capacity is not None:
            room = decision.plan.num_groups * decision.plan.num_experts * decision.plan.capacity
            slots_per_image = gates.new_full((num_images,), room / num_images)
        router = self._layers[name].router
        return LayerRouting(
            gates=gates,
            scores=scores,
            selected=selected,
            processed=processed,
            valid=torch.ones(gates.shape[:2], dtype=torch.bool, device=gates.device),
            grid=self.grids[name],
            num_prefix_tokens=gates.shape[1] - self.grids[name].num_patches,
            gates_sum_to_one=router.gates_sum_to_one,
            token_local=router.token_local,
            router=self.router_name,
            slot=slot,
            experts_choose=decision.top_k is None and choices[-1] > 0,
            places=slots_per_image,
            group_images=self.group_images,
        )
