"""Masked autoencoding: the encoder sees some patches of an image, a decoder draws the others.

The encoder runs on visible tokens alone, so the capacity of experts follows their number. The decoder is dense:
its own tokens with a mask token for each hidden patch and fixed sine-cosine positions, transformer blocks, and the
pixels of a patch. The loss is the mean over hidden patches of the squared error of pixels that are normalized by the
mean and the (sample) standard deviation of their patch. Positions of the encoder are learned, as in all models here;
He et al. fix them too.

Axes: B images, N patches, V visible ones, T prefix tokens and V, D width, P numbers of a patch (3 · side²).

Source: He et al. 2022, "Masked Autoencoders Are Scalable Vision Learners", and its released program.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.models.config import MaeConfig
from moeprobe.models.timm import Block, VisionTransformer, build_sincos2d_pos_embed

# Added to the variance of a patch, as in the released program.
_EPSILON = 1e-6


class Decoder(nn.Module):
    """From visible tokens to all patches.

    Args:
        encoder: whose tokens are decoded.
        config: its sizes.

    Raises:
        UserError: the sizes do not fit together.
    """

    def __init__(self, encoder: VisionTransformer, config: MaeConfig) -> None:
        super().__init__()
        if config.width % 4 or config.width % config.num_heads:
            raise UserError(
                f"mae.width must be a multiple of 4 and of mae.num_heads; got {config.width} and {config.num_heads}."
            )
        embedding = encoder.patch_embed
        self.num_prefix_tokens = encoder.num_prefix_tokens
        self.embed = nn.Linear(encoder.embed_dim, config.width)
        self.mask_token = nn.Parameter(torch.empty(config.width))
        self.blocks = nn.Sequential(
            *(Block(config.width, config.num_heads, qkv_bias=True) for _ in range(config.depth))
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, 3 * embedding.patch_size[0] * embedding.patch_size[1])
        positions = build_sincos2d_pos_embed(list(embedding.grid_size), dim=config.width)
        self.register_buffer("positions", positions, persistent=False)
        self.positions: Tensor
        nn.init.normal_(self.mask_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, visible: Tensor) -> Tensor:
        """Return the pixels ``(B, N, P)`` of all patches from the encoder's tokens ``(B, T, D)``.

        Args:
            tokens: prefix tokens, then the visible patches.
            visible: ``(B, V)`` which patches these are.
        """
        embedded = self.embed(tokens)
        prefix, visible_tokens = embedded[:, : self.num_prefix_tokens], embedded[:, self.num_prefix_tokens :]
        patches = self.mask_token.to(visible_tokens.dtype).expand(
            len(visible_tokens), len(self.positions), -1
        )
        patches = patches.scatter(1, visible[..., None].expand_as(visible_tokens), visible_tokens)
        decoded = self.norm(self.blocks(torch.cat([prefix, patches + self.positions], dim=1)))
        pixels: Tensor = self.head(decoded[:, self.num_prefix_tokens :])
        return pixels


def encode(encoder: VisionTransformer, images: Tensor, visible: Tensor) -> Tensor:
    """Return the encoder's tokens ``(B, T, D)`` of the patches ``visible`` ``(B, V)`` of normalized images."""
    tokens = encoder._pos_embed(encoder.patch_embed(images))
    prefix, patches = tokens[:, : encoder.num_prefix_tokens], tokens[:, encoder.num_prefix_tokens :]
    visible_patches = patches.gather(1, visible[..., None].expand(-1, -1, patches.shape[-1]))
    tokens = encoder.norm_pre(torch.cat([prefix, visible_patches], dim=1))
    encoded: Tensor = encoder.norm(encoder.blocks(tokens))
    return encoded


def num_visible(num_patches: int, mask: float) -> int:
    """Return V = ⌊N (1 − mask)⌋.

    Raises:
        UserError: no patch would be visible, or none hidden.
    """
    # 0.3 of 10 patches is 3.0000000000000004 from the other end.
    visible = int(num_patches * (1 - mask) + 1e-9)
    if not 1 <= visible < num_patches:
        raise UserError(f"mae.mask {mask:g} leaves {visible} of {num_patches} patches visible.")
    return visible


def draw_visible(
    num_patches: int, count: int, rng: np.random.Generator, *, rows: int = 1
) -> NDArray[np.int64]:
    """Return ``count`` random patches of each of ``rows`` images, ``(rows, count)``, in their order."""
    shuffled = rng.random((rows, num_patches)).argsort(axis=1, kind="stable")
    return np.sort(shuffled[:, :count], axis=1)


def reconstruction_loss(pixels: Tensor, images: Tensor, visible: Tensor) -> Tensor:
    """Return the loss ``(B,)`` of the hidden patches.

    Args:
        pixels: ``(B, N, P)`` as decoded; of a patch row by row, the three channels of a pixel together.
        images: ``(B, 3, H, W)`` normalized.
        visible: ``(B, V)`` patches that the encoder has seen.
    """
    targets = patches_of(images.float(), side=round((pixels.shape[-1] / 3) ** 0.5))
    variance, mean = torch.var_mean(targets, dim=-1, keepdim=True)
    errors = (pixels.float() - (targets - mean) / (variance + _EPSILON).sqrt()).square().mean(-1)
    hidden = torch.ones_like(errors).scatter(1, visible, 0.0)
    return (errors * hidden).sum(1) / hidden.sum(1)


def patches_of(images: Tensor, *, side: int) -> Tensor:
    """Return the patches of images ``(B, 3, H, W)`` as ``(B, N, 3 · side²)``, row by row."""
    rows, columns = (size // side for size in images.shape[2:])
    cut = images.reshape(len(images), 3, rows, side, columns, side)
    return cut.permute(0, 2, 4, 3, 5, 1).reshape(len(images), rows * columns, -1)
