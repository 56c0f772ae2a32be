"""Made-up routing as trainers and recorders save it; written without the readers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from tests.recordings.serving import GENERATED, PROMPT, Ids, Response, with_dense

TOKENS = list(range(100, 100 + PROMPT + GENERATED))
SHAPE = (1, 2, 3, 4)


def as_vllm(ids: Ids, name: str, *, tokens: bool = True) -> Response:
    """The same sequence as a server sends it, with its token ids or without any statement of tokens."""
    from tests.recordings.serving import npy, usage

    choice: Response = {"index": 0, "routed_experts": npy(ids.astype("uint8"))}
    if not tokens:
        return {"id": name, "choices": [choice]}
    choice["token_ids"] = TOKENS[PROMPT:]
    return {"id": name, "prompt_token_ids": TOKENS[:PROMPT], "choices": [choice], "usage": usage()}


def tensorrt_llm(ids: Ids) -> Response:
    output = {"index": 0, "token_ids": TOKENS[PROMPT:], "routed_experts": ids.tolist()}
    return {"request_id": "r", "prompt_token_ids": TOKENS[:PROMPT], "outputs": [output]}


def slime(path: Path, ids: Ids, *, dtype: str = "int32", tensor: bool = False, **more: Any) -> Path:
    sent: Any = with_dense(ids).astype(dtype)
    sample = {
        "index": 7, "prompt": "…", "tokens": TOKENS, "response_length": GENERATED, "reward": 1.0, "status": "completed",
        "rollout_routed_experts": torch.from_numpy(sent) if tensor else sent, "metadata": {"a": [1, None]},
    }  # fmt: skip
    aborted = {"index": 8, "tokens": TOKENS[:PROMPT], "response_length": 0, "status": "aborted"}
    torch.save(
        {"rollout_id": 3, "samples": [sample | more, aborted | {"rollout_routed_experts": None}]}, path
    )
    return path


def verl(path: Path, ids: Ids, *, left: int = 2, right: int = 3, nested: bool = False, **more: Any) -> Path:
    """A batch of one sequence between padding; the row of the last token is zeros, as the padding."""
    total = left + len(TOKENS) + right
    routed = torch.zeros((1, total, 5, ids.shape[2]), dtype=torch.uint8)
    routed[0, left : left + len(ids)] = torch.from_numpy(with_dense(ids))
    mask = torch.zeros((1, total), dtype=torch.int64)
    mask[0, left : left + len(TOKENS)] = 1
    tokens = torch.zeros((1, total), dtype=torch.int64)
    tokens[0, left : left + len(TOKENS)] = torch.tensor(TOKENS)
    batch = {
        "routed_experts": routed,
        "attention_mask": mask,
        "input_ids": tokens,
        "responses": tokens[:, left + PROMPT :],
        **more,
    }
    torch.save({"batch": batch} if nested else batch, path)
    return path


def recorder(path: Path, ids: Ids, *, experts: int = 8, copies: int = 4, start: int = 0) -> Path:
    """One pass of two prompts and one of decoding, with physical experts in another order and some of them twice."""
    rng = np.random.default_rng(9)
    table = np.stack([rng.permutation([*range(experts), *range(copies)]) for _ in range(5)])
    physical = np.full((5, len(ids), 8), -1)
    for place, layer in enumerate(SHAPE):
        for token in range(len(ids)):
            for slot in range(ids.shape[2]):
                where = np.flatnonzero(table[layer] == ids[token, place, slot])
                physical[layer, token, slot] = rng.choice(where)
    cut, decoded = 5, len(ids) - 2
    records = []
    for number, (rows, lengths) in enumerate(
        [(slice(0, decoded), [cut, decoded - cut]), (slice(decoded, None), None)]
    ):
        count = len(range(*rows.indices(len(ids))))
        positions = [start + one for one in range(cut)] + list(range(decoded - cut))
        records.append(
            {
                "forward_pass_id": 20 + number, "rank": 1, "gatherer_key": "primary", "input_ids": list(range(count)),
                "positions": positions if lengths else [9, 4], "extend_seq_lens": lengths, "forward_mode": 1 + number,
                "topk_ids_of_layer": torch.from_numpy(physical[:, rows].astype("int32")), "misc_objects": [],
                "global_physical_count": torch.zeros(5, experts + copies),
            }
        )  # fmt: skip
    torch.save({"records": records, "last_physical_to_logical_map": torch.from_numpy(table)}, path)
    return path


def bfloat16(values: NDArray[np.float32]) -> NDArray[np.float32]:
    """The nearest bfloat16, as NumPy has none."""
    return torch.from_numpy(values).bfloat16().float().numpy()


def megatron(
    folder: Path,
    steps: list[NDArray[np.float32]],
    *,
    layers: tuple[int, ...] = SHAPE,
    logits: bool = True,
    top_k: int = 2,
) -> Path:
    """A trace of ``(T, L, E)`` logits per step: experts sorted by number, as its hook has them."""
    lines, content = [], b""
    for step, values in enumerate(steps):
        for place, layer in enumerate(layers):
            raw = torch.from_numpy(values[:, place]).bfloat16()
            chosen = raw.float().topk(top_k).indices.sort().values
            line = {
                "step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": 0,
                "num_tokens": len(values), "topk": top_k, "top_indices": chosen.tolist(),
            }  # fmt: skip
            own = raw.contiguous().view(torch.int16).numpy().tobytes()
            if logits:
                line |= {
                    "logit_offset": len(content),
                    "logit_bytes": len(own),
                    "logit_shape": list(raw.shape),
                }
            content += own
            lines.append(line)
        lines.append({**lines[-1], "block": "mtp", "mtp_idx": 0})
    folder.mkdir(exist_ok=True)
    (folder / "logits_rank0.bin").write_bytes(content)
    path = folder / "router_trace_rank0.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def atlas(ids: Ids, gates: NDArray[np.float64]) -> Response:
    """A trace with its choices in any order."""
    activations = [
        {"layer": layer, "token_idx": token, "expert_idx": int(ids[token, place, slot]),
         "gate_weight": float(gates[token, place, slot]), "output_norm": 0.0}
        for place, layer in enumerate(SHAPE) for token in range(len(ids)) for slot in range(ids.shape[2])
    ]  # fmt: skip
    order = np.random.default_rng(3).permutation(len(activations))
    return {
        "model_id": "m", "num_layers": 4, "num_experts": 8, "top_k": 2, "text": "…", "token_ids": TOKENS[: len(ids)],
        "token_strs": ["t"] * len(ids), "activations": [activations[one] for one in order],
    }  # fmt: skip
