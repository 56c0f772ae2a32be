"""What comes after a top-k: choices that are left out are not counted, and experts that do other work are noticed."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from moeprobe import api
from moeprobe.adapters.hooks import Hooks
from moeprobe.errors import UserError
from moeprobe.routing.record import RoutingTrace
from tests.adapters import zoo
from tests.adapters.test_hooks import images
from tests.adapters.zoo import VIT

EXPERTS, WIDTH = 6, 32


class FirstMoe(zoo.TokenMoe):
    """Takes the three highest, and uses two."""

    used = 2

    def __init__(self, width: int) -> None:
        super().__init__(width, EXPERTS, 3)

    def combine(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return super().combine(flat, weights[:, : self.used], chosen[:, : self.used])


class OneMoe(FirstMoe):
    used = 1


class ThresholdMoe(zoo.TokenMoe):
    """Leaves a second expert out that has less than two thirds of the first one's gate."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        top = self.gate(flat).softmax(-1).topk(2)
        return top.values * (top.values * 1.5 >= top.values[..., :1]), top.indices


class DrawnMoe(zoo.TokenMoe):
    """Draws whether a second expert is used, at evaluation too."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        top = self.gate(flat).softmax(-1).topk(2)
        drawn = torch.rand_like(top.values[:, 0]) < 0.5
        return top.values * torch.stack([torch.ones_like(drawn), drawn], -1), top.indices


class StackedMoe(ThresholdMoe):
    """Experts as one tensor each, (E, D, H) and (E, H, D), and a second choice below a threshold left out."""

    def __init__(self, width: int) -> None:
        super().__init__(width, EXPERTS)
        del self.experts
        self.first = nn.Parameter(torch.randn(EXPERTS, width, 8) / 3)
        self.second = nn.Parameter(torch.randn(EXPERTS, 8, width) / 3)

    def forward(self, tokens: Tensor) -> Tensor:
        weights, chosen = self.choose(tokens)
        wide = weights.new_zeros(*tokens.shape[:-1], EXPERTS).scatter(-1, chosen, weights)
        hidden = torch.einsum("btd,edh->bteh", tokens, self.first).relu()
        return torch.einsum("bteh,ehd,bte->btd", hidden, self.second, wide)


def served(net: Any, block: int, pixels: Tensor) -> Tensor:
    """By another way than that of the adapter: which experts are called with a token's row, or weigh it."""
    moe = net.blocks[block].mlp
    rows: list[Tensor] = []
    handle = moe.register_forward_pre_hook(lambda _m, arguments: rows.append(arguments[0].detach()))
    with torch.no_grad():
        net.eval()((pixels - torch.tensor(zoo.MEAN).view(3, 1, 1)) / torch.tensor(zoo.STD).view(3, 1, 1))
    handle.remove()
    flat = rows[0].reshape(-1, WIDTH)
    with torch.no_grad():
        weights, chosen = moe.choose(flat)
    used = getattr(moe, "used", chosen.shape[-1])
    marks = torch.zeros(len(flat), EXPERTS)
    marks = marks.scatter_add(-1, chosen[:, :used], (weights[:, :used] > 0).float()) > 0
    return marks.reshape(len(pixels), -1, EXPERTS)


@pytest.mark.parametrize("moe", [ThresholdMoe, StackedMoe])
def test_a_choice_that_is_left_out_is_not_processed(moe: Any) -> None:
    net = zoo.vit(moe)
    model = Hooks(net, **VIT)
    for name, layer in model.trace(images())[1].layers.items():
        expected = served(net, int(name[-1]), images())
        assert torch.equal(layer.processed_mask, expected)
        assert layer.top_k == 2 and bool((layer.selected >= 0).all())
        assert 0.1 < (expected.sum(-1) == 1).float().mean() < 0.9, "this shows nothing"
    assert "leave choices out" in model.provenance["experts"]["blocks.1"]
    assert model.trace(images(), logits=False)[1].layers["blocks.3"].processed.float().mean() < 1


@pytest.mark.parametrize(("moe", "used"), [(FirstMoe, 2), (OneMoe, 1)])
def test_choices_that_nobody_uses_are_no_choices(moe: Any, used: int) -> None:
    net = zoo.vit(moe)
    model = Hooks(net, **VIT)
    for name, layer in model.trace(images())[1].layers.items():
        assert layer.top_k == used
        assert torch.equal(layer.processed_mask, served(net, int(name[-1]), images()))
    assert f"the first {used} of the 3" in model.provenance["experts"]["blocks.1"]
    # An expert that is forced comes first; the others, which are not used, follow.
    model.check_replay()
    scores, routing = model.trace(images())
    assert scores is not None
    torch.testing.assert_close(model.replay(images(), routing), scores, rtol=0, atol=1e-5)


def test_a_draw_is_read_in_the_pass_that_drew() -> None:
    net = zoo.vit(DrawnMoe, blocks=(1,))
    model = Hooks(net, **VIT)
    assert model.provenance["batches"].startswith(
        "random at evaluation: two passes of the same images differ"
    )
    outputs: list[Tensor] = []
    net.blocks[1].mlp.register_forward_hook(lambda _m, _a, output: outputs.append(output.detach()))
    one, other = (model.trace(images(1))[1].layers["blocks.1"] for _ in range(2))
    assert not torch.equal(one.processed, other.processed)
    # The pass comes first, then those in which an expert was changed.
    moe = net.blocks[1].mlp
    rows: list[Tensor] = []
    moe.register_forward_pre_hook(lambda _m, arguments: rows.append(arguments[0].detach()))
    outputs.clear()
    layer = model.trace(images(1))[1].layers["blocks.1"]
    flat = rows[0].reshape(-1, WIDTH)
    weights = layer.weights[0]
    with torch.no_grad():
        expected = sum(weights[:, [number]] * expert(flat) for number, expert in enumerate(moe.experts))
    torch.testing.assert_close(outputs[0][0], expected, rtol=0, atol=1e-5)


class SwappedMoe(zoo.TokenMoe):
    """Sends tokens to the expert behind the one that was chosen."""

    def combine(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return super().combine(flat, weights, (chosen + 1) % EXPERTS)


class SharedMoe(zoo.TokenMoe):
    """Asks a top-k, and mixes all experts."""

    def forward(self, tokens: Tensor) -> Tensor:
        gates = self.gate(tokens).softmax(-1)
        gates.topk(2)
        return torch.stack([expert(tokens) for expert in self.experts], -2).mul(gates[..., None]).sum(-2)


class SoftMoe(zoo.TokenMoe):
    def forward(self, tokens: Tensor) -> Tensor:
        gates = self.gate(tokens).softmax(-1)
        return torch.stack([expert(tokens) for expert in self.experts], -2).mul(gates[..., None]).sum(-2)


class ExpertChoiceMoe(zoo.TokenMoe):
    def forward(self, tokens: Tensor) -> Tensor:
        gates = self.gate(tokens).softmax(-1)
        best = gates.topk(4, dim=1)
        marks = torch.zeros_like(gates).scatter(1, best.indices, best.values)
        return torch.stack([expert(tokens) for expert in self.experts], -2).mul(marks[..., None]).sum(-2)


@pytest.mark.parametrize(
    ("moe", "said"),
    [
        (SwappedMoe, "experts of blocks.1.mlp process other tokens than its 2 highest gates say, "),
        (SharedMoe, "every token gets a share of every expert of blocks.1.mlp"),
        (SoftMoe, "Every token gets a share of every expert: blocks.1.mlp.gate gives a weight to each"),
        (
            ExpertChoiceMoe,
            "Experts choose their tokens here: after blocks.1.mlp.gate, a top-k runs over the tokens",
        ),
    ],
)
def test_experts_that_do_other_work_are_noticed(moe: Any, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Hooks(zoo.vit(moe), **VIT)
    assert said in str(caught.value)


class TiedMoe(zoo.TokenMoe):
    """One linear map for all experts: none can be changed by itself."""

    def __init__(self, width: int, used: int = 2) -> None:
        super().__init__(width, EXPERTS)
        del self.experts
        self.used = used
        self.all_experts = nn.Linear(width, width * EXPERTS)

    def combine(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        outputs = self.all_experts(flat).unflatten(-1, (EXPERTS, -1))
        picked = outputs.gather(1, chosen[..., None].expand(-1, -1, flat.shape[-1]))
        return (weights[..., None] * picked)[:, : self.used].sum(1)


def test_experts_that_cannot_be_changed_one_by_one() -> None:
    model = Hooks(zoo.vit(TiedMoe), **VIT)
    assert model.provenance["experts"]["blocks.1"].startswith("change the output with each choice")
    plain = Hooks(zoo.vit(TiedMoe), routers="blocks.*.mlp.gate", read=lambda _m, _a, out: {"logits": out}, top_k=2,
                  **VIT)  # fmt: skip
    assert plain.provenance["experts"]["blocks.1"].startswith("not checked")


class UnweightedMoe(TiedMoe):
    """One of two chosen experts is used, with weight one."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self.gate(flat).topk(2).indices
        return torch.ones(chosen.shape), chosen


def test_a_choice_that_changes_nothing_is_refused_where_experts_cannot_be_changed() -> None:
    with pytest.raises(UserError, match=r"choice 2 of 2 changes nothing .* say top_k: 1"):
        Hooks(zoo.vit(UnweightedMoe, 1), **VIT)
    told = Hooks(zoo.vit(UnweightedMoe, 1), routers="blocks.*.mlp.gate", top_k=1, **VIT)
    assert told.trace(images())[1].layers["blocks.1"].top_k == 1


def test_checking_leaves_the_model_as_it_was() -> None:
    net = zoo.vit(ThresholdMoe)
    net.blocks[1].mlp.register_buffer("load", torch.zeros(EXPERTS))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    Hooks(net, **VIT).trace(images())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


class ImageMoe(nn.Module):
    """A choice for each image, and tokens in another layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.patches = nn.Conv2d(3, WIDTH, 8, stride=8)
        self.tokens = zoo.TokenMoe(WIDTH)
        self.whole = zoo.TokenMoe(WIDTH)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, pixels: Tensor) -> Tensor:
        tokens = self.tokens(self.patches(pixels).flatten(2).transpose(1, 2))
        return self.head(self.whole(tokens.mean(1)))


def test_a_choice_for_each_image_is_a_layer_of_one_patch() -> None:
    model = Hooks(ImageMoe(), image_size=32, mean=zoo.MEAN, std=zoo.STD)
    layers = model.trace(images())[1].layers
    grid = layers["whole.gate"].grid
    assert grid is not None and (grid.rows, grid.patch_size) == (1, 32)
    assert layers["whole.gate"].selected.shape == (5, 1, 2) and layers["tokens.gate"].selected.shape == (
        5,
        16,
        2,
    )


def test_the_error_of_a_router_that_chooses_by_itself_says_how_to_read_it() -> None:
    with pytest.raises(UserError) as caught:
        Hooks(zoo.vit(zoo.ChoosingMoe, "tuple"), **VIT)
    assert "blocks.1.mlp.gate runs a top-k itself" in str(caught.value)


@pytest.mark.parametrize("weighted", [True, False])
def test_numbers_of_experts_without_logits(weighted: bool) -> None:
    net = zoo.vit(zoo.ChoosingMoe, "tuple")
    read = {"indices": 2, "weights": 0} if weighted else {"indices": 2}
    model = Hooks(net, routers="blocks.*.mlp.gate", read=read, **VIT)
    told = Hooks(net, routers="blocks.*.mlp.gate", read={"logits": 1, "indices": 2}, **VIT)
    for name, layer in model.trace(images())[1].layers.items():
        full = told.trace(images())[1].layers[name]
        assert torch.equal(layer.selected_mask, full.selected_mask) and layer.num_experts == EXPERTS
        assert not layer.every_gate and not layer.gates_sum_to_one and layer.ordered
        expected = full.gates * full.selected_mask if weighted else torch.zeros_like(full.gates)
        torch.testing.assert_close(layer.gates, expected)
    model.check_replay()
    scores, routing = model.trace(images())
    assert scores is not None
    for gates in ("recomputed", "replayed") if weighted else ("recomputed",):
        torch.testing.assert_close(model.replay(images(), routing, gates=gates), scores, rtol=0, atol=1e-5)


class BareMoe(zoo.TokenMoe):
    """Experts of no list, and a gate that gives numbers alone."""

    def __init__(self, width: int) -> None:
        super().__init__(width, EXPERTS)
        self.gate = zoo.Gate(width, EXPERTS, 2, "tuple")
        del self.experts
        self.one = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        chosen = self.gate(tokens)[2]
        return self.one(tokens) * (1 + chosen.sum(-1, keepdim=True))


def test_the_number_of_experts_must_be_known() -> None:
    options: Any = {"routers": "blocks.*.mlp.gate", **VIT}

    def read(_module: nn.Module, _arguments: Any, output: Any) -> dict[str, Tensor]:
        return {"indices": output[2].clamp_max(4)}

    net = zoo.vit(BareMoe)
    with pytest.raises(UserError, match="how many experts there are is not known; say num_experts"):
        Hooks(net, read=read, **options)
    assert (
        Hooks(net, read=read, num_experts=9, **options).trace(images())[1].layers["blocks.1"].num_experts == 9
    )


class TwiceMoe(zoo.TokenMoe):
    """Takes the best of all experts, then the best of the others, as GShard's gate does."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.gate(flat).softmax(-1)
        first = gates.argmax(-1)
        second = gates.masked_fill(nn.functional.one_hot(first, EXPERTS).bool(), 0.0).argmax(-1)
        chosen = torch.stack([first, second], -1)
        return gates.gather(-1, chosen), chosen


def test_two_choices_of_one_expert_are_a_choice_of_two() -> None:
    net = zoo.vit(TwiceMoe)
    model = Hooks(net, **VIT)
    scores, routing = model.trace(images())
    assert scores is not None
    model.check_replay()
    torch.testing.assert_close(model.replay(images(), routing), scores, rtol=0, atol=1e-5)
    for name, layer in routing.layers.items():
        assert torch.equal(layer.processed_mask, served(net, int(name[-1]), images())) and layer.top_k == 2


@pytest.mark.parametrize("moe", [zoo.TokenMoe, StackedMoe, TiedMoe, TwiceMoe, zoo.SortingMoe, OneMoe])
@pytest.mark.parametrize("gates", ["recomputed", "replayed"])
def test_a_plain_gate_is_forced(moe: Any, gates: str) -> None:
    net = zoo.vit(moe, blocks=(1,))
    options: Any = {"top_k": 2} if moe is zoo.SortingMoe else {}
    model = Hooks(net, **options, **VIT)
    scores, routing = model.trace(images())
    assert scores is not None
    torch.testing.assert_close(model.replay(images(), routing, gates=gates), scores, rtol=0, atol=1e-5)
    layer = routing.layers["blocks.1"]
    other = (layer.selected + 2) % EXPERTS
    random = torch.rand(layer.gates.shape, generator=torch.Generator().manual_seed(1)).softmax(-1)
    forced = RoutingTrace({"blocks.1": dataclasses.replace(layer, selected=other, gates=random)})
    found = model.replay(images(), forced, gates=gates)
    moe_layer = net.blocks[1].mlp

    def written_out(gate: Tensor) -> tuple[Tensor, Tensor]:
        """The layer's own rule, with the forced experts in place of the chosen ones."""
        present = gate.softmax(-1) if gates == "recomputed" else random.flatten(0, 1)
        chosen = other.flatten(0, 1).long()
        weights = present.gather(-1, chosen)
        return weights, chosen

    def choose(flat: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = written_out(moe_layer.gate(flat.reshape(-1, WIDTH)))
        if moe in (zoo.TokenMoe, TiedMoe, OneMoe):
            if moe is OneMoe:  # the two that are chosen and not used share the sum
                rest = moe_layer.gate(flat).softmax(-1) if gates == "recomputed" else random.flatten(0, 1)
                own = rest.scatter(-1, chosen, -1).topk(2)
                weights, chosen = torch.cat([weights, own.values], -1), torch.cat([chosen, own.indices], -1)
            weights = weights / weights.sum(-1, keepdim=True)
        if issubclass(moe, ThresholdMoe):
            weights = weights * (weights * 1.5 >= weights[..., :1])
        return weights.reshape(*flat.shape[:-1], -1), chosen.reshape(*flat.shape[:-1], -1)

    moe_layer.choose = choose
    with torch.no_grad():
        expected = net.eval()(
            (images() - torch.tensor(zoo.MEAN).view(3, 1, 1)) / torch.tensor(zoo.STD).view(3, 1, 1)
        )
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (found - scores).abs().max() > 1e-2, "the choice must matter"


class Encoder(nn.Module):
    """A ViT with experts that gives tokens, or features, and no class scores."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.vit, self.pooled = zoo.vit(), pooled

    def forward(self, pixels: Tensor) -> dict[str, Tensor]:
        tokens = self.vit.forward_features(pixels)
        return {"tokens": tokens.mean(1) if self.pooled else tokens, "boxes": tokens[:, :4]}


@pytest.mark.parametrize("pooled", [True, False])
def test_features_are_compared_by_their_cosine(pooled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    options: Any = {"scores": False} if pooled else {}
    model = Hooks(Encoder(pooled), output="tokens", **options, **VIT)
    assert model.output_kind == "features"
    given: list[Tensor | None] = []
    plain = model.trace

    def listening(*arguments: Any, **keywords: Any) -> Any:
        traced = plain(*arguments, **keywords)
        given.append(traced[0])
        return traced

    monkeypatch.setattr(model, "trace", listening)
    result = api.noise_sweep([api.wrap(model, name="a")], data="digits", sigmas=[0, 0.3], limit=8)
    rows = result.table[result.table["metric"] == "output_cosine"].set_index("severity")
    assert not set(result.table["metric"]) & {"accuracy", "prediction_agreement", "loss"}
    assert rows.loc[0, "value"] == 1 and rows.loc[0.3, "images"] == 8
    first, second = (output for output in given if output is not None and len(output) == 8)
    cosines = [
        float(np.dot(a, b) / np.linalg.norm(a) / np.linalg.norm(b))
        for a, b in zip(first.double().numpy(), second.double().numpy(), strict=True)
    ]
    assert rows.loc[0.3, "value"] == pytest.approx(np.mean(cosines), abs=1e-5) and np.mean(cosines) < 0.99


def test_a_detector_is_probed_without_its_output() -> None:
    model = Hooks(Encoder(False), **VIT)
    assert model.output_kind is None and model.trace(images())[0] is None
    checkpoint = api.wrap(model, name="a")
    result = api.noise_sweep([checkpoint], data="digits", sigmas=[0, 0.2], limit=6)
    assert {"top2_set_match", "load_entropy"} <= set(result.table["metric"])
    assert not {"accuracy", "output_cosine"} & set(result.table["metric"])
    assert len(
        api.corruptions([checkpoint], data="digits", corruptions=["fog"], severities=[3], limit=4).table
    )
    for function in (api.flips, api.experts):
        with pytest.raises(UserError, match="gives no class scores"):
            function([checkpoint], data="digits", limit=4)
    with pytest.raises(UserError, match="The class scores of 3 images should be a tensor"):
        Hooks(Encoder(False), classes="digits", **VIT)


class MaskedMoe(zoo.TokenMoe):
    """Never runs one expert, which no image chooses by itself."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(flat)
        logits = torch.where(torch.arange(EXPERTS) == 3, logits - 1e3, logits)
        top = logits.softmax(-1).topk(2)
        return top.values, top.indices

    def combine(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        return super().combine(flat, weights * (chosen != 3) + 1e-3 * (chosen != 3), chosen)


def test_an_expert_that_no_image_chose_is_forced_once() -> None:
    """Three images choose few of many experts: what the others do is seen where they are forced."""
    found = Hooks(zoo.vit(MaskedMoe), **VIT).provenance["experts"]["blocks.1"]
    assert found.startswith("leave out tokens that are forced on expert 3")
    # With nothing that could be forced, those that were not tried are named.
    logits: Any = {
        "routers": "blocks.*.mlp.gate",
        "read": lambda _m, _a, out: {"logits": out - 1e3 * SKIPPED},
        "top_k": 2,
    }
    told = Hooks(zoo.vit(SkippingMoe), **logits, **VIT).provenance["experts"]["blocks.1"]
    assert told == "process the tokens that chose them; not checked, as no token chose them: 3"


SKIPPED = torch.tensor([0.0, 0.0, 0.0, 1.0, 0.0, 0.0])


class SkippingMoe(zoo.TokenMoe):
    """Chooses without a top-k, never expert 3."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        gates = (self.gate(flat) - 1e3 * SKIPPED).softmax(-1)
        first = gates == gates.amax(-1, keepdim=True)
        second = gates == gates.masked_fill(first, 0).amax(-1, keepdim=True)
        chosen = torch.stack([first.int().nonzero()[:, 1], second.int().nonzero()[:, 1]], -1)
        return gates.gather(-1, chosen), chosen


def test_a_choice_handed_on_without_logits_has_the_scores_of_its_top_k() -> None:
    net = zoo.vit(zoo.ChoosingMoe, "tuple")
    options: Any = {"routers": "blocks.*.mlp.gate", **VIT}
    model = Hooks(net, read={"indices": 2, "weights": 0}, classes="digits", **options)
    layer = model.trace(images())[1].layers["blocks.1"]
    assert layer.scores is not None and not layer.every_gate
    best = layer.scores.topk(2).indices.sort(-1).values
    assert torch.equal(best, layer.selected.long().sort(-1).values)
    checkpoint = api.wrap(model, name="a")
    for function in (api.flips, api.experts):
        assert len(function([checkpoint], data="digits", limit=4).table)
    with pytest.raises(
        UserError, match=r"There is no MoE layer 'blocks\.2' in a; there are: blocks\.1, blocks\.3"
    ):
        api.experts([checkpoint], data="digits", limit=4, layers="blocks.2")


def test_flips_that_cannot_reach_the_answer_cost_nothing() -> None:
    """The head reads the class token: patches of the last block reach nothing, and rounding is no price."""
    model = Hooks(zoo.vit(), classes="digits", **VIT)
    table = api.flips([api.wrap(model, name="a")], data="digits", limit=6).table
    rows = table[
        (table["metric"] == "flip_price_random")
        & (table["layer"] == "blocks.3")
        & (table["tokens"] == "patch")
    ]
    assert len(rows) and (rows["value"] == 0).all()
    first = table[
        (table["metric"] == "flip_price_random")
        & (table["layer"] == "blocks.1")
        & (table["tokens"] == "patch")
    ]
    assert (first["value"] != 0).any()
