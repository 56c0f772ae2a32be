"""Any torch module under hooks: what is read is what the module did, told by running it by hand."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from moeprobe import api
from moeprobe.adapters.hooks import Hooks
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.errors import UserError
from moeprobe.routing.capabilities import Featured, Routable, Traceable, refusal_to_replay
from tests.adapters import zoo
from tests.adapters.zoo import MEAN, STD, VIT
from tests.routing.routings import tiny

GATES = "blocks.*.mlp.gate"
SQUARE: dict[str, Any] = {"image_size": 32, "mean": MEAN, "std": STD}


def images(count: int = 5, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def normalized(pixels: Tensor) -> Tensor:
    return torch.stack([(pixels[:, c] - MEAN[c]) / STD[c] for c in range(3)], dim=1)


def by_hand(net: nn.Module, gate: str, pixels: Tensor) -> list[Any]:
    """What a gate returns for each image, run one by one."""
    seen: list[Any] = []
    handle = net.get_submodule(gate).register_forward_hook(lambda _m, _i, output: seen.append(output))
    with torch.no_grad():
        for image in normalized(pixels).split(1):
            net.eval()(image)
    handle.remove()
    return seen


def places(told: Any) -> tuple[Tensor, Tensor]:
    if isinstance(told, dict):
        return told["logits"], told["chosen"]
    return (told[1], told[2]) if isinstance(told, tuple) else (told.logits, told.chosen)


def state_of(net: nn.Module) -> list[tuple[bool, int, int]]:
    return [
        (module.training, len(module._forward_hooks), len(module._forward_pre_hooks))
        for module in net.modules()
    ]


def test_gates_and_choices_are_those_of_each_image_by_hand() -> None:
    net = zoo.vit()
    model = Hooks(net, routers=GATES, top_k=2, **VIT)
    assert isinstance(model, Traceable)
    scores, routing = model.trace(images())
    with torch.no_grad():
        torch.testing.assert_close(scores, net.eval()(normalized(images())))
    assert list(routing.layers) == ["blocks.1", "blocks.3"]
    for name, layer in routing.layers.items():
        seen = by_hand(net, f"{name}.mlp.gate", images())
        assert layer.grid is not None
        assert (layer.grid.rows, layer.grid.columns, layer.grid.patch_size) == (4, 4, 8)
        for image, logits in enumerate(seen):
            for token in range(17):
                exact = np.exp(logits[token].double().numpy())
                exact /= exact.sum()
                np.testing.assert_allclose(layer.gates[image, token], exact, atol=1e-6)
                assert layer.selected[image, token].tolist() == np.argsort(-exact, kind="stable")[:2].tolist()
        assert layer.gates_sum_to_one and layer.token_local and layer.processed.all()
        assert layer.num_prefix_tokens == 1 and layer.selected.dtype == torch.int16


@pytest.mark.parametrize(
    ("style", "read"),
    [
        ("tuple", {"logits": 1, "indices": 2}),
        ("named", {"logits": "logits", "indices": "chosen"}),
        ("dict", {"logits": "logits", "indices": "chosen"}),
        ("record", {"logits": "logits", "indices": "chosen"}),
    ],
)
def test_a_routers_own_choice_is_taken_and_ordered_by_its_gates(style: str, read: Any) -> None:
    net = zoo.vit(zoo.ChoosingMoe, style)
    routing = Hooks(net, routers=zoo.Gate, read=read, **VIT).trace(images())[1]
    layer = routing.layers["blocks.3"]
    unlike = 0
    for image, told in enumerate(by_hand(net, "blocks.3.mlp.gate", images())):
        logits, chosen = places(told)
        for token in range(17):
            row, own = logits[token].tolist(), chosen[token].tolist()
            order = np.argsort([-row[expert] for expert in own])
            assert layer.selected[image, token].tolist() == [own[place] for place in order]
            unlike += set(own) != set(np.argsort(row)[-2:].tolist())
    assert unlike > 10, "a top-k of the logits would have done as well"


def test_a_function_may_read() -> None:
    net = zoo.vit(zoo.ChoosingMoe, "tuple")

    def read(module: nn.Module, arguments: tuple[Any, ...], output: Any) -> dict[str, Tensor]:
        return {"logits": arguments[0] @ module.weight.T, "indices": output[2]}

    ways: list[Any] = [read, {"logits": 1, "indices": 2}]
    one, other = (
        Hooks(net, routers=GATES, read=way, **VIT).trace(images())[1].layers["blocks.3"] for way in ways
    )
    torch.testing.assert_close(one.gates, other.gates)
    assert torch.equal(one.selected, other.selected)
    with pytest.raises(UserError, match="read gives logits or indices, or both"):
        Hooks(net, routers=GATES, read=lambda *_: {"weights": torch.zeros(1)}, **VIT)


@pytest.mark.parametrize(
    ("net", "names", "top_k", "activation", "options"),
    [
        (zoo.vit, ["blocks.1", "blocks.3"], 2, "softmax", VIT),
        (lambda: zoo.vit(zoo.SigmoidMoe), ["blocks.1", "blocks.3"], 2, "sigmoid", VIT),
        (lambda: zoo.vit(zoo.StableMoe), ["blocks.1", "blocks.3"], 2, "softmax", VIT),
        (zoo.Pyramid, ["stages.0", "stages.1"], 2, "softmax", SQUARE),
        (
            lambda: zoo.SequenceFirst(flat=True),
            ["gate"],
            1,
            "softmax",
            {**SQUARE, "sequence_first": True, "output": 0},
        ),
    ],
)
def test_routers_are_detected(net: Any, names: list[str], top_k: int, activation: str, options: Any) -> None:
    model = Hooks(net(), **options)
    assert list(model.layer_names) == names
    for layer in model.trace(images())[1].layers.values():
        assert layer.top_k == top_k
        assert layer.gates_sum_to_one == (activation == "softmax")
    said = next(iter(model.provenance["routers"].values()))
    assert f"the {activation} of its logits, experts the {top_k} highest gates" in said
    assert "detected" in model.provenance["routers_found"]


def test_stages_have_grids_of_their_own() -> None:
    net = zoo.Pyramid()
    for patch_size in (None, {"stages.0.*": 4, "stages.1.*": 8}):
        layers = (
            Hooks(net, routers=zoo.Around, top_k=2, patch_size=patch_size, **SQUARE).trace(images())[1].layers
        )
        grids = [(layer.grid.rows, layer.grid.patch_size) for layer in layers.values() if layer.grid]
        assert grids == [(8, 4), (4, 8)]
    seen = by_hand(net, "stages.0.gate", images())
    layer = layers["stages.0"]
    for image, patch in ((0, 0), (3, 17), (4, 63)):
        row, column = divmod(patch, 8)
        torch.testing.assert_close(layer.gates[image, patch], seen[image][0, row, column].softmax(-1))


@pytest.mark.parametrize("flat", [True, False])
def test_tokens_may_come_before_images(flat: bool) -> None:
    net = zoo.SequenceFirst(flat=flat)
    options = {**SQUARE, "routers": "gate", "top_k": 1, "output": 0}
    layer = Hooks(net, sequence_first=True, **options).trace(images())[1].layers["gate"]
    for image, logits in enumerate(by_hand(net, "gate", images())):
        torch.testing.assert_close(layer.gates[image], logits.reshape(16, 6).softmax(-1))
    with pytest.raises(UserError, match="sequence_first: true"):
        Hooks(net, **options)


def test_batch_mates_are_noticed() -> None:
    assert Hooks(zoo.vit(), group_images=4, **VIT).group_images == 1
    crowded = zoo.vit(zoo.CrowdedMoe)
    model = Hooks(crowded, **VIT)
    assert "depend on their batch-mates, as tried" in model.provenance["batches"]
    alone = torch.cat([model.trace(image)[1].layers["blocks.3"].gates for image in images().split(1)])
    assert torch.equal(model.trace(images())[1].layers["blocks.3"].gates, alone)
    assert Hooks(crowded, group_images=2, **VIT).group_images == 2
    pairs = Hooks(crowded, group_images=2, **VIT).trace(images())[1].layers["blocks.3"].gates
    assert not torch.allclose(pairs, alone, atol=1e-3), "this model's images do not depend on each other"
    assert Hooks(crowded, token_local=True, group_images=2, **VIT).group_images == 1
    assert Hooks(zoo.vit(), token_local=False, group_images=2, **VIT).group_images == 2
    assert "random at evaluation" in Hooks(zoo.vit(zoo.NoisyMoe), **VIT).provenance["batches"]


def test_nothing_is_left_on_the_model() -> None:
    net = zoo.vit().train()
    net.blocks[0].eval()
    before = state_of(net)
    model = Hooks(net, head="head", **VIT)
    model.trace(images(), layers=["blocks.1"], logits=False)
    assert isinstance(model, Featured)
    model.features(images())
    with pytest.raises(UserError):
        Hooks(net, routers=GATES, top_k=9, **VIT)
    net.blocks[2].mlp = nn.Linear(3, 3)
    with pytest.raises(UserError, match="raised RuntimeError"):
        Hooks(net, **VIT)
    with pytest.raises(UserError, match=r"raised RuntimeError.* on images \(5, 3, 32, 32\) \(timm/"):
        model.trace(images())
    net.blocks[2].mlp = nn.Identity()
    after = state_of(net)
    assert before[:10] == after[:10]
    assert not any(hooks or pre for _, hooks, pre in after)
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_the_forward_stops_after_the_last_layer_asked_for() -> None:
    net = zoo.vit()
    model = Hooks(net, **VIT)
    ran: list[int] = []
    for number, block in enumerate(net.blocks):
        block.register_forward_hook(lambda _m, _i, _o, number=number: ran.append(number))
    scores, routing = model.trace(images(), layers=["blocks.1"], logits=False)
    assert scores is None and list(routing.layers) == ["blocks.1"]
    assert ran == [0]  # block 1 is left at its gate


def test_capabilities_are_there_where_they_are_told() -> None:
    plain = Hooks(zoo.vit(), **VIT)
    assert not isinstance(plain, Featured | Routable)
    assert refusal_to_replay(plain) is None
    net = zoo.vit()
    model = Hooks(net, head="head", **VIT)
    assert isinstance(model, Featured)
    with torch.no_grad():
        expected = net.eval().forward_head(net.forward_features(normalized(images())), pre_logits=True)
    torch.testing.assert_close(model.features(images()), expected)


@pytest.mark.parametrize("wrap", [nn.DataParallel, partial(torch.compile, backend="eager")])
def test_wrapped_models_are_taken_out(wrap: Any) -> None:
    net = zoo.vit()
    one, other = (
        Hooks(model, routers=GATES, top_k=2, **VIT).trace(images())[0] for model in (net, wrap(net))
    )
    assert one is not None and other is not None
    torch.testing.assert_close(one, other)


def refused(net: Any = zoo.vit, **changes: Any) -> str:
    with pytest.raises(UserError) as caught:
        Hooks(net() if isinstance(net, type) or callable(net) else net, **{**VIT, **changes})
    return str(caught.value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"routers": "blocks.*.mlp.gat"}, "no module 'blocks.*.mlp.gat'. Did you mean 'blocks.*.mlp.gate'?"),
        ({"routers": nn.Conv3d}, "The model has no Conv3d"),
        ({"routers": "torch.nn.Conv3d"}, "The model has no Conv3d"),
        ({"routers": GATES, "top_k": 7}, "it has 6 experts, and top_k is 7"),
        ({"num_prefix_tokens": 0}, "17 tokens of an image, 0 of them before the patches (num_prefix_tokens)"),
        ({"patch_size": 16}, "2 x 2 patches of 16 pixels and 1 before them (num_prefix_tokens) are 5"),
        ({"patch_size": 8, "num_prefix_tokens": 0}, "num_prefix_tokens: 1 would fit"),
        ({"patch_size": 5}, "patches of 5 pixels do not fill an image of 32"),
        ({"patch_size": {"stages.*": 8}}, "no entry of patch_size is for it; there are: stages.*"),
        ({"activation": "none"}, "has negative values, so these are no gates"),
        ({"read": {"logits": 0, "indices": 99}}, "it returns a tensor (51, 6), with nothing at 99"),
        ({"read": {"logit": 0}}, "read: its keys are logits or indices, or both"),
        ({"read": {"weights": 0}}, "read: its keys are logits or indices, or both"),
        ({"mean": (0.5, 0.5)}, "mean: list should have at least 3 items"),
        ({"image_size": 40}, "doesn't match model (32) on images (3, 3, 40, 40) (timm/"),
        ({"head": "heat"}, "Did you mean 'head'"),
        ({"head": "blocks"}, "The head blocks should be called with features (3, D)"),
        ({"output": 1, "classes": "digits"}, "should be a tensor (3, classes)"),
        ({"classes": ["a", "b"]}, "The scores are about 10 classes, and classes names 2"),
        ({"classes": "digit"}, "Did you mean 'digits'"),
        ({"group_images": 0}, "at least one image"),
    ],
)
def test_what_does_not_fit_is_said_in_a_sentence(changes: Any, said: str) -> None:
    assert said in refused(**changes)


def test_routers_that_do_not_run_once_are_named() -> None:
    once = {"num_prefix_tokens": 0, "top_k": 2}
    assert "The router gate ran 2 times in one forward pass" in refused(zoo.Shared, routers="gate", **once)
    never = refused(zoo.Shared, routers="unused_gate", **once)
    assert "The router unused_gate did not run in a forward pass (of the routers, none of them did)" in never
    # V-MoE's own router takes its gate's weight without calling it.
    silent = refused(tiny, routers="blocks.*.router.gate", top_k=2)
    assert "blocks.1.mlp.router.gate did not run" in silent and "take the module that calls it" in silent


def test_outputs_of_another_kind_are_described() -> None:
    told = refused(lambda: zoo.vit(zoo.ChoosingMoe, "dict"), routers=GATES)
    assert (
        "it returns a dict of logits: a tensor (51, 6), chosen: a tensor (51, 2); say where the logits"
        in told
    )
    softmaxed = zoo.vit()
    for block in (1, 3):
        softmaxed.blocks[block].mlp.gate = nn.Sequential(softmaxed.blocks[block].mlp.gate, nn.Softmax(-1))
    assert "sums to one over the experts already" in refused(lambda: softmaxed, routers=GATES, top_k=2)
    given = Hooks(softmaxed, routers=GATES, top_k=2, activation="none", **VIT)
    # As it was called before: the same model, with the same hash.
    earlier = Hooks(softmaxed, routers=GATES, top_k=2, before="none", **VIT)
    assert earlier.provenance == given.provenance and given.provenance["settings"]["before"] == "none"
    assert given.trace(images())[1].layers["blocks.1"].gates_sum_to_one
    wrong = {"logits": 1, "indices": 0}  # weights in the place of indices
    assert "should be whole numbers" in refused(
        lambda: zoo.vit(zoo.ChoosingMoe, "tuple"), routers=GATES, read=wrong
    )
    assert "torch module; got a int" in refused(lambda: 3)


def test_what_cannot_be_told_by_detection_is_said() -> None:
    assert "No module was found whose output is followed by a top-k" in refused(
        lambda: zoo.vit(zoo.ChoosingMoe, "tuple")
    )
    assert "No module was found" in refused(lambda: zoo.vit(blocks=()))
    assert "blocks.1.mlp.gate: how many experts a token has is not known" in refused(
        lambda: zoo.vit(zoo.SortingMoe)
    )
    mixed = zoo.vit()
    mixed.blocks[1].mlp = zoo.TokenMoe(32, 4, 1)
    said = refused(lambda: mixed)
    assert "modules of different kinds" in said
    assert "blocks.1.mlp.gate (Linear to 4), blocks.3.mlp.gate (Linear to 6)" in said


def test_a_hooked_vmoe_gives_the_table_of_its_own_adapter() -> None:
    net = tiny()
    own = Vmoe(net, mean=MEAN, std=STD)  # lifts the limits of the experts, in place
    hooked = Hooks(
        net,
        routers="blocks.*.mlp.router",
        read={"logits": "logits", "indices": "selected"},
        classes="digits",
        **VIT,
    )
    loaded = api.wrap(hooked, name="tiny")
    as_own = api.Checkpoint("tiny", own, loaded.framing, loaded.class_names)
    tables = [
        api.noise_sweep([model], sigmas=[0.2], data="digits", limit=24, layers=("blocks.3",)).table
        for model in (as_own, loaded)
    ]
    for table in tables:
        assert len(table) > 100
        assert {"top1_match_kappa", "gate_highest", "accuracy"} <= set(table["metric"])
    # A hook does not see whether gates are a softmax of the token alone.
    assert set(tables[0]["metric"]) - set(tables[1]["metric"]) == {"selection_margin_logit"}
    tables[0] = tables[0][tables[0]["metric"] != "selection_margin_logit"].reset_index(drop=True)
    same = [column for column in tables[0] if column not in ("value", "ci_low", "ci_high", "router")]
    assert tables[0][same].equals(tables[1][same])
    for column in ("value", "ci_low", "ci_high"):
        np.testing.assert_allclose(tables[0][column], tables[1][column], atol=1e-6)
