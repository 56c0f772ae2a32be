"""Every family of models whose router logits the installed transformers records, made small from its configuration.

Families are found by what their modules say, not by a list. A configuration is made small by the names of its sizes.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

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
# What a family needs besides.
_MORE: dict[str, dict[str, Any]] = {
    "beam": {"mlp_layer_types": ["dense", "sparse", "sparse"]},
    "deepseek_v4": {"mlp_layer_types": ["moe", "moe", "moe"]},
    "dots1": {"n_shared_experts": 1},
    "zaya": {"num_experts_per_tok": 1},
}
# Families that are parts of models of images or sound, whose configuration is not made small by its sizes alone, or
# that take seconds to make (gemma4, kimi_linear).
NOT_TRIED = frozenset({
    "dbrx", "deepseek_ocr2", "diffusion_gemma", "ernie4_5_vl_moe", "gemma4", "glm4v_moe", "glm5_next",
    "granitemoehybrid", "kimi_linear", "lfm2_moe", "mimo_v2_flash", "mistral4", "qwen3_omni_moe", "step3p7",
    "unlimited_ocr",
})  # fmt: skip
# Families whose routers do not say what they chose: no number of one of 2·sqrt(E) keys is an expert.
REFUSED = frozenset({"doge"})


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

    from moeprobe.adapters.huggingface.files import kind_of

    names = [name for name in CONFIG_MAPPING_NAMES if name.replace("-", "_") in (family, f"{family}_text")]
    kind = CONFIG_MAPPING[names[-1]]
    given = {name: size for name, size in _SIZES.items() if _is_size(kind(), name)}
    config = kind(**(given | _MORE.get(names[-1], {}) | changes))
    torch.manual_seed(0)
    model = kind_of(transformers, config).from_config(config)
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if "bias" in name.rpartition(".")[2] and name.rpartition(".")[2] != "bias" and value.numel() == 8:
            value.data.normal_(0, 0.5)
    return model


def _is_size(config: Any, name: str) -> bool:
    try:
        value = getattr(config, name)
    except Exception:
        return False  # it has none, or one per layer
    return value is None or (isinstance(value, int) and not isinstance(value, bool))
