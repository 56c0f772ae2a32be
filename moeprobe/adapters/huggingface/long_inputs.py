"""Long texts in a causal language model of ``transformers``: read chunk by chunk, in memory that chunks bound.

A chunk sees the tokens before it by their keys and values, which the library's cache keeps. So attention, experts and
the head take the memory of one chunk. The routing of each chunk goes to the host before the next one is read. That
chunks change no routing is tried out on a short text when they are asked for.

Axes: B texts, T tokens, C tokens of a chunk, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from moeprobe.adapters.base import PassEnd
from moeprobe.adapters.huggingface import heads, replay
from moeprobe.errors import UserError, option
from moeprobe.inputs.texts import TokenBatch
from moeprobe.routing.record import LayerRouting, RoutingTrace

if TYPE_CHECKING:
    from moeprobe.adapters.huggingface import HuggingfaceAdapter

# Texts, tokens and tokens of a chunk of the trial; and the difference of gates that rounding explains, in steps.
_TRIAL, _TRIAL_CHUNK = (2, 24), 7
_STEPS = 256


def check_chunks(model: "HuggingfaceAdapter") -> None:
    """Raise ``UserError`` unless a model gives the same routing where it reads texts in chunks."""
    if model._head.predicts in (heads.CLASSES, heads.SCORE):
        raise UserError(_refusal(model, "it reads a text as a whole, to classify it"))
    if model._limited:
        raise UserError(
            _refusal(model, "the tokens of a chunk would compete for the capacity of its experts")
        )
    texts = model._trial(*_TRIAL)
    with reading_whole(model):
        expected = model.trace(texts, logits=False)[1]
        model.chunk_length = _TRIAL_CHUNK
        try:
            chunked = trace(model, texts, model.layer_names, with_scores=False)[1]
        except UserError as error:
            raise UserError(_refusal(model, str(error).rstrip("."))) from None
    tolerance = _STEPS * torch.finfo(getattr(torch, model.dtype)).eps
    for name, layer in expected.layers.items():
        gates = layer.gates.cpu()
        if bool(((chunked.layers[name].gates - gates).abs() > tolerance * gates.abs().amax()).any()):
            raise UserError(_refusal(model, f"{name} routes otherwise then"))


def _refusal(model: "HuggingfaceAdapter", cause: str) -> str:
    where = option("chunk_length")
    return f"A model of type {model.router_name!r} reads no texts in chunks: {cause}; leave {where} out."


def is_long(texts: TokenBatch, length: int | None) -> bool:
    """Whether texts have more tokens than a chunk; without a length, they are read whole."""
    return length is not None and texts.ids.shape[1] > length


@contextmanager
def reading_whole(model: "HuggingfaceAdapter") -> Iterator[None]:
    """Let texts be read whole inside the block, as where choices are repeated; without gradients."""
    length, model.chunk_length = model.chunk_length, None
    try:
        with torch.inference_mode():
            yield
    finally:
        model.chunk_length = length


def on_device(routing: RoutingTrace, device: torch.device) -> RoutingTrace:
    """Return a routing, which may be on the host, where the model is."""
    layers = {
        name: layer.of_each_input(lambda value: value.to(device)) for name, layer in routing.layers.items()
    }
    return RoutingTrace(layers)


@torch.inference_mode()
def trace(
    model: "HuggingfaceAdapter", texts: TokenBatch, names: Sequence[str], *, with_scores: bool
) -> tuple[Tensor | None, RoutingTrace]:
    """Return the scores ``(B, V)`` of the next token, if wanted, and the routing on the host; see ``Traceable``.

    Args:
        model: the model.
        texts: on its device.
        names: layers, in the order in which they fire.
        with_scores: whether scores are wanted.
    """
    parts: dict[str, list[LayerRouting]] = {name: [] for name in names}
    scores: Tensor | None = None
    length = model.chunk_length
    assert length is not None
    for start, chunk, keywords in _chunks(model, texts, length):
        with (
            model._watching(names, stop=not with_scores),
            replay.noise_added(model._embedding, chunk, unit=model._rms),
        ):
            if with_scores:
                # The head sees one token of each text: its last, where that is in this chunk.
                is_here = (texts.last >= start) & (texts.last < start + length)
                last = (texts.last - start).clamp(0, chunk.ids.shape[1] - 1)
                own_scores = model._forward(chunk, with_scores=True, last=last, **keywords)
                assert own_scores is not None
                scores = own_scores if scores is None else torch.where(is_here[:, None], own_scores, scores)
            else:
                with suppress(PassEnd):
                    model._run(chunk, **keywords)
            for name in names:
                parts[name].append(_on_host(model._routing(name, chunk)))
    prefix = texts.num_prefix_tokens
    return scores, RoutingTrace({name: _join_chunks(layers, prefix) for name, layers in parts.items()})


@torch.inference_mode()
def log_probabilities(model: "HuggingfaceAdapter", texts: TokenBatch) -> Tensor:
    """Return how probable each token is after those before it ``(B, T)``; see ``routing.Scored``."""
    length = model.chunk_length
    assert length is not None
    log_probs = torch.full(texts.ids.shape, float("nan"), device=texts.ids.device)
    for start, chunk, keywords in _chunks(model, texts, length):
        with replay.noise_added(model._embedding, chunk, unit=model._rms):
            logits = replay.logits_of_all(partial(model._run, **keywords), model._head, chunk)
        following = texts.ids[:, start + 1 : start + 1 + length]
        log_probs[:, start + 1 : start + 1 + length] = replay.score_tokens(
            logits[:, : following.shape[1]], following
        )
        del logits
    is_scored = torch.zeros_like(texts.present)
    is_scored[:, 1:] = texts.present[:, 1:] & texts.present[:, :-1]
    return log_probs.masked_fill(~is_scored, float("nan"))


def _chunks(
    model: "HuggingfaceAdapter", texts: TokenBatch, length: int
) -> Iterator[tuple[int, TokenBatch, dict[str, Any]]]:
    """Yield where each chunk begins, its tokens, and what the library's model is called with beside them."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model._body.config.get_text_config())
    for start in range(0, texts.ids.shape[1], length):
        tokens = slice(start, start + length)
        chunk = replace(
            texts,
            ids=texts.ids[:, tokens],
            present=texts.present[:, tokens],
            ordinary=texts.ordinary[:, tokens],
            num_prefix_tokens=max(texts.num_prefix_tokens - start, 0),
            noise=None if texts.noise is None else texts.noise[:, tokens],
        )
        present = texts.present[:, : tokens.stop].long()
        yield start, chunk, {"attention_mask": present, "past_key_values": cache, "use_cache": True}


def _on_host(layer: LayerRouting) -> LayerRouting:
    return layer.of_each_input(Tensor.cpu)


def _join_chunks(parts: Sequence[LayerRouting], num_prefix_tokens: int) -> LayerRouting:
    """Return the routing of chunks as one of whole texts."""
    names = [
        name
        for name in ("gates", "scores", "selected", "processed", "valid")
        if getattr(parts[0], name) is not None
    ]
    joined: dict[str, Any] = {name: torch.cat([getattr(part, name) for part in parts], 1) for name in names}
    return replace(parts[0], num_prefix_tokens=num_prefix_tokens, **joined)
