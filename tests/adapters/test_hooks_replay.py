"""A foreign module repeats choices that were made elsewhere, as far as its routers hand their choice on."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.hooks import Hooks
from moeprobe.errors import UserError
from moeprobe.recordings.reading import TraceFile
from moeprobe.routing.record import LayerRouting, RoutingTrace
from tests.adapters import zoo
from tests.adapters.test_hooks import SQUARE, images, normalized
from tests.adapters.zoo import VIT

PLACES: dict[str, dict[str, Any]] = {
    "tuple": {"weights": 0, "logits": 1, "indices": 2},
    "named": {"weights": "weights", "logits": "logits", "indices": "chosen"},
    "dict": {"weights": "weights", "logits": "logits", "indices": "chosen"},
    "record": {"weights": "weights", "logits": "logits", "indices": "chosen"},
}


@dataclasses.dataclass
class Record:
    weights: Tensor
    logits: Tensor
    chosen: Tensor


class Gate(zoo.Gate):
    """Hands on weights too, brought to one where ``scaled``, and what is around it uses them as they come."""

    scaled = False

    def forward(self, flat: Tensor) -> Any:
        logits = flat @ self.weight.T
        chosen = (logits + self.bias).topk(self.top_k).indices.flip(-1)
        weights = logits.softmax(-1).gather(-1, chosen)
        if self.scaled:
            weights = weights / weights.sum(-1, keepdim=True) * 2.5
        return {
            "tuple": (weights, logits, chosen),
            "named": zoo.Named(weights, logits, chosen),
            "dict": {"weights": weights, "logits": logits, "chosen": chosen},
            "record": Record(weights, logits, chosen),
        }[self.style]


class HandingMoe(zoo.TokenMoe):
    gate_class: type[Gate] = Gate

    def __init__(self, width: int, style: str = "tuple", num_experts: int = 6, top_k: int = 2) -> None:
        super().__init__(width, num_experts, top_k)
        self.gate = self.gate_class(width, num_experts, top_k, style)

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        told = self.gate(flat)
        if isinstance(told, Record):
            return told.weights, told.chosen
        return (told["weights"], told["chosen"]) if isinstance(told, dict) else (told[0], told[2])


class ScaledGate(Gate):
    scaled = True


class ScaledMoe(HandingMoe):
    gate_class = ScaledGate


def hooked(moe: Any = HandingMoe, style: str = "tuple", **changes: Any) -> Hooks:
    return Hooks(zoo.vit(moe, style), routers=Gate, **{**VIT, "read": PLACES[style], **changes})


def moved(layer: LayerRouting) -> LayerRouting:
    return dataclasses.replace(layer, selected=(layer.selected + 1) % 6)


def by_hand(model: Hooks, pixels: Tensor, routing: RoutingTrace, *, gates: str, scaled: bool) -> Tensor:
    """Class scores where each MoE layer is written out, a token and an expert at a time."""
    net: Any = model._module.net.eval()

    def written_out(moe: Any, layer: LayerRouting) -> Any:
        def forward(tokens: Tensor) -> Tensor:
            found = torch.zeros_like(tokens)
            present = (tokens @ moe.gate.weight.T).softmax(-1)
            for image in range(tokens.shape[0]):
                for token in range(tokens.shape[1]):
                    experts = layer.selected[image, token].tolist()
                    source = present if gates == "recomputed" else layer.gates
                    weights = source[image, token][experts]
                    weights = weights / weights.sum() * 2.5 if scaled else weights
                    for weight, expert in zip(weights, experts, strict=True):
                        found[image, token] += weight * moe.experts[expert](tokens[image, token])
            return found

        return forward

    moes = {name: net.get_submodule(name).mlp for name in routing.layers}
    for name, moe in moes.items():
        moe.forward = written_out(moe, routing.layers[name])
    try:
        with torch.no_grad():
            scores: Tensor = net(normalized(pixels))
    finally:
        for moe in moes.values():
            del moe.forward
    return scores


@pytest.mark.parametrize("gates", ["recomputed", "replayed"])
@pytest.mark.parametrize("style", PLACES)
def test_own_choices_give_the_same_scores_and_others_what_experts_make_of_them(
    style: str, gates: str
) -> None:
    scaled = style == "named"
    model = hooked(ScaledMoe if scaled else HandingMoe, style)
    model.check_replay()
    scores, routing = model.trace(images(3))
    assert scores is not None
    torch.testing.assert_close(model.replay(images(3), routing, gates=gates), scores, rtol=0, atol=1e-6)
    random = torch.Generator().manual_seed(1)
    other = RoutingTrace(
        {
            name: dataclasses.replace(
                moved(layer), gates=torch.rand(layer.gates.shape, generator=random).softmax(-1)
            )
            for name, layer in routing.layers.items()
        }
    )
    expected = by_hand(model, images(3), other, gates=gates, scaled=scaled)
    assert (expected - scores).abs().max() > 0.05, "the choice must matter"
    torch.testing.assert_close(model.replay(images(3), other, gates=gates), expected, rtol=0, atol=1e-5)
    own, _ = model.trace(images(3))
    torch.testing.assert_close(own, scores, rtol=0, atol=0)
    assert not any(module._forward_hooks for module in model._module.net.modules())


def test_tokens_without_a_choice_and_other_layers_choose_as_ever() -> None:
    model = hooked()
    scores, routing = model.trace(images())
    layer = moved(routing.layers["blocks.3"])
    assert scores is not None
    # The head reads the class token alone, the first: in the last block no other matters.
    rest = layer.selected.clone()
    rest[:, 0] = -1
    found = model.replay(images(), RoutingTrace({"blocks.3": dataclasses.replace(layer, selected=rest)}))
    torch.testing.assert_close(found, scores, rtol=0, atol=1e-6)
    one = layer.selected.clone()
    one[:, 1:] = -1
    one[2:] = -1
    found = model.replay(images(), RoutingTrace({"blocks.3": dataclasses.replace(layer, selected=one)}))
    changed = (found - scores).abs().amax(1)
    assert (changed[:2] > 1e-3).all() and (changed[2:] < 1e-6).all()


class First(zoo.SequenceFirst):
    """Tokens before images, and a gate that hands on one expert."""

    def __init__(self, *, flat: bool) -> None:
        super().__init__(flat=flat)
        self.gate: Any = Gate(32, 6, 1, "tuple")

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.patches(pixels).flatten(2).permute(2, 0, 1)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        weights, _, chosen = self.gate(tokens.reshape(-1, 32) if self.flat else tokens)
        first, weight = chosen.reshape(tokens.shape[:2]), weights.reshape(tokens.shape[:2])
        outputs = torch.stack([expert(tokens) for expert in self.experts], dim=-2)
        taken = outputs.gather(-2, first[..., None, None].expand(*first.shape, 1, 32)).squeeze(-2)
        return self.head((tokens + weight[..., None] * taken).square().mean(0)), torch.zeros(())


@pytest.mark.parametrize("flat", [True, False])
def test_tokens_in_another_order_get_their_own_choices(flat: bool) -> None:
    model = Hooks(
        First(flat=flat), routers=Gate, read=PLACES["tuple"], sequence_first=True, output=0, **SQUARE
    )
    scores, routing = model.trace(images())
    (name,) = routing.layers
    layer = routing.layers[name]
    assert scores is not None
    torch.testing.assert_close(model.replay(images(), routing), scores, rtol=0, atol=1e-6)
    some = layer.selected.clone()
    some[3] = (some[3] + 1) % 6
    found = model.replay(images(), RoutingTrace({name: dataclasses.replace(layer, selected=some)}))
    changed = (found - scores).abs().amax(1)
    assert changed[3] > 1e-3 and (changed[[0, 1, 2, 4]] < 1e-6).all()


def test_images_that_depend_on_one_another_are_run_as_in_a_trace() -> None:
    crowded = type("CrowdedHandingMoe", (HandingMoe, zoo.CrowdedMoe), {})
    model = hooked(crowded, group_images=2)
    assert model.group_images == 2
    scores, routing = model.trace(images())
    assert scores is not None
    torch.testing.assert_close(model.replay(images(), routing), scores, rtol=0, atol=1e-6)


def marked(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """What a comparison with the K-th highest marks, and no top-k names."""
    gates = logits.softmax(-1)
    least = gates.kthvalue(gates.shape[-1] - top_k + 1, dim=-1, keepdim=True).values
    return gates * (gates >= least), (gates >= least).nonzero()[:, 1].reshape(-1, top_k)


class MarkingMoe(zoo.TokenMoe):
    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        gates, chosen = marked(self.gate(flat), self.top_k)
        return gates.gather(-1, chosen), chosen


class DeafMoe(zoo.TokenMoe):
    """Runs a top-k, and goes by marks that say the same."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(flat)
        logits.topk(self.top_k)
        gates, chosen = marked(logits, self.top_k)
        return gates.gather(-1, chosen), chosen


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Hooks(zoo.vit(MarkingMoe), routers="blocks.*.mlp.gate", top_k=2, **VIT),
            "blocks.1.mlp.gate cannot be made to repeat a choice: no top-k was seen",
        ),
        (
            lambda: Hooks(
                zoo.vit(MarkingMoe),
                routers="blocks.*.mlp.gate",
                top_k=2,
                read=lambda _m, _a, output: {"logits": output},
                **VIT,
            ),
            "blocks.1.mlp.gate cannot be made to repeat a choice: no top-k was seen",
        ),
        (
            lambda: Hooks(zoo.vit(DeafMoe), **VIT),
            "is made to choose experts that do not process the tokens then",
        ),
    ],
)
def test_what_cannot_be_forced_is_said(make: Any, said: str) -> None:
    model = make()
    routing = model.trace(images())[1]
    for ask in (model.check_replay, lambda: model.replay(images(), routing)):
        with pytest.raises(UserError) as caught:
            ask()
        assert said in str(caught.value)
    with pytest.raises(
        UserError, match=r"foreign cannot replay a routing, so its jumps .* The router blocks"
    ):
        api.discontinuity(api.wrap(model, name="foreign"), data="digits", images=["0"])


@pytest.mark.parametrize(
    ("read", "said"),
    [
        ({"logits": 1, "weights": 0}, "place of the indices is needed too"),
        ({"logits": 1, "indices": 2, "weights": 1}, "its weights should be as many as its indices (51, 2)"),
        ({"logits": 1, "indices": 2, "weights": 2}, "its weights should be as many as its indices (51, 2)"),
    ],
)
def test_weights_in_the_wrong_place_are_refused(read: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        hooked(read=read)
    assert said in str(caught.value)


def test_a_routing_of_another_model_is_refused() -> None:
    model = hooked()
    routing = model.trace(images())[1]
    with pytest.raises(UserError, match="of 5 images, and 4 are given"):
        model.replay(images(4), routing)
    wide = Hooks(zoo.vit(HandingMoe, "tuple", 8), routers=Gate, read=PLACES["tuple"], **VIT)
    with pytest.raises(UserError, match="chooses 2 of 8 experts, and the model 2 of 6"):
        model.replay(images(), wide.trace(images())[1])
    bare = {
        name: dataclasses.replace(layer, gates=torch.zeros_like(layer.gates))
        for name, layer in routing.layers.items()
    }
    with pytest.raises(UserError, match="has no gates; let them be recomputed"):
        model.replay(images(), RoutingTrace(bare), gates="replayed")


def test_a_recorded_routing_is_replayed_and_probes_that_replay_run(tmp_path: Path) -> None:
    model = hooked()
    checkpoint = api.wrap(model, name="mine")
    api.record([checkpoint], data="digits", limit=4, out=tmp_path / "traces")
    path = tmp_path / "traces" / "mine" / "clean.parquet"
    recorded = api.recorded_routing(path)
    layers = recorded.layers
    pixels = images(4)
    own, routing = model.trace(pixels)
    assert own is not None
    elsewhere = model.replay(pixels, recorded)
    assert (elsewhere - own).abs().max() > 1e-3
    mixed = {
        name: dataclasses.replace(layer, selected=layers[name].selected)
        for name, layer in routing.layers.items()
    }
    torch.testing.assert_close(elsewhere, by_hand(model, pixels, RoutingTrace(mixed), gates="recomputed", scaled=False),
                               rtol=0, atol=1e-5)  # fmt: skip
    one = api.recorded_routing(path, inputs=TraceFile(path).ids[2], layers="blocks.3").layers
    assert torch.equal(one["blocks.3"].selected, layers["blocks.3"].selected[2:3]) and len(one) == 1
    for asked, said in (
        ({"inputs": "x"}, "no input 'x'"),
        ({"layers": "block.3"}, "Did you mean 'blocks.3'"),
    ):
        with pytest.raises(UserError, match=said):
            api.recorded_routing(path, **asked)
    swept = api.noise_sweep([checkpoint], data="digits", limit=8, sigmas=[0.3], attribute=True)
    parts = swept.table.query("severity == 0.3 and metric.str.contains('switching')")
    assert len(parts) and parts["value"].notna().any()
