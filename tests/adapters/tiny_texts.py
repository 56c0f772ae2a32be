"""A language model of Hugging Face's library, so small that it is made on the spot, with its tokenizer and texts."""

from pathlib import Path
from typing import Any

import torch

SENTENCE = (
    "the quick brown fox jumps over a lazy dog while seven large ships sail to the small harbour of Łódź "
    "and nobody knows why eighteen old clocks strike at noon when it rains on green hills"
)
WORDS = SENTENCE.split()


def texts(count: int = 24) -> list[str]:
    """Sentences of 4 to 11 words, all different."""
    return [
        " ".join(
            WORDS[(3 * number + 5 * place + place * place) % len(WORDS)] for place in range(4 + number % 8)
        )
        + f" {number}."
        for number in range(count)
    ]


def tokenizer(*, eos: bool = False, size: int = 320) -> Any:
    """A byte-level BPE that puts <s> in front, and </s> behind if asked."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(texts(64), trainer)
    made.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(
                single="<s> $A </s>" if eos else "<s> $A", special_tokens=[("<s>", 1), ("</s>", 2)]
            ),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="<pad>", bos_token="<s>", eos_token="</s>"
    )


def olmoe(folder: Path, *, seed: int = 0, spread: float = 1.0, **changes: Any) -> Path:
    """Write an OLMoE of two layers; ``spread`` is the standard deviation of its routers' weights."""
    from transformers import OlmoeConfig, OlmoeForCausalLM

    sizes = {
        "vocab_size": 320,
        "hidden_size": 32,
        "intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_experts": 8,
        "num_experts_per_tok": 2,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    torch.manual_seed(seed)
    model = OlmoeForCausalLM(OlmoeConfig(**(sizes | changes)))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.normal_(0, spread)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def like_olmoe(folder: Path, family: str, *, seed: int = 0, **changes: Any) -> Path:
    """Write a model of the sizes of ``olmoe`` of another family: "qwen3_moe" or "mixtral"."""
    import transformers

    config = transformers.CONFIG_MAPPING[family](
        vocab_size=320,
        hidden_size=32,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **{"num_experts": 8, "moe_intermediate_size": 16}
        if family == "qwen3_moe"
        else {"num_local_experts": 8},
        **changes,
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.normal_(0, 1)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder
