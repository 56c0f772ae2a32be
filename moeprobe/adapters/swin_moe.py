"""Imported Swin-MoEs, made traceable."""

from collections.abc import Iterable

from torch import nn

from moeprobe.adapters.vmoe import Vmoe
from moeprobe.inputs.geometry import PatchGrid
from moeprobe.models.nn.swin import swin_grids


class SwinMoe(Vmoe):
    """A ``SwinTransformer`` of timm with MoE layers (``nn.swin``): traced as a ViT, with a grid for each stage.

    The tokens of a layer are its stage's tokens, row by row over the whole image: windows and their shift are inside
    the attention. There are no prefix tokens.
    """

    def _lay_out(self) -> dict[str, PatchGrid]:
        grids = swin_grids(self.model)
        return {name: grids[name] for name in self.layer_names}

    def _modules_from(self, layer: str) -> Iterable[nn.Module]:
        stage, _, block = layer.removeprefix("layers.").partition(".blocks.")
        stages = list(self.model.layers)
        return [*stages[int(stage)].blocks[int(block) :], *stages[int(stage) + 1 :]]
