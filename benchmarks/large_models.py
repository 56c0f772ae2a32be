"""How much memory and time does a sweep of large language models take, against their weights and bare passes?

    python -m benchmarks.large_models /tmp/large --layers 4

Writes two models of the shape of OLMoE-1B-7B with few layers and random weights in float32 (7.3 GB each with four
layers), runs each case in a process of its own, and removes the models. Linux says what a process has had in memory:
all of it, with the pages of files that are mapped, and its own pages alone, which are looked at ten times a second.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

NAMES = ("one", "two")
CASES = ("bare passes", "one model", "two models")
_TEXT = "the quick brown fox jumps over a lazy dog while seven large ships sail to small harbours at noon"
_WORDS = tuple(_TEXT.split())
_SEVERITIES = (0.0, 0.1, 0.5)


def make(folder: Path, *, texts: int, words: int, **sizes: int) -> None:
    """Write two models with a tokenizer of whole words, and texts; ``sizes`` are of their configuration."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import OlmoeConfig, OlmoeForCausalLM, PreTrainedTokenizerFast

    folder.mkdir(parents=True)
    vocabulary = {word: number for number, word in enumerate(["<unk>", "<pad>", *_WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>")
    for seed, name in enumerate(NAMES):
        torch.manual_seed(seed)
        model = OlmoeForCausalLM(OlmoeConfig(**({"intermediate_size": 1024} | sizes)))
        model.save_pretrained(folder / name, max_shard_size="1GB")
        fast.save_pretrained(folder / name)
        del model
    lines = [
        " ".join(_WORDS[(7 * number + 3 * place * place + place) % len(_WORDS)] for place in range(words))
        for number in range(texts)
    ]
    (folder / "lines.txt").write_text("\n".join(lines), encoding="utf-8")


class _OwnPages(threading.Thread):
    """Watches how many bytes of memory a process has beside mapped files; the most is ``peak``."""

    peak = 0

    def run(self) -> None:
        """Look until the process ends."""
        while True:
            self.peak = max(self.peak, _memory("RssAnon"))
            time.sleep(0.1)


def _memory(name: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def run_case(folder: Path, case: str) -> dict[str, Any]:
    """Run a case in this process; returns its seconds, and the most memory that the process has had."""
    pages = _OwnPages(daemon=True)
    pages.start()
    begun = time.perf_counter()
    weights = _bare_passes(folder) if case == "bare passes" else _sweep(folder, case)
    seconds = time.perf_counter() - begun
    measured = {"seconds": seconds, "cpu": time.process_time(), "peak": _memory("VmHWM"), "own": pages.peak}
    return {"case": case} | measured | weights


def _bare_passes(folder: Path) -> dict[str, Any]:
    """Read a model once and run the texts as often as the sweep does, without moeprobe."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "one")
    model = AutoModelForCausalLM.from_pretrained(folder / "one").eval()
    lines = (folder / "lines.txt").read_text(encoding="utf-8").splitlines()
    inputs = tokenizer(lines, return_tensors="pt", padding=True)
    inputs.pop("token_type_ids", None)
    with torch.inference_mode():
        # The clean pass, each severity above 0, and three of the noise floor.
        for _ in range(len(_SEVERITIES) + 3):
            model(**inputs, logits_to_keep=1)
    return {"weights": sum(parameter.nbytes for parameter in model.parameters())}


def _sweep(folder: Path, case: str) -> dict[str, Any]:
    from moeprobe import api

    names = NAMES if case == "two models" else NAMES[:1]
    api.sweep(
        [f"hf:{folder / name}" for name in names],
        data=f"text:{folder / 'lines.txt'}",
        view="embedding_noise",
        severities=_SEVERITIES,
        figures=False,
    )
    return {}


def measure(folder: Path, cases: tuple[str, ...] = CASES) -> list[dict[str, Any]]:
    """Run each case in a process of its own."""
    results = []
    for case in cases:
        command = [sys.executable, "-m", "benchmarks.large_models", str(folder), "--case", case]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise RuntimeError(f"{case}: {ended.stderr}")
        results.append(json.loads(ended.stdout.splitlines()[-1]))
        print(results[-1], "load average", os.getloadavg()[0], flush=True)
    return results


def main() -> None:
    """Make the models, measure, print the table, and remove the models."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="where the models are written; it must not exist")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--texts", type=int, default=24)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--case", choices=CASES, help=argparse.SUPPRESS)
    typed = parser.parse_args()
    # transformers needs torchvision's operators, which a build for another torch lacks.
    from moeprobe.runtime.torchvision_compat import import_with_operators

    import_with_operators("torchvision")
    if typed.case is not None:
        print(json.dumps(run_case(typed.folder, typed.case)))
        return
    try:
        make(typed.folder, texts=typed.texts, words=typed.words, num_hidden_layers=typed.layers)
        results = measure(typed.folder)
    finally:
        shutil.rmtree(typed.folder, ignore_errors=True)
    weights = results[0]["weights"]
    print(f"weights of a model: {weights / 1e9:.2f} GB")
    for result in results:
        peak, own = result["peak"] / weights, result["own"] / weights
        times = f"{result['seconds']:7.0f} s, {result['cpu']:7.0f} s of CPU"
        print(f"{result['case']:12} {times}, peak {peak:.2f} x weights, without mapped files {own:.2f} x")


if __name__ == "__main__":
    main()
