"""What moeprobe takes from timm; no other module imports timm itself.

timm imports torchvision, which must be imported first where it was built for another torch.
"""

import importlib
from typing import Any

from moeprobe.runtime.deferred_compiler import compiler_deferred
from moeprobe.runtime.torchvision_compat import import_with_operators

import_with_operators("torchvision")

# Some models of timm keep functions out of compiled graphs.
with compiler_deferred():
    import timm
    from timm.layers import build_sincos2d_pos_embed
    from timm.models import is_model, list_models, load_state_dict, model_entrypoint, register_model
    from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock
    from timm.models.vision_transformer import Block, VisionTransformer

__all__ = [
    "Block",
    "SwinTransformer",
    "SwinTransformerBlock",
    "VisionTransformer",
    "build_sincos2d_pos_embed",
    "is_model",
    "list_models",
    "load_state_dict",
    "model_entrypoint",
    "register_model",
    "timm",
]

# What trainings alone need: timm's optimizers load torch's compiler.
_OF_TRAINING = {
    "create_optimizer_v2": "timm.optim",
    "get_optimizer_class": "timm.optim",
    "list_optimizers": "timm.optim",
    "CosineLRScheduler": "timm.scheduler",
    "PolyLRScheduler": "timm.scheduler",
}


def __getattr__(name: str) -> Any:
    """Import what trainings need when it is asked for."""
    if name not in _OF_TRAINING:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_OF_TRAINING[name]), name)
