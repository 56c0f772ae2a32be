"""What recorded routing takes: import of responses, and agreement of two traces, against plain NumPy.

NumPy reads, sorts and compares the same arrays. It checks nothing, writes no trace, and gives no chance or interval.
"""

import base64
import io
import json
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.race import Contestant, Race
from moeprobe.recorded.analyze_trace import AnalyzeTrace
from moeprobe.recordings.import_experts import import_routed_experts

_EXPERTS, _TOP_K = 128, 8
# Tokens of a request, and the share of tokens that choose another expert the second time.
_LENGTH, _CHANGED = 400, 0.1
OURS_IMPORT, OURS_PAIR, PLAIN = "moeprobe trace import", "moeprobe trace analyze", "json, base64 and NumPy"


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
