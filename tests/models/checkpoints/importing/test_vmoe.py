"""V-MoE's checkpoints in and out: the model that comes of them, and every bit on the way."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import RunWarning, UserError
from moeprobe.models.checkpoints import checkpoint
from moeprobe.models.checkpoints.vmoe import find, import_vmoe
from moeprobe.models.checkpoints.vmoe_export import export_vmoe
from moeprobe.models.checkpoints.vmoe_files import read_vmoe
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import capture
from tests.commands import names_in
from tests.golden import assert_golden, golden, golden_checkpoint
from tests.models.checkpoints import making
from tests.models.nn.released import forward, random_parameters, to_state_dict

SIZES = [
    {},
    {"width": 8, "heads": 4, "layers": (0, 1), "pre_logits": False},
    {
        "width": 4,
        "heads": 1,
        "depth": 11,
        "layers": (9, 10),
        "patch": 3,
        "side": 1,
        "hidden": 7,
        "experts": 2,
    },
    {"width": 49, "heads": 7, "hidden": 100, "patch": 1, "side": 3, "classes": 1},
    {"representation": 11},
    {"representation": 1},
]


def written(folder: Path, parameters: dict[str, NDArray[Any]], **how: Any) -> Path:
    return making.write(folder / "vmoe", *making.content(making.nested(parameters), **how))


@pytest.mark.golden
@pytest.mark.parametrize("name", ["small_1shard", "small_4shards"])
def test_released_parameters(name: str, tmp_path: Path) -> None:
    found = find(golden_checkpoint(name, tmp_path)).read()
    expected = to_state_dict(golden("model_small/params.npz"))
    assert set(found) == set(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.golden
@pytest.mark.parametrize(
    "variant", ["det_cf0.5", "det_cf1.05", "det_cf1.05_bpr", "det_cf4.0", "det_k1_cf1.05"]
)
def test_released_model(tmp_path: Path, variant: str) -> None:
    """The imported checkpoint, loaded as a probe loads it, on images in [0, 1]."""
    expected = golden(f"model_small/{variant}.npz")
    setting = golden("model_small/summary.json")[variant]["config"]
    import_vmoe(
        golden_checkpoint("small_4shards", tmp_path),
        tmp_path / "released",
        top_k=setting.get("K", 2),
        eval_capacity_factor=setting["capacity_factor"],
        batch_priority=setting["batch_priority"],
        group_images=4,
    )
    model, info = checkpoint.load(tmp_path / "released")
    assert sum(parameter.numel() for parameter in model.parameters()) == 252_298
    images = torch.from_numpy(golden("model_small/images.npz")["images"].transpose(0, 3, 1, 2).copy())
    with torch.no_grad(), capture(model.eval()) as decisions:
        assert_golden(model(images), expected["logits"])
    for name, decision in decisions.items():
        assert_golden(decision.gates, expected[f"router_softmax/{name.split('.')[1]}"])
    probed = api.load_model(tmp_path / "released", device="cpu", trained_capacity=True, group_images=4)
    logits, routing = api.trace(probed, images / 2 + 0.5)
    assert logits is not None
    assert_golden(logits, expected["logits"])
    for name, layer in routing.layers.items():
        block = name.split(".")[1]
        assert_golden(layer.gates.reshape(2, 68, 4), expected[f"router_softmax/{block}"])
        assert int((~layer.processed).sum()) == expected[f"dropped_assignments/{block}"]
    assert info.model.mean == [0.5] * 3


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("top_k", [1, 2])
def test_the_model_is_what_its_parameters_say(tmp_path: Path, sizes: dict[str, Any], top_k: int) -> None:
    """Against the whole model run in NumPy float64 on V-MoE's own parameters."""
    parameters = random_parameters(**sizes)
    imported = import_vmoe(written(tmp_path, parameters), tmp_path / "c", top_k=top_k)
    assert imported.parameters == sum(array.size for array in parameters.values())
    found, patch, side = imported.sizes, sizes.get("patch", 2), sizes.get("side", 2)
    assert (found.patch_size, found.image_size, found.depth) == (patch, patch * side, sizes.get("depth", 2))
    pixels = np.random.default_rng(1).random((3, patch * side, patch * side, 3))
    layers = sizes.get("layers", (1,))
    expected, gates = forward(parameters, pixels * 2 - 1, top_k=top_k, layers=layers, depth=found.depth)
    model = api.load_model(tmp_path / "c", device="cpu")
    logits, routing = api.trace(model, torch.from_numpy(pixels.transpose(0, 3, 1, 2)).float())
    assert logits is not None
    assert_golden(logits, expected, 1e-4)
    assert list(routing.layers) == [f"blocks.{layer}" for layer in layers]
    for layer in layers:
        traced = routing.layers[f"blocks.{layer}"]
        assert traced.top_k == top_k
        assert_golden(traced.gates, gates[layer], 1e-4)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_out_and_in_again(tmp_path: Path, sizes: dict[str, Any]) -> None:
    parameters = random_parameters(**sizes)
    import_vmoe(written(tmp_path, parameters), tmp_path / "c")
    for shards in (1, 3):
        exported = export_vmoe(tmp_path / "c", tmp_path / "out" / f"c{shards}", shards=shards)
        assert exported.parameters == sum(array.size for array in parameters.values())
        arrays = read_vmoe(tmp_path / "out" / f"c{shards}").arrays
        assert set(arrays) == set(parameters)
        for name, array in parameters.items():
            assert arrays[name].shape == array.shape
            assert arrays[name].read().tobytes() == array.tobytes(), name
        import_vmoe(tmp_path / "out" / f"c{shards}", tmp_path / "again", overwrite=True)
        first, again = (checkpoint.read_tensors(tmp_path / f / "last.safetensors")[0] for f in ("c", "again"))
        assert all(torch.equal(first[name], again[name]) for name in first)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_stay_narrow(tmp_path: Path, dtype: torch.dtype) -> None:
    config = ModelConfig(num_classes=4, num_experts=2, image_size=16, pre_logits=True)
    torch.manual_seed(0)
    model = build_model(config).to(dtype)
    checkpoint.save(tmp_path / "a" / "last.safetensors", model, config=config, training={}, class_names=())
    export_vmoe(tmp_path / "a", tmp_path / "out", shards=2)
    imported = import_vmoe(tmp_path / "out", tmp_path / "b")
    assert imported.dtypes == (str(dtype).removeprefix("torch."),)
    tensors, _ = checkpoint.read_tensors(tmp_path / "b" / "last.safetensors")
    assert all(torch.equal(tensors[name], tensor) for name, tensor in model.state_dict().items())
    _, routing = api.trace(api.load_model(tmp_path / "b", device="cpu"), torch.rand(2, 3, 16, 16))
    assert routing.layers["blocks.3"].gates.dtype == torch.float32


def test_a_state_of_training_gives_its_parameters(tmp_path: Path) -> None:
    parameters = random_parameters()
    state = {
        "params": making.nested(parameters),
        "opt_state": {"0": {"mu": making.nested(parameters), "count": np.array(3, "i4")}},
        "rngs": {"dropout": np.zeros(2, "u4")},
        "step": np.array(3, "i4"),
    }
    for prefix in (making.write(tmp_path / "state", *making.content(state, shards=2)), tmp_path / "flax"):
        if prefix.name == "flax":
            prefix.write_bytes(making.flax(state | {"step": 3}))
        imported = import_vmoe(prefix, tmp_path / "c", overwrite=True)
        assert imported.ignored == {"opt_state": len(parameters) + 1, "rngs": 1, "step": 1}
        tensors, _ = checkpoint.read_tensors(tmp_path / "c" / "last.safetensors")
        expected = to_state_dict(parameters)
        assert all(torch.equal(tensors[name], expected[name]) for name in expected)


def _without(name: str) -> dict[str, Any]:
    return {key: array for key, array in random_parameters().items() if not key.startswith(name)}


BLOCK = "Encoder/encoderblock_1"
WRONG = {
    "nothing": ({}, "lacks the parameter 'embedding/kernel'"),
    "no class token": (_without("cls"), "lacks the parameter 'cls'"),
    "no head": (_without("head/bias"), "lacks the parameter 'head/bias'"),
    "a block is missing": (_without("Encoder/encoderblock_0"), "lacks a block: it has 1"),
    "no MoE layer": (_without(f"{BLOCK}/Moe"), "has no MoE layer"),
    "unknown": (random_parameters() | {"Encoder/relpos": np.zeros(3, "f4")}, "does not have: 'Encoder/relpos'"),
    "unknown in a router": (random_parameters() | {f"{BLOCK}/Moe/Router/scale": np.zeros(1, "f4")}, "Router/scale'"),
    "dense and sparse": (random_parameters() | {f"{BLOCK}/Mlp/Dense_0/bias": np.zeros(5, "f4")}, "does not have"),
    "a step that is no parameter": (random_parameters() | {"step": np.zeros((), "f4")}, "does not have: 'step'"),
    "another shape": (random_parameters() | {"head/bias": np.zeros(4, "f4")}, r"is \(4,\), but by the others"),
    "experts of two numbers": (
        random_parameters() | {f"{BLOCK}/Moe/Router/dense/kernel": np.zeros((6, 4), "f4")}, r"\(6, 4\)",
    ),
    "no square": (
        random_parameters() | {"Encoder/posembed_input/pos_embedding": np.zeros((1, 7, 6), "f4")}, "6 patches",
    ),
    "oblong patches": (random_parameters() | {"embedding/kernel": np.zeros((2, 3, 3, 6), "f4")}, "2 x 3 pixels"),
    "no width": (random_parameters() | {"embedding/kernel": np.zeros((2, 2, 3, 0), "f4")}, r"is \(2, 2, 3, 0\)"),
    "whole numbers": (random_parameters() | {"cls": np.zeros((1, 1, 6), "i4")}, "'cls' is int32; parameters are"),
    "doubles": (random_parameters() | {"cls": np.zeros((1, 1, 6), "f8")}, "'cls' is float64"),
    "a block out of reach": (
        random_parameters() | {"Encoder/encoderblock_9999/LayerNorm_0/bias": np.zeros(6, "f4")},
        "lacks a block: it has 0, 1, 9999",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_vmoe_is_refused(tmp_path: Path, name: str) -> None:
    parameters, words = WRONG[name]
    with pytest.raises(UserError, match=words):
        import_vmoe(written(tmp_path, parameters), tmp_path / "c")
    assert not (tmp_path / "c").exists()


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"top_k": 0}, "top_k: input should be greater than 0; got 0"),
        ({"top_k": 4}, "4"),
        ({"capacity_factor": -1.0}, "capacity_factor: a number above 0 or none"),
        ({"group_images": 0}, "group_images"),
        ({"std": [0.5, 0.0, 0.5]}, "std: numbers above 0"),
        ({"mean": [0.5, float("nan"), 0.5]}, "mean"),
        ({"crop_fraction": 1.5}, "crop_fraction"),
        ({"classes": "digits"}, "The scores are about 3 classes, and digits has 10 classes"),
        ({"classes": "nowhere"}, "no data set 'nowhere'"),
    ],
)
def test_settings_that_do_not_fit(tmp_path: Path, setting: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        import_vmoe(written(tmp_path, random_parameters()), tmp_path / "c", **setting)
    assert not (tmp_path / "c").exists()


def test_folders_that_are_taken(tmp_path: Path) -> None:
    source = written(tmp_path, random_parameters())
    import_vmoe(source, tmp_path / "c")
    before = (tmp_path / "c" / "last.safetensors").read_bytes()
    written_at = (tmp_path / "c" / "last.safetensors").stat().st_mtime_ns
    with pytest.warns(RunWarning, match="c is finished; add overwrite=True to repeat it"):
        import_vmoe(source, tmp_path / "c")
    assert (tmp_path / "c" / "last.safetensors").stat().st_mtime_ns == written_at
    (tmp_path / "c" / "last.json").unlink()
    import_vmoe(source, tmp_path / "c")
    assert names_in(tmp_path / "c") == {"last.json", "last.safetensors"}, "of an import that was killed"
    other = written(tmp_path / "other", random_parameters())
    for again in (
        lambda: import_vmoe(source, tmp_path / "c", top_k=1),
        lambda: import_vmoe(other, tmp_path / "c"),
    ):
        with pytest.raises(UserError, match="holds a checkpoint; add overwrite=True"):
            again()
    assert (tmp_path / "c" / "last.safetensors").read_bytes() == before
    inside = making.write(tmp_path / "c" / "vmoe", *making.content(making.nested(random_parameters())))
    with pytest.raises(UserError, match="which would be replaced"):
        import_vmoe(inside, tmp_path / "c", overwrite=True)
    with pytest.raises(UserError, match=r"moeprobe did not write: vmoe\.data.*, vmoe\.index"):
        import_vmoe(source, tmp_path / "c", overwrite=True)
    for path in (tmp_path / "c").glob("vmoe*"):
        path.unlink()
    import_vmoe(source, tmp_path / "c", overwrite=True)
    assert names_in(tmp_path / "c") == {"last.json", "last.safetensors"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UserError, match="not a checkpoint folder of moeprobe"):
        import_vmoe(source, tmp_path / "mine", overwrite=True)
    with pytest.raises(UserError, match="is a file"):
        import_vmoe(source, tmp_path / "mine" / "letter.txt")
    exported = export_vmoe(tmp_path / "c", tmp_path / "out")
    times = [path.stat().st_mtime_ns for path in exported.files]
    with pytest.warns(RunWarning, match="out is finished; add overwrite=True to repeat it"):
        assert export_vmoe(tmp_path / "c", tmp_path / "out") == exported
    assert [path.stat().st_mtime_ns for path in exported.files] == times
    exported.files[-1].unlink()
    assert export_vmoe(tmp_path / "c", tmp_path / "out") == exported, "goes on where it was interrupted"
    changed = written(tmp_path / "changed", random_parameters(seed=1))
    import_vmoe(changed, tmp_path / "d")
    with pytest.raises(UserError, match="is there already; add overwrite=True"):
        export_vmoe(tmp_path / "d", tmp_path / "out")
    with pytest.raises(UserError, match="is there already; add overwrite=True"):
        export_vmoe(tmp_path / "c", tmp_path / "out", shards=2)
    files = export_vmoe(tmp_path / "c", tmp_path / "out", shards=2, overwrite=True).files
    assert sorted(tmp_path.glob("out.*")) == sorted(files)
    untouched = {path.name: path.read_bytes() for path in source.parent.glob(f"{source.name}.*")}
    with pytest.raises(UserError, match="was not exported by moeprobe"):
        export_vmoe(tmp_path / "c", source, overwrite=True)
    assert {path.name: path.read_bytes() for path in source.parent.glob(f"{source.name}.*")} == untouched
    with pytest.raises(UserError, match="is a folder; give the beginning"):
        export_vmoe(tmp_path / "c", tmp_path)
    with pytest.raises(UserError, match=r"1 to 99,999 shards; got 0"):
        export_vmoe(tmp_path / "c", tmp_path / "new", shards=0)


def test_an_import_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = written(tmp_path, random_parameters())
    import_vmoe(source, tmp_path / "c")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(UserError, match="No space left"):
        import_vmoe(source, tmp_path / "c", overwrite=True)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_model_that_is_no_vmoe_is_not_exported(tmp_path: Path) -> None:
    config = ModelConfig(name="vit_tiny_patch16_224", image_size=32, num_classes=3, num_experts=2, layers=[0])
    checkpoint.save(
        tmp_path / "a" / "last.safetensors", build_model(config), config=config, training={}, class_names=()
    )
    with pytest.raises(UserError, match="is a vit_tiny_patch16_224 made sparse"):
        export_vmoe(tmp_path / "a", tmp_path / "out")


def test_what_was_given_and_what_not_stands_in_the_checkpoint(tmp_path: Path) -> None:
    source = written(tmp_path, random_parameters())
    imported = import_vmoe(source, tmp_path / "c", bfloat16_dispatch=True, eval_capacity_factor=1.5)
    _, info = checkpoint.load(tmp_path / "c")
    assert info.model == imported.model
    assert (info.model.top_k, info.model.eval_capacity_factor, info.model.bfloat16_dispatch) == (2, 1.5, True)
    assert info.training == {"imported": "vmoe", "source": str(source)}
    assert info.class_names == ()
    assert json.loads((tmp_path / "c" / "last.json").read_text())["model"]["name"] == "vmoe"
    assert dataclasses.asdict(imported.sizes)["layers"] == (1,)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_changed_bytes_give_a_sentence_or_the_same_model(tmp_path: Path, data: st.DataObject) -> None:
    """Any bytes but those of the numbers themselves, which nothing could tell from others."""
    fuzz(tmp_path, data.draw)


def fuzz(folder: Path, draw: Any) -> bool:
    """Change a few bytes of a checkpoint; returns whether it was still read."""
    for path in folder.glob("vmoe.*"):
        path.unlink()
    parameters = random_parameters(seed=draw(st.integers(0, 3)))
    prefix = written(folder, parameters, shards=draw(st.integers(1, 2)))
    file = draw(st.sampled_from(sorted(folder.glob("vmoe.*"))))
    content = bytearray(file.read_bytes())
    numbers = np.zeros(len(content), dtype=bool)
    for array in parameters.values():
        at = content.find(array.tobytes())
        if at >= 0:
            numbers[at : at + array.nbytes] = True
    places = np.flatnonzero(~numbers).tolist()
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(places))
        match draw(st.sampled_from(["set", "cut", "insert", "remove"])):
            case "set":
                content[min(place, len(content) - 1)] = draw(st.integers(0, 255))
            case "cut":
                del content[place:]
            case "insert":
                content[place:place] = draw(st.binary(min_size=1, max_size=6))
            case "remove":
                del content[place : place + draw(st.integers(1, 6))]
        places = [number for number in places if number < len(content)] or [0]
        if not content:
            break
    file.write_bytes(content)
    try:
        state = find(prefix).read()
    except UserError:
        return False
    expected = to_state_dict(parameters)
    assert all(torch.equal(state[name], expected[name]) for name in expected)
    return True


MEASURE = """
import re, sys
from pathlib import Path
from moeprobe.models.checkpoints.vmoe import import_vmoe
def memory(key):
    return int(re.search(key + r":\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
import_vmoe(sys.argv[1], sys.argv[3])
Path("/proc/self/clear_refs").write_text("5")
before = memory("VmRSS")
import_vmoe(sys.argv[2], sys.argv[4])
print(memory("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is measured on Linux alone")
def test_an_import_takes_less_than_one_and_a_half_checkpoints_of_memory(tmp_path: Path) -> None:
    """30 MB, two thirds of it in two arrays, measured as the process grows; a small import goes before."""
    large = random_parameters(width=384, heads=8, hidden=768, experts=8, patch=8, side=4, depth=2)
    (tmp_path / "small").mkdir()
    small, prefix = written(tmp_path / "small", random_parameters()), written(tmp_path, large, shards=2)
    size = sum(file.stat().st_size for file in tmp_path.glob("vmoe.*"))
    command = [sys.executable, "-c", MEASURE, small, prefix, tmp_path / "a", tmp_path / "b"]
    output = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True).stdout
    assert size > 20e6
    assert 0.8 < int(output) / size < 1.5, int(output) / size
