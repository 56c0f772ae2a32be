"""How much memory a text takes, by its length: whole and in chunks, with its routing alone and with log-probabilities.

    python -m benchmarks.long_inputs [LENGTH...]

Each cell is a process of its own, whose highest resident memory is read from ``/proc/self/status`` (Linux). The model
is an OLMoE of four layers with random weights; the first row is the process with the model and without a text.
"""

import multiprocessing
import sys
import tempfile
from pathlib import Path

import torch

from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.adapters.open import load_model
from moeprobe.inputs.texts import TokenBatch
from moeprobe.runtime.torchvision_compat import import_with_operators

LENGTHS = (512, 2048, 8192, 32768)
CHUNK = 2048
# What a process does with the text.
ROUTING, PROBABILITIES = "routing", "log-probabilities"
_SIZES = {
    "vocab_size": 16384,
    "hidden_size": 128,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "max_position_embeddings": max(LENGTHS),
    "eos_token_id": 2,
}


def save_model(folder: Path) -> None:
    """Write the model into a folder."""
    import_with_operators("torchvision")
    from transformers import OlmoeConfig, OlmoeForCausalLM

    torch.manual_seed(0)
    OlmoeForCausalLM(OlmoeConfig(**_SIZES)).save_pretrained(folder)


def highest_memory() -> int:
    """Return the bytes of the highest resident memory of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def run_text(model: HuggingfaceAdapter, length: int, chunk: int, doing: str) -> int:
    """Run one text, none where its length is 0; returns the highest memory meanwhile."""
    if chunk:
        model.read_in_chunks(chunk)
    if length:
        ids = torch.randint(3, _SIZES["vocab_size"], (1, length), generator=torch.Generator().manual_seed(0))
        present = torch.ones_like(ids, dtype=torch.bool)
        texts = TokenBatch(ids, present, present, 0)
        if doing == ROUTING:
            model.trace(texts, logits=False)
        else:
            model.log_probabilities(texts)
    return highest_memory()


def main(lengths: list[int]) -> None:
    """Print a table: a row for each length, a column for each way of reading it."""
    # Threads of OpenMP do not outlive a fork.
    torch.set_num_threads(1)
    columns = [(doing, chunk) for doing in (ROUTING, PROBABILITIES) for chunk in (0, CHUNK)]
    print(
        "tokens",
        *[f"{doing}, {f'chunks of {chunk}' if chunk else 'whole'}" for doing, chunk in columns],
        sep=" | ",
    )
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder))
        model = load_model(f"hf:{folder}").model
    assert isinstance(model, HuggingfaceAdapter)
    context = multiprocessing.get_context("fork")
    for length in (0, *lengths):
        cells = []
        for doing, chunk in columns:
            # A process of its own, which begins with the memory of this one.
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=lambda: sender.send(run_text(model, length, chunk, doing)))  # noqa: B023
            process.start()
            cells.append(receiver.recv())
            process.join()
        print(f"{length:,}", *[f"{size / 2**20:,.0f} MiB" for size in cells], sep=" | ", flush=True)


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]] or list(LENGTHS))
