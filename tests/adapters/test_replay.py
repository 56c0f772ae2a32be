"""A language model repeats choices that were made elsewhere: what comes out is what its own code makes of them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TokenBatch
from moeprobe.routing.record import RoutingTrace

pytest.importorskip("transformers")

from tests.adapters.families import small

FAMILIES = ("olmoe", "qwen3_moe", "mixtral")
# Families of which weights are the gates themselves; the others bring them to one.
AS_THEY_ARE = ("olmoe",)


def model_of(family: str) -> Any:
    model = small(family, vocab_size=320, **({"norm_topk_prob": True} if family == "qwen3_moe" else {}))
    with torch.no_grad():
        for name, value in model.named_parameters():
            if name.endswith(("gate.weight", "router.weight")):
                value.normal_(0, 1.0)
            elif value.ndim == 3:  # experts that say clearly different things
                value.mul_(8)
    return model.eval()


def batch(*, padded: bool = True) -> TokenBatch:
    ids = torch.randint(3, 320, (3, 12), generator=torch.Generator().manual_seed(0))
    present = torch.ones(3, 12, dtype=torch.bool)
    present[1, 9:] = not padded
    return TokenBatch(ids.masked_fill(~present, 0), present, present, 0)


@contextmanager
def forced(
    model: Any, family: str, choices: Mapping[int, Tensor], probabilities: Mapping[int, Tensor] | None = None
) -> Iterator[None]:
    """Let the library's own routers return experts ``(N, K)``, weighted as the family does, by plain torch."""
    gates = [layer.mlp.gate for layer in model.model.layers]

    def forward(number: int, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        flat = hidden.reshape(-1, hidden.shape[-1])
        logits = flat @ gates[number].weight.T
        given = logits.softmax(-1) if probabilities is None else probabilities[number]
        weights = given.gather(1, choices[number])
        if family not in AS_THEY_ARE:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights, choices[number]

    for number in choices:
        gates[number].forward = lambda hidden, number=number: forward(number, hidden)
    try:
        yield
    finally:
        for number in choices:
            del gates[number].forward


def scores(model: Any, texts: TokenBatch) -> Tensor:
    """Log-probabilities by the library alone."""
    with torch.no_grad():
        logits = model(input_ids=texts.ids, attention_mask=texts.present.long()).logits
    return logits.log_softmax(-1)[:, :-1].gather(-1, texts.ids[:, 1:, None])[..., 0]


def other(routing: RoutingTrace, names: list[str]) -> dict[int, Tensor]:
    """Other experts ``(N, K)``: the next ones, in some layers."""
    layers = list(routing.layers)
    return {
        layers.index(name): (routing.layers[name].selected.long().flatten(0, 1) + 3) % 8 for name in names
    }


@pytest.mark.parametrize("gates", ["recomputed", "replayed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_own_choices_change_nothing(family: str, gates: str) -> None:
    adapter, texts = HuggingfaceAdapter(model_of(family)), batch()
    own = adapter.log_probabilities(texts)
    replayed = adapter.replayed_log_probabilities(texts, adapter.trace(texts, logits=False)[1], gates=gates)
    torch.testing.assert_close(replayed, own, rtol=0, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("gates", ["recomputed", "replayed"])
@pytest.mark.parametrize("family", FAMILIES)
def test_other_choices_are_what_the_library_makes_of_them(family: str, gates: str) -> None:
    import dataclasses

    model, texts = model_of(family), batch(padded=False)
    adapter = HuggingfaceAdapter(model)
    routing = adapter.trace(texts, logits=False)[1]
    choices = other(routing, list(routing.layers))
    random = torch.Generator().manual_seed(3)
    given = {number: torch.rand(36, 8, generator=random).softmax(-1) for number in range(len(routing.layers))}
    changed = {
        name: dataclasses.replace(
            layer,
            selected=choices[number].reshape(layer.selected.shape).to(torch.int16),
            gates=given[number].reshape(layer.gates.shape),
        )
        for number, (name, layer) in enumerate(routing.layers.items())
    }
    found = adapter.replayed_log_probabilities(texts, RoutingTrace(changed), gates=gates)[:, 1:]
    with forced(model, family, choices, given if gates == "replayed" else None):
        expected = scores(model, texts)
    assert float((expected - scores(model, texts)).abs().max()) > 0.05, "the choice must matter"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        adapter.log_probabilities(texts)[:, 1:], scores(model, texts), rtol=0, atol=1e-6
    )


def test_tokens_without_a_choice_and_other_layers_choose_as_ever() -> None:
    import dataclasses

    adapter, texts = HuggingfaceAdapter(model_of("olmoe")), batch(padded=False)
    routing = adapter.trace(texts, logits=False)[1]
    first, *_ = routing.layers
    layer = routing.layers[first]
    shifted = (layer.selected + 3) % 8
    late = shifted.clone()
    late[:, :6] = -1  # not recorded: as from a prefix cache
    some = RoutingTrace({first: dataclasses.replace(layer, selected=late)})
    found, own = adapter.replayed_log_probabilities(texts, some), adapter.log_probabilities(texts)
    # Log-probability t follows from tokens up to t - 1.
    torch.testing.assert_close(found[:, 1:7], own[:, 1:7], rtol=0, atol=1e-6)
    assert float((found[:, 7:] - own[:, 7:]).abs().max()) > 0.01


def test_what_cannot_be_forced_is_said() -> None:
    texts = batch()
    phimoe = HuggingfaceAdapter(small("phimoe", vocab_size=320))
    with pytest.raises(
        UserError, match=r"PhimoeTopKRouter\) weighs experts by no known function of its logits"
    ):
        phimoe.check_replay()
    olmoe = HuggingfaceAdapter(model_of("olmoe"))
    olmoe.check_replay()
    routing = HuggingfaceAdapter(small("olmoe", vocab_size=320, num_experts=4, num_local_experts=4)).trace(
        texts, logits=False
    )[1]
    with pytest.raises(UserError, match="chooses 2 of 4 experts, and the model 2 of 8"):
        olmoe.replayed_log_probabilities(texts, routing)


def test_weights_that_say_nothing_are_said() -> None:
    model = model_of("olmoe")
    router = model.model.layers[0].mlp.gate
    own = router.forward

    def squared(hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits, weights, experts = own(hidden)
        return logits, weights**2, experts

    router.forward = squared
    with pytest.raises(UserError, match=r"layers.0 .* weighs experts by no known function of its logits"):
        HuggingfaceAdapter(model).check_replay()
    del router.forward
    with torch.no_grad():
        router.weight.mul_(1e3)
    # Weights of 1e-30 beside 1 are no other function: the token of zeros, the padding, still tells it.
    adapter = HuggingfaceAdapter(model)
    adapter.check_replay()
    assert adapter.trace(batch(), logits=False)[1].layers["layers.0"].gates_sum_to_one
    with torch.no_grad():
        router.weight.mul_(1e3)
        model.model.embed_tokens.weight[0] = model.model.embed_tokens.weight[3]
    with pytest.raises(UserError, match="leaves experts that every token chose next to no weight, as logits"):
        HuggingfaceAdapter(model).check_replay()
