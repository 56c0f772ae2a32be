"""In which number format each part of a stored model is: routers, experts, attention and the rest, from names alone."""

import re
from collections import defaultdict

PARTS = ("routers", "experts", "shared experts", "attention", "embeddings", "head", "other")
# Names of modules of transformers and of llama.cpp; the first that matches decides.
_PATTERNS = (
    ("shared experts", r".*(shared|shexp).*"),
    ("experts", r"ffn_(gate|up|down|gate_up)_exps|experts?|local_experts|(input|output)_linear"),
    ("routers", r"ffn_gate_inp|exp_probs_b|(.*_)?router|gate|wg|gate_wg"),
    ("attention", r"attn_\w+|(.*_)?(attn|attention)"),
    ("embeddings", r"token_embd|embed_tokens|wte|word_embeddings|tok_embeddings|embed_in"),
    ("head", r"output|lm_head|score|embed_out"),
)


def part_of(name: str) -> str:
    """Return the part of ``PARTS`` that a tensor named like ``model.layers.3.mlp.gate.weight`` is of."""
    # Without the parameter's own name.
    modules = name.split(".")[:-1] or [name]
    for part, pattern in _PATTERNS:
        if any(re.fullmatch(pattern, module) for module in modules):
            return part
    return "other"


class PartTypes:
    """Number formats of each part, and how many numbers each has."""

    def __init__(self) -> None:
        self._counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))

    def add(self, part: str, name: str, count: int) -> None:
        """Count the numbers of a tensor."""
        self._counts[part][name] += count

    def plain(self) -> dict[str, str]:
        """Return the formats of each part, the most frequent first, e.g. ``{"experts": "Q4_K, Q6_K"}``."""
        return {
            part: ", ".join(sorted(self._counts[part], key=lambda name: (-self._counts[part][name], name)))
            for part in PARTS
            if part in self._counts
        }
