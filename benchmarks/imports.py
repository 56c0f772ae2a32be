"""How fast the readers of recorded routing are, and how much memory they take, each in a process of its own.

    python -m benchmarks.imports FOLDER [--tokens 20000] [--layers 48] [--experts 128] [--top-k 8] [--request 1000]
                                        [--readers vllm sglang …]

The routing is made up, and written as each dialect has it. Printed are the bytes of the file, megabytes (10^6) per
second of CPU time, tokens per second, and the largest resident memory beside that before the import.
``--tokens 1000000 --readers vllm`` is the check of bounded memory at full size.
"""

import argparse
import base64
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
from numpy.typing import NDArray

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Size:
    """Tokens in requests of ``request`` each, layers with experts, experts of each, and how many a token has."""

    tokens: int = 20_000
    layers: int = 48
    experts: int = 128
    top_k: int = 8
    request: int = 1_000

    def config(self) -> dict[str, Any]:
        """Return the ``config.json`` of such a model."""
        return {
            "num_hidden_layers": self.layers,
            "num_experts": self.experts,
            "num_experts_per_tok": self.top_k,
        }

    def requests(self) -> Iterator[tuple[str, Ids]]:
        """Yield the experts ``(T, L, K)`` of each request, none of them twice."""
        random = np.random.default_rng(0)
        for number in range(-(-self.tokens // self.request)):
            count = min(self.request, self.tokens - number * self.request)
            # Steps that are prime to E from any first expert: K different ones, quickly.
            first = random.integers(0, self.experts, (count, self.layers, 1))
            step = 2 * random.integers(0, self.experts // 2, (count, self.layers, 1)) + 1
            yield f"r{number}", (first + step * np.arange(self.top_k)) % self.experts


def _npy(ids: Ids) -> str:
    stream = io.BytesIO()
    np.save(stream, ids.astype(np.uint8))
    return base64.b64encode(stream.getvalue()).decode()


def _b64(ids: Ids, kind: str) -> str:
    return base64.b64encode(ids.astype(kind).tobytes()).decode()


def _dynamo(name: str, ids: Ids) -> dict[str, Any]:
    sent = {"data": _b64(ids, "<i2"), "shape": list(ids.shape), "dtype": "int16", "start": 0}
    return {"id": name, "choices": [{"routed_experts": sent}]}


def _nemo(name: str, ids: Ids) -> dict[str, Any]:
    sizes = "x".join(map(str, ids.shape))
    return {"id": name, "routed_experts": f"nrlre1:int16:{sizes}:{_b64(ids, '<i2')}"}


def _sglang(name: str, ids: Ids) -> dict[str, Any]:
    meta = {"id": name, "routed_experts": _b64(ids, "<i4"), "prompt_tokens": 1, "completion_tokens": len(ids)}
    return {"text": "…", "meta_info": meta}


def _atlas(name: str, ids: Ids) -> dict[str, Any]:
    token, layer, slot = np.indices(ids.shape).reshape(3, -1).tolist()
    activations = [
        {"layer": at, "token_idx": of, "expert_idx": expert, "gate_weight": 0.5 / (1 + place)}
        for of, at, place, expert in zip(token, layer, slot, ids.ravel().tolist(), strict=True)
    ]
    return {"id": name, "model_id": "m", "num_layers": ids.shape[1], "top_k": ids.shape[2],
            "token_strs": ["t"] * len(ids), "activations": activations}  # fmt: skip


# What is written as JSON lines, a request each.
_LINES: dict[str, Callable[[str, Ids], dict[str, Any]]] = {
    "vllm": lambda name, ids: {"id": name, "choices": [{"routed_experts": _npy(ids)}]},
    "vllm-lists": lambda name, ids: {"id": name, "choices": [{"routed_experts": ids.tolist()}]},
    "sglang": _sglang,
    "dynamo": _dynamo,
    "nemo": _nemo,
    "tensorrt_llm": lambda name, ids: {"request_id": name, "outputs": [{"routed_experts": ids.tolist()}]},
    "atlas": _atlas,
}


def _slime(path: Path, requests: list[Ids], size: Size) -> None:
    import torch

    samples = [{"index": number, "tokens": list(range(len(ids) + 1)), "response_length": len(ids),
                "rollout_routed_experts": ids.astype(np.int32)} for number, ids in enumerate(requests)]  # fmt: skip
    torch.save({"rollout_id": 0, "samples": samples}, path)


def _verl(path: Path, requests: list[Ids], size: Size) -> None:
    import torch

    routed = torch.zeros((len(requests), size.request, size.layers, size.top_k), dtype=torch.uint8)
    mask = torch.zeros(routed.shape[:2], dtype=torch.int64)
    for row, ids in enumerate(requests):
        routed[row, : len(ids)], mask[row, : len(ids)] = torch.from_numpy(ids.astype(np.uint8)), 1
    torch.save({"routed_experts": routed, "attention_mask": mask}, path)


def _recorder(path: Path, requests: list[Ids], size: Size) -> None:
    import torch

    records = [{"forward_pass_id": number, "rank": 0, "extend_seq_lens": None,
                "topk_ids_of_layer": torch.from_numpy(ids.transpose(1, 0, 2).astype(np.int32).copy())}
               for number, ids in enumerate(requests)]  # fmt: skip
    table = torch.arange(size.experts).expand(size.layers, -1).contiguous()
    torch.save({"records": records, "last_physical_to_logical_map": table}, path)


def _counts(path: Path, requests: list[Ids], size: Size) -> None:
    import torch

    steps = [np.stack([np.bincount(ids[:, layer].ravel(), minlength=size.experts) for layer in range(size.layers)])
             for ids in requests]  # fmt: skip
    torch.save({"rank": 0, "logical_count": torch.from_numpy(np.stack(steps))}, path)


def _megatron(path: Path, requests: list[Ids], size: Size) -> None:
    with path.open("w") as file:
        for step, ids in enumerate(requests):
            for layer in range(size.layers):
                line = {"step": step, "stage": "pre_dispatch", "block": "decoder", "layer": layer, "rank": 0,
                        "num_tokens": len(ids), "topk": size.top_k,
                        "top_indices": np.sort(ids[:, layer], -1).tolist()}  # fmt: skip
                file.write(json.dumps(line) + "\n")


def _llama(path: Path, requests: list[Ids], size: Size) -> None:
    schema = pa.schema([("layer", pa.int64()), ("expert", pa.int64())])
    # Arrow puts the names of columns in quotation marks, and llama.cpp does not.
    options = pa.csv.WriteOptions(quoting_style="none", include_header=False)
    with path.open("wb") as out, pa.csv.CSVWriter(out, schema, write_options=options) as file:
        out.write(b"layer,expert\n")
        for ids in requests:
            layers = np.broadcast_to(np.arange(size.layers)[None, :, None], ids.shape)
            file.write(pa.record_batch([layers.ravel(), ids.ravel()], schema=schema))


_FILES: dict[str, tuple[str, Callable[[Path, list[Ids], Size], None]]] = {
    "slime": ("rollout.pt", _slime),
    "verl": ("batch.pt", _verl),
    "sglang_recorder": ("recorder.pt", _recorder),
    "sglang_counts": ("stat.pt", _counts),
    "megatron": ("router_trace_rank0.jsonl", _megatron),
    "llama_cpp": ("moe_trace.csv", _llama),
}
NAMES = (*_LINES, *_FILES)


def write(folder: Path, name: str, size: Size) -> Path:
    """Write made-up routing as a dialect has it, and the model's ``config.json`` beside it; returns its file."""
    place = folder / name
    place.mkdir(parents=True, exist_ok=True)
    (place / "config.json").write_text(json.dumps(size.config()))
    if name in _FILES:
        path = place / _FILES[name][0]
        _FILES[name][1](path, [ids for _, ids in size.requests()], size)
        return path
    path = place / "responses.jsonl"
    with path.open("w") as file:
        for request, ids in size.requests():
            file.write(json.dumps(_LINES[name](request, ids)) + "\n")
    return path


@dataclass(frozen=True)
class Cost:
    """What an import took: CPU seconds, bytes read, tokens or choices, resident MiB before it and at most."""

    seconds: float
    bytes: int
    tokens: int
    before: float
    most: float


def imported(path: Path) -> Cost:
    """Import a file in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.imports", "--child", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return Cost(**json.loads(done.stdout.splitlines()[-1]))


def _child(path: Path) -> None:
    import torch  # noqa: F401  (so that its memory is not counted to readers that need it)

    from moeprobe.recordings.import_experts import import_routed_experts
    from moeprobe.runtime.processes import largest_resident

    # What is loaded with the first row that is written, before anything is counted.
    before, begun = largest_resident(), time.process_time()
    found = import_routed_experts(
        path, path.parent / "trace.parquet", model_config=path.parent / "config.json", overwrite=True
    )
    seconds = time.process_time() - begun
    cost = Cost(seconds, path.stat().st_size, found.tokens or found.counted, before, largest_resident())
    print(json.dumps(asdict(cost)))


def main() -> None:
    """Write a file of each dialect, and import it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, value in asdict(Size()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value)
    parser.add_argument("--readers", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        _child(asked.folder)
        return
    size = Size(**{name: getattr(asked, name) for name in asdict(Size())})
    print("| reader | MB | MB/s | tokens/s | MiB more |\n|---|---|---|---|---|")
    for name in asked.readers:
        path = write(asked.folder, name, size)
        cost = imported(path)
        print(
            f"| `{name}` | {cost.bytes / 1e6:.1f} | {cost.bytes / 1e6 / cost.seconds:.1f} | "
            f"{size.tokens / cost.seconds:,.0f} | {cost.most - cost.before:.0f} |",
            flush=True,
        )
        path.unlink()


if __name__ == "__main__":
    main()
