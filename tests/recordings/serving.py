"""Made-up routing, and the responses in which servers would send it; written without the readers."""

import base64
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
Response = dict[str, Any]
# Five hidden layers, of which the first is dense.
DEEPSEEK = {
    "num_hidden_layers": 5, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}  # fmt: skip
PROMPT, GENERATED = 6, 8
ROWS = PROMPT + GENERATED - 1


def routing(seed: int = 0, *, rows: int = ROWS, layers: int = 4, experts: int = 8, top_k: int = 2) -> Ids:
    """Different experts for each token and layer, in any order ``(rows, layers, top_k)``."""
    scores = np.random.default_rng(seed).random((rows, layers, experts))
    return np.argsort(scores, axis=-1)[..., :top_k]


def with_dense(ids: Ids, sparse: tuple[int, ...] = (1, 2, 3, 4), layers: int = 5) -> Ids:
    """All hidden layers, the dense ones zero."""
    whole = np.zeros((len(ids), layers, ids.shape[2]), np.int64)
    whole[:, list(sparse)] = ids
    return whole


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def npy(ids: NDArray[Any]) -> str:
    stream = io.BytesIO()
    np.save(stream, ids)
    return b64(stream.getvalue())


def usage(prompt: int = PROMPT, generated: int = GENERATED) -> Response:
    return {"prompt_tokens": prompt, "completion_tokens": generated}


def vllm(ids: Ids, dtype: str = "uint8") -> Response:
    choice = {"index": 0, "text": "…", "routed_experts": npy(ids.astype(dtype))}
    return {"id": "r", "object": "text_completion", "choices": [choice], "usage": usage()}


def like(response: Response, ids: Ids) -> Response:
    """The routing as vLLM sends it; tokens, and so the prompt, are counted where ``response`` counts them."""
    counted = "usage" in response or "meta_info" in response
    return {key: value for key, value in vllm(ids).items() if counted or key != "usage"}


def vllm_lists(ids: Ids) -> Response:
    choice = {"index": 0, "routed_experts": ids[PROMPT:].tolist()}
    return {"id": "r", "choices": [choice], "usage": usage(), "prompt_routed_experts": ids[:PROMPT].tolist()}


def sglang(ids: Ids, dtype: str | None = None, start: int = 0) -> Response:
    meta = {"id": "r", "routed_experts": b64(ids[start:].astype(dtype or "int32").tobytes()), **usage()}
    if dtype is not None:
        meta["routed_experts_dtype"] = dtype
    if start:
        meta["routed_experts_start_len"] = start
    return {"text": "…", "meta_info": meta}


def sglang_openai(ids: Ids) -> Response:
    return {"id": "r", "choices": [{"sgl_ext": sglang(ids)["meta_info"]}], "usage": usage()}


def shaped(ids: Ids, dtype: str = "int16", start: int = 0) -> Response:
    sent = ids[start:].astype(dtype)
    return {"data": b64(sent.tobytes()), "shape": list(sent.shape), "dtype": dtype, "start": start}


def recalled(ids: Ids, weights: NDArray[np.float32], start: int = 0) -> Response:
    """What prime-rl's Total Router Recall sends: experts, and the bits of their weights ``(T, L, K)``."""
    bits = np.ascontiguousarray(weights, np.float32).view(np.int32)
    return shaped(np.concatenate([ids, bits], -1), "int32", start)


def nemo(ids: Ids, dtype: str = "int8") -> str:
    size = "x".join(map(str, ids.shape))
    return f"nrlre1:{dtype}:{size}:{b64(ids.astype(dtype).tobytes())}"


# By reader and variant: what a server sends of ``(T, L, K)``.
ENCODINGS: dict[str, Callable[[Ids], Response]] = {
    "vllm uint8": vllm,
    "vllm uint16 all layers": lambda ids: vllm(with_dense(ids), "uint16"),
    "vllm lists": vllm_lists,
    "vllm whole lists": lambda ids: {"id": "r", "choices": [{"routed_experts": with_dense(ids).tolist()}]},
    "sglang int32": lambda ids: sglang(with_dense(ids)),
    "sglang uint16": lambda ids: sglang(with_dense(ids), "uint16"),
    "sglang uint8": lambda ids: sglang(with_dense(ids), "uint8"),
    "sglang openai": lambda ids: sglang_openai(with_dense(ids)),
    "dynamo engine_data": lambda ids: {"id": "r", "engine_data": {"routed_experts": shaped(ids)}},
    "dynamo choice": lambda ids: {"id": "r", "choices": [{"routed_experts": shaped(with_dense(ids), "uint8")}]},
    "dynamo int64": lambda ids: {"request_id": "r", "routed_experts": shaped(ids, "int64")},
    "nemo int8": lambda ids: {"id": "r", "routed_experts": nemo(ids)},
    "nemo int32 all layers": lambda ids: {"id": "r", "routed_experts": nemo(with_dense(ids), "int32")},
}  # fmt: skip


def write(folder: Path, *lines: Any, config: dict[str, Any] | None = None) -> tuple[Path, Path]:
    """Write responses, one a line (strings as they are), and the model's configuration; returns both paths."""
    path, model = folder / "responses.jsonl", folder / "config.json"
    path.write_text("".join(f"{one if isinstance(one, str) else json.dumps(one)}\n" for one in lines))
    model.write_text(json.dumps(config or DEEPSEEK))
    return path, model
