"""MoE layers of published packages under hooks: the choices are those that their own dispatch carries out."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from moeprobe.adapters.hooks import Hooks
from moeprobe.errors import UserError
from tests.adapters import zoo
from tests.adapters.zoo import VIT

EXPERTS = 6


class First(nn.Module):
    """What a layer returns first: beside its output it gives losses."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layer(tokens)[0]


def st_moe(width: int) -> nn.Module:
    """Every second expert is used, and has room for every token."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its type hints are of an older style than its checker likes
        from st_moe_pytorch import MoE
    return First(MoE(width, num_experts=EXPERTS, threshold_eval=1e-9, capacity_factor_eval=EXPERTS))


def mixture_of_experts(width: int, policy: str = "all") -> nn.Module:
    from mixture_of_experts import MoE

    return First(MoE(width, num_experts=EXPERTS, second_policy_eval=policy, capacity_factor_eval=EXPERTS))


def logits_of_a_bare_parameter(
    module: nn.Module, arguments: tuple[Any, ...], _output: Any
) -> dict[str, Tensor]:
    return {"logits": arguments[0] @ module.get_parameter("w_gating")}


@pytest.mark.parametrize(
    ("layer", "options"),
    [
        (st_moe, {}),
        (
            mixture_of_experts,
            {"routers": "blocks.*.gate", "read": logits_of_a_bare_parameter, "top_k": 2},
        ),
    ],
)
def test_choices_are_those_that_are_dispatched(layer: Callable[[int], nn.Module], options: Any) -> None:
    net = zoo.vit(layer)
    dispatched: dict[str, Tensor] = {}
    for block in (1, 3):
        net.get_submodule(f"blocks.{block}.mlp.layer.gate").register_forward_hook(
            lambda _m, _i, output, name=f"blocks.{block}": dispatched.update({name: output[0]})
        )
    model = Hooks(net, **options, **VIT)
    assert model.layer_names == ("blocks.1", "blocks.3")
    assert model.provenance["batches"] == "images do not depend on their batch-mates"
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    for name, routing in model.trace(images)[1].layers.items():
        served = dispatched[name].sum(-1) > 0.5
        assert served.shape == (5, 17, EXPERTS)
        assert torch.equal(routing.processed_mask, served)
        assert len(served.flatten(0, 1).unique(dim=0)) > 3, "all tokens choose alike: this shows nothing"
    model.check_replay()
    scores, trace = model.trace(images)
    assert scores is not None
    torch.testing.assert_close(model.replay(images, trace), scores, rtol=0, atol=1e-5)


def test_what_is_said_of_a_gate_that_is_no_module() -> None:
    with pytest.raises(UserError, match="how they are read, if their logits are no module's output"):
        Hooks(zoo.vit(mixture_of_experts), **VIT)


def test_a_second_choice_by_lot_is_noticed() -> None:
    """The package's default draws whether the second expert is used, in evaluation too."""
    options: Any = {"routers": "blocks.*.gate", "read": logits_of_a_bare_parameter, "top_k": 2, **VIT}
    assert (
        "random at evaluation"
        in Hooks(zoo.vit(mixture_of_experts, "random"), **options).provenance["batches"]
    )
