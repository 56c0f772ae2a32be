"""Swin transformers with MoE layers: timm's, with chosen blocks' MLP replaced. They are imported, not trained here.

Blocks are numbered from 0 through all stages.

Source: Swin-MoE (Hwang et al. 2023, "Tutel"), on the Swin transformer (Liu et al. 2021).
"""

from torch import nn

from moeprobe.errors import UserError
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.nn.sparse import make_moe_layer, sparse_blocks
from moeprobe.models.timm import SwinTransformer, SwinTransformerBlock, VisionTransformer


def build_swin(config: ModelConfig) -> SwinTransformer:
    """Build the Swin-MoE that ``config.swin`` describes, with fresh parameters.

    Raises:
        UserError: a size is missing, or the values do not fit together.
    """
    swin = config.swin
    assert swin is not None
    sizes = (config.width, config.hidden_width, config.patch_size, config.image_size, config.num_classes)
    if None in sizes:
        raise UserError(
            "A Swin-MoE needs model.width, hidden_width, patch_size, image_size and num_classes; got "
            f"{', '.join(map(str, sizes))}."
        )
    assert config.width is not None
    assert config.hidden_width is not None
    try:
        model = SwinTransformer(
            img_size=config.image_size,
            patch_size=config.patch_size,
            num_classes=config.num_classes,
            embed_dim=config.width,
            depths=tuple(swin.depths),
            num_heads=tuple(swin.num_heads),
            window_size=[(window, window) for window in swin.windows],
            mlp_ratio=config.hidden_width / config.width,
            qkv_bias=swin.qkv_bias,
            drop_path_rate=0.0,
        )
    except (AssertionError, RuntimeError, TypeError, ValueError, ZeroDivisionError) as error:
        raise UserError(
            f"timm cannot build a Swin transformer with these values: {' '.join(str(error).split())}."
        ) from None
    if not swin.patch_norm:
        model.patch_embed.norm = nn.Identity()
    blocks = swin_blocks(model)
    names = list(blocks)
    for index in sparse_blocks(config, depth=len(names)):
        block = blocks[names[index]]
        rows, columns = block.input_resolution
        block.mlp = make_moe_layer(block, config, num_tokens=rows * columns, where=names[index])
    return model


def swin_blocks(model: SwinTransformer) -> dict[str, SwinTransformerBlock]:
    """Return the blocks in forward order, by name (``"layers.2.blocks.1"``)."""
    return {
        name: module for name, module in model.named_modules() if isinstance(module, SwinTransformerBlock)
    }


def swin_grids(model: SwinTransformer) -> dict[str, PatchGrid]:
    """Return the layout of each block's tokens in the image, by the block's name."""
    size = model.patch_embed.patch_size[0]
    grids = {}
    for name, block in swin_blocks(model).items():
        rows, columns = block.input_resolution
        grids[name] = PatchGrid(rows, columns, size * 2 ** int(name.split(".")[1]))
    return grids


def num_tokens(model: VisionTransformer | SwinTransformer) -> dict[str, int]:
    """Return how many tokens of an image each MoE layer sees, by its name."""
    layers = moe_layers(model)
    if isinstance(model, SwinTransformer):
        grids = swin_grids(model)
        return {name: grids[name].num_patches for name in layers}
    return dict.fromkeys(layers, model.patch_embed.num_patches + model.num_prefix_tokens)
