"""What recorded routing takes: import of responses, agreement of two traces, reuse and caches of experts.

NumPy reads, sorts and compares the same arrays. It checks nothing, writes no trace, and gives no chance or interval.
Loops in Python simulate one cache; moeprobe simulates five rules with five sizes each, and windows of all sizes.
"""

import base64
import io
import itertools
import json
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import Contestant, Race
from moeprobe.recorded.analyze_trace import AnalyzeTrace
from moeprobe.recorded.engine.folds import NUM_FOLDS
from moeprobe.recorded.locality import Locality
from moeprobe.recorded.trace_batches import TraceBatches
from moeprobe.recordings.import_experts import import_routed_experts

_EXPERTS, _TOP_K = 128, 8
# Tokens of a request, and the share of tokens that choose another expert the second time.
_LENGTH, _CHANGED = 400, 0.1
OURS_IMPORT, OURS_PAIR, PLAIN = "moeprobe trace import", "moeprobe trace analyze", "json, base64 and NumPy"
OURS_REUSE, LOOPS = "moeprobe trace locality and batches", "json, base64 and loops: one cache, one window"
# Places of the cache and tokens of the window that loops go through.
_PLACES, _WINDOW = _EXPERTS // 8, 8


class Recorded(Part):
    """Import and agreement of 100,000 tokens, 8 of 128 experts."""

    rounds = 3

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield the import of many layers, and the agreement of a few."""
        tokens, layers, few = (800, 2, 1) if settings.quick else (100_000, 48, 4)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            responses = _write(folder, "many", tokens, layers, seed=0)
            yield Race(
                f"import of {tokens:,} tokens x {layers} layers x {_TOP_K} experts",
                [
                    Contestant(OURS_IMPORT, _imported(responses), "ours", before=_forgotten(responses)),
                    Contestant(PLAIN, lambda: len(_read(responses))),
                ],
                0,
                against=PLAIN,
                ratio="time",
                items=tokens,
            )
            pair = [_write(folder, side, tokens, few, seed=0, changed=side == "b") for side in "ab"]
            traces = [_trace(path) for path in pair]
            yield Race(
                f"agreement of {tokens:,} tokens x {few} layers x {_TOP_K} experts",
                [
                    Contestant(OURS_PAIR, lambda: _differing(traces), "ours"),
                    Contestant(PLAIN, lambda: _plain_differing(pair)),
                ],
                1e-12,
                against=PLAIN,
                ratio="time",
                items=tokens,
            )
            yield Race(
                f"reuse and caches of {tokens:,} tokens x {few} layers x {_TOP_K} experts",
                [
                    Contestant(OURS_REUSE, lambda: _reuse(traces[0]), "ours"),
                    Contestant(LOOPS, lambda: _looped_reuse(pair[0])),
                ],
                1e-12,
                against=LOOPS,
                ratio="time",
                items=tokens,
            )


def _write(folder: Path, name: str, tokens: int, layers: int, *, seed: int, changed: bool = False) -> Path:
    """Write made-up responses of vLLM, and the configuration of their model beside them."""
    rng = np.random.default_rng(seed)
    noise = np.random.default_rng(seed + 1)
    config = {"num_hidden_layers": layers, "num_experts": _EXPERTS, "num_experts_per_tok": _TOP_K}
    (folder / f"{name}.json").write_text(json.dumps(config), encoding="utf-8")
    path = folder / f"{name}.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number in range(tokens // _LENGTH):
            scores = rng.random((_LENGTH, layers, _EXPERTS), dtype=np.float32)
            order = np.argpartition(-scores, _TOP_K, axis=-1)[..., : _TOP_K + 1].astype(np.uint8)
            experts = order[..., :_TOP_K]
            if changed:
                other = noise.random((_LENGTH, layers)) < _CHANGED
                experts[other, 0] = order[other, _TOP_K]
            content = io.BytesIO()
            np.save(content, experts)
            choice = {"index": 0, "routed_experts": base64.b64encode(content.getvalue()).decode()}
            file.write(json.dumps({"id": f"r{number}", "choices": [choice]}) + "\n")
    return path


def _trace(responses: Path) -> Path:
    target = responses.with_suffix(".parquet")
    import_routed_experts(responses, target, model_config=responses.with_suffix(".json"), overwrite=True)
    return target


def _imported(responses: Path) -> Callable[[], int]:
    """Return what imports them, and returns the number of requests."""

    def work() -> int:
        imported = import_routed_experts(
            responses, responses.with_suffix(".parquet"), model_config=responses.with_suffix(".json")
        )
        return imported.requests

    return work


def _forgotten(responses: Path) -> Callable[[], None]:
    """Return what removes the trace of them: an earlier one would be read before it is replaced."""
    return lambda: responses.with_suffix(".parquet").unlink(missing_ok=True)


def _read(responses: Path) -> list[NDArray[np.uint8]]:
    """Return the sorted experts ``(T, L, K)`` of each request."""
    experts = []
    with responses.open("rb") as file:
        for line in file:
            text = json.loads(line)["choices"][0]["routed_experts"]
            experts.append(np.sort(np.load(io.BytesIO(base64.b64decode(text))), axis=-1))
    return experts


def _differing(traces: list[Path]) -> list[float]:
    """Return the share of tokens with another set of experts, layer by layer."""
    table = AnalyzeTrace(traces=traces).ask().table
    rows = table[(table["metric"] == "choice_differs") & (table["tokens"] == "token")]
    return [float(value) for value in rows["value"]]


def _plain_differing(pair: list[Path]) -> list[float]:
    first, second = (np.concatenate(_read(path)) for path in pair)
    shares: list[float] = (first != second).any(-1).mean(0).tolist()
    return shares


def _reuse(trace: Path) -> list[float]:
    """Return by layer the reuse by the next token, what an LRU cache finds, and the distinct experts of a window."""
    reuse, batches = Locality(traces=[trace]).ask().table, TraceBatches(traces=[trace]).ask().table
    values = []
    for table, metric, severity in (
        (reuse, "next_token_reuse", None),
        (reuse, "cache_hit_lru", _PLACES),
        (batches, "distinct_experts", _WINDOW),
    ):
        rows = table[(table["metric"] == metric) & (table["tokens"] == "token") & (table["layer"] != "")]
        rows = rows if severity is None else rows[rows["severity"] == severity]
        values += [float(value) for value in rows["value"]]
    return values


def _looped_reuse(responses: Path) -> list[float]:
    """Return the same, request by request and token by token."""
    requests = _read(responses)
    layers = range(requests[0].shape[1])
    counts = np.zeros((NUM_FOLDS, len(layers), _EXPERTS), np.int64)
    for number, experts in enumerate(requests):
        for layer in layers:
            counts[number % NUM_FOLDS, layer] += np.bincount(experts[:, layer].ravel(), minlength=_EXPERTS)
    busy = (counts - counts.sum(0)).argsort(-1, kind="stable")
    reused, hits, distinct = (np.zeros(len(layers)) for _ in range(3))
    for number, experts in enumerate(requests):
        for layer in layers:
            tokens = experts[:, layer].tolist()
            hottest = busy[number % NUM_FOLDS, layer].tolist()
            reused[layer] += sum(len({*one} & {*after}) for one, after in itertools.pairwise(tokens))
            hits[layer] += _hits_of_lru(tokens, hottest)
            distinct[layer] += _distinct_of_windows(tokens)
    lengths = np.array([len(experts) for experts in requests])
    pairs, windows = (lengths - 1).sum(), (lengths - _WINDOW + 1).sum()
    parts = reused / (pairs * _TOP_K), hits / (lengths.sum() * _TOP_K), distinct / windows
    return [float(value) for part in parts for value in part]


def _hits_of_lru(tokens: list[list[int]], hottest: list[int]) -> int:
    """Return how many choices are found in a cache of the experts that were used last, or else are busy elsewhere."""
    rank = {expert: number for number, expert in enumerate(hottest)}
    cache, hits = OrderedDict.fromkeys(reversed(hottest[:_PLACES])), 0
    for token in tokens:
        hits += sum(expert in cache for expert in token)
        for expert in sorted(token, key=rank.__getitem__, reverse=True):
            cache[expert] = None
            cache.move_to_end(expert)
        while len(cache) > _PLACES:
            cache.popitem(last=False)
    return hits


def _distinct_of_windows(tokens: list[list[int]]) -> int:
    """Return the distinct experts of all windows, added up."""
    counts, total = [0] * _EXPERTS, 0
    for end, token in enumerate(tokens):
        for expert in token:
            counts[expert] += 1
        if end >= _WINDOW:
            for expert in tokens[end - _WINDOW]:
                counts[expert] -= 1
        if end >= _WINDOW - 1:
            total += _EXPERTS - counts.count(0)
    return total
