"""Which parts of a model can be quantized without changing the routing?

    python -m reports.scripts.regenerate_precision [digits] [olmoe]

Rounds the weights of routers, experts, attention and the rest of two committed digits checkpoints, one part
at a time and all together, and those of a small OLMoE with random weights, which is made on the spot. Writes
``reports/precision/NAME.csv``, ``NAME.png`` and ``tables.md``. Some minutes.
"""

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

import moeprobe.models.timm  # noqa: F401  # before transformers: it does without a torchvision that does not fit
from moeprobe import api
from moeprobe.probes.precision import FORMATS, by_part
from moeprobe.results.folder import Result
from moeprobe.runtime.files import write_csv, write_text
from reports.scripts.more_tables import choices

OUT, CHECKPOINTS = Path("reports/precision"), Path("checkpoints/reference")
DIGITS = ["digits-baseline-k2-seed0", "digits-prc-k2-seed0"]
TEXTS, LINES = Path("LICENSE"), 40
# What is kept of each table: of tokens that are no prefix, and of the output.
_COLUMNS = [
    "checkpoint",
    "part",
    "format",
    "layer",
    "metric",
    "value",
    "ci_low",
    "ci_high",
    "images",
    "trials",
]
_OUTPUT = ("accuracy", "prediction_agreement", "log_probability", "log_probability_gap", "k3_divergence")


def main(names: list[str]) -> None:
    """Measure and write, one kind of model after the other; then all tables."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    for name in names:
        result = digits() if name == "digits" else olmoe()
        write_csv(OUT / f"{name}.csv", numbers(result))
        result.plot()["precision"].savefig(OUT / f"{name}.png", dpi=150)
    files = sorted(OUT.glob("*.csv"))
    write_text(OUT / "tables.md", tables({path.stem: pd.read_csv(path) for path in files}))


def digits(*, limit: int | None = None, checkpoints: list[str] = DIGITS) -> Result:
    """Return the numbers of the committed checkpoints."""
    return api.precision([CHECKPOINTS / name for name in checkpoints], data="digits", limit=limit)


def olmoe(*, limit: int | None = None) -> Result:
    """Return the numbers of a small language model with random weights, on the lines of the license."""
    with tempfile.TemporaryDirectory() as folder:
        model = made(Path(folder) / "olmoe-random")
        lines = Path(folder) / "lines.txt"
        lines.write_text("\n".join(license_lines()), encoding="utf-8")
        with contextlib.chdir(folder):  # tables and the figure call the texts by their path
            return api.precision(f"hf:{model.name}", data=f"text:{lines.name}", limit=limit)


def license_lines() -> list[str]:
    """Return the first long lines of the license: texts that are there on every machine."""
    texts = [line for line in TEXTS.read_text(encoding="utf-8").splitlines() if len(line) > 40]
    return [*dict.fromkeys(texts)][:LINES]


def made(folder: Path, *, words_of: Sequence[str] = ()) -> Path:
    """Write an OLMoE of two layers, 8 experts and 2 of them per token, with random weights.

    Its tokenizer makes tokens of bytes, or of the frequent words of some texts.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import OlmoeConfig, OlmoeForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {"<pad>": 0, "<s>": 1, "</s>": 2} | {one: place + 3 for place, one in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if words_of:
        special = ["<pad>", "<s>", "</s>"]
        trainer = trainers.BpeTrainer(
            vocab_size=4_000, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(words_of, trainer)
    torch.manual_seed(0)
    config = OlmoeConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=128, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_experts=8, num_experts_per_tok=2, max_position_embeddings=256, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, initializer_range=0.1,
    )  # fmt: skip
    OlmoeForCausalLM(config).save_pretrained(folder)
    marks = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **marks).save_pretrained(folder)
    return folder


def numbers(result: Result) -> pd.DataFrame:
    """Return a row per checkpoint, part, format, layer and number: tokens that choose otherwise, κ, and the output."""
    table = result.table[result.table["draw"].isna()]
    flips = by_part(table)
    metric = flips["metric"].iloc[0]
    named = table["view"].str.split(" ", n=1)
    table = table.assign(part=named.str[0], format=named.str[1])
    kappas = table[table["metric"].eq(f"{metric}_kappa") & table["null"].eq("pooled")]
    kappas = kappas[kappas["tokens"].isin(["patch", "token"])]
    output = table[table["metric"].isin(_OUTPUT)]
    kept = pd.concat([flips.assign(metric="chooses_otherwise"), kappas, output])
    order = {name: place for place, name in enumerate(FORMATS)}
    kept = kept.assign(place=kept["format"].map(order))
    kept = kept.sort_values(
        ["checkpoint", "place", "part", "layer", "metric"], kind="stable", na_position="first"
    )
    return kept[_COLUMNS]


def tables(found: dict[str, pd.DataFrame]) -> str:
    """Return what the page shows: shares of tokens that choose otherwise in the last MoE layer."""
    parts = []
    for name, table in found.items():
        parts.append("\n".join([f"## {name}", "", *choices(table)]))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main(sys.argv[1:] or ["digits", "olmoe"])
