"""Layers written to be read wrongly: what the check of experts must not break, nor take for something else."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from moeprobe.adapters.hooks import Hooks
from moeprobe.errors import UserError
from tests.adapters import zoo
from tests.adapters.test_hooks import images
from tests.adapters.test_hooks_use import EXPERTS, ThresholdMoe, served
from tests.adapters.zoo import VIT


class TwiceNamedMoe(ThresholdMoe):
    """An expert and a norm have two names each."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.last = self.experts[-1]
        self.norm = nn.BatchNorm1d(width)
        self.also = self.norm

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(self.norm(tokens.transpose(1, 2)).transpose(1, 2))


class CountingMoe(ThresholdMoe):
    """Counts its load in evaluation, in place and by another tensor."""

    load: Tensor
    passes: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.register_buffer("load", torch.zeros(EXPERTS))
        self.register_buffer("passes", torch.zeros(()))

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen = super().choose(flat)
        self.load.add_(chosen.flatten().bincount(minlength=EXPERTS))
        self.passes = self.passes + 1
        return weights, chosen


@pytest.mark.parametrize("moe", [TwiceNamedMoe, ThresholdMoe])
def test_every_bit_and_every_random_number_is_left(moe: Any) -> None:
    net = zoo.vit(moe)
    tensors = {
        name: (value, value.clone()) for name, value in [*net.named_parameters(), *net.named_buffers()]
    }
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    Hooks(net, **VIT).trace(images())
    now = dict([*net.named_parameters(), *net.named_buffers()])
    for name, (value, content) in tensors.items():
        assert now[name] is value and torch.equal(value, content), name
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[2]
    assert (np.random.get_state()[1] == states[1]).all()  # type: ignore[index]
    net.train()(torch.rand(4, 3, 32, 32)).sum().backward()


def test_a_block_that_counts_is_run_again_without_a_trace() -> None:
    net = zoo.vit(CountingMoe, blocks=(1,))
    model = Hooks(net, **VIT)
    before = net.blocks[1].mlp.passes.clone()
    model.trace(images())
    assert net.blocks[1].mlp.passes == before + 1


class PairMoe(ThresholdMoe):
    """Gives its input beside its output, the input first."""

    def forward(self, tokens: Tensor) -> Any:
        return tokens, super().forward(tokens)


class SecondOf(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = PairMoe(width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.inner(tokens)[1]

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return self.inner.choose(flat)


class IdentityMoe(ThresholdMoe):
    """One expert has no parameters."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.experts[0] = nn.Identity()


class PeakedMoe(zoo.TokenMoe):
    """Second choices of next to no weight, which are carried out all the same."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        top = (self.gate(flat) * 4).softmax(-1).topk(2)
        return top.values, top.indices


class LayeredMoe(zoo.TokenMoe):
    """As many layers in an expert as there are experts, and a list of as many norms."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1), nn.Linear(width, width))
            for _ in range(4)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(4))

    def forward(self, tokens: Tensor) -> Tensor:
        for norm in self.norms:
            tokens = norm(tokens)
        return super().forward(tokens)


class ErasingMoe(zoo.TokenMoe):
    """Writes into its logits after the choice."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(flat)
        top = logits.softmax(-1).topk(2)
        logits.zero_()
        return top.values, top.indices


@pytest.mark.parametrize("moe", [SecondOf, PeakedMoe, TwiceNamedMoe])
def test_what_experts_process_is_right(moe: Any) -> None:
    net = zoo.vit(moe)
    layers = Hooks(net, **VIT).trace(images())[1].layers
    for (_, layer), block in zip(layers.items(), (1, 3), strict=True):
        if moe is TwiceNamedMoe:
            assert 1 < layer.processed.float().sum(-1).mean() < 2
        else:
            assert torch.equal(layer.processed_mask, served(net, block, images()))


def test_experts_without_parameters_count_as_chosen() -> None:
    net = zoo.vit(IdentityMoe)
    layer = Hooks(net, **VIT).trace(images())[1].layers["blocks.1"]
    expected = served(net, 1, images())
    assert torch.equal(layer.processed_mask[..., 1:], expected[..., 1:])
    assert torch.equal(layer.processed_mask[..., 0], layer.selected_mask[..., 0])


def test_layers_of_an_expert_and_norms_are_no_experts() -> None:
    model = Hooks(zoo.vit(LayeredMoe), **VIT)
    assert model.provenance["experts"]["blocks.1"] == "process the tokens that chose them"
    model.check_replay()


def test_what_is_written_after_the_choice_changes_no_record() -> None:
    net = zoo.vit(ErasingMoe)
    layer = Hooks(net, **VIT).trace(images())[1].layers["blocks.1"]
    assert layer.gates.amax(-1).mean() > 0.3, "all gates are 1/6: the zeros were read"
    assert torch.equal(layer.gates.topk(2).indices.sort(-1).values, layer.selected.long().sort(-1).values)


class SoftMoe(zoo.TokenMoe):
    """Runs a top-k, and mixes all of as many experts as an image's tokens choose together."""

    def __init__(self, width: int) -> None:
        super().__init__(width, 2, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        gates = self.gate(tokens).softmax(-1)
        gates.topk(1)
        return torch.stack([expert(tokens) for expert in self.experts], -2).mul(gates[..., None]).sum(-2)


def test_a_mixture_of_all_experts_is_no_choice() -> None:
    with pytest.raises(UserError, match=r"every token gets a share of every expert of blocks\.1\.mlp"):
        Hooks(zoo.vit(SoftMoe), **VIT)


class MixingMoe(zoo.TokenMoe):
    """Tokens meet behind the experts, within the block."""

    def forward(self, tokens: Tensor) -> Tensor:
        output = super().forward(tokens)
        return output + output.mean(1, keepdim=True)


def test_a_block_that_mixes_tokens_is_tried_by_exchange() -> None:
    model = Hooks(zoo.vit(MixingMoe), **VIT)
    assert model.provenance["experts"]["blocks.1"].startswith("change the output with each choice")


class NormedThresholdMoe(ThresholdMoe):
    """Uses a second expert only where it is nearly as good, which images in which tokens differ show seldom."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.norm = nn.LayerNorm(width)

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        top = (self.gate(self.norm(flat)) * 4).softmax(-1).topk(2)
        return top.values * (top.values >= 0.98 * top.values[..., :1]), top.indices


def test_a_second_expert_that_no_image_tried_is_an_error_where_it_works() -> None:
    net = zoo.vit(NormedThresholdMoe, blocks=(1,))
    model = Hooks(net, **VIT)
    if not model.provenance["experts"]["blocks.1"].startswith("process the first 1"):
        pytest.fail("the trial images show it: this shows nothing")
    colors = torch.rand(300, 3, 1, 1, generator=torch.Generator().manual_seed(0)).expand(-1, -1, 32, 32)
    pixels = torch.cat([images(), colors])
    if served(net, 1, pixels).sum(-1).max() == 1:
        pytest.fail("no image uses a second expert: this shows nothing")
    with pytest.raises(UserError, match="more than 1 experts process"):
        model.trace(pixels)


class OneByOneMoe(zoo.TokenMoe):
    """Room for 2.5 times an even share of the tokens."""

    def __init__(self, width: int) -> None:
        super().__init__(width, EXPERTS, 1)

    def combine(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        marks = nn.functional.one_hot(chosen[:, 0], EXPERTS)
        place = (marks.cumsum(0) * marks).sum(-1, keepdim=True)
        return super().combine(flat, weights * (place <= int(3.5 * len(flat) / EXPERTS)), chosen)


def test_a_capacity_that_no_image_fills_is_filled() -> None:
    told = Hooks(zoo.vit(OneByOneMoe, blocks=(1,)), **VIT).provenance["experts"]["blocks.1"]
    assert told.startswith(("leave out tokens that are forced on expert 0", "leave choices out"))


class SwallowingNet(nn.Module):
    """Catches whatever happens in it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = zoo.vit()

    def forward(self, pixels: Tensor) -> Tensor:
        try:
            return self.net(pixels)
        except Exception:
            return self.net(pixels)


def test_a_model_that_catches_errors_does_not_catch_the_end_of_a_pass() -> None:
    layers = Hooks(SwallowingNet(), **VIT).trace(images(), logits=False)[1].layers
    assert len(layers) == 2


class GateOfThree(zoo.TokenMoe):
    def __init__(self, width: int) -> None:
        super().__init__(width, 3, 1)
        self.gate = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))


class ExplodingMoe(zoo.TokenMoe):
    """Refuses numbers that are too large, as an expert's are that was moved."""

    def forward(self, tokens: Tensor) -> Tensor:
        output = super().forward(tokens)
        if not (output.abs() < 50).all():
            raise ValueError("exploded")
        return output


@pytest.mark.parametrize(
    ("moe", "text"),
    [
        (GateOfThree, "process the tokens that chose them"),
        (ExplodingMoe, "change the output with each choice"),
    ],
)
def test_no_layer_ends_in_a_traceback(moe: Any, text: str) -> None:
    assert next(iter(Hooks(zoo.vit(moe), **VIT).provenance["experts"].values())).startswith(text)


class GroupedNoisyMoe(zoo.TokenMoe):
    """Minus infinity for the experts of other groups, and noise."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.gate(flat).softmax(-1)
        noisy = gates + torch.rand_like(gates)
        best = noisy.unflatten(-1, (2, 3)).amax(-1).argmax(-1, keepdim=True)
        chosen = noisy.masked_fill(torch.arange(EXPERTS) // 3 != best, -torch.inf).topk(2).indices
        return gates.gather(-1, chosen), chosen


def test_noise_is_noticed_beside_minus_infinity() -> None:
    assert Hooks(zoo.vit(GroupedNoisyMoe, blocks=(3,)), **VIT).provenance["batches"].startswith("random")


def test_gates_that_cannot_be_replayed_are_refused() -> None:
    net = zoo.vit(zoo.ChoosingMoe, "tuple")
    model = Hooks(net, routers="blocks.*.mlp.gate", read={"logits": 1, "indices": 2}, **VIT)
    routing = model.trace(images())[1]
    with pytest.raises(UserError, match="read does not say where the weights are"):
        model.replay(images(), routing, gates="replayed")
