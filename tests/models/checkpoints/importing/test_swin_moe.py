"""Swin-MoE's files, one per rank: merged, run, probed, and refused where they are not what they should be."""

import collections
import contextlib
import json
import pickle
import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprobe import api
from moeprobe.adapters.swin_moe import SwinMoe
from moeprobe.errors import UserError
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.checkpoints.swin_moe import import_swin_moe
from moeprobe.models.checkpoints.swin_moe_files import read_ranks
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.routing.capabilities import Featured, Replayable, Resumable, Routable, Traceable
from moeprobe.routing.record import RoutingTrace
from tests.commands import refused, run
from tests.golden import assert_golden
from tests.models.checkpoints.importing import swin

HALF: dict[str, Any] = {"mean": [0.5] * 3, "std": [0.5] * 3}
KINDS: dict[str, dict[str, bool]] = {
    "linear gates": {},
    "cosine gates": {"cosine": True},
    "position perceptron, no second bias": {"cpb": True, "second_bias": False},
}


def images(count: int = 3, seed: int = 0) -> torch.Tensor:
    return torch.rand(count, 3, swin.IMAGE, swin.IMAGE, generator=torch.Generator().manual_seed(seed))


def imported(tmp_path: Path, state: swin.State, *, ranks: int = 2, **settings_: Any) -> Any:
    prefix = swin.write(tmp_path / "files" / "ckpt.pth", state, ranks=ranks)
    return import_swin_moe(prefix, tmp_path / "checkpoint", **(HALF | settings_))


@pytest.mark.parametrize(
    ("kind", "top_k", "renormalise"),
    [(kind, 1, False) for kind in KINDS] + [("linear gates", 2, False), ("cosine gates", 2, True)],
)
def test_it_computes_what_plain_loops_compute(
    kind: str, top_k: int, renormalise: bool, tmp_path: Path
) -> None:
    state = swin.parameters(**KINDS[kind])
    found = imported(tmp_path, state, top_k=top_k, renormalise=renormalise)
    assert found.ranks == 2 and (found.sizes.depths, found.sizes.layers) == ((2, 2), (1, 3))
    model = api.load_model(found.folder, device="cpu")
    logits, routing = api.trace(model, images())
    expected, gates = swin.forward(
        state, 2 * images().double().numpy() - 1, top_k=top_k, renormalise=renormalise
    )
    assert logits is not None
    assert_golden(logits, expected)
    assert list(routing.layers) == list(gates) == list(swin.SPARSE)
    for name, layer in routing.layers.items():
        assert_golden(layer.gates, gates[name])
        chosen = np.argsort(-gates[name], axis=-1, kind="stable")[..., :top_k]
        assert np.array_equal(layer.selected.numpy(), chosen)
        assert layer.gates_sum_to_one and layer.token_local and layer.num_prefix_tokens == 0


@pytest.mark.parametrize(("ranks", "master"), [(1, False), (2, False), (4, True), (8, False), (8, True)])
def test_experts_stand_in_the_order_of_the_ranks(ranks: int, master: bool, tmp_path: Path) -> None:
    """With eight ranks each holds half an expert: its half of the hidden width, and of the second bias."""
    state = swin.parameters()
    prefix = swin.write(tmp_path / "ckpt.pth", state, ranks=ranks, master=master)
    found = import_swin_moe(prefix, tmp_path / "checkpoint", top_k=2)
    _, tensors = checkpoint.read_info(found.folder)
    for block in swin.SPARSE:
        theirs = f"{block}.mlp._moe_layer.experts.batched"
        for ours, expected in (
            ("fc1.weight", state[f"{theirs}_fc1_w"].transpose(1, 2)),
            ("fc2.weight", state[f"{theirs}_fc2_w"]),
            ("fc1.bias", state[f"{theirs}_fc1_bias"]),
            ("fc2.bias", state[f"{theirs}_fc2_bias"]),
        ):
            assert torch.equal(tensors[f"{block}.mlp.experts.{ours}"], expected), (block, ours)
    assert found.ranks == ranks and len(found.files) == ranks + master


def test_a_second_bias_in_padded_slices_is_cut(tmp_path: Path) -> None:
    state = swin.parameters()
    prefix = swin.write(tmp_path / "ckpt.pth", state, ranks=8)
    # A width of 8 in two slices of five: two places too many.
    for rank in range(8):
        content = torch.load(f"{prefix}.rank{rank}", weights_only=True)
        for block, width in zip(swin.SPARSE, (8, 16), strict=True):
            name = f"{block}.mlp._moe_layer.experts.batched_fc2_bias"
            padded = torch.cat([state[name], torch.full((4, 2), 7.0)], dim=1)[rank // 2].chunk(2)[rank % 2]
            assert len(padded) == width // 2 + 1
            content["model"][name] = padded[None]
        torch.save(content, f"{prefix}.rank{rank}")
    found = import_swin_moe(prefix, tmp_path / "checkpoint")
    _, tensors = checkpoint.read_info(found.folder)
    name = f"{swin.SPARSE[0]}.mlp"
    assert torch.equal(
        tensors[f"{name}.experts.fc2.bias"], state[f"{name}._moe_layer.experts.batched_fc2_bias"]
    )


def test_each_stage_has_its_patches_and_the_capabilities_are_there(tmp_path: Path) -> None:
    model = api.load_model(imported(tmp_path, swin.parameters(), top_k=2).folder, device="cpu").model
    assert isinstance(model, SwinMoe)
    for capability in (Traceable, Replayable, Featured, Routable):
        assert isinstance(model, capability)
    logits, routing = model.trace(images())
    grids = [layer.grid for layer in routing.layers.values()]
    assert [(g.rows, g.columns, g.patch_size) for g in grids if g] == [(8, 8, 4), (4, 4, 8)]
    assert [layer.gates.shape for layer in routing.layers.values()] == [(3, 64, 4), (3, 16, 4)]
    assert logits is not None
    torch.testing.assert_close(model.replay(images(), routing), logits)
    other = model.trace(images(seed=1))[1]
    assert (model.replay(images(), other) - logits).abs().max() > 1e-4
    assert model.features(images()).shape == (3, 16)
    torch.testing.assert_close(
        model.features(images()) @ model.model.head.fc.weight.T + model.model.head.fc.bias, logits
    )
    inputs = model.router_inputs(images())
    for name, layer in routing.layers.items():
        assert torch.equal(model.route(name, inputs[name]).selected, layer.selected)
    assert model.trace(images(), layers=["layers.0.blocks.1"], logits=False)[0] is None


def test_replayed_weights_are_renormalized_too(tmp_path: Path) -> None:
    """Replaying the model's own choices changes nothing."""
    found = imported(tmp_path, swin.parameters(), top_k=2, renormalise=True)
    model: Any = api.load_model(found.folder, device="cpu").model
    logits, routing = model.trace(images())
    torch.testing.assert_close(model.replay(images(), routing), logits)
    torch.testing.assert_close(model.replay(images(), routing, gates="replayed"), logits)


def test_room_is_as_tutel_counts_it(tmp_path: Path) -> None:
    """64 tokens, 4 experts, k 1, factor 0.3: floor(0.3 · 16) = 4 tokens each, the surest first."""
    found = imported(tmp_path, swin.parameters(), eval_capacity_factor=0.3)
    model = api.load_model(found.folder, device="cpu", trained_capacity=True)
    _, routing = api.trace(model, images(1))
    layer = routing.layers["layers.0.blocks.1"]
    sure, first = layer.gates[0].amax(-1).numpy(), layer.selected[0, :, 0].numpy()
    for expert in range(4):
        wishing = np.flatnonzero(first == expert)
        served = wishing[np.argsort(-sure[wishing], kind="stable")][:4]
        assert np.array_equal(
            np.flatnonzero(layer.processed[0, :, 0].numpy() & (first == expert)), np.sort(served)
        )


def test_a_configuration_beside_the_parameters_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pickled as yacs's nodes are, without that package being there to read it."""

    class CfgNode(dict[str, Any]):
        def __init__(self, content: dict[str, Any]) -> None:
            super().__init__(content)
            self.__dict__["__deprecated_keys__"] = {"old"}

    CfgNode.__module__, CfgNode.__qualname__ = "yacs.config", "CfgNode"
    module: Any = types.ModuleType("yacs.config")
    module.CfgNode = CfgNode
    monkeypatch.setitem(sys.modules, "yacs", types.ModuleType("yacs"))
    monkeypatch.setitem(sys.modules, "yacs.config", module)
    more = {
        "config": CfgNode({"MODEL": CfgNode({"TYPE": "swin_moe"})}),
        "lr_scheduler": collections.OrderedDict(t=[1, 2.5, None]),
        "optimizer": {
            "state": {0: {"step": torch.tensor(1.0)}},
            "param_groups": [{"lr": 1e-3, "betas": (0.9, 0.99)}],
        },
    }
    prefix = swin.write(tmp_path / "ckpt.pth", swin.parameters(), more=more)
    monkeypatch.undo()
    assert read_ranks(prefix).number == 2


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("executed",)


def changed(prefix: Path, rank: int, **changes: Any) -> Path:
    """Put other parameters into one rank's file; None takes one out."""
    path = Path(f"{prefix}.rank{rank}")
    content = torch.load(path, weights_only=True)
    for name, value in changes.items():
        content["model"].pop(name, None)
        if value is not None:
            content["model"][name] = value
    torch.save(content, path)
    return prefix


GATE = "layers.0.blocks.1.mlp._moe_layer.gates.0.wg.weight"
FC1 = "layers.0.blocks.1.mlp._moe_layer.experts.batched_fc1_w"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"norm.weight": torch.zeros(16)},
            r"are of different checkpoints: 'norm.weight', which all ranks share",
        ),
        ({GATE: torch.zeros(4, 8)}, "are of different checkpoints"),
        ({"norm.weight": None}, r"rank0 holds 'norm.weight' and .*rank1 does not"),
        ({"more": torch.zeros(1)}, r"rank1 holds 'more' and .*rank0 does not"),
        ({FC1: torch.zeros(1, 32, 8)}, r"rank1 does not belong to .*rank0: .*batched_fc1_w' is \(1, 32, 8\)"),
        ({"norm.weight": [1, 2]}, "'norm.weight' is no tensor"),
    ],
)
def test_ranks_that_do_not_belong_together_are_a_sentence(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    prefix = changed(swin.write(tmp_path / "ckpt.pth", swin.parameters()), 1, **changes)
    with pytest.raises(UserError, match=words) as caught:
        import_swin_moe(prefix, tmp_path / "checkpoint")
    assert "\n" not in str(caught.value) and not (tmp_path / "checkpoint").exists()


def without(name: str, *more: str) -> swin.State:
    return {
        key: value for key, value in swin.parameters().items() if not re.search("|".join([name, *more]), key)
    }


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (without("attn_mask"), "does not say what resolution it is for; give image_size"),
        (without("head.weight"), r"no Swin-MoE that is known here: it lacks the parameter 'head.weight'"),
        (without(r"^head.bias"), r"lacks the parameter that is called 'head.fc.bias' here"),
        (
            without("relative_position_bias_table"),
            "has neither relative_position_bias_table nor relative_coords_table",
        ),
        (without(r"blocks\.0\."), "lacks a block of stage 0: it has 1"),
        (without(r"layers\.0\.blocks"), "lacks a stage: it has 1"),
        (without("gates"), "has no MoE layer"),
        (without(r"blocks\.1\.mlp\._moe_layer\.experts\.batched_fc2_bias"), r"mlp.experts.fc2.bias' here"),
        (
            swin.parameters() | {"norm.weight": torch.zeros(9)},
            r"'norm.weight' is \(9,\), but by the others",
        ),
        (swin.parameters() | {"norm.weight": torch.zeros(16).long()}, "is torch.int64; parameters are"),
        (
            swin.parameters() | {"absolute_pos_embed": torch.zeros(1)},
            "does not have here: 'absolute_pos_embed'",
        ),
        (
            swin.parameters() | {"layers.0.blocks.0.attn.logit_scale": torch.zeros(2)},
            "cosine attention of Swin V2",
        ),
        (swin.parameters() | {GATE: torch.zeros(8, 8)}, r"gates that differ: wg.weight \(8, 8\)"),
        (
            swin.parameters() | {"layers.0.blocks.0.attn_mask": torch.zeros(16, 16, 16)},
            "attention masks of several resolutions: 32, 64",
        ),
        (
            swin.parameters() | {"layers.0.blocks.0.attn.relative_position_bias_table": torch.zeros(48, 2)},
            r"position biases of layers.0.blocks.0.attn are \(48, 2\)",
        ),
    ],
)
def test_what_is_no_swin_moe_is_a_sentence(state: swin.State, words: str, tmp_path: Path) -> None:
    prefix = swin.write(tmp_path / "ckpt.pth", state)
    with pytest.raises(UserError, match=words) as caught:
        import_swin_moe(prefix, tmp_path / "checkpoint")
    assert "\n" not in str(caught.value) and not (tmp_path / "checkpoint").exists()


def test_files_that_are_not_there_or_not_to_be_trusted_are_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = swin.write(tmp_path / "ckpt.pth", swin.parameters(), ranks=4)
    target = tmp_path / "checkpoint"
    with pytest.raises(UserError, match=r"There is no Swin-MoE checkpoint '.*other': neither"):
        import_swin_moe(tmp_path / "other", target)
    with pytest.raises(UserError, match="image_size says 64"):
        import_swin_moe(prefix, target, image_size=64)
    # Any rank's file names them all.
    assert import_swin_moe(Path(f"{prefix}.rank2"), target).ranks == 4
    last = Path(f"{prefix}.rank3").read_bytes()
    Path(f"{prefix}.rank3").unlink()
    with pytest.raises(
        UserError, match="holds 3 experts in 3 files and its gates know 4: is the file of a rank"
    ):
        import_swin_moe(prefix, target, overwrite=True)
    Path(f"{prefix}.rank3").write_bytes(last)
    whole = Path(f"{prefix}.rank1").read_bytes()
    Path(f"{prefix}.rank1").unlink()
    with pytest.raises(
        UserError, match=r"lacks the file of rank 1: the highest of the 3 that are there is 3"
    ):
        import_swin_moe(prefix, target, overwrite=True)
    for content in (whole[: len(whole) // 2], b"", b"junk" * 99, pickle.dumps({"model": {}}, protocol=2)):
        Path(f"{prefix}.rank1").write_bytes(content)
        with pytest.raises(UserError, match=r"is damaged or no file of torch's|holds no parameters"):
            import_swin_moe(prefix, target, overwrite=True)
    torch.save({"model": {}, "more": Harmful()}, f"{prefix}.rank1")
    with pytest.raises(
        UserError, match=r"rank1 holds print, which would have to be executed; in a program that you"
    ):
        import_swin_moe(prefix, target, overwrite=True)
    assert "executed" not in capsys.readouterr().out
    assert api.load_model(target, device="cpu").name == "checkpoint", "what was there before is still there"


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_damage_is_always_a_sentence_or_harmless(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damage")
    prefix = swin.write(folder / "ckpt.pth", swin.parameters())
    content = bytearray(Path(f"{prefix}.rank0").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    Path(f"{prefix}.rank0").write_bytes(content[: data.draw(st.integers(1, len(content)))])
    with contextlib.suppress(UserError):
        import_swin_moe(prefix, folder / "checkpoint")


def test_a_pickle_that_is_called_safetensors_is_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "weights.safetensors"
    path.write_bytes(pickle.dumps(Harmful()))
    with pytest.raises(UserError, match=r"weights\.safetensors is damaged or no file of torch's"):
        import_swin_moe(path, tmp_path / "checkpoint")
    assert "executed" not in capsys.readouterr().out and not (tmp_path / "checkpoint").exists()


def test_it_cannot_be_trained_and_says_so() -> None:
    config = ModelConfig.model_validate(
        {"num_classes": 3, "swin": {"depths": [2], "num_heads": [2], "windows": [4]}}
    )
    with pytest.raises(UserError, match="imported and probed, not trained"):
        build_model(config)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An imported Swin-MoE of k = 2, whose scores are said to be about no data set."""
    root = tmp_path_factory.mktemp("swin")
    prefix = swin.write(root / "ckpt.pth", swin.parameters(cosine=True))
    result = run("import", "swin-moe", prefix, root / "swin-moe", "--top-k", 2)
    assert result.exit_code == 0, result.output
    for words in (
        "parameters of 2 ranks; stages of 2, 2 blocks with 2, 4 heads and windows of 4, 4, the first of width 8; 4 "
        "experts, chosen by cosine_token_choice, in 2 blocks (1, 3, counted through all stages); patches of 4 at 32",
        "top-k 2; capacity factor 1.25 in training, none in evaluation; groups of 8 images; batch priority yes",
        "weights not renormalized.",
    ):
        assert words in result.stdout, result.stdout
    return root / "swin-moe"


def test_inspect_counts_it(folder: Path) -> None:
    found = json.loads(run("inspect", folder, "--json").stdout)
    model: Any = api.load_model(folder, device="cpu").model
    assert found["parameters"] == sum(p.numel() for p in model.model.parameters())
    # An expert has 2 · 8 · 32 + 32 + 8 and 2 · 16 · 64 + 64 + 16 parameters; two of four are met.
    assert found["parameters"] - found["active_parameters"] == 2 * (552 + 2128)
    assert found["blocks"] == [2, 2] and found["training"]["imported"] == "swin-moe"
    assert [row["layer"] for row in found["layers"]] == list(swin.SPARSE)
    # Every token of every block, twice in the sparse ones: half of each stage's blocks.
    experts = 2 * 2 * 2 * (64 * 8 * 32 + 16 * 16 * 64)
    assert found["flops_per_image"] > experts


@pytest.mark.pictures
@pytest.mark.slow
def test_probes_take_it(folder: Path, tmp_path: Path) -> None:
    more = ("--data", "digits", "--limit", 8)
    assert "does not say what it was trained on" in refused("confidence", folder)
    one = folder.parent / "one"
    assert (
        run("import", "swin-moe", f"{folder.parent / 'ckpt.pth'}.rank1", one, "--renormalise").exit_code == 0
    )
    result = run("match-ratio", folder, one, *more, "--json", "--out", tmp_path / "match-ratio")
    assert result.exit_code == 0, result.output
    table = pd.DataFrame(json.loads(result.stdout)["table"])
    table = table.query("metric == 'top1_match' and tokens == 'patch' and checkpoint == 'swin-moe'")
    pairs = table.set_index("layer")["trials"]
    assert set(pairs.index) == set(swin.SPARSE)
    assert pairs[swin.SPARSE[0]] > 2 * pairs[swin.SPARSE[1]], "four times as many patches in the first stage"
    result = run("noise-sweep", folder, *more, "--sigmas", "0,0.3", "--attribute", "--json")
    assert result.exit_code == 0, result.output
    assert "logit_distance_switching" in {row["metric"] for row in json.loads(result.stdout)["table"]}
    assert run("confidence", folder, *more).exit_code == 0
    for command in (
        ("overlay", folder, "--data", "digits", "--count", 1),
        ("compare", tmp_path / "match-ratio"),
        ("report", tmp_path / "match-ratio", tmp_path / "overlay"),
    ):
        result = run(*command, "--out", tmp_path / str(command[0]))
        assert result.exit_code == 0, (command, result.output)
    patches = pd.read_csv(tmp_path / "overlay" / "patches.csv")
    assert patches.groupby("layer").size().to_dict() == {swin.SPARSE[0]: 64, swin.SPARSE[1]: 16}
    assert (tmp_path / "overlay" / "figures" / f"overlay-{swin.SPARSE[1]}.png").exists()


def test_contagion_wants_one_grid(folder: Path) -> None:
    more = ("--data", "digits", "--limit", 8)
    assert "name layers of one stage with --layers" in refused("contagion", folder, *more)
    assert run("contagion", folder, *more, "--layers", swin.SPARSE[1]).exit_code == 0


def test_a_pass_can_be_resumed_at_each_layer(tmp_path: Path) -> None:
    found = imported(tmp_path, swin.parameters(), top_k=2)
    model = api.load_model(found.folder, device="cpu").model
    assert isinstance(model, Resumable)
    pixels = images(2)
    scores, trace = model.trace(pixels)
    for layer, trunk in model.trunks(pixels).items():
        resumed, output = model.resume(layer, trunk.hidden, RoutingTrace({layer: trace.layers[layer]}))
        torch.testing.assert_close(resumed, scores)
        torch.testing.assert_close(output, trunk.output)
        assert trunk.output.shape[:2] == trace.layers[layer].gates.shape[:2]
        assert model.reached_from(layer, trunk.hidden).all(), "the mean of all tokens is read"
