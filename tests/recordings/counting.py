"""Files of counts per expert, written as their programs write them, without the readers.

Axes: L layers, E experts, S steps.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests.recordings.serving import Ids

SPARSE = (1, 2, 3, 4)


def counts(ids: Ids, experts: int = 8) -> np.ndarray:
    """How often each expert is in ``(T, L, K)``, layer by layer, in plain Python."""
    found = np.zeros((ids.shape[1], experts), np.int64)
    for token in ids:
        for layer, chosen in enumerate(token):
            for expert in chosen:
                found[layer, expert] += 1
    return found


def table(path: Path, header: str, rows: Sequence[Sequence[Any]], end: str = "\n") -> Path:
    """A CSV; the delimiter is that of its header."""
    delimiter = next(mark for mark in (",", ";", "\t") if mark in header)
    lines = [header, *(delimiter.join(map(str, row)) for row in rows), ""]
    path.write_bytes(end.join(lines).encode())
    return path


def by_count(path: Path, numbers: np.ndarray, header: str = "layer_id,expert_id,count") -> Path:
    """As SGLang's first recorder writes it: no line for an expert that nothing chose."""
    rows = [
        (layer, expert, count)
        for layer, of_layer in zip(SPARSE, numbers, strict=True)
        for expert, count in enumerate(of_layer)
        if count
    ]
    return table(path, header, rows)


def tokens_per_expert(
    path: Path, iterations: dict[int, np.ndarray], *, micro_batches: int = 3, mtp: bool = False
) -> Path:
    """As Megatron-LM writes it: ``(L, E)`` of each iteration cut into micro-batches."""
    generator = np.random.default_rng(7)
    lines: list[dict[str, Any]] = []
    for iteration, numbers in iterations.items():
        for layer, of_layer in enumerate(numbers):
            parts = generator.multinomial(of_layer, [1 / micro_batches] * micro_batches).T
            lines.append({"iter": iteration, "block": "decoder", "layer": layer, "tpe": parts.tolist()})
        if mtp:
            tpe = numbers[:1].tolist()
            lines.append({"iter": iteration, "block": "mtp", "mtp_idx": 0, "layer": 0, "tpe": tpe})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def imatrix(path: Path, numbers: np.ndarray, *, general_type: str = "imatrix", layers: Any = SPARSE) -> Path:
    """As llama-imatrix saves it, by the package of llama.cpp itself."""
    import gguf

    writer = gguf.GGUFWriter(str(path), "")
    writer.add_key_value("general.type", general_type, gguf.GGUFValueType.STRING)
    writer.add_array("imatrix.datasets", ["calibration.txt", "more.txt"])
    writer.add_uint32("imatrix.chunk_count", 2)
    writer.add_uint32("imatrix.chunk_size", 512)
    one = np.ones((1, 6), np.float32)
    writer.add_tensor("blk.0.attn_q.weight.in_sum2", one)
    writer.add_tensor("blk.0.attn_q.weight.counts", one[:, :1])
    for layer, of_layer in zip(layers, numbers, strict=True):
        for name, width in (("gate", 6), ("up", 6), ("down", 4)):
            sums = np.ones((len(of_layer), width), np.float32)
            writer.add_tensor(f"blk.{layer}.ffn_{name}_exps.weight.in_sum2", sums)
            column = np.asarray(of_layer, np.float32)[:, None]
            writer.add_tensor(f"blk.{layer}.ffn_{name}_exps.weight.counts", column)
        writer.add_tensor(f"blk.{layer}.ffn_up_shexp.weight.counts", one[:, :1])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def lmdeploy(path: Path, numbers: np.ndarray, *, step: int = 375) -> Path:
    """As LMDeploy's recorder dumps it: layers with experts alone."""
    content = {
        "counts": torch.from_numpy(numbers), "balancedness": torch.ones(len(numbers)), "step": step, "rank": 0,
    }  # fmt: skip
    torch.save(content, path)
    return path


def nested(path: Path, content: Any, *, indent: int | None = None) -> Path:
    """JSON, over several lines with ``indent``."""
    path.write_text(json.dumps(content, indent=indent) + "\n")
    return path


def lines(path: Path, objects: Sequence[Any]) -> Path:
    """JSON lines."""
    path.write_text("".join(json.dumps(content) + "\n" for content in objects))
    return path
