"""Swin-MoE's checkpoints into moeprobe's: sizes are read off the parameters, which get the names that they have here.

Axes: E experts, D width, M hidden width, H heads, W tokens along a side of a window, R ranks.

Source: Microsoft's Swin-MoE and Tutel's expert and gate modules, as publicly known; no released file was at hand.
Experts are ``batched_fc1_w (E, M, D)``, ``batched_fc2_w (E, M, D)`` and biases; with more ranks than experts each rank
holds a slice of M. Position biases that come from ``cpb_mlp`` are worked out for the window and kept as a table.
"""

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from moeprobe.errors import UserError, option
from moeprobe.models.checkpoints.importing import Unseen, check_folder, class_names, model_config, save
from moeprobe.models.checkpoints.swin_moe_files import RankParameters, find_files, read_ranks
from moeprobe.models.config import ModelConfig
from moeprobe.models.nn.swin import build_swin
from moeprobe.runtime.arguments import check_arguments
from moeprobe.runtime.characters import quote
from moeprobe.runtime.progress import Progress, progress_of

_BLOCK = re.compile(r"layers\.(\d{1,3})\.blocks\.(\d{1,4})\.")
_GATE = re.compile(r"(layers\.\d+\.blocks\.\d+)\.mlp\._moe_layer\.gates\.0\.(wg\.weight|sim_matrix)")
# What says nothing that the parameters do not.
_BUFFERS = re.compile(r".*\.(attn_mask|relative_position_index|relative_coords_table|_num_global_experts)")
_GATES = {
    "wg.weight": "gate.weight",
    "cosine_projector.weight": "projection.weight",
    "cosine_projector.bias": "projection.bias",
    "sim_matrix": "directions",
    "temperature": "log_scale",
}


@dataclass(frozen=True)
class SwinMoeSizes:
    """The sizes of a Swin-MoE.

    Attributes:
        width: of the first stage; it doubles with each further stage.
        depths: blocks of each stage.
        num_heads: of each stage.
        windows: tokens along a side of an attention window, of each stage.
        hidden_width: of the first stage's perceptrons; experts have the same, per width.
        layers: blocks with experts, numbered from 0 through all stages.
        router: catalog name.
        projection_width: of a cosine router, else None.
    """

    width: int
    depths: tuple[int, ...]
    num_heads: tuple[int, ...]
    windows: tuple[int, ...]
    hidden_width: int
    patch_size: int
    image_size: int
    num_classes: int
    num_experts: int
    layers: tuple[int, ...]
    router: str
    projection_width: int | None
    patch_norm: bool
    qkv_bias: bool


def infer(ranks: RankParameters, *, source: str, image_size: int | None = None) -> SwinMoeSizes:
    """Return the sizes that the parameters tell.

    Args:
        ranks: of all files.
        source: the file that an error names.
        image_size: in pixels; None = as the attention masks of shifted windows have it.

    Raises:
        UserError: a parameter that tells a size is missing or of an unusable shape, or it is no Swin-MoE.
    """
    shared = ranks.shared

    def shape(name: str, axes: int) -> tuple[int, ...]:
        if name not in shared:
            raise UserError(
                f"{source} is no Swin-MoE that is known here: it lacks the parameter {quote(name)}."
            )
        if shared[name].ndim != axes or 0 in shared[name].shape:
            raise UserError(
                f"{source} is no Swin-MoE that is known here: {quote(name)} is {tuple(shared[name].shape)}."
            )
        return tuple(shared[name].shape)

    # Swin V2 has the same names for other mathematics.
    if any(name.endswith(".attn.logit_scale") for name in shared):
        raise UserError(
            f"{source} has the cosine attention of Swin V2, which is no Swin-MoE that is known here."
        )
    width, _, patch_size, _ = shape("patch_embed.proj.weight", 4)
    depths = _depths(shared, source)
    names = [f"layers.{stage}.blocks.{block}" for stage, depth in enumerate(depths) for block in range(depth)]
    # All blocks of a stage have the same heads and window, so the first one tells.
    firsts = [f"layers.{stage}.blocks.0.attn" for stage in range(len(depths))]
    windows, num_heads = zip(*(_window_and_heads(shared, name, source) for name in firsts), strict=True)
    kind, gate = _gate(shared, source)
    # The two kinds of gate are transposed to each other.
    num_experts = gate.shape[1 if kind == "sim_matrix" else 0]
    return SwinMoeSizes(
        width=width,
        depths=depths,
        num_heads=num_heads,
        windows=windows,
        hidden_width=_hidden_width(ranks, names[0], num_experts, source),
        patch_size=patch_size,
        image_size=_image_size(shared, patch_size, image_size, source),
        num_classes=shape("head.weight", 2)[0],
        num_experts=num_experts,
        layers=tuple(
            index for index, name in enumerate(names) if f"{name}.mlp._moe_layer.gates.0.{kind}" in shared
        ),
        router="cosine_token_choice" if kind == "sim_matrix" else "softmax_token_choice",
        projection_width=gate.shape[0] if kind == "sim_matrix" else None,
        patch_norm="patch_embed.norm.weight" in shared,
        qkv_bias=f"{firsts[0]}.qkv.bias" in shared,
    )


def to_state_dict(ranks: RankParameters, sizes: SwinMoeSizes, *, source: str) -> dict[str, Tensor]:
    """Return the parameters by our names and in our layout.

    Raises:
        UserError: experts are missing, or do not fit together.
    """
    ours: dict[str, Tensor] = {}
    for name, tensor in ranks.shared.items():
        if not _BUFFERS.fullmatch(name) and ".attn.cpb_mlp." not in name:
            ours[_our_name(name)] = tensor
    for name in ranks.experts:
        block, _, part = name.partition(".mlp._moe_layer.experts.batched_")
        linear, _, what = part.partition("_")
        # Ranks are merged first, since a slice of an expert has no meaning alone.
        merged = merge_experts(ranks, name, sizes.num_experts, source=source)
        # Only the first layer is stored transposed: ours is (E, D, M).
        if part == "fc1_w":
            merged = merged.transpose(1, 2)
        ours[f"{block}.mlp.experts.{linear}.{'weight' if what == 'w' else 'bias'}"] = merged
    for name in list(ours):
        # A perceptron without a second bias is one whose bias is zero.
        if name.endswith(".mlp.fc2.weight") and name.replace("weight", "bias") not in ours:
            ours[name.replace("weight", "bias")] = ours[name].new_zeros(len(ours[name]))
    for name in ranks.shared:
        if name.endswith(".attn.cpb_mlp.2.weight"):
            attention = name.removesuffix(".cpb_mlp.2.weight")
            ours[f"{attention}.relative_position_bias_table"] = _position_biases(
                ranks.shared, attention, source
            )
    return ours


def merge_experts(ranks: RankParameters, name: str, num_experts: int, *, source: str) -> Tensor:
    """Return a parameter of all experts ``(E, …)``: rank 0's experts first, then rank 1's and so on.

    With more ranks than experts, neighboring ranks hold slices of one: of the hidden width, and of a second bias.

    Raises:
        UserError: there are too few or too many of them.
    """
    parts = ranks.experts[name]
    total = len(parts) * len(parts[0])
    # As many as the gates know: each rank holds whole experts.
    if total == num_experts:
        return torch.cat(parts)
    if len(parts[0]) != 1 or total < num_experts or total % num_experts:
        raise UserError(
            f"{source} holds {total} experts in {len(parts)} files and its gates know {num_experts}: is the file of a "
            "rank missing?"
        )
    slices = total // num_experts
    experts = [torch.cat(parts[first : first + slices], dim=1) for first in range(0, total, slices)]
    merged = torch.cat(experts)
    if name.endswith("fc2_bias"):
        # The last slice may be padded to the length of the others.
        return merged[:, : ranks.experts[name.replace("fc2_bias", "fc2_w")][0].shape[-1]]
    return merged


def _our_name(name: str) -> str:
    """Return timm's name of a parameter; of one that is not known, the name as it is."""
    block, moe, gate = name.partition(".mlp._moe_layer.gates.0.")
    if moe:
        return f"{block}.mlp.router.{_GATES.get(gate, gate)}"
    # Here the merging of patches is at the end of a stage, in timm at the beginning of the next.
    if match := re.fullmatch(r"layers\.(\d{1,3})\.downsample\.(.+)", name):
        return f"layers.{int(match[1]) + 1}.downsample.{match[2]}"
    return name.replace("head.", "head.fc.", 1) if name.startswith("head.") else name


def _depths(parameters: dict[str, Tensor], source: str) -> tuple[int, ...]:
    blocks: dict[int, set[int]] = {}
    for name in parameters:
        if match := _BLOCK.match(name):
            blocks.setdefault(int(match[1]), set()).add(int(match[2]))
    if not blocks or set(blocks) != set(range(len(blocks))):
        raise UserError(f"{source} lacks a stage: it has {', '.join(map(str, sorted(blocks))) or 'none'}.")
    for stage, numbers in sorted(blocks.items()):
        if numbers != set(range(len(numbers))):
            raise UserError(
                f"{source} lacks a block of stage {stage}: it has {', '.join(map(str, sorted(numbers)[:50]))}."
            )
    return tuple(len(blocks[stage]) for stage in range(len(blocks)))


def _window_and_heads(parameters: dict[str, Tensor], attention: str, source: str) -> tuple[int, int]:
    """Return the tokens along a window's side, and the heads."""
    table = parameters.get(f"{attention}.relative_position_bias_table")
    if table is None:
        table = _position_biases(parameters, attention, source)
    # (2W − 1)² offsets between places of a window.
    side = math.isqrt(len(table)) if table.ndim == 2 else 0
    if side * side != len(table) or side % 2 == 0:
        raise UserError(
            f"{source} is no Swin-MoE that is known here: the position biases of {attention} are {tuple(table.shape)}."
        )
    return (side + 1) // 2, table.shape[1]


def _position_biases(parameters: dict[str, Tensor], attention: str, source: str) -> Tensor:
    """Return the table ``((2W - 1)², H)`` that a perceptron gives for the window's log-spaced coordinates."""
    names = ("relative_coords_table", "cpb_mlp.0.weight", "cpb_mlp.0.bias", "cpb_mlp.2.weight")
    lacking = [part for part in names if f"{attention}.{part}" not in parameters]
    if lacking:
        raise UserError(
            f"{source} is no Swin-MoE that is known here: {attention} has neither relative_position_bias_table nor "
            f"{lacking[0]}."
        )
    # In double precision: the table is computed once and kept.
    coordinates, weight, bias, last = (parameters[f"{attention}.{part}"].double() for part in names)
    try:
        hidden = torch.relu(coordinates.flatten(0, -2) @ weight.T + bias)
        return (hidden @ last.T).to(parameters[f"{attention}.cpb_mlp.2.weight"].dtype)
    except RuntimeError:
        raise UserError(f"{source} does not fit together: the position biases of {attention}.") from None


def _gate(parameters: dict[str, Tensor], source: str) -> tuple[str, Tensor]:
    """Return what the gates are called, and one of them: they are all of one kind and size."""
    gates = {
        match[1]: (match[2], parameters[name]) for name in parameters if (match := _GATE.fullmatch(name))
    }
    if not gates:
        raise UserError(f"{source} has no MoE layer, so there is no routing to probe.")
    first, (kind, gate) = next(iter(gates.items()))
    # Checked here, since all further sizes follow from it.
    if gate.ndim != 2 or 0 in gate.shape:
        raise UserError(
            f"{source} is no Swin-MoE that is known here: the gate of {first} is {tuple(gate.shape)}."
        )
    axis = 1 if kind == "sim_matrix" else 0
    for block, (block_kind, tensor) in gates.items():
        if block_kind != kind or tensor.ndim != 2 or tensor.shape[axis] != gate.shape[axis]:
            raise UserError(
                f"{source} has gates that differ: {kind} {tuple(gate.shape)} in {first}, {block_kind} "
                f"{tuple(tensor.shape)} in {block}; only one kind and number of experts is known."
            )
    return kind, gate


def _hidden_width(ranks: RankParameters, block: str, num_experts: int, source: str) -> int:
    # Where the first block is dense its perceptron tells the width, else its experts.
    dense, sparse = f"{block}.mlp.fc1.weight", f"{block}.mlp._moe_layer.experts.batched_fc1_w"
    if dense in ranks.shared and ranks.shared[dense].ndim == 2:
        return len(ranks.shared[dense])
    if sparse in ranks.experts and ranks.experts[sparse][0].ndim == 3:
        return merge_experts(ranks, sparse, num_experts, source=source).shape[1]
    raise UserError(f"{source} is no Swin-MoE that is known here: it lacks the parameter {quote(dense)}.")


def _image_size(parameters: dict[str, Tensor], patch_size: int, image_size: int | None, source: str) -> int:
    """Return the resolution: shifted windows have a mask each, and as many windows as fill the image."""
    sizes_seen = set()
    for name, mask in parameters.items():
        match = _BLOCK.match(name)
        if match and name.endswith(".attn_mask") and mask.ndim == 3:
            # Windows per side times tokens per window side times the patch at that stage.
            sizes_seen.add(
                math.isqrt(len(mask)) * math.isqrt(mask.shape[1]) * patch_size * 2 ** int(match[1])
            )
    if len(sizes_seen) > 1:
        raise UserError(
            f"{source} has attention masks of several resolutions: {', '.join(map(str, sorted(sizes_seen)))}."
        )
    if not sizes_seen and image_size is None:
        raise UserError(f"{source} does not say what resolution it is for; give {option('image_size')}.")
    if sizes_seen and image_size is not None and {image_size} != sizes_seen:
        raise UserError(
            f"{source} is for images of {sizes_seen.pop()} pixels, and {option('image_size')} says {image_size}."
        )
    return sizes_seen.pop() if image_size is None else image_size


# What leaves no trace in the parameters: Swin-MoE's own values, but that nothing is dropped unless somebody says so.
_UNSEEN = {
    "top_k": 1, "noise_std": 1.0, "capacity_factor": 1.25, "eval_capacity_factor": "none",
    "capacity_rounding": "tutel", "capacity_multiple_of": 1, "group_images": 8, "batch_priority": True,
    "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225],
}  # fmt: skip


@dataclass(frozen=True)
class ImportedSwinMoe:
    """What was imported.

    Attributes:
        folder: its run folder.
        files: the files read.
        ranks: files that hold experts.
        sizes: derived from the parameters.
        model: the whole description; anything not among the sizes was given, or is a default.
        parameters: their number.
        classes: data set whose classes the scores are about, None where nobody said.
    """

    folder: Path
    files: tuple[Path, ...]
    ranks: int
    sizes: SwinMoeSizes
    model: ModelConfig
    parameters: int
    classes: str | None


@check_arguments
def import_swin_moe(
    source: str | Path,
    folder: str | Path,
    *,
    image_size: int | None = None,
    renormalise: bool = False,
    classes: str | None = None,
    overwrite: bool = False,
    watcher: Progress | None = None,
    **settings: Unpack[Unseen],
) -> ImportedSwinMoe:
    """Convert a Swin-MoE checkpoint, with one file per rank, to one of moeprobe.

    Args:
        source: PREFIX of the files ``PREFIX.rank0`` …, or any of them.
        folder: of the new checkpoint, written whole or not at all.
        image_size: resolution in pixels, where no attention mask in the files tells it.
        renormalise: a token's weights are divided by their sum over its experts (NORMALIZE_GATE).
        classes: data set, ``name`` or ``name:location``, whose classes the scores are about; None = unknown, and
            then nothing is said of accuracy.
        overwrite: replace a checkpoint that is there.
        watcher: shows the files read.
        settings: keys of ``ModelConfig`` that leave no trace in the parameters: ``top_k``, ``capacity_factor``,
            ``eval_capacity_factor``, ``group_images``, ``batch_priority``, ``mean``, ``std``, ``crop_fraction``.

    Raises:
        UserError: a file is missing, damaged, of another checkpoint or no Swin-MoE's, a setting does not fit, or the
            folder holds something else.
    """
    source, folder, watcher = Path(source), Path(folder), progress_of(watcher)
    check_folder(folder, source, overwrite=overwrite)
    files, master = find_files(source)
    watcher.start(f"import {source.name}", len(files) + (master is not None))
    ranks = read_ranks(source, lambda: watcher.advance(1))
    sizes = infer(ranks, source=str(source), image_size=image_size)
    config = _config(sizes, settings, renormalise=renormalise)
    names = () if classes is None else class_names(classes, sizes.num_classes)
    model = _fill_model(config, ranks, sizes, source=str(source))
    save(
        folder,
        model,
        config=config,
        imported="swin-moe",
        source=source,
        class_names=names,
        overwrite=overwrite,
    )
    return ImportedSwinMoe(
        folder=folder,
        files=ranks.files,
        ranks=ranks.number,
        sizes=sizes,
        model=config,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        classes=classes,
    )


def _config(sizes: SwinMoeSizes, settings: Unseen, *, renormalise: bool) -> ModelConfig:
    router: dict[str, Any] = {"name": sizes.router, "renormalise": renormalise}
    if sizes.projection_width is not None:
        router["projection_width"] = sizes.projection_width
    return model_config(
        {
            "name": "swin_moe",
            "swin": {
                "depths": list(sizes.depths),
                "num_heads": list(sizes.num_heads),
                "windows": list(sizes.windows),
                "patch_norm": sizes.patch_norm,
                "qkv_bias": sizes.qkv_bias,
            },
            "image_size": sizes.image_size,
            "patch_size": sizes.patch_size,
            "width": sizes.width,
            "hidden_width": sizes.hidden_width,
            "num_classes": sizes.num_classes,
            "num_experts": sizes.num_experts,
            "layers": list(sizes.layers),
            "router": router,
        }
        | _UNSEEN
        | settings
    )


def _fill_model(
    config: ModelConfig, ranks: RankParameters, sizes: SwinMoeSizes, *, source: str
) -> torch.nn.Module:
    """Return the model with its parameters; each of them has its place, and each place one of them.

    Raises:
        UserError: a parameter is missing, not known, or of a shape that does not fit the others.
    """
    with torch.device("meta"):
        model = build_swin(config)
    model_state = model.state_dict()
    state = to_state_dict(ranks, sizes, source=source)
    unknown = [quote(name) for name in state if name not in model_state]
    if unknown:
        remainder = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise UserError(
            f"{source} holds parameters that a Swin-MoE does not have here: {', '.join(unknown[:3])}{remainder}."
        )
    for name, parameter in model_state.items():
        if name not in state:
            raise UserError(f"{source} lacks the parameter that is called {quote(name)} here.")
        _check(name, state[name], parameter, source)
    model.load_state_dict(state, assign=True)
    return model


def _check(name: str, tensor: Tensor, parameter: Tensor, source: str) -> None:
    if tensor.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise UserError(
            f"In {source}, {quote(name)} is {tensor.dtype}; parameters are float32, bfloat16 or float16."
        )
    if tensor.shape != parameter.shape:
        raise UserError(
            f"{source} does not fit together: {quote(name)} is {tuple(tensor.shape)}, but by the others it should "
            f"be {tuple(parameter.shape)}."
        )
