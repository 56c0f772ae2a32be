"""Every family of models whose router logits the installed transformers records, made small from its configuration.

Families are found by what their modules say, not by a list. A configuration is made small by the names of its sizes.
"""

import importlib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.releases import is_pinned

# Other releases of transformers have more families, or fewer.
of_pinned_release = pytest.mark.skipif(
    not is_pinned("transformers"), reason="the table of families is of the pinned transformers"
)
# Whole numbers of a configuration, by any of the names that families give them.
_SIZES: dict[str, int] = (
    dict.fromkeys(("hidden_size", "d_model", "n_embd"), 32)
    | dict.fromkeys(("num_hidden_layers", "n_layers", "num_layers", "encoder_layers"), 3)
    | dict.fromkeys(
        (
            "num_attention_heads", "n_heads", "num_heads", "num_key_value_heads", "encoder_attention_heads",
            "decoder_attention_heads",
        ),
        4,
    )
    | dict.fromkeys(("head_dim", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"), 8)
    | dict.fromkeys(("moe_intermediate_size", "kv_lora_rank", "q_lora_rank"), 16)
    | dict.fromkeys(
        ("intermediate_size", "d_ff", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), 32
    )
    | dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 8)
    | dict.fromkeys(("num_experts_per_tok", "moe_top_k", "n_group", "num_expert_group", "encoder_sparse_step"), 2)
    | dict.fromkeys(("decoder_layers", "num_decoder_layers", "num_sparse_encoder_layers"), 1)
    | {"vocab_size": 96, "expert_sparse_step": 2}
    | {"topk_group": 1, "max_position_embeddings": 128, "first_k_dense_replace": 1, "pad_token_id": 0}
    | {"bos_token_id": 1, "eos_token_id": 2}
)  # fmt: skip
# Sizes of the parts that read pictures or sound, and of what is in those.
_OTHER_SIZES: dict[str, Any] = (
    dict.fromkeys(("hidden_size", "intermediate_size", "d_model", "encoder_ffn_dim", "out_hidden_size"), 32)
    | dict.fromkeys(("output_dim", "mlp_dim", "projection_intermediate_size", "adapter_in_dim"), 32)
    | dict.fromkeys(("adapter_out_dim", "output_channels", "decoder_dim", "text_hidden_size"), 32)
    | dict.fromkeys(("num_heads", "num_attention_heads", "num_key_value_heads", "encoder_attention_heads"), 4)
    | dict.fromkeys(("depth", "num_hidden_layers", "num_quantizers", "num_code_groups"), 2)
    | dict.fromkeys(("num_position_embeddings", "downsample_hidden_size", "codebook_size"), 16)
    | {
        "encoder_layers": 1,
        "head_dim": 8,
        "image_size": 28,
        "patch_size": 14,
        "deepstack_visual_indexes": [0],
    }
    | {"position_embedding_size": 64, "conv_kernel_size": 3, "vocab_size": 96, "num_experts": 4}
    | {"moe_intermediate_size": 16, "num_experts_per_tok": 2, "global_attn_indexes": [1]}
    | {"downsample_channels": [32, 32], "shared_expert_intermediate_size": 16}
)
_ROPE = {"rope_type": "default", "rope_theta": 1e4}
_LAYERS = {"mlp_layer_types": ["dense", "sparse", "sparse"]}
# What a family needs besides, by the type that its configuration names; "type.part" = of one of its parts.
_MORE: dict[str, dict[str, Any]] = {
    "beam": _LAYERS,
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 8, "moe_top_k": 2},
    },
    "deepseek_ocr2_text": _LAYERS,
    "deepseek_v4": {"mlp_layer_types": ["moe", "moe", "moe"]},
    "diffusion_gemma_text": {"top_k_experts": 2, "num_experts": 8, "moe_intermediate_size": 16},
    "doge": {"is_moe": True},
    "dots1": {"n_shared_experts": 1},
    "dots3_note_audio_encoder": {"adapter_input_size": 32},
    "dots3_note_text": {"layer_types": ["indexed_attention"] * 3, "per_layer_config": {}, **_LAYERS},
    "dots3_note_vision_encoder": {
        "mlp_layer_types": ["dense", "sparse"], "num_local_experts": 4, "per_layer_config": {},
    },
    "ernie4_5_vl_moe_text": {
        "moe_intermediate_size": [16, 16], "rope_parameters": {**_ROPE, "mrope_section": [1, 1, 2]},
    },
    "gemma4": {
        "vision_config": {
            "model_type": "gemma4_vision", "hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4,
            "num_key_value_heads": 4, "num_hidden_layers": 2, "head_dim": 8, "patch_size": 14,
            "position_embedding_size": 64,
        },
    },
    "gemma4_text": {
        "enable_moe_block": True, "top_k_experts": 2, "num_experts": 8, "vocab_size_per_layer_input": 96,
        "hidden_size_per_layer_input": 8, "global_head_dim": 8,
    },
    "glm4v_moe_text": {"rope_parameters": {**_ROPE, "mrope_section": [1, 1, 0]}},
    "glm5_next_text": {
        "qk_rope_head_dim": 0, "head_dim": 0, "linear_head_dim": 8, "linear_num_heads": 4, **_LAYERS,
        "layer_types": ["linear_attention", "indexed_attention", "linear_attention"],
    },
    "granitemoehybrid": {
        "mamba_n_heads": 4, "mamba_d_state": 8, "layer_types": ["mamba", "attention", "mamba"],
        "shared_intermediate_size": 16,
    },
    "lfm2_moe": {"layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1},
    "llama4_vision_model": {
        "image_size": 112, "intermediate_size": 128, "projector_input_dim": 32, "projector_output_dim": 32,
        "vision_output_dim": 32,
    },
    "hy_v4_vl_text": {"rope_parameters": {**_ROPE, "mrope_section": [2, 1, 1]}},
    "kimi_linear": {"linear_head_dim": 8, "linear_num_heads": 4},
    "mimo_v2_flash": {"head_dim": 24, "num_key_value_heads": 2, **_LAYERS},
    "mistral4": {"head_dim": 16},
    "muse_spark_audio": {
        "num_hidden_layers": 4, "hidden_sizes": [16, 16, 16, 32], "patch_sizes": [16, 6, 5, 4], "depths": [1, 1, 1, 1],
    },
    "qwen3_omni_moe": {"enable_audio_output": False},
    "qwen3_omni_moe_thinker": {"vision_start_token_id": 90, "audio_start_token_id": 91},
    "step3p5": {"sliding_window": 16, **_LAYERS, "n_routed_experts": 8, "share_expert_dim": 16},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
# Families that came after the pinned transformers, in 5.24.
LATER = ("hy_v4_vl", "inkling2_loop", "lara_mini")
# Families whose routers do not say what they chose: no number of one of 2·sqrt(E) keys is an expert.
REFUSED = frozenset({"doge"})
# Families whose experts do other things than their router says, in the installed version.
NOT_FOLLOWING = frozenset({"nllb_moe"})


def parameters(names: Iterable[str], *, quick: Iterable[str] | None = None) -> list[Any]:
    """Families for a test; one that the installed transformers cannot run is expected to fail.

    ``quick``: those that a quick run takes, the others being for CI; None = all.
    """
    broken = pytest.mark.xfail(
        _llama4_reads_what_is_missing(), reason="llama4 of this transformers cannot run", strict=True
    )
    for_ci = [pytest.mark.slow, pytest.mark.promise]
    return [
        pytest.param(
            name,
            marks=[
                *([broken] if name == "llama4" else []),
                *(for_ci if quick is not None and name not in quick else []),
            ],
        )
        for name in names
    ]


def _llama4_reads_what_is_missing() -> bool:
    """Whether whole models read the pictures off the output of their text model, as in 5.24, which has none."""
    import transformers

    # Read, since to import them takes seconds.
    root = Path(transformers.__file__).parent
    code = (root / "models/llama4/modeling_llama4.py").read_text(encoding="utf-8")
    outputs = (root / "modeling_outputs.py").read_text(encoding="utf-8")
    kind = re.search(r"^class MoeCausalLMOutputWithPast\b.*?(?=^class |\Z)", outputs, re.M | re.S)
    assert kind
    return "image_outputs=outputs.image_outputs" in code and "image_outputs" not in kind[0]


def recorded() -> list[str]:
    """The families whose modules record router logits."""
    import transformers

    root = Path(transformers.__file__).parent / "models"
    modules = (path for path in root.glob("*/modeling_*.py") if '"router_logits":' in path.read_text("utf-8"))
    return sorted({path.parent.name for path in modules})


def distinct(names: Iterable[str]) -> list[str]:
    """One family of each kind of router: many families share the very code of theirs."""
    import transformers

    found: dict[str, str] = {}
    for name in names:
        code = (Path(transformers.__file__).parent / "models" / name / f"modeling_{name}.py").read_text(
            "utf-8"
        )
        recorded = re.findall(r'"router_logits": \[?OutputRecorder\((\w+)', code)
        forwards = [
            re.search(rf"^class {router}\b.*?(    def forward.*?)(?=^class |^def |^@|\Z)", code, re.M | re.S)
            for router in recorded
        ]
        found.setdefault("\n".join(forward[1] for forward in forwards if forward), name)
    return sorted(found.values())


def small(family: str, **changes: Any) -> Any:
    """A random model of a family, with random biases of its choice."""
    import transformers
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING, CONFIG_MAPPING_NAMES

    from moeprobe.adapters.huggingface.heads import kind_of

    names = [name for name in CONFIG_MAPPING_NAMES if name.replace("-", "_") in (family, f"{family}_text")]
    kind = CONFIG_MAPPING[names[-1]]
    given = {name: size for name, size in _SIZES.items() if _is_size(kind(), name)}
    config = kind(**(given | _MORE.get(names[-1], {}) | changes))
    torch.manual_seed(0)
    model = kind_of(transformers, config).from_config(config)
    _draw_biases(model)
    return model


def _draw_biases(model: Any) -> None:
    """Draw the biases of a choice, which are zero where nothing was trained."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if "bias" in name.rpartition(".")[2] and name.rpartition(".")[2] != "bias" and value.numel() == 8:
            value.data.normal_(0, 0.5)


def _is_size(config: Any, name: str) -> bool:
    try:
        value = getattr(config, name)
    except Exception:
        return False  # it has none, or one per layer
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


# Whole models, with the head and the parts that they are saved with.
_ENDINGS = ("ForConditionalGeneration", "ForBlockDiffusion", "ForCausalLM", "ForTokenClassification")


def complete_class(family: str) -> Any:
    """The class of a family's whole models: the one that reads pictures too, where there is one."""
    code = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
    names = [
        name
        for name in code.__all__
        if name.endswith(_ENDINGS) and not re.search("Thinker|Talker|Code2Wav|PreTrained|_VL_", name)
    ]
    return getattr(code, min(names, key=lambda name: [name.endswith(end) for end in _ENDINGS].index(True)))


def complete(family: str) -> Any:
    """A small random whole model of a family, with wide routers, so that tokens choose differently."""
    kind = complete_class(family)
    config = kind.config_class(**_small_parts(kind.config_class(), is_text=True))
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for name, value in model.named_parameters():
            # Rows of experts; what a router has before them stays narrow, or its softmax has one value.
            if value.ndim == 2 and len(value) < 16 and re.search(r"router|gate\.weight|classifier", name):
                value.normal_(0, 1)
            elif value.ndim >= 2 and "embed" not in name:
                value.normal_(0, 0.15)
    _draw_biases(model)
    return model


def _small_parts(config: Any, *, is_text: bool) -> dict[str, Any]:
    """The arguments of a small configuration like ``config``, part by part."""
    table = _SIZES if is_text else _OTHER_SIZES
    parts: dict[str, Any] = {name: getattr(config, name, None) for name in getattr(config, "sub_configs", {})}
    parts = {name: part for name, part in parts.items() if part is not None and hasattr(part, "model_type")}
    is_frame = bool(parts) and config.get_text_config() is not config
    arguments = (
        {}
        if is_frame and is_text
        else {name: size for name, size in table.items() if _is_like(config, name, size)}
    )
    for name, part in parts.items():
        of_text = is_text and name in ("text_config", "thinker_config")
        arguments[name] = _small_parts(part, is_text=of_text) | {"model_type": part.model_type}
    return arguments | _MORE.get(config.model_type, {})


def _is_like(config: Any, name: str, size: Any) -> bool:
    try:
        value = getattr(config, name)
    except Exception:
        return False  # it has none, or one per layer
    return value is None or (
        isinstance(value, list | tuple) == isinstance(size, list) and not isinstance(value, dict)
    )
