"""What the tokens that follow lose when one token of one layer of a text has another set of experts.

The pass up to the layer is run once where the model can resume it; flips are passes from there on, many in a batch.

Axes: B texts, T tokens, N flips, D width.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from moeprobe.adapters.base import Checkpoint
from moeprobe.inputs.texts import TokenBatch
from moeprobe.metrics.analyses.text_flips import ForcedTextFlips
from moeprobe.probes.engine.blank_passes import once
from moeprobe.probes.flips.price import ForcedSets, flipped_routing
from moeprobe.routing.capabilities import Rerouted, ResumableText
from moeprobe.routing.record import LayerRouting, RoutingTrace

# Largest difference in nats between a resumed pass and a whole one that is rounding, of a clean text.
_ROUNDING = 1e-3


@dataclass(frozen=True)
class CleanTexts:
    """A batch of texts as it is.

    Attributes:
        texts: the tokens.
        log_probs: ``(B, T)`` of each token given those before it; NaN where there is none.
        routing: of all layers.
        hidden: of each layer whose passes are resumed, ``(B, T, D)`` what enters its block.
    """

    texts: TokenBatch
    log_probs: Tensor
    routing: RoutingTrace
    hidden: dict[str, Tensor]

    def flippable(self, layer: str) -> LayerRouting:
        """Return the routing of a layer, valid where a token has a next one with a log-probability."""
        routing = self.routing.layers[layer]
        has_next = torch.cat([self.log_probs[:, 1:].isfinite(), self.log_probs.isnan()[:, :1] & False], 1)
        return dataclasses.replace(routing, valid=routing.valid & has_next)


def check_writes(checkpoint: Checkpoint) -> None:
    """Raise ``UserError`` where a model of texts writes none, so that they have no log-probabilities."""
    model = checkpoint.model
    assert isinstance(model, Rerouted)
    once(checkpoint, "log-probabilities", lambda: model.log_probabilities(checkpoint.framing.blank()))


def resumable_layers(checkpoint: Checkpoint, layers: Sequence[str]) -> list[str]:
    """Return the layers from which passes can be resumed: there a resumed clean pass gives what a whole one does."""
    model, texts = checkpoint.model, checkpoint.framing.blank()
    if not isinstance(model, ResumableText):
        return []
    _, routing = model.trace(texts, logits=False)
    full_pass = model.log_probabilities(texts)
    hidden = model.text_trunks(texts, layers=layers)
    resumable = []
    for name, entering in hidden.items():
        names = list(routing.layers)
        following = RoutingTrace({layer: routing.layers[layer] for layer in names[names.index(name) :]})
        try:
            resumed = model.resumed_log_probabilities(name, entering, texts, following)
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue  # blocks hand on more than one tensor, which their passes then miss
        if ((resumed - full_pass).abs().nan_to_num(0) < _ROUNDING).all():
            resumable.append(name)
    return resumable


def run_texts(checkpoint: Checkpoint, texts: TokenBatch, resumable: Sequence[str]) -> CleanTexts:
    """Return the pass of a batch of texts as it is; ``resumable`` layers as of ``resumable_layers``."""
    model = checkpoint.model
    assert isinstance(model, Rerouted)
    _, routing = model.trace(texts, logits=False)
    hidden = {}
    if resumable:
        assert isinstance(model, ResumableText)
        hidden = model.text_trunks(texts, layers=resumable)
    log_probs = model.log_probabilities(texts)
    return CleanTexts(texts.to(log_probs.device), log_probs, routing, hidden)


def price_text_flips(
    model: Any, clean: CleanTexts, layer: str, forced: ForcedSets, *, batch_size: int, is_later_fixed: bool
) -> ForcedTextFlips:
    """Force sets on the sampled tokens of a layer, one token in each pass; arguments as of ``price_flips``."""
    text, token = forced.weight.nonzero(as_tuple=True)
    falls = [clean.log_probs.new_zeros(0, 2, dtype=torch.float64)]
    for start in range(0, len(text), batch_size):
        rows, flipped = (index[start : start + batch_size] for index in (text, token))
        routing = flipped_routing(clean.routing, layer, rows, flipped, forced, is_later_fixed=is_later_fixed)
        texts = clean.texts[rows]
        if layer in clean.hidden:
            hidden = clean.hidden[layer][rows]
            after = model.resumed_log_probabilities(layer, hidden, texts, routing, gates=forced.gates_from)
        else:
            after = model.replayed_log_probabilities(texts, routing, gates=forced.gates_from)
        fall = (clean.log_probs[rows].double() - after.double()).nan_to_num(0)
        # What stands before the flip differs by rounding alone.
        is_after = torch.arange(fall.shape[1], device=fall.device) > flipped[:, None]
        next_fall = fall.gather(1, flipped[:, None] + 1).squeeze(1)
        falls.append(torch.stack([next_fall, (fall * is_after).sum(1)], 1))
    next_fall, following_fall = (
        torch.zeros_like(forced.weight).index_put((text, token), values)
        for values in torch.cat(falls).unbind(1)
    )
    return ForcedTextFlips(forced.weight, next_fall, following_fall)
