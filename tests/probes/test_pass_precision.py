"""Forward passes in a narrower format: routers stay in float32, and a run says what arithmetic alone changes."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.hooks import Hooks
from moeprobe.adapters.open import load_model
from moeprobe.adapters.vmoe import Vmoe
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.probes.engine.models import load_models, measure_floor
from moeprobe.results.caveats import PRECISION_FLOOR, changed_share, sentences_of
from moeprobe.results.folder import Result
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.tables import FLOORS
from moeprobe.routing import other_dtype
from moeprobe.routing.capabilities import HasRouterModules, Replayable, Resumable, Traceable
from moeprobe.routing.pass_precision import in_float32, in_precision, precision_of
from tests.adapters import tiny_texts, zoo
from tests.commands import Trained, refused
from tests.routing.routings import checkpoint, tiny

# Intervals are asserted.
pytestmark = pytest.mark.resamples


CPU = torch.device("cpu")


def narrow(model: Traceable, precision: str = "bfloat16") -> Any:
    return in_precision(model, precision, name="mine", device=CPU)


def pixels(count: int = 4) -> Tensor:
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


def outputs_of(modules: list[nn.Module], run: Any) -> list[Tensor]:
    """What some modules return while something runs; the tensors of a tuple one by one."""
    seen: list[Tensor] = []

    def listen(_module: nn.Module, _inputs: Any, output: Any) -> None:
        seen.extend(part for part in (output if isinstance(output, tuple) else (output,)))

    handles = [module.register_forward_hook(listen) for module in modules]
    run()
    for handle in handles:
        handle.remove()
    return [part for part in seen if isinstance(part, Tensor) and part.is_floating_point()]


def test_own_routers_compute_in_float32_and_the_rest_does_not() -> None:
    model = Vmoe(tiny(), mean=(0.5,) * 3, std=(0.5,) * 3)
    routers = [model.model.get_submodule(f"{name}.mlp.router") for name in model.layer_names]
    seen: list[Tensor] = []
    for router in routers:
        router.register_forward_pre_hook(lambda _module, inputs: seen.append(inputs[0]))
    projected = outputs_of([model.model.blocks[0].attn.qkv], lambda: narrow(model).trace(pixels()))
    assert [part.dtype for part in projected] == [torch.bfloat16]
    wide, rounded = model.trace(pixels())[1], narrow(model).trace(pixels())[1]
    for name, layer in rounded.layers.items():
        router = model.model.get_submodule(f"{name}.mlp.router")
        with torch.no_grad():
            # The router alone, asked in float32 for what it saw: bit by bit the gates of the pass.
            tokens = narrow(model).router_inputs(pixels(), layers=[name])[name]
            torch.testing.assert_close(model.route(name, tokens.float()).gates, layer.gates, rtol=0, atol=0)
        assert router.training is False and not torch.equal(layer.gates, wide.layers[name].gates)


@pytest.mark.parametrize("kind", ["hooks", "transformers"])
def test_routers_of_other_programs_compute_in_float32(kind: str, tmp_path: Path) -> None:
    if kind == "hooks":
        model: Any = Hooks(zoo.vit(), routers="blocks.*.mlp.gate", top_k=2, **zoo.VIT)
        inputs: Any = pixels()
    else:
        opened = load_model(f"hf:{tiny_texts.olmoe(tmp_path)}", dtype="float32")
        model, inputs = opened.model, opened.framing.blank()
    assert isinstance(model, HasRouterModules)
    modules = model.router_modules()
    forwards = [vars(module).get("forward") for module in modules]
    rounded = narrow(model)
    outputs = outputs_of(modules, lambda: rounded.trace(inputs))
    assert outputs and {part.dtype for part in outputs} == {torch.float32}
    # As PyTorch does it by itself, they are rounded too.
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.bfloat16 in {
            part.dtype for part in outputs_of(modules, lambda: model.trace(inputs, logits=False))
        }
    assert [vars(module).get("forward") for module in modules] == forwards
    assert isinstance(rounded, type(model)) and isinstance(rounded, Replayable) == isinstance(
        model, Replayable
    )


def test_a_model_keeps_its_capabilities_and_gives_the_original_back() -> None:
    model = checkpoint().model
    rounded = narrow(model)
    assert isinstance(rounded, Resumable) and precision_of(rounded) == "bfloat16"
    assert in_float32(rounded) is model and narrow(rounded, "float32") is model
    assert precision_of(model) == "float32" and in_float32(narrow(rounded, "float16")) is model
    twice = narrow(narrow(model))
    torch.testing.assert_close(twice.trace(pixels())[0], rounded.trace(pixels())[0], rtol=0, atol=0)


def test_other_weights_and_devices_are_refused() -> None:
    wide = Vmoe(copy.deepcopy(tiny()).double(), mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(UserError, match=r"mine has weights in float64, .* or leave precision out\."):
        narrow(wide)
    with pytest.raises(UserError, match=r"This meta cannot compute in bfloat16; use precision=\"float32\"\."):
        in_precision(checkpoint().model, "bfloat16", name="mine", device=torch.device("meta"))


def test_what_cannot_run_so_is_said_in_a_sentence() -> None:
    class Picky(Vmoe):
        def trace(self, images: Tensor, **more: Any) -> Any:
            if torch.is_autocast_enabled("cpu"):
                raise RuntimeError("no kernel for Half\nand much more")
            return super().trace(images, **more)

    one = checkpoint()
    picky = Checkpoint("picky", Picky(tiny(), mean=(0.5,) * 3, std=(0.5,) * 3), one.framing)
    with pytest.raises(
        UserError, match=r"picky cannot run in float16 on this CPU \(no kernel for Half\); use precision="
    ):
        load_models([picky], Options(precision="float16"))
    assert load_models([picky], Options())[0] is picky


def test_the_floor_counts_images_and_choices() -> None:
    one = checkpoint()
    layers = list(one.model.layer_names)
    same = measure_floor(one, [pixels(3), pixels(20)], layers)
    assert (same["changed"], same["share"], same["images"]) == (0, 0.0, 23)
    rounded = load_models([one], Options(precision="bfloat16"))[0]
    floor = measure_floor(rounded, [pixels(60)], layers)
    wide, other = (model.trace(pixels(60))[1].layers for model in (one.model, rounded.model))
    by_hand = [
        (wide[name].selected[:, 1:].sort(-1).values != other[name].selected[:, 1:].sort(-1).values).any(-1)
        for name in layers
    ]
    assert floor["choices"] == sum(part.numel() for part in by_hand)
    assert floor["changed"] == sum(int(part.sum()) for part in by_hand) > 0
    assert floor["ci_low"] <= floor["share"] == floor["changed"] / floor["choices"] <= floor["ci_high"]
    assert [floor["layers"][name]["changed"] for name in layers] == [int(part.sum()) for part in by_hand]


def test_sentences_say_the_share_its_interval_and_of_how_many() -> None:
    changed = np.array([1, 0, 2, 0] * 10)
    floor = changed_share(changed, np.full(40, 100)) | {"inputs": "images"}
    few = changed_share(changed[:4], np.full(4, 100)) | {"inputs": "images"}
    request = {"kind": "sweep", "precision": "bfloat16"}
    sidecar = Sidecar(
        {
            "request": request,
            "checkpoints": {"a": {PRECISION_FLOOR: floor}, "b": {PRECISION_FLOOR: few}, "c": {}},
        }
    )
    first, second = sentences_of(sidecar)
    assert first.startswith("a: bfloat16 alone changes 0.007 [0.005, 0.011] (30 of 4,000) of the choices, ")
    assert first.endswith("compared with float32 on 40 images.")
    assert "b: bfloat16 alone changes 0.00750 (few images) (3 of 400) of the choices" in second
    assert sentences_of(Sidecar({"request": {"kind": "sweep"}, "checkpoints": {"a": {}}})) == []


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory, trained: Trained) -> dict[str, Path]:
    """The same sweep in both precisions."""
    out = tmp_path_factory.mktemp("swept")
    common: dict[str, Any] = {"sigmas": [0, 0.1], "limit": 40, "figures": False}
    for precision in ("float32", "bfloat16"):
        api.noise_sweep([trained["prc"]], out=out / precision, precision=precision, **common)
    return {precision: out / precision for precision in ("float32", "bfloat16")}


def test_a_run_carries_its_precision_and_the_floor_of_it(swept: dict[str, Path]) -> None:
    requests = {name: json.loads((path / "run.json").read_text()) for name, path in swept.items()}
    assert requests["bfloat16"]["precision"] == "bfloat16" and "precision" not in requests["float32"]
    sidecar = json.loads((swept["bfloat16"] / "table.json").read_text())
    assert sidecar["floor_dtype"] == "float32"
    [about] = sidecar["checkpoints"].values()
    again, _, other = (_matches(swept["bfloat16"], view) for view in FLOORS)
    # In the table too: float32 is the other dtype, and the same batch again is the same.
    assert (again == 1).all() and ((other > 0.9) & (other <= 1)).all() and len(again) == len(other)
    assert about[PRECISION_FLOOR]["choices"] == sum(
        layer["choices"] for layer in about[PRECISION_FLOOR]["layers"].values()
    )
    [plain] = json.loads((swept["float32"] / "table.json").read_text())["checkpoints"].values()
    assert PRECISION_FLOOR not in plain


def _matches(run: Path, view: str) -> pd.Series:
    table = pd.read_csv(run / "table.csv")
    return table[(table["view"] == view) & (table["metric"] == "top1_match")]["value"]


def test_precisions_are_never_mixed(swept: dict[str, Path], trained: Trained) -> None:
    said = refused("compare", str(swept["float32"]), str(swept["bfloat16"]))
    assert 'precision is "float32" in the first and "bfloat16" in the second' in said
    said = refused(
        "noise-sweep", trained["prc"], "--sigmas", "0,0.1", "--limit", "40",
        "--out", str(swept["float32"]), "--precision", "bfloat16",
    )  # fmt: skip
    assert "holds a finished run of something else" in said


def test_a_result_says_it_in_a_notebook(trained: Trained) -> None:
    result: Result = api.match_ratio([trained["prc"]], limit=20, precision="bfloat16", floor_images=10)
    assert "bfloat16 alone changes" in result._repr_html_() and "compared with float32 on 10 images" in (
        result._repr_html_()
    )


def test_a_floor_is_refused_where_there_is_none(trained: Trained) -> None:
    said = refused("match-ratio", trained["prc"], "--floor-images", "20")
    assert said.endswith("measures a noise floor only with --precision; leave --floor-images out.")
    said = refused("margins", trained["prc"], "--transfer", "bfloat16", "--precision", "bfloat16")
    assert "compares with passes in float32; leave --precision out" in said
    assert "--precision is float32, bfloat16 or float16; got 'half'" in refused(
        "match-ratio", trained["prc"], "--precision", "half"
    )


def test_a_run_says_that_its_products_are_emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = []
    for emulated in (False, True):
        monkeypatch.setattr(other_dtype, "is_emulated", lambda _device, emulated=emulated: emulated)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            result = api.match_ratio(checkpoint(), data="digits", precision="bfloat16", limit=4)
        facts.append((result.sidecar.get("emulated"), any("emulated" in str(one.message) for one in said)))
    assert facts == [(None, False), ("bfloat16", True)]
