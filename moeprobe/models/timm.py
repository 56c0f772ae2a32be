"""What moeprobe takes from timm; no other module imports timm itself.

timm imports torchvision, which must be imported first where it was built for another torch.
"""

from moeprobe.runtime.torchvision_compat import import_with_operators

import_with_operators("torchvision")

import timm  # noqa: E402
from timm.layers import build_sincos2d_pos_embed  # noqa: E402
from timm.models import is_model, list_models, load_state_dict, model_entrypoint, register_model  # noqa: E402
from timm.models.swin_transformer import SwinTransformer, SwinTransformerBlock  # noqa: E402
from timm.models.vision_transformer import Block, VisionTransformer  # noqa: E402
from timm.optim import create_optimizer_v2, get_optimizer_class, list_optimizers  # noqa: E402
from timm.scheduler import CosineLRScheduler, PolyLRScheduler  # noqa: E402

__all__ = [
    "Block",
    "CosineLRScheduler",
    "PolyLRScheduler",
    "SwinTransformer",
    "SwinTransformerBlock",
    "VisionTransformer",
    "build_sincos2d_pos_embed",
    "create_optimizer_v2",
    "get_optimizer_class",
    "is_model",
    "list_models",
    "list_optimizers",
    "load_state_dict",
    "model_entrypoint",
    "register_model",
    "timm",
]
