"""Our own transformers, traced: against the model run by hand."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.models.config import MoeConfig
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.sparse import make_sparse
from moeprobe.routing.capabilities import Featured, Replayable, Routable, Traceable
from moeprobe.routing.record import LayerRouting, RoutingTrace
from tests.golden import assert_golden, golden
from tests.models.nn.test_vit import released_images, released_model
from tests.routing.routings import tiny

MEAN, STD = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)


def adapter(model: nn.Module | None = None, **options: object) -> Vmoe:
    return Vmoe(model or tiny(), mean=MEAN, std=STD, **options)  # type: ignore[arg-type]


def images(count: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def test_scores_and_gates_are_those_of_the_model() -> None:
    model = tiny()
    seen = {}
    for name, layer in moe_layers(model).items():
        layer.router.register_forward_pre_hook(lambda _, inputs, name=name: seen.update({name: inputs[0]}))
    logits, routing = adapter(model).trace(images())
    normalized = torch.stack([(images()[:, c] - MEAN[c]) / STD[c] for c in range(3)], dim=1)
    with torch.no_grad():
        expected = model.eval()(normalized)
    assert logits is not None
    torch.testing.assert_close(logits, expected)
    for name, layer in moe_layers(model).items():
        tokens = seen[name].reshape(6, 17, -1)
        gates = (tokens @ layer.router.get_parameter("gate.weight").detach().T).softmax(-1)
        found = routing.layers[name]
        torch.testing.assert_close(found.gates, gates)
        assert torch.equal(found.selected.long(), gates.topk(2).indices)


def test_what_a_trace_holds() -> None:
    traced = adapter()
    assert isinstance(traced, Traceable)
    logits, routing = traced.trace(images())
    assert list(routing.layers) == ["blocks.1", "blocks.3"] == list(traced.layer_names)
    for found in routing.layers.values():
        assert found.gates.shape == (6, 17, 8) and found.gates.dtype == torch.float32
        assert found.selected.shape == (6, 17, 2) and found.selected.dtype == torch.int16
        assert found.processed.shape == (6, 17, 2) and found.processed.all()
        assert found.valid.shape == (6, 17) and found.valid.all()
        assert found.grid is not None and (found.grid.rows, found.grid.columns, found.grid.patch_size) == (
            4,
            4,
            8,
        )
        assert (found.num_prefix_tokens, found.num_experts, found.top_k) == (1, 8, 2)
        assert found.gates_sum_to_one and found.token_local and found.router == "softmax_token_choice"
        assert not found.gates.requires_grad
    assert logits is not None and logits.shape == (6, 10) and not logits.requires_grad


def test_some_layers_alone_and_without_scores() -> None:
    traced = adapter()
    whole = traced.trace(images())[1].layers
    ran: list[str] = []
    for name, module in traced.model.named_modules():
        if name in ("blocks.1.mlp.experts", "blocks.2", "head"):
            module.register_forward_hook(lambda *_, name=name: ran.append(name))
    logits, routing = traced.trace(images(), layers=["blocks.1"], logits=False)
    assert logits is None and ran == []  # what comes after the last layer asked for does not run
    assert list(routing.layers) == ["blocks.1"]
    assert torch.equal(routing.layers["blocks.1"].gates, whole["blocks.1"].gates)
    logits, routing = traced.trace(images(), layers=["blocks.3", "blocks.1"], logits=False)
    assert list(routing.layers) == ["blocks.1", "blocks.3"]
    assert torch.equal(routing.layers["blocks.3"].gates, whole["blocks.3"].gates)
    with pytest.raises(UserError, match=r"blocks\.2.*blocks\.1, blocks\.3"):
        traced.trace(images(), layers=["blocks.2"])


@pytest.mark.parametrize("shape", [(3, 32, 32), (2, 1, 32, 32), (2, 3, 28, 32)])
def test_images_that_do_not_fit_are_one_sentence(shape: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=r"takes images \(B, 3, 32, 32\)"):
        adapter().trace(torch.rand(shape))


def test_no_noise_no_limit_no_batch_mates_unless_asked_for() -> None:
    model = tiny(capacity_factor=0.5, eval_capacity_factor=0.5, noise_std=5.0, group_images=4)
    model.train()
    traced = adapter(model)
    assert traced.group_images == 1
    whole = traced.trace(images())[1].layers["blocks.3"]
    assert whole.processed.all()
    for row in range(6):
        alone = traced.trace(images()[row : row + 1])[1].layers["blocks.3"]
        torch.testing.assert_close(alone.gates[0], whole.gates[row], rtol=1e-4, atol=1e-6)
    again = traced.trace(images())[1].layers["blocks.3"]
    assert torch.equal(again.gates, whole.gates)


@pytest.mark.parametrize("group_images", [1, 2])
def test_the_trained_capacity_is_felt_in_groups_of_images(group_images: int) -> None:
    traced = adapter(tiny(eval_capacity_factor=0.5), trained_capacity=True, group_images=group_images)
    assert traced.group_images == group_images
    whole = traced.trace(images())[1].layers
    capacity = 0.5 * 2 * 17 * group_images / 8
    for found in whole.values():
        assert not found.processed.all()
        for start in range(0, 6, group_images):
            group = slice(start, start + group_images)
            for expert in range(8):
                wanted = (found.selected[group] == expert).sum()
                served = ((found.selected[group] == expert) & found.processed[group]).sum()
                room = -(-capacity // 4) * 4  # rounded up to a multiple of four
                assert served == min(wanted, room)
    for start in range(0, 6, group_images):
        group = slice(start, start + group_images)
        alone = traced.trace(images()[group])[1].layers["blocks.3"]
        torch.testing.assert_close(alone.gates, whole["blocks.3"].gates[group], rtol=1e-4, atol=1e-6)
        assert torch.equal(alone.processed, whole["blocks.3"].processed[group])


def test_a_limit_that_does_not_exist_needs_no_groups() -> None:
    traced = adapter(tiny(eval_capacity_factor=None), trained_capacity=True, group_images=4)
    assert traced.group_images == 1


def test_groups_that_do_not_work_are_one_sentence() -> None:
    with pytest.raises(UserError, match="at least one image"):
        adapter(group_images=0)


@pytest.mark.parametrize(
    "options", [{}, {"trained_capacity": True}, {"trained_capacity": True, "group_images": 3}]
)
@pytest.mark.parametrize("model", [{}, {"top_k": 1}, {"batch_priority": True}, {"bfloat16_dispatch": True}])
@pytest.mark.parametrize("gates", ["recomputed", "replayed"])
def test_its_own_routing_changes_not_a_bit(
    options: dict[str, object], model: dict[str, Any], gates: str
) -> None:
    traced = adapter(tiny(eval_capacity_factor=0.7, **model), **options)
    assert isinstance(traced, Replayable)
    logits, routing = traced.trace(images())
    if options:
        assert not all(layer.processed.all() for layer in routing.layers.values()), (
            "nothing is dropped: no test"
        )
    assert logits is not None
    assert torch.equal(traced.replay(images(), routing, gates=gates), logits)


def by_hand(model: nn.Module, pixels: Tensor, trace: RoutingTrace, *, gates: str) -> Tensor:
    """The forward with given choices, token by token and expert by expert."""
    normalized = torch.stack([(pixels[:, c] - MEAN[c]) / STD[c] for c in range(3)], dim=1)

    def routed(layer: MoeLayer, routing: LayerRouting) -> Callable[[Tensor], Tensor]:
        def forward(tokens: Tensor) -> Tensor:
            own = (tokens @ layer.router.get_parameter("gate.weight").T).softmax(-1)
            weights = own if gates == "recomputed" else routing.gates
            out = torch.zeros_like(tokens)
            for image, token, choice in itertools.product(*map(range, routing.selected.shape)):
                expert = int(routing.selected[image, token, choice])
                if expert >= 0 and routing.processed[image, token, choice]:
                    rows = tokens[image, token].expand(layer.experts.num_experts, 1, -1)
                    out[image, token] += weights[image, token, expert] * layer.experts(rows)[expert, 0]
            return out

        return forward

    kept = {}
    for name, layer in moe_layers(model).items():
        if name in trace.layers:
            kept[layer] = layer.forward
            layer.forward = routed(layer, trace.layers[name])  # type: ignore[method-assign, assignment]
    with torch.inference_mode():
        found = model.eval()(normalized)
    for layer, forward in kept.items():
        layer.forward = forward  # type: ignore[method-assign]
    return found


@pytest.mark.parametrize("layers", [None, ["blocks.1"], ["blocks.3"]])
@pytest.mark.parametrize("gates", ["recomputed", "replayed"])
def test_another_routing_is_followed_to_the_letter(layers: list[str] | None, gates: str) -> None:
    traced = adapter(tiny(eval_capacity_factor=0.7), trained_capacity=True)
    _, other = traced.trace(images(3, seed=1), layers=layers)
    for layer in other.layers.values():
        layer.selected[0, 2, 1] = -1
        layer.processed[0, 2, 1] = False
    found = traced.replay(images(3), other, gates=gates)
    torch.testing.assert_close(
        found, by_hand(traced.model, images(3), other, gates=gates), rtol=1e-4, atol=1e-5
    )
    own, _ = traced.trace(images(3))
    assert own is not None and not torch.allclose(found, own, atol=1e-3)


def test_what_cannot_be_replayed_is_refused() -> None:
    traced = adapter()
    _, routing = traced.trace(images(3))
    with pytest.raises(UserError, match=r"blocks\.1 is for \(3, 17, 8\) gates"):
        traced.replay(images(4), routing)
    _, other = adapter(tiny(layers=[2])).trace(images(3))
    with pytest.raises(UserError, match=r"MoE layer 'blocks\.2'"):
        traced.replay(images(3), other)
    # Room for six tokens of each expert; everything that was chosen without a limit is more than that.
    narrow = adapter(tiny(eval_capacity_factor=0.5), trained_capacity=True)
    with pytest.raises(UserError, match="more room than the model has"):
        narrow.replay(images(3), routing)


def pooled() -> nn.Module:
    """A plain ViT of timm, made sparse, whose head reads the mean of the patches."""
    model = VisionTransformer(
        img_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=2, num_classes=10, global_pool="avg"
    )
    return make_sparse(model, MoeConfig(num_experts=4))


@pytest.mark.parametrize(
    "made", [tiny, lambda: tiny(pre_logits=True), pooled], ids=["cls", "pre-logits", "mean"]
)
def test_features_are_what_the_head_reads(made: Callable[[], nn.Module]) -> None:
    traced = adapter(made())
    assert isinstance(traced, Featured)
    read: list[Tensor] = []
    head = traced.model.head
    head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    logits, _ = traced.trace(images())
    features = traced.features(images())
    assert features.dtype == torch.float32 and not features.requires_grad
    assert features.shape == (6, head.in_features) and len(read) == 1
    assert torch.equal(features, read[0])
    # By hand: the head's weights on the features are the scores.
    assert logits is not None
    expected = features.double() @ head.weight.double().T + head.bias.double()
    torch.testing.assert_close(logits.double(), expected, rtol=1e-5, atol=1e-5)


def test_features_are_routed_as_in_a_trace() -> None:
    free, narrow = (adapter(tiny(eval_capacity_factor=0.5), trained_capacity=own) for own in (False, True))
    assert not torch.allclose(free.features(images()), narrow.features(images()), atol=1e-3)
    alone = torch.cat([narrow.features(image[None]) for image in images()])
    torch.testing.assert_close(alone, narrow.features(images()), rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match=r"takes images \(B, 3, 32, 32\)"):
        free.features(torch.rand(2, 3, 28, 32))


@pytest.mark.golden
def test_released_features() -> None:
    """The released numbers hold the pre-logits before their tanh; the head reads them after it."""
    expected = golden("model_small/det_cf1.05.npz")
    traced = Vmoe(released_model(), mean=(0,) * 3, std=(1,) * 3, trained_capacity=True, group_images=4)
    assert_golden(traced.features(released_images()), np.tanh(expected["representation"]))


@pytest.mark.parametrize("group_images", [1, 3])
@pytest.mark.parametrize("model", [{"eval_capacity_factor": 0.7}, {"router": "softmax_expert_choice"}])
def test_a_router_asked_alone_says_what_it_says_in_the_model(
    model: dict[str, Any], group_images: int
) -> None:
    traced = adapter(tiny(**model), trained_capacity=True, group_images=group_images)
    assert isinstance(traced, Routable)
    routing = traced.trace(images())[1].layers
    inputs = traced.router_inputs(images())
    assert list(inputs) == ["blocks.1", "blocks.3"]
    for name, tokens in inputs.items():
        assert tokens.shape == (6, 17, 64)
        alone = traced.route(name, tokens)
        for field, value in vars(routing[name]).items():
            same = getattr(alone, field)
            assert torch.equal(same, value) if isinstance(value, Tensor) else same == value, field
        # Nothing but the gate stands between a router's input and its gates.
        gate = moe_layers(traced.model)[name].router.get_parameter("gate.weight")
        torch.testing.assert_close(alone.gates, (tokens @ gate.T).softmax(-1))
    # Groups are whole images, and another group's tokens are none of its business.
    mixed = inputs["blocks.1"].clone()
    mixed[3:] = mixed[3:].flip(1)
    other = traced.route("blocks.1", mixed)
    for field in ("gates", "selected", "processed"):
        before, after = (getattr(layer, field) for layer in (routing["blocks.1"], other))
        assert torch.equal(after[:3], before[:3]) and not torch.equal(after[3:], before[3:]), field


def test_router_inputs_are_read_without_running_what_comes_after() -> None:
    traced = adapter()
    ran: list[str] = []
    for name, module in traced.model.named_modules():
        if name in ("blocks.1.mlp.router", "blocks.1.mlp.experts", "blocks.2", "head"):
            module.register_forward_hook(lambda *_, name=name: ran.append(name))
    assert list(traced.router_inputs(images(), layers=["blocks.1"])) == ["blocks.1"]
    assert ran == []
    with pytest.raises(UserError, match=r"blocks\.2.*blocks\.1, blocks\.3"):
        traced.route("blocks.2", torch.zeros(1, 17, 64))
