"""Made-up selections of sparse-attention indexers, and the responses in which servers would send them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.recordings import serving

Keys = NDArray[np.int32]
Response = dict[str, Any]
TOKENS, LAYERS, TOP_K, REQUESTS, GENERATED = 20, 2, 4, 24, 5
CONFIG = {"num_hidden_layers": LAYERS, "index_topk": TOP_K}
ROWS = TOKENS - 1


def selections(
    seed: int, *, noise: float = 0.0, window: int = 0, rows: int = ROWS, top_k: int = TOP_K
) -> Keys:
    """Return ``(rows, LAYERS, top_k)`` of an indexer whose scores belong to the seed, in any order; -1 fills up.

    Args:
        seed: of the scores.
        noise: how much of the scores is another capture's own.
        window: keys that may be selected, the nearest; 0 = all.
        rows: queries from the first token on.
        top_k: K.
    """
    random, extra = np.random.default_rng(seed), np.random.default_rng(seed + 10_000)
    keys = np.full((rows, LAYERS, top_k), -1, np.int32)
    for query in range(rows):
        scores = (1 - noise) * random.random((LAYERS, query + 1)) + noise * extra.random((LAYERS, query + 1))
        if window:
            scores[:, : max(query + 1 - window, 0)] = -1
        size = min(top_k, query + 1)
        keys[query, :, :size] = np.argsort(-scores, axis=1)[:, :size]
    return keys


def sglang(keys: Keys, name: str, **more: Any) -> Response:
    """A response of SGLang's native API."""
    meta = {
        "id": name, "prompt_tokens": TOKENS - GENERATED, "completion_tokens": GENERATED,
        "indexer_topk": serving.b64(keys.tobytes()),
    }  # fmt: skip
    return {"text": "…", "meta_info": meta | more}


def vllm(keys: Keys, name: str, **more: Any) -> Response:
    """A response of vLLM as its RFC has it, with token ids."""
    choice = {
        "index": 0, "token_ids": list(range(GENERATED)), "prompt_token_ids": list(range(TOKENS - GENERATED)),
        "indexer_topk": serving.npy(keys),
    }  # fmt: skip
    return {"id": name, "choices": [choice | more]}


def capture(path: Path, keys_of: Callable[[int], Keys], response: Callable[..., Response] = sglang) -> Path:
    """Write the responses to ``REQUESTS`` requests."""
    lines = [json.dumps(response(keys_of(number), f"r{number}")) for number in range(REQUESTS)]
    path.write_text("\n".join(lines) + "\n")
    return path


def config(folder: Path, **more: Any) -> Path:
    """Write the configuration of the model."""
    path = folder / "config.json"
    path.write_text(json.dumps(CONFIG | more))
    return path
