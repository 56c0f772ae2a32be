"""Foreign modules that would be read wrongly without a word: each is refused, or told from another."""

import dataclasses
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.hooks import Hooks
from moeprobe.adapters.hooks.factory import load_weights
from moeprobe.adapters.open import load_model
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.models.training.start import read_dense
from moeprobe.probes.engine import loop
from tests.adapters import zoo
from tests.adapters.zoo import VIT, TokenMoe
from tests.routing.routings import checkpoint

Choose = Callable[[Any, Tensor], tuple[Tensor, Tensor]]


def top(scores: Tensor, top_k: int = 2) -> tuple[Tensor, Tensor]:
    found = scores.topk(top_k, dim=-1)
    return found.values, found.indices


def vit(choose: Choose) -> Any:
    return zoo.vit(
        type("ChosenMoe", (TokenMoe,), {"choose": lambda self, flat: choose(self.gate(flat), flat)})
    )


def biased(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return top(logits.sigmoid() + torch.linspace(-1, 1, 6))


def grouped(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    gates = logits.softmax(-1)
    best = gates.unflatten(-1, (2, 3)).amax(-1).argmin(-1, keepdim=True)
    return top(gates.masked_fill(torch.arange(6) // 3 != best, 0.0))


def coupled(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    gates = logits.softmax(-1)
    return top(gates - gates.mean(0), 1)


def single(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    best = (logits + torch.linspace(-3, 3, 6)).argmax(-1)
    return torch.ones(len(best), 1), best[:, None]


def lowest(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return top(logits.mul(-1))


@pytest.mark.parametrize("choose", [biased, grouped, coupled, single, lowest])
def test_a_choice_of_more_than_logits_is_that_of_the_top_k(choose: Choose) -> None:
    net = vit(choose)
    model = Hooks(net, **VIT)
    given: dict[str, Tensor] = {}
    for block in (1, 3):
        net.blocks[block].mlp.gate.register_forward_hook(
            lambda _m, _i, output, name=f"blocks.{block}": given.update({name: output})
        )
    images = torch.rand(5, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    pieces = images.split(1) if choose is coupled else [images]
    unlike = 0
    for piece in pieces:
        for name, layer in model.trace(piece)[1].layers.items():
            experts = choose(given[name], Tensor())[1].reshape(*layer.selected.shape)
            assert torch.equal(experts.sort(-1).values, layer.selected.long().sort(-1).values)
            highest = layer.gates.topk(layer.top_k).indices.sort(-1).values
            unlike += int((highest != layer.selected.long().sort(-1).values).any(-1).sum())
            assert layer.scores is not None and not layer.token_local
    assert unlike > 5, "the highest gates would have done as well"
    assert model.group_images == 1
    assert ("batch-mates, as tried" in model.provenance["batches"]) == (choose is coupled)


def last_of_equal(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return top(logits + torch.linspace(0, 1e-9, 6))


def halved(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return top(logits.bfloat16().softmax(-1))


def ascending(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    order = logits.argsort(dim=-1)[:, -2:]
    return logits.gather(-1, order), order


def warmed(logits: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
    return top((logits / 3 + 5).softmax(-1))


@pytest.mark.parametrize("choose", [warmed, ascending])
def test_a_choice_by_the_logits_is_taken_whatever_its_way(choose: Choose) -> None:
    assert Hooks(vit(choose), **VIT, top_k=2 if choose is ascending else None).layer_names == (
        "blocks.1",
        "blocks.3",
    )


@pytest.mark.parametrize(("choose", "scale"), [(halved, 1e-2), (last_of_equal, 0.0)])
def test_one_of_equal_experts_is_no_other_choice(choose: Choose, scale: float) -> None:
    net = vit(choose)
    with torch.no_grad():
        for block in (1, 3):
            net.blocks[block].mlp.gate.weight.mul_(scale)
    assert Hooks(net, **VIT).layer_names == ("blocks.1", "blocks.3")


def test_gates_that_are_no_numbers_are_refused() -> None:
    net = zoo.vit()
    model = Hooks(net, **VIT)
    with torch.no_grad():
        net.blocks[1].mlp.gate.weight[0, 0] = torch.nan
    said = r"blocks\.1\.mlp\.gate: its gates are not finite"
    with pytest.raises(UserError, match=said):
        model.trace(torch.rand(2, 3, 32, 32))
    told: list[dict[str, Any]] = [{}, {"routers": "blocks.*.mlp.gate", "top_k": 2}]
    for more in told:
        with pytest.raises(UserError, match=said):
            Hooks(net, **VIT, **more)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"std": (0.5, 0.0, 0.5)}, "std.1: input should be greater than 0; got 0.0"),
        ({"patch_size": 0}, "patch_size: a patch has at least one pixel along its side; got 0"),
        ({"patch_size": {"blocks.*": -8}}, "patch_size: a patch has at least one pixel along its side"),
        ({"image_size": 100_000}, "image_size: input should be less than or equal to 16384"),
        ({"image_size": 0}, "image_size: input should be greater than or equal to 1"),
    ],
)
def test_settings_have_bounds(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Hooks(zoo.vit(), **{**VIT, **changes})
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../keep", "a/b", "/abs", "a\\b", ".hidden", " a", "a\n", "parts", "Parts", "x" * 300],
)
def test_names_are_one_ordinary_part_of_a_path(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Hooks(zoo.vit(), **VIT)
    with pytest.raises(UserError, match="A model cannot be called"):
        api.wrap(model, name=name)
    # So it is for whatever an adapter opens.
    opened = Checkpoint(name, model, model.framing)
    monkeypatch.setattr("moeprobe.adapters.hooks.Hooks.open", lambda *_, **__: opened)
    with pytest.raises(UserError, match="A model cannot be called"):
        load_model("py:any:thing")


def test_a_trace_does_not_lie_among_the_part_files(tmp_path: Path) -> None:
    for name in ("parts", "parts/best", "table.json"):
        taken = dataclasses.replace(checkpoint(), name=name)
        with pytest.raises(UserError, match="mixed with the run's own files"):
            api.record([taken], data="digits", options=Options(limit=4, out=tmp_path / "traces"))
    assert not (tmp_path / "traces").exists()


def test_models_with_the_same_parameters_have_hashes_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twin_zoo.py").write_text(
        "from tests.adapters import zoo\n"
        "def plain():\n    return zoo.vit()\n"
        "def same():\n    return zoo.vit()\n"
    )
    settings = {"image_size": 32, "num_prefix_tokens": 1, "mean": list(zoo.MEAN), "std": list(zoo.STD)}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(settings))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    hashes = [
        load_model(f"py:twin_zoo:{name}@tiny.yaml", device="cpu").provenance["sha256"]
        for name in ("plain", "same", "plain")
    ]
    sys.modules.pop("twin_zoo")
    assert hashes[0] == hashes[2] != hashes[1]
    # What was learnt tells them apart where nothing else does.
    learnt = [Hooks(zoo.vit(moe, *sizes), **VIT) for moe, sizes in ((TokenMoe, (6, 1)), (TokenMoe, (6, 2)))]
    assert learnt[0].provenance["sha256"] != learnt[1].provenance["sha256"]
    assert learnt[0].provenance["settings"] == learnt[1].provenance["settings"]


def test_part_files_of_a_checkpoint_without_a_hash_are_not_used() -> None:
    path = Path(__file__)  # anything that is there: it must not even be read
    assert loop._read_part(path, {"checkpoint": None}) is None


JUNK = {
    "dot": b".", "text": b"hello world\n", "empty": b"", "reduce": b"R.", "zip": b"PK\x03\x04" + b"\0" * 30,
    "tuple": pickle.dumps((1, 2)), "class": pickle.dumps(Path("x")), "late": b"\x80\x02}q\x00.",
    "items": b"\x80\x02u.", "pop": b"0.", "long": b"\x80\x02X\xff\xff\xff\x7f", "short": b"\x80\x02K",
    "cut": b"\x80\x02J\x00", "numbers": pickle.dumps({1: 2}),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_damaged_weights_are_a_sentence(tmp_path: Path, suffix: str) -> None:
    net = torch.nn.Linear(2, 2)
    for name, content in JUNK.items():
        path = tmp_path / f"{name}{suffix}"
        path.write_bytes(content)
        with pytest.raises(UserError):
            load_weights(net, path)
        with pytest.raises(UserError):
            read_dense(path, advice="PATH")
    torch.save({1: torch.zeros(2)}, tmp_path / "int.pt")
    with pytest.raises(UserError, match="holds no state dict"):
        load_weights(net, tmp_path / "int.pt")
    with pytest.raises(UserError, match="holds no weights"):
        read_dense(tmp_path / "int.pt", advice="PATH")


class Leaving(torch.nn.Module):
    """A model that ends the program, at once or later."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.net = zoo.vit()
        self.left = after

    def forward(self, images: Tensor) -> Tensor:
        if self.left == 0:
            sys.exit()
        self.left -= 1
        return self.net(images)


def test_a_model_that_ends_the_program_is_a_sentence() -> None:
    told: dict[str, Any] = {"routers": "net.blocks.*.mlp.gate", "top_k": 2, **VIT}
    with pytest.raises(UserError, match="The model raised SystemExit on images"):
        Hooks(Leaving(0), **told)
    model = Hooks(net := Leaving(-1), **told)
    net.left = 0
    with pytest.raises(
        UserError, match=r"raised SystemExit on images \(2, 3, 32, 32\) \(.*test_hooks_refusals\.py:\d+\)"
    ):
        model.trace(torch.zeros(2, 3, *[VIT["image_size"]] * 2))


@pytest.mark.parametrize("line", ["sys.exit()", "raise GeneratorExit", "raise asyncio.CancelledError"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_factory_that_ends_the_program_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, inside: bool
) -> None:
    body = f"def make():\n    {line}\n" if inside else f"{line}\n"
    (tmp_path / "leaving_module.py").write_text(f"import asyncio, sys\n{body}")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "leaving_module", raising=False)
    what = "leaving_module:make" if inside else "Importing leaving_module"
    with pytest.raises(UserError, match=f"{what} raised"):
        load_model("py:leaving_module:make")
