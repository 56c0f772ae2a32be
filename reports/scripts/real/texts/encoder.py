"""MiniLM made sparse: BERT layers of ``transformers`` whose perceptron is moeprobe's own MoE layer, ready to be probed.

The model is one of a user's own: it keeps the contract of ``routing.capabilities.Traceable`` and is handed to probes as
a ``Checkpoint``, without an adapter.

Axes: B texts, T tokens, D width, E experts.
"""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from moeprobe.adapters.base import Checkpoint, wanted_layers
from moeprobe.adapters.huggingface.files import FastTokenizer
from moeprobe.adapters.huggingface.replay import noise_added, root_mean_square
from moeprobe.inputs.texts import TextFraming, TokenBatch
from moeprobe.models.nn.capture import capture, moe_layers
from moeprobe.models.nn.experts import ExpertLinear, MlpExperts
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.plans import CapacityRule
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.routers.softmax_token_choice import SoftmaxTokenChoice
from moeprobe.routing.capabilities import FEATURES
from moeprobe.routing.parts import Weight, weights_of
from moeprobe.routing.record import LayerRouting, RoutingTrace, order_choices
from moeprobe.runtime.torchvision_compat import import_with_operators

# Every second of the six layers.
SPARSE_LAYERS = (1, 3, 5)
NUM_EXPERTS, TOP_K = 8, 2
# Special tokens included: the sentences have up to 28 words.
MAX_LENGTH = 48
_ROUTER_STD = 0.02
_ROUTER = "softmax_token_choice"


def dense_model(folder: Path) -> Any:
    """Return the BERT model in a folder of ``save_pretrained``, in evaluation mode."""
    import_with_operators("torchvision")  # which transformers imports with its first model
    from transformers import BertModel

    model = BertModel.from_pretrained(folder, add_pooling_layer=False, local_files_only=True)
    return model.eval().requires_grad_(False)


def framing(folder: Path) -> TextFraming:
    """Return how texts enter: the tokenizer of a folder, ``MAX_LENGTH`` tokens at most."""
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    return TextFraming(FastTokenizer(tokenizer), config.hidden_size, MAX_LENGTH)


def make_sparse(model: Any, layers: Sequence[int] = SPARSE_LAYERS) -> Any:
    """Replace the perceptrons of some layers by ``NUM_EXPERTS`` copies each and a fresh router; returns the model.

    The two chosen weights of a token sum to one, so that the model begins as the dense one.
    """
    for number in layers:
        layer = model.encoder.layer[number]
        first, second = layer.intermediate.dense, layer.output.dense
        unlimited = CapacityRule(None)
        router = SoftmaxTokenChoice(
            first.in_features,
            NUM_EXPERTS,
            TOP_K,
            capacity=unlimited,
            eval_capacity=unlimited,
            renormalise=True,
        )
        nn.init.normal_(router.gate.weight, std=_ROUTER_STD)
        # BERT's own activation, which is not the tanh form.
        experts = MlpExperts(NUM_EXPERTS, first.in_features, first.out_features, activation=nn.GELU())
        experts.fc1.copy_linear(first)
        experts.fc2.copy_linear(second)
        layer.intermediate = MoeLayer(router, experts)
        # The rest of the layer's output, its residual and its norm, stays.
        layer.output.dense = nn.Identity()
    return model.eval()


def moe_part(model: Any) -> nn.ModuleDict:
    """Return the MoE layers alone: all that is trained and kept."""
    return nn.ModuleDict({name.replace(".", "-"): layer for name, layer in moe_layers(model).items()})


def tokens_of(model: Any, texts: TokenBatch) -> Tensor:
    """Return the last hidden states ``(B, T, D)``."""
    hidden: Tensor = model(input_ids=texts.ids, attention_mask=texts.present.long()).last_hidden_state
    return hidden


def sentences_of(tokens: Tensor, present: Tensor) -> Tensor:
    """Return the embeddings ``(B, D)`` of texts, of length one: the mean of all their tokens, special ones included."""
    total = (tokens * present[..., None]).sum(1)
    return nn.functional.normalize(total / present.sum(1, keepdim=True), dim=-1)


class TextEncoder:
    """A sparse BERT, traceable; its output is the embedding of a text.

    Args:
        model: with MoE layers (``make_sparse``); put into evaluation mode.
    """

    output_kind = FEATURES
    group_images = 1

    def __init__(self, model: Any) -> None:
        self.model = model.eval().requires_grad_(False)
        self.layer_names = tuple(moe_layers(model))
        self._embedding = model.get_input_embeddings()
        self._rms = root_mean_square(self._embedding, torch.device("cpu"))

    def trace(
        self, images: TokenBatch, *, layers: Sequence[str] | None = None, logits: bool = True
    ) -> tuple[Tensor | None, RoutingTrace]:
        """Run the model on texts; see ``routing.capabilities.Traceable``."""
        names = wanted_layers(layers, self.layer_names)
        output = None
        with (
            torch.inference_mode(),
            noise_added(self._embedding, images, unit=self._rms),
            capture(self.model, stop_after=None if logits else names[-1]) as decisions,
        ):
            output = sentences_of(tokens_of(self.model, images), images.present)
        return output, RoutingTrace({name: _routing(decisions[name], images) for name in names})

    def weights(self) -> list[Weight]:
        """Return the parameters by the part that they are of; see ``routing.capabilities.Weighed``."""
        layers = moe_layers(self.model).values()
        return weights_of(
            self.model,
            routers=[layer.router for layer in layers],
            experts=[layer.experts for layer in layers],
            is_transposed=lambda module: isinstance(module, ExpertLinear),
        )


def _routing(decision: Decision, texts: TokenBatch) -> LayerRouting:
    gates = decision.gates.reshape(*texts.ids.shape, -1).float()
    choices = (*texts.ids.shape, -1)
    selected, processed = order_choices(
        decision.selected.reshape(choices), decision.processed.reshape(choices), gates
    )
    position = torch.arange(texts.ids.shape[1])
    return LayerRouting(
        gates=gates,
        scores=None,
        selected=selected,
        processed=processed,
        # Special tokens after a text are not of it; those in front are the prefix.
        valid=texts.ordinary | (texts.present & (position < texts.num_prefix_tokens)),
        grid=None,
        num_prefix_tokens=texts.num_prefix_tokens,
        gates_sum_to_one=True,
        token_local=True,
        router=_ROUTER,
    )


def hash_of(model: nn.Module) -> str:
    """Return the SHA-256 of a model's parameters and buffers, and of their names."""
    digest = hashlib.sha256()
    for path, tensor in model.state_dict().items():
        digest.update(path.encode())
        digest.update(tensor.contiguous().numpy().tobytes())
    return digest.hexdigest()


def as_checkpoint(model: Any, texts: TextFraming, *, name: str, group: str, seed: int) -> Checkpoint:
    """Return a sparse model as probes take it, with a hash of all of its parameters."""
    provenance: Mapping[str, Any] = {"path": name, "sha256": hash_of(model), "training": {}}
    return Checkpoint(name, TextEncoder(model), texts, (), seed, group, provenance)
