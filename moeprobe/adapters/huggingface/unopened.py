"""A model of ``transformers`` whose weights are not read, by which a run is checked and counted.

It has the layers, tokens and sizes of the model. What only passes show is taken as usual: its gates are a distribution,
and a choice can be replayed. A blank input's routing gives each token the first K experts.

Axes: B texts, T tokens, E experts, K choices.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.base import Checkpoint, wanted_layers
from moeprobe.adapters.huggingface import heads, replay, routers
from moeprobe.adapters.huggingface.digests import remembered_digest
from moeprobe.adapters.huggingface.files import framing_of, load_outline, name_of
from moeprobe.adapters.huggingface.outline import check_routers
from moeprobe.adapters.huggingface.placing import bytes_by_device, choose_map
from moeprobe.adapters.huggingface.settings import Settings, num_experts_of, top_k_of
from moeprobe.inputs.texts import TokenBatch
from moeprobe.routing.parts import Weight, weights_of
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.placement import DeviceMap, WeightPlacement, name_device


class UnopenedModel:
    """Stands for a language model that is not loaded.

    Args:
        model: without memory (``outline.build_outline``), in the precision of its weights.
        device: where token ids would be sent.
        weight_bytes: bytes of the weights on each device, by its name.

    Attributes:
        weight_bytes: as given.
    """

    group_images = 1

    def __init__(self, model: Any, *, device: torch.device, weight_bytes: Mapping[str, int]) -> None:
        self.model, self.device, self.weight_bytes = model, device, dict(weight_bytes)
        body, layers = heads.text_part(model), check_routers(model)
        self._head, self._routers = heads.head_of(body), list(layers.values())
        self.layer_names = tuple(routers.short_names(list(layers)))
        self.class_names = self._head.class_names
        self._vocabulary, self.width = body.get_input_embeddings().weight.shape

    def trace(
        self, images: TokenBatch, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        """Return a routing of the right shapes, and scores where the model gives some."""
        names = wanted_layers(layers, self.layer_names)
        experts, top_k = num_experts_of(self.model.config), top_k_of(self.model.config)
        rows, length = images.ids.shape
        assert experts is not None and top_k is not None
        selected = torch.arange(top_k, dtype=torch.int16).expand(rows, length, top_k)
        layer = LayerRouting(
            gates=torch.full((rows, length, experts), 1 / experts),
            scores=None,
            selected=selected,
            processed=torch.ones_like(selected, dtype=torch.bool),
            valid=images.present,
            grid=None,
            num_prefix_tokens=images.num_prefix_tokens,
            gates_sum_to_one=True,
            token_local=True,
            router=self.model.config.model_type,
        )
        columns = len(self.class_names) or self._vocabulary
        scores = torch.zeros(rows, columns) if logits and self._head.has_scores else None
        return scores, RoutingTrace(dict.fromkeys(names, layer))

    def weights(self) -> list[Weight]:
        """Return a parameter without numbers for each; see ``routing.Weighed``."""
        experts = [layer.experts for layer in self._routers if layer.experts is not None]
        modules = [layer.module for layer in self._routers]
        return [
            Weight(each.part, nn.Parameter(torch.empty(0, dtype=each.parameter.dtype)), each.inputs)
            for each in weights_of(self.model, routers=modules, experts=experts)
        ]

    def log_probabilities(self, texts: TokenBatch) -> Tensor:
        """Return NaN for each token, or refuse as the model would; see ``routing.Scored``."""
        replay.check_writes(self._head)
        return torch.full(texts.ids.shape, float("nan"))

    def read_in_chunks(self, length: int) -> None:
        """Change nothing: texts are read as often."""

    def check_replay(self, layers: Sequence[str] | None = None) -> None:
        """Refuse only layers that there are not; see ``routing.Rerouted``."""
        wanted_layers(layers, self.layer_names)

    def replayed_log_probabilities(
        self, texts: TokenBatch, routing: RoutingTrace, *, gates: str = "recomputed"
    ) -> Tensor:
        """Return NaN for each token; see ``routing.Rerouted``."""
        return self.log_probabilities(texts)


def open_outline(
    reference: str, settings: Settings, *, device: torch.device, dtype: str, placement: WeightPlacement | None
) -> Checkpoint | None:
    """Return a model that is not loaded; None where its configuration does not say how many experts a token has.

    Raises:
        UserError: it cannot be opened.
    """
    model, tokenizer, *_ = load_outline(reference, dtype=dtype, settings=settings, placement=placement)
    if num_experts_of(model.config) is None or top_k_of(model.config) is None:
        return None
    weight_bytes = weights_by_device(model, device=device, placement=placement)
    unopened = UnopenedModel(model, device=device, weight_bytes=weight_bytes)
    return Checkpoint(
        name=name_of(reference, settings, dtype),
        model=unopened,
        framing=framing_of(model.config, tokenizer, unopened.width),
        class_names=unopened.class_names,
        provenance={
            "path": reference,
            "sha256": remembered_digest(reference, model.config, settings.gguf),
            "dtype": str(model.dtype).removeprefix("torch."),
        },
    )


def weights_by_device(
    model: Any, *, device: torch.device, placement: WeightPlacement | None
) -> dict[str, int]:
    """Return how many bytes of a model's weights would be where, by the name of the device."""
    dtype = model.dtype
    device_map: DeviceMap = {"": str(device)} if placement is None else choose_map(placement, model, dtype)
    return {name_device(device): size for device, size in bytes_by_device(device_map, model, dtype).items()}
