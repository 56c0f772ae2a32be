"""Open models in one of several processes, spread over all of them and whole, and compare their routing.

``python -m tests.adapters.spread_ranks SHARE FOLDER...``, with the variables that torchrun sets; the first process
prints a line of JSON for each folder: the largest differences of gates and scores, how many tokens have other experts,
and how many numbers of the parameters this process holds of how many.
"""

import json
import sys

import torch

from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.adapters.huggingface.shared_passes import follow, leading
from moeprobe.adapters.open import load_model
from moeprobe.errors import UserError
from moeprobe.inputs.texts import TokenBatch
from moeprobe.routing.record import RoutingTrace
from moeprobe.runtime import distributed
from moeprobe.runtime.spread import ModelGroup, sharing_models
from tests.adapters.family_table import batch


def held(model: HuggingfaceAdapter) -> int:
    """How many numbers of the parameters this process has in memory."""
    parts = [getattr(value, "_local_tensor", value) for value in model.model.parameters()]
    return sum(part.numel() for part in parts)


def compare(folder: str, texts: TokenBatch, group: ModelGroup) -> dict[str, object] | str | None:
    """What differs, or why the model is refused, from the first process; None from the others."""
    try:
        with sharing_models(group):
            checkpoint = load_model(f"hf:{folder}")
    except UserError as error:
        return f"{error}"
    model = checkpoint.model
    assert isinstance(model, HuggingfaceAdapter)
    if group.leaders is None:
        follow([checkpoint], group.members)
        return None
    whole = load_model(f"hf:{folder}").model
    assert isinstance(whole, HuggingfaceAdapter)
    scores, routing = whole.trace(texts)
    with leading([checkpoint], group.members):
        spread_scores, spread_routing = model.trace(texts)
        log_probs = model.log_probabilities(texts)
        hidden = model.text_trunks(texts)
        name = model.layer_names[-1]
        # The choices of one pass repeated in another, taken up at a layer.
        last = RoutingTrace({name: routing.layers[name]})
        resumed = model.resumed_log_probabilities(name, hidden[name], texts, last)
    gates, changed = 0.0, 0
    for name, layer in routing.layers.items():
        other = spread_routing.layers[name]
        gates = max(gates, float((layer.gates - other.gates).abs().max()))
        changed += int((~layer.selects_the_same(other)).sum())
    assert scores is not None and spread_scores is not None
    expected = whole.log_probabilities(texts)
    return {
        "gates": gates,
        "changed": changed,
        "scores": float((scores - spread_scores).abs().max()),
        "log_probs": float((expected - log_probs).abs().nan_to_num().max()),
        "resumed": float((expected - resumed).abs().nan_to_num().max()),
        "held": held(model),
        "numbers": held(whole),
        "parameters": model.describe()["parameters"],
        "checks": list(map(str, model.expert_checks)),
    }


def main(share: str, folders: list[str]) -> None:
    """Print the differences of each model, or why it is refused."""
    with distributed.together() as ranks:
        group = ModelGroup.of(ranks, share)
        assert group is not None
        for folder in folders:
            found = compare(folder, batch(), group)
            if group.leaders is not None:
                print(json.dumps(found), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with distributed.ending():
        main(sys.argv[1], sys.argv[2:])
