"""Models of quantized safetensors: each number is what its format stands for, by loops of one's own over the bytes."""

import importlib.util
import json
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.adapters.huggingface.weight_parts import part_of
from moeprobe.adapters.open import load_model
from moeprobe.errors import UserError
from moeprobe.routing.parts import weights_of
from moeprobe.runtime.extras import is_older
from tests.adapters import families
from tests.commands import run

Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Qwen3-MoE, whose experts are saved one by one."""
    folder = tmp_path_factory.mktemp("plain") / "qwen"
    model = families.small("qwen3_moe", moe_intermediate_size=32)
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.normal_(1.0 if "norm" in name else 0.0, 1.0 if ".gate." in name else 0.15)
    model.save_pretrained(folder)
    return folder


def quantize(
    source: Path,
    folder: Path,
    settings: dict[str, Any],
    form: Callable[[str, Tensor], tuple[Tensors, Tensor]],
) -> Tensors:
    """Write a model whose attention and experts are quantized; returns what each of its tensors stands for.

    Args:
        source: the plain model.
        folder: where it is written.
        settings: ``quantization_config``.
        form: from the name and the values of a matrix to the tensors that are written, and to what they stand for.
    """
    folder.mkdir()
    written: Tensors = {}
    plain: Tensors = {}
    for name, value in load_file(source / "model.safetensors").items():
        if part_of(name) in ("attention", "experts") and value.ndim == 2:
            tensors, plain[name] = form(name, value)
            written |= tensors
        else:
            written[name] = plain[name] = value
    written = {name: value.contiguous() for name, value in written.items()}
    save_file(written, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = settings
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return plain


def assert_holds(folder: Path, plain: Mapping[str, Tensor], tolerance: float = 1e-6) -> HuggingfaceAdapter:
    """Check that the weights in memory are those that the files stand for."""
    opened = load_model(f"hf:{folder}")
    assert opened.provenance["form"]["dequantized"] is True
    adapter = opened.model
    assert isinstance(adapter, HuggingfaceAdapter)
    state = adapter.model.state_dict()
    for name, value in plain.items():
        layer, _, rest = name.partition(".mlp.experts.")
        if rest:
            expert, projection, _ = rest.split(".")
            stacked = state[f"{layer}.mlp.experts.{'down' if 'down' in projection else 'gate_up'}_proj"]
            half = stacked[int(expert)]
            if "down" not in projection:
                half = half.chunk(2)[("gate_proj", "up_proj").index(projection)]
        else:
            half = state[name]
        assert (half - value).abs().max() <= tolerance * value.abs().max(), name
    # Probes of weights see all of them.
    held = sum(weight.parameter.numel() for weight in adapter.weights())
    assert held == sum(parameter.numel() for parameter in adapter.model.parameters())
    return adapter


def formats(folder: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads(run("inspect", f"hf:{folder}", "--json").stdout)["number_formats"]
    return found


def test_fp8_in_blocks(qwen: Path, tmp_path: Path) -> None:
    side = 16

    def blocks(name: str, value: Tensor) -> tuple[Tensors, Tensor]:
        scales = torch.zeros(value.shape[0] // side, value.shape[1] // side)
        written, plain = torch.zeros_like(value, dtype=torch.float8_e4m3fn), torch.zeros_like(value)
        for row in range(scales.shape[0]):
            for column in range(scales.shape[1]):
                place = slice(row * side, (row + 1) * side), slice(column * side, (column + 1) * side)
                scales[row, column] = value[place].abs().max() / 448
                written[place] = (value[place] / scales[row, column]).to(torch.float8_e4m3fn)
                plain[place] = written[place].float() * scales[row, column]
        return {name: written, f"{name}_scale_inv": scales}, plain

    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [side, side]}
    settings["modules_to_not_convert"] = [
        "lm_head",
        *(f"model.layers.{layer}.mlp.gate" for layer in range(3)),
    ]
    plain = quantize(qwen, tmp_path / "fp8", settings, blocks)
    assert_holds(tmp_path / "fp8", plain)
    assert formats(tmp_path / "fp8") == {
        "routers": "F32",
        "experts": "F8_E4M3",
        "attention": "F8_E4M3",
        "embeddings": "F32",
        "head": "F32",
    }


def test_mxfp4_of_gpt_oss(tmp_path: Path) -> None:
    levels = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    model = families.small("gpt_oss", intermediate_size=32, num_hidden_layers=1, num_local_experts=4)
    folder = tmp_path / "oss"
    model.save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    expected: Tensors = {}
    torch.manual_seed(0)
    for name in [name for name in state if name.endswith(("experts.gate_up_proj", "experts.down_proj"))]:
        experts, inputs, outputs = state.pop(name).shape
        # Each byte holds two numbers of 32 that share an exponent, the first in its low half.
        packed = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), dtype=torch.uint8)
        exponents = torch.randint(120, 126, (experts, outputs, inputs // 32), dtype=torch.uint8)
        state |= {f"{name}_blocks": packed, f"{name}_scales": exponents}
        plain = torch.zeros(experts, outputs, inputs)
        for place in torch.cartesian_prod(*(torch.arange(length) for length in packed.shape)).tolist():
            expert, output, block, byte = place
            for half, bits in enumerate((int(packed[tuple(place)]) & 15, int(packed[tuple(place)]) >> 4)):
                sign = -1 if bits & 8 else 1
                number = sign * levels[bits & 7] * 2.0 ** (int(exponents[expert, output, block]) - 127)
                plain[expert, output, 32 * block + 2 * byte + half] = number
        expected[name] = plain.mT
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn"],
    }
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    opened = load_model(f"hf:{folder}").model
    assert isinstance(opened, HuggingfaceAdapter)
    held = opened.model.state_dict()
    # All numbers of MXFP4 are numbers of bfloat16, into which it is dequantized.
    assert all(torch.equal(held[name].float(), value) for name, value in expected.items())
    parts = formats(folder)
    assert parts["experts"] == "MXFP4" and parts["routers"] == "F32"


def compressed(weights: dict[str, Any], form: str) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights | {"dynamic": False}}
    ignored = ["lm_head", "re:.*mlp.gate$"]
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ignored,
        "config_groups": {"group_0": group},
    }


def packed_int4(name: str, value: Tensor) -> tuple[Tensors, Tensor]:
    """Write groups of 16 as int4, 8 of them in an int32, the first in its lowest bits, 8 more than what they are."""
    stem = name.removesuffix(".weight")
    scales = value.unflatten(1, (-1, 16)).abs().amax(-1) / 7
    wide = scales.repeat_interleave(16, 1)
    numbers = (value / wide).round()
    words = [
        [
            sum((int(row[8 * word + place]) + 8) << (4 * place) for place in range(8))
            for word in range(len(row) // 8)
        ]
        for row in numbers
    ]
    signed = torch.tensor([[word - 2**32 if word >= 2**31 else word for word in row] for row in words])
    tensors = {
        "weight_packed": signed.int(),
        "weight_scale": scales,
        "weight_shape": torch.tensor(value.shape),
    }
    return {f"{stem}.{key}": tensor for key, tensor in tensors.items()}, numbers * wide


def fp8_rows(name: str, value: Tensor) -> tuple[Tensors, Tensor]:
    scales = value.abs().amax(1, keepdim=True) / 448
    written = (value / scales).to(torch.float8_e4m3fn)
    return {name: written, f"{name}_scale": scales}, written.float() * scales


INT4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 16}
FP8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}


@pytest.mark.skipif(
    is_older("transformers", "5.23"), reason="models of compressed-tensors need transformers 5.23"
)
@pytest.mark.parametrize(
    ("weights", "form", "write", "label"),
    [(INT4, "pack-quantized", packed_int4, "int4"), (FP8, "float-quantized", fp8_rows, "F8_E4M3")],
)
def test_compressed_tensors(
    weights: dict[str, Any],
    form: str,
    write: Callable[[str, Tensor], tuple[Tensors, Tensor]],
    label: str,
    qwen: Path,
    tmp_path: Path,
) -> None:
    pytest.importorskip("compressed_tensors")
    plain = quantize(qwen, tmp_path / "compressed", compressed(weights, form), write)
    assert_holds(tmp_path / "compressed", plain)
    assert formats(tmp_path / "compressed") | {
        "experts": label,
        "attention": label,
        "routers": "F32",
    } == formats(tmp_path / "compressed")


def test_an_older_transformers_that_rounds_experts_is_refused(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("compressed_tensors")
    quantize(qwen, tmp_path / "compressed", compressed(FP8, "float-quantized"), fp8_rows)
    monkeypatch.setattr(metadata, "version", lambda name: "5.22.0")
    with pytest.raises(
        UserError, match=r"needs transformers 5\.23 or later, and this is 5\.22\.0: pip install"
    ):
        load_model(f"hf:{tmp_path / 'compressed'}")


def signed(word: int) -> int:
    return word - 2**32 if word >= 2**31 else word


def gptq(name: str, value: Tensor, *, less: int = 1) -> tuple[Tensors, Tensor]:
    """Write int4 with zeros, which are ``less`` in the file, of groups of 16 inputs that are not neighbors."""
    stem = name.removesuffix(".weight")
    outputs, inputs = value.shape
    of_input = torch.arange(inputs) % (inputs // 16)
    numbers, zeros = torch.zeros(outputs, inputs), torch.zeros(inputs // 16, outputs)
    scales = torch.zeros(inputs // 16, outputs)
    for group in range(inputs // 16):
        columns = value[:, of_input == group]
        low, high = columns.amin(1).clamp_max(0), columns.amax(1).clamp_min(0)
        scales[group] = ((high - low) / 15).half().float()
        zeros[group] = (-low / scales[group]).round().clamp(1, 15)
        numbers[:, of_input == group] = (
            (columns / scales[group][:, None] + zeros[group][:, None]).round().clamp(0, 15)
        )
    plain = (numbers - zeros[of_input].mT) * scales[of_input].mT
    words = [
        [signed(sum(int(numbers[o, 8 * row + i]) << (4 * i) for i in range(8))) for o in range(outputs)]
        for row in range(inputs // 8)
    ]
    packed_zeros = [
        [
            signed(sum((int(zeros[g, 8 * c + i]) - less) << (4 * i) for i in range(8)))
            for c in range(outputs // 8)
        ]
        for g in range(inputs // 16)
    ]
    tensors = {"qweight": torch.tensor(words).int(), "qzeros": torch.tensor(packed_zeros).int()}
    tensors |= {"scales": scales.half(), "g_idx": of_input.int()}
    return {f"{stem}.{key}": tensor for key, tensor in tensors.items()}, plain


def awq(name: str, value: Tensor) -> tuple[Tensors, Tensor]:
    """Write int4 with zeros, of groups of 16 neighbors."""
    stem = name.removesuffix(".weight")
    groups = value.unflatten(1, (-1, 16))
    low, high = groups.amin(-1).clamp_max(0), groups.amax(-1).clamp_min(0)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(0, 15)
    numbers = (groups / scales[..., None] + zeros[..., None]).round().clamp(0, 15)
    plain = ((numbers - zeros[..., None]) * scales[..., None]).flatten(1)
    order = [0, 2, 4, 6, 1, 3, 5, 7]

    def pack(rows: Tensor) -> Tensor:
        return torch.tensor(
            [
                [
                    signed(sum(int(row[8 * word + order[i]]) << (4 * i) for i in range(8)))
                    for word in range(len(row) // 8)
                ]
                for row in rows
            ]
        ).int()

    tensors = {"qweight": pack(numbers.flatten(1).mT), "qzeros": pack(zeros.mT), "scales": scales.mT.half()}
    return {f"{stem}.{key}": tensor for key, tensor in tensors.items()}, plain


@pytest.mark.parametrize(
    ("method", "form", "write"),
    [("gptq", {}, gptq), ("gptq", {"checkpoint_format": "gptq_v2"}, partial(gptq, less=0)), ("awq", {}, awq)],
)
def test_packed_words(
    method: str,
    form: dict[str, str],
    write: Callable[[str, Tensor], tuple[Tensors, Tensor]],
    qwen: Path,
    tmp_path: Path,
) -> None:
    settings = {"quant_method": method, "bits": 4, "group_size": 16, **form}
    plain = quantize(qwen, tmp_path / method, settings, write)
    assert_holds(tmp_path / method, plain)
    parts = formats(tmp_path / method)
    assert parts["experts"] == parts["attention"] == "int4" and parts["routers"] == "F32"
    shown = json.loads(run("inspect", f"hf:{tmp_path / method}", "--json").stdout)
    assert shown["parameters"] == sum(value.numel() for value in plain.values())


@pytest.mark.parametrize("bits", [8, 4])
def test_torchao(bits: int, qwen: Path, tmp_path: Path) -> None:
    torchao = pytest.importorskip("torchao.quantization")
    from transformers import AutoModelForCausalLM, TorchAoConfig

    number_format = torch.int8 if bits == 8 else getattr(torch, "int4")  # noqa: B009 - type checkers know no int4
    kind = torchao.IntxWeightOnlyConfig(weight_dtype=number_format)
    written = AutoModelForCausalLM.from_pretrained(qwen, quantization_config=TorchAoConfig(kind))
    written.save_pretrained(tmp_path / "ao")
    tensors = load_file(tmp_path / "ao" / "model.safetensors")
    plain = {}
    for name, value in load_file(qwen / "model.safetensors").items():
        stem = f"{name.removesuffix('weight')}_weight"
        plain[name] = (
            tensors[f"{stem}_qdata"] * tensors[f"{stem}_scale"] if f"{stem}_qdata" in tensors else value
        )
    assert sum(name.endswith("_qdata") for name in tensors) == 12
    assert_holds(tmp_path / "ao", plain)
    # torchao rounds linear layers, and experts of transformers 5 are none.
    parts = formats(tmp_path / "ao")
    assert parts["attention"] == f"int{bits}" and parts["experts"] == parts["routers"] == "F32"


def write_bitsandbytes(source: Path, folder: Path, *, bits: int) -> Tensors:
    """Quantize the attention of a model; returns the tensors that are written."""
    pytest.importorskip("bitsandbytes")
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    settings = BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4, bnb_4bit_quant_type="nf4")
    AutoModelForCausalLM.from_pretrained(source, quantization_config=settings).save_pretrained(folder)
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("bits", [8, 4])
def test_bitsandbytes(bits: int, tmp_path: Path) -> None:
    # Rows are blocks of 64.
    families.small("qwen3_moe", hidden_size=64, head_dim=16).save_pretrained(tmp_path / "wide")
    tensors = write_bitsandbytes(tmp_path / "wide", tmp_path / "bnb", bits=bits)
    plain = {}
    for name, value in load_file(tmp_path / "wide" / "model.safetensors").items():
        if part_of(name) != "attention" or value.ndim == 1:
            plain[name] = value
        elif bits == 8:
            plain[name] = tensors[name] * tensors[f"{name.removesuffix('.weight')}.SCB"][:, None] / 127
        else:
            # The first of two numbers is in the high half of a byte.
            halves = [half for byte in tensors[name].flatten().tolist() for half in (byte >> 4, byte & 15)]
            numbers = tensors[f"{name}.quant_map"][torch.tensor(halves)].reshape(-1, 64)
            plain[name] = (numbers * tensors[f"{name}.absmax"][:, None]).reshape(value.shape)
    assert_holds(tmp_path / "bnb", plain, tolerance=1e-3 if bits == 8 else 1e-6)
    parts = formats(tmp_path / "bnb")
    assert parts["attention"] == ("int8" if bits == 8 else "NF4") and parts["routers"] == "F32"


def test_blocks_that_bitsandbytes_reads_wrongly_are_refused(qwen: Path, tmp_path: Path) -> None:
    write_bitsandbytes(qwen, tmp_path / "bnb", bits=4)
    with pytest.raises(UserError, match="rows of 32 numbers in blocks of 64"):
        load_model(f"hf:{tmp_path / 'bnb'}")


@pytest.mark.parametrize(
    ("settings", "absent", "message"),
    [
        ({"quant_method": "hqq"}, "", "quantized by 'hqq'.*awq, bitsandbytes, compressed-tensors"),
        ({"quant_method": "gptq", "bits": 3}, "", "3 bits.*2, 4 or 8 bits"),
        ({"quant_method": "awq", "version": "gemv"}, "", "in the form gemv, and moeprobe reads gemm"),
        ({"quant_method": "torchao"}, "torchao", "needs the package torchao: pip install torchao"),
        ({"quant_method": "fp8"}, "accelerate", "needs the package accelerate"),
        ({"load_in_4bit": True}, "bitsandbytes", "needs the package bitsandbytes"),
        (compressed(INT4, "pack-quantized"), "compressed_tensors", "needs the package compressed-tensors"),
        (
            compressed(INT4 | {"symmetric": False}, "pack-quantized"),
            "",
            "pack-quantized, int4, group.*does not dequantize",
        ),
        (compressed(INT4 | {"num_bits": 8}, "int-quantized"), "", "int-quantized, int8, group"),
        (
            compressed(FP8, "float-quantized")
            | {"config_groups": {name: {"targets": [name], "weights": FP8} for name in "ab"}},
            "",
            "2 schemes of compressed-tensors",
        ),
    ],
)
def test_what_cannot_be_dequantized_is_refused_before_weights_are_read(
    settings: dict[str, Any],
    absent: str,
    message: str,
    qwen: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else real("json"))
    config = json.loads((qwen / "config.json").read_text(encoding="utf-8"))
    # There are no weights: whoever looked for them would say so.
    (tmp_path / "config.json").write_text(
        json.dumps(config | {"quantization_config": settings}), encoding="utf-8"
    )
    with pytest.raises(UserError, match=message):
        load_model(f"hf:{tmp_path}")


def test_experts_that_are_quantized_one_by_one_are_refused(
    qwen: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    quantize(
        qwen,
        tmp_path / "bnb",
        {"load_in_8bit": True, "quant_method": "bitsandbytes"},
        lambda name, value: (
            {name: value.char(), f"{name.removesuffix('.weight')}.SCB": value.abs().amax(1)},
            value,
        ),
    )
    with pytest.raises(UserError, match=r"one by one .*which transformers 5 cannot stack"):
        load_model(f"hf:{tmp_path / 'bnb'}")


def test_weights_that_are_quantized_in_memory_are_refused() -> None:
    layer = torch.nn.Linear(4, 4)
    layer.register_parameter(
        "packed", torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.uint8), requires_grad=False)
    )
    with pytest.raises(UserError, match="packed is quantized in memory"):
        weights_of(layer, routers=())
    del layer.packed
    assert len(weights_of(layer, routers=())) == 2


def test_a_plain_model_says_nothing_of_quantization(qwen: Path) -> None:
    shown = json.loads(run("inspect", f"hf:{qwen}", "--json").stdout)
    assert not {"quantization", "number_formats", "dequantized"} & set(shown)
    assert "form" not in load_model(f"hf:{qwen}").provenance
