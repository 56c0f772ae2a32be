"""The sizes of the V-MoE models by name, as arguments of ``vit``; nothing here imports torch."""

from typing import Any

_SMALL = {"embed_dim": 512, "depth": 8, "num_heads": 8, "mlp_ratio": 4.0}
_BASE = {"embed_dim": 768, "depth": 12, "num_heads": 12, "mlp_ratio": 4.0}
_LARGE = {"embed_dim": 1024, "depth": 24, "num_heads": 16, "mlp_ratio": 4.0}
_TINY = {"embed_dim": 64, "depth": 4, "num_heads": 4, "mlp_ratio": 2.0}

VARIANTS: dict[str, dict[str, Any]] = {
    "vmoe": {},
    "vmoe_tiny_patch8_32": {
        **_TINY, "patch_size": 8, "img_size": 32, "num_classes": 10, "pre_logits": False,
    },
    "vmoe_small_patch32_224": {**_SMALL, "patch_size": 32, "img_size": 224},
    "vmoe_small_patch32_384": {
        **_SMALL, "patch_size": 32, "img_size": 384, "pre_logits": False, "capacity_factor": 1.5,
    },
    "vmoe_base_patch32_224": {**_BASE, "patch_size": 32, "img_size": 224},
    "vmoe_base_patch16_224": {**_BASE, "patch_size": 16, "img_size": 224},
    "vmoe_large_patch16_224": {**_LARGE, "patch_size": 16, "img_size": 224},
}  # fmt: skip
