"""What a fault of capture is called, and what it is known as."""

from dataclasses import dataclass


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
