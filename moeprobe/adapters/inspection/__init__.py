"""What a checkpoint is, without running it on data.

Of a V-MoE all of it follows from the header of the file; of others the model is built.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprobe.inputs.images import Framing
from moeprobe.models.checkpoints.header import CheckpointInfo, Header, read_info
from moeprobe.runtime.catalog import is_foreign

if TYPE_CHECKING:
    from moeprobe.adapters.inspection.facts import Facts


def inspect_checkpoint(source: str | Path) -> dict[str, Any]:
    """Describe a checkpoint: architecture, parameters, active parameters, FLOPs, layers, normalization, provenance.

    Active parameters are those that one token meets: of each MoE layer's experts, ``top_k`` are counted, or as many as
    take a token on average where the experts choose, or all where every slot holds a share of every token. FLOPs are
    counted for one image in a group of its own, with unlimited capacity where possible; a multiply-add is counted as
    two. Of a foreign model (``py:…``) what its adapter knows is shown instead.

    Raises:
        UserError: it is missing, truncated or foreign.
    """
    if is_foreign(source):
        from moeprobe.adapters.inspection.opened import inspect_foreign

        return inspect_foreign(source)
    info, header = read_info(source)
    facts = facts_of_header(info, header)
    if facts is None:
        # Here, since it imports timm, which takes longer than all else.
        from moeprobe.adapters.inspection.opened import facts_of_built

        facts = facts_of_built(source)
    return {
        "checkpoint": str(info.path),
        "sha256": info.hash,
        "model": info.model.name,
        "image_size": facts.image_size,
        "patch_size": facts.patch_size,
        "tokens": facts.tokens,
        "width": facts.width,
        "blocks": facts.blocks,
        "classes": len(info.class_names) or facts.classes,
        "parameters": facts.parameters,
        "active_parameters": facts.parameters - sum(layer.idle_parameters for layer in facts.layers.values()),
        "flops_per_image": facts.flops,
        "input": Framing(facts.image_size[0], info.model.crop_fraction).described(),
        "normalisation": {"mean": info.model.mean, "std": info.model.std},
        "crop_fraction": info.model.crop_fraction,
        "training": info.training,
        "layers": [layer.row(name, info.model.router_name) for name, layer in facts.layers.items()],
    }


def facts_of_header(info: CheckpointInfo, header: Header) -> "Facts | None":
    """Return what a checkpoint's header says of its model; None where that is not all that is said."""
    from moeprobe.adapters.inspection.facts import Facts, LayerFacts
    from moeprobe.models.nn.outline import outline

    info.check_router()
    model_outline = outline(info.model, header.shapes)
    if model_outline is None:
        return None
    layers = {
        name: LayerFacts(
            layer,
            model_outline.tokens,
            [
                shape
                for parameter, shape in header.shapes.items()
                if parameter.startswith(f"{name}.mlp.experts.")
            ],
        )
        for name, layer in model_outline.layers.items()
    }
    return Facts(
        image_size=[model_outline.image_size] * 2,
        patch_size=[model_outline.patch_size] * 2,
        tokens=model_outline.tokens,
        width=model_outline.width,
        blocks=model_outline.depth,
        classes=model_outline.classes,
        parameters=model_outline.parameters,
        flops=model_outline.dense_flops + sum(layer.expert_flops for layer in layers.values()),
        layers=layers,
    )
