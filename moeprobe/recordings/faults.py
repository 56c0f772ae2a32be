"""What a fault of capture is called, and what it is known as; and generated tokens that all carry one choice.

Such a choice is of a buffer that a server's CUDA graph does not write again. The prompt is the yardstick. A router that
sends all tokens the same way does so in the prompt too, and text that repeats one token is left out where token ids are
known.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Finding:
    """Something that is wrong, or missing.

    Attributes:
        name: what it is called.
        count: how many cases the sentence covers.
        sentence: the finding, and its usual name.
        fault: whether numbers would be about the capture, and not about routers.
        empty: whether nothing was captured at all.
    """

    name: str
    count: int
    sentence: str
    fault: bool = True
    empty: bool = False

    @property
    def line(self) -> str:
        """The finding as it is printed."""
        return f"{'Fault' if self.fault else 'Note'}, {self.name}: {self.sentence}"


_EMPTY = {
    "all unset": "No token has an expert: known as an all -1 capture, of a buffer that no layer wrote; look at the "
    "server's setting for routed experts.",
    "all zero": "Every expert is 0: known as an all-zero capture, of kernels that choose experts themselves and leave "
    "the buffer empty (monolithic, fused); serve with another kernel.",
    "255 fill": "Every expert is 255: known as a 255 fill, of a buffer of 8 bits that no layer wrote; look at the "
    "server's setting for routed experts.",
}
# Single choices that no router makes.
OF_CHOICES = {
    "255 fill": "are 255 for every choice: known as a 255 fill, of rows that no layer wrote",
    "duplicate expert": "have an expert twice, which no router chooses: known as a duplicate expert, of buffers that "
    "were written in part, or of axes in another order",
    "expert out of range": "have an expert that the layer does not have: known as physical ids of replicated experts, "
    "fused shared experts, or another model's number of experts",
}
# Tokens that are missing: what is said after how many inputs, and whether it is a fault.
OF_INPUTS = {
    "rows missing": ("inputs have more tokens in one layer than in another: known as rows missing", True),
    "inputs zero": ("inputs are 0 in all layers for every token: known as an all-zero capture", True),
    "prompt rows zero": (
        "inputs begin with rows of zeros in all layers: known as prompt rows zero, of servers that capture generated "
        "tokens only",
        True,
    ),
    "leading rows zero": (
        "inputs begin with rows of zeros in all layers: known of rows from the prefix cache, filled with zeros",
        True,
    ),
    "rows zero": ("tokens are 0 for every choice: known as rows that were not captured", True),
    "prompt rows unset": (
        "inputs have no expert for any token of the prompt: known of the prefix cache, and of servers that capture "
        "generated tokens only",
        False,
    ),
    "leading rows unset": (
        "inputs begin with tokens without an expert in any layer: known as rows from the prefix cache, or cut off by a "
        "start",
        False,
    ),
    "rows unset": (
        "inputs have tokens without an expert later on: known as rows missing, or padding",
        False,
    ),
}


def nothing(name: str, count: int) -> Finding:
    """Return that nothing was captured."""
    return Finding(name, count, _EMPTY[name], empty=True)


def zero_layers(names: list[str], *, sure: bool) -> Finding:
    """Return that layers are zero for all tokens; ``sure``: no router can choose that."""
    suffix = "" if sure else ", or as a router that has collapsed"
    sentence = (
        f"{first_names(names)} {_is(names)} 0 for all tokens: known as a dense layer that was filled with zeros, so as "
        f"layers shifted by one{suffix}."
    )
    return Finding("dense layer zero-filled", len(names), sentence, fault=sure)


def constant_layers(names: list[str]) -> Finding:
    """Return that layers are the same for all tokens."""
    sentence = (
        f"{first_names(names)} {_is(names)} the same for all tokens: a router that has collapsed, or a buffer that was "
        "written once."
    )
    return Finding("constant layer", len(names), sentence, fault=False)


def layers_alike(names: list[str]) -> Finding:
    """Return that layers hold the same choices."""
    sentence = (
        f"{first_names(names)} hold the same choices for all tokens: known of servers that keep several layers in one "
        "buffer (hybrid caches)."
    )
    return Finding("layers alike", len(names), sentence)


def frozen(count: int, tokens: int, inputs: tuple[int, int], prompts: tuple[int, int]) -> Finding:
    """Return that generated tokens all carry one choice.

    Args:
        count: generated tokens after the first of their input that repeat its choice in all layers.
        tokens: all generated tokens after the first.
        inputs: how many inputs are so, and how many there are.
        prompts: tokens of prompts after the first that repeat its choice, and how many there are.
    """
    sentence = (
        f"In {inputs[0]:,} of {inputs[1]:,} inputs all generated tokens carry one and the same choice in every layer: "
        f"{count:,} of {tokens:,} tokens repeat the first one's. In the prompts {prompts[0]:,} of {prompts[1]:,} do. "
        "Known of CUDA graphs, which replay without writing the buffer again (sglang#12162); serve without them."
    )
    return Finding("generated tokens frozen", count, sentence)


def _is(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"


def first_names(names: list[str]) -> str:
    """Return the first few names."""
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more layers" if len(names) > 4 else "")


@dataclass
class _Repeats:
    """Tokens of an input after the first one, and how many repeat its choice: the fewest over the layers."""

    tokens: int = 2**31
    same: int = 2**31

    def add(self, tokens: int, same: int) -> None:
        """Count the tokens of a layer."""
        self.tokens, self.same = min(self.tokens, tokens), min(self.same, same)

    @property
    def is_counted(self) -> bool:
        """Whether any layer has two tokens."""
        return 0 < self.tokens < 2**31


class FrozenChoices:
    """A count of repeated choices in prompts and in generated tokens, over all inputs."""

    def __init__(self) -> None:
        self._prompts: dict[str, _Repeats] = defaultdict(_Repeats)
        self._generated: dict[str, _Repeats] = defaultdict(_Repeats)

    def add(
        self,
        identities: Sequence[str],
        sets: NDArray[np.integer],
        starts: NDArray[np.int64],
        *,
        prompts: NDArray[np.bool_],
        generated: NDArray[np.bool_],
    ) -> None:
        """Count rows, each of which is a layer of an input.

        Args:
            identities: of the inputs, one for each row.
            sets: ``(N, K)`` experts in order of all rows' tokens.
            starts: where rows begin, and N.
            prompts: ``(N,)`` which tokens of prompts count.
            generated: ``(N,)`` which generated ones.
        """
        for which, repeats_of in ((prompts, self._prompts), (generated, self._generated)):
            if not which.any():
                continue
            tokens, same = _count_repeats(sets, starts, which)
            for identity, row_tokens, row_same in zip(
                identities, tokens.tolist(), same.tolist(), strict=True
            ):
                if row_tokens >= 0:
                    repeats_of[identity].add(row_tokens, row_same)

    def findings(self) -> list[Finding]:
        """Return the fault, if that many repeated choices are no chance."""
        prompts = [repeats for repeats in self._prompts.values() if repeats.is_counted]
        inputs = [repeats for repeats in self._generated.values() if repeats.is_counted]
        frozen_inputs = [repeats for repeats in inputs if repeats.same == repeats.tokens]
        repeated, prompt_tokens = (
            sum(repeats.same for repeats in prompts),
            sum(repeats.tokens for repeats in prompts),
        )
        count = sum(repeats.tokens for repeats in frozen_inputs)
        bits = -count * math.log2((repeated + 1) / (prompt_tokens + 2))
        if bits < BITS or 2 * len(frozen_inputs) < len(inputs):
            return []
        tokens = sum(repeats.tokens for repeats in inputs)
        return [frozen(count, tokens, (len(frozen_inputs), len(inputs)), (repeated, prompt_tokens))]


def _count_repeats(
    sets: NDArray[np.integer], starts: NDArray[np.int64], which: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the tokens of each row after the first one, -1 where there is none, and how many repeat its choice."""
    index = np.flatnonzero(which)
    bounds = np.searchsorted(index, starts)
    number = np.diff(bounds)
    first = np.repeat(index[bounds[:-1][number > 0]], number[number > 0])
    # Few tokens have the first one's first expert, so the other experts are hardly compared.
    for column in range(sets.shape[1]):
        same = sets[index, column] == sets[first, column]
        index, first = index[same], first[same]
    return number - 1, np.diff(np.searchsorted(index, starts)) - 1


# How improbable it is that routers, and not an empty buffer, make choices that are all zero.

# Zeros that chance makes less often than once in a million are no routing: 2 ** -20.
BITS = 20


def bits_of_zeros(tokens: int, layers: int, top_k: int, num_experts: int) -> float:
    """Return how improbable it is that chance makes tokens zero in so many layers: 2 to the minus this."""
    if top_k > 1:  # one expert twice
        return math.inf if tokens else 0
    return tokens * layers * math.log2(num_experts)
