"""What programs call layers, experts, counts and steps in files of counts, and the numbers in their names."""

import re

LAYERS = ("layer", "layer_id", "layer_idx", "layer_index", "layer_number", "moe_layer", "moe_layer_id")  # fmt: skip
EXPERTS = (
    "expert", "expert_id", "expert_idx", "expert_index", "expert_number", "logical_expert", "logical_expert_id",
)  # fmt: skip
# Under these keys stands the count of one expert, or a list with all experts of a layer.
COUNTS = (
    "count", "counts", "tokens", "num_tokens", "n_tokens", "token_count", "token_counts", "tokens_per_expert", "hits",
    "hit_count", "load", "expert_load", "expert_count", "expert_counts", "selections", "activations",
    "activation_count", "frequency", "freq",
)  # fmt: skip
STEPS = ("step", "iter", "iteration", "window", "pass", "forward_pass", "forward_pass_id")
RANKS = ("rank", "ep_rank", "dp_rank")

_LAYER = re.compile(
    r"\s*(?:[A-Za-z_.]*?(?:layers?|blocks?|blk)[._ -]?)?(\d{1,9})(?:\.0|[._][A-Za-z_.]+)?\s*\Z"
)
_EXPERT = re.compile(r"\s*(?:(?:experts?|exp|e)[._ -]?)?(\d{1,9})(?:\.0)?\s*\Z", re.IGNORECASE)


def plain(name: object) -> str:
    """Return a column's or a key's name as the lists above have it: "Layer ID" is "layer_id"."""
    return re.sub(r"[\s.-]+", "_", str(name).strip().lower())


def layer_number(name: object) -> int | None:
    """Return the number in "3", "layer_3", "model.layers.3.mlp" or "blk.3"; None for other names."""
    match = _LAYER.match(str(name))
    return None if match is None else int(match[1])


def expert_number(name: object) -> int | None:
    """Return the number in "5", "expert_5" or "e5"; None for other names."""
    match = _EXPERT.match(str(name))
    return None if match is None else int(match[1])


def step_name(column: str, value: object) -> str:
    """Return how the window of a step is called, e.g. "step3"; a step that is a text keeps it."""
    text = str(value)
    return f"{column}{text}" if re.fullmatch(r"-?\d+(\.\d+)?", text) else text
