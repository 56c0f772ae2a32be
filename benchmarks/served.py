"""Reuse, caches and batches of experts at full size: what ``trace locality`` and ``trace batches`` take for 10⁶ tokens.

    python -m benchmarks.served build/served [--tokens 1000000] [--layers 48] [--experts 128] [--top-k 8] [--unmarked]

A recording of requests is made up and written as an import writes it. Each command is a process of its own, and may use
as many others as it likes (``taskset`` gives it fewer cores). Measured are its seconds, the CPU's seconds, and the
memory that it and the processes that it starts hold at a time (shared pages count once; Linux).

Axes: R requests of the pool, T tokens of each, E experts, K choices.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from scipy.signal import lfilter

from benchmarks.full_size import measure_step
from benchmarks.speed.facts import load_average, machine, sentence
from moeprobe import api
from moeprobe.recordings.format import COLUMNS, batch, lists, metadata, sorted_sets, writing

TRACE = "served.parquet"
# Requests whose choices are drawn; all others are stretches of them, since drawing takes longer than the commands.
_POOL = 32
# Tokens of a request: from the first number up to the second, each as likely, and the share that is the prompt.
_LENGTHS, _PROMPT = (400, 1600), 0.5
# How much of a token's scores comes from the token before, and how much experts and requests differ beside tokens.
_MEMORY, _EXPERTS_DIFFER, _REQUESTS_DIFFER = 0.5, 0.7, 0.5
_DIGITS = 6


def main() -> None:
    """Make the recording, and measure both commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    for name, number in (("tokens", 1_000_000), ("layers", 48), ("experts", 128), ("top-k", 8)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--unmarked", action="store_true", help="without prompt and generated tokens apart")
    parser.add_argument("--only", choices=sorted(STEPS))
    settings = parser.parse_args()
    settings.folder.mkdir(parents=True, exist_ok=True)
    size = [settings.tokens, settings.layers, settings.experts, settings.top_k, not settings.unmarked]
    described = settings.folder / "size.json"
    if not described.exists() or json.loads(described.read_text(encoding="ascii")) != size:
        write(settings.folder / TRACE, *size)
        described.write_text(json.dumps(size), encoding="ascii")
    print(f"{sentence(machine('cpu'))}; load average {load_average()} at the start.")
    steps = {name: step for name, step in STEPS.items() if settings.only in (None, name)}
    rows = [{"command": name, **measure_step(step, settings.folder)} for name, step in steps.items()]
    print(pd.DataFrame(rows).round(1).to_string(index=False))


def write(path: Path, tokens: int, layers: int, experts: int, top_k: int, is_marked: bool) -> None:
    """Write a recording of at least so many tokens."""
    rng = np.random.default_rng(0)
    names = [f"layers.{layer}" for layer in range(layers)]
    pool = [draw(rng, experts, top_k) for _ in names]
    with writing(path) as file:
        for number, request in enumerate(_requests(rng, tokens)):
            file.write([_rows(f"{number:0{_DIGITS}d}", request, pool, names, experts, is_marked)])
        file.close(metadata(checkpoint={"name": "served", "sha256": None}, layers=names, data="requests"))


def draw(rng: np.random.Generator, experts: int, top_k: int) -> NDArray[np.int16]:
    """Return the choices ``(R, T, K)`` of a layer: sets, near those of the token before."""
    noise = rng.standard_normal((_POOL, _LENGTHS[1], experts), dtype=np.float32)
    scores = lfilter([1.0], [1.0, -_MEMORY], noise, axis=1)
    scores += _EXPERTS_DIFFER * rng.standard_normal(experts)
    scores += _REQUESTS_DIFFER * rng.standard_normal((_POOL, 1, experts))
    return sorted_sets(np.argpartition(-scores, top_k, axis=2)[..., :top_k].astype(np.int16))


def _requests(rng: np.random.Generator, tokens: int) -> Iterator[tuple[int, slice]]:
    """Yield the number in the pool and the stretch of each request."""
    while tokens > 0:
        length = int(rng.integers(*_LENGTHS, endpoint=True))
        start = int(rng.integers(_LENGTHS[1] - length, endpoint=True))
        yield int(rng.integers(_POOL)), slice(start, start + length)
        tokens -= length


def _rows(
    name: str,
    request: tuple[int, slice],
    pool: Sequence[NDArray[np.int16]],
    names: Sequence[str],
    experts: int,
    is_marked: bool,
) -> pa.RecordBatch:
    """Return the rows of a request, layer by layer."""
    choices = np.stack([of_layer[request] for of_layer in pool])
    layers, length, top_k = choices.shape

    def column(kind: str, values: NDArray[np.generic]) -> pa.Array:
        return lists(values, values.size // layers, rows=layers, kind=COLUMNS[kind][0])

    columns = {
        "experts": column("experts", choices),
        "processed": column("processed", np.ones(choices.shape, bool)),
        "valid": column("valid", np.ones((layers, length), bool)),
    }
    if is_marked:
        is_generated = np.arange(length) >= _PROMPT * length
        columns["generated"] = column("generated", np.tile(is_generated, (layers, 1)))
    scalars = {
        "id": name, "router": "recorded", "num_experts": experts, "top_k": top_k, "num_tokens": length,
        "num_prefix_tokens": 0, "gates_sum_to_one": False, "token_local": True, "experts_choose": False,
        "gates_kept": "none",
    }  # fmt: skip
    return batch({"layer": list(names)} | columns | scalars, rows=layers)


def _locality(folder: Path) -> None:
    api.trace_locality([folder / TRACE], out=folder / "locality", overwrite=True, figures=False)


def _batches(folder: Path) -> None:
    api.trace_batches([folder / TRACE], out=folder / "batches", overwrite=True, figures=False)


STEPS = {"trace locality": _locality, "trace batches": _batches}


if __name__ == "__main__":
    main()
