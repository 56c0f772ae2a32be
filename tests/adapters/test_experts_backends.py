"""Traces say which experts work on which tokens, whatever code runs them: eager, ``batched_mm`` or ``grouped_mm``.

What a token's experts are is found without reading any number of an expert: the weights of one expert are changed, and
the tokens whose output of the experts changes are those that it works on.
"""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from moeprobe.adapters.huggingface import HuggingfaceAdapter
from moeprobe.inputs.texts import TokenBatch

pytest.importorskip("transformers")

from tests.adapters.families import small

# Those of ``transformers`` that run on a CPU; the others are kernels of GPUs (deepgemm, sonicmoe).
BACKENDS = ("eager", "batched_mm", "grouped_mm")
FAMILIES = (
    "deepseek_v2", "deepseek_v3", "dots1", "ernie4_5_moe", "flex_olmo", "glm4_moe", "gpt_oss", "granitemoe",
    "hunyuan_v1_moe", "jamba", "minimax", "mixtral", "olmoe", "phimoe", "qwen2_moe", "qwen3_moe",
    "glm4v_moe", "granitemoehybrid", "lfm2_moe", "mistral4",
)  # fmt: skip
# Families with code of their own for experts, so that there is no other backend.
ONE_WAY = ("dbrx", "jetmoe", "llama4", "switch_transformers")


def batch() -> TokenBatch:
    ids = torch.randint(3, 48, (2, 9), generator=torch.Generator().manual_seed(0))
    whole = torch.ones_like(ids, dtype=torch.bool)
    return TokenBatch(ids, whole, whole, 0)


Call = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]


def calls(model: HuggingfaceAdapter, texts: TokenBatch) -> dict[str, Call]:
    """What the experts of each layer are called with in a pass of the library's model."""
    seen: dict[str, Call] = {}

    def keep(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            seen[name] = module, args, kwargs

        return hook

    handles = []
    for name, layer in model._layers.items():
        assert layer.experts is not None, name
        handles.append(layer.experts.register_forward_pre_hook(keep(name), with_kwargs=True))
    with torch.inference_mode():
        model._body(input_ids=texts.ids, attention_mask=texts.present.long())
    for handle in handles:
        handle.remove()
    return seen


def working(experts: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], count: int) -> list[set[int]]:
    """Which experts each token's output depends on."""

    def output() -> Tensor:
        found = experts(*args, **kwargs)
        return (found[0] if isinstance(found, tuple) else found).reshape(-1, args[0].shape[-1])

    before = output()
    found: list[set[int]] = [set() for _ in before]
    for expert in range(count):
        stacked = [value for value in experts.parameters() if value.ndim >= 2 and len(value) == count]
        own = [value[expert] for value in stacked] or [*experts[expert].parameters()]  # type: ignore[index]
        kept = [value.clone() for value in own]
        for value in own:
            value.mul_(1.5)
        for token in torch.nonzero((output() - before).abs().amax(-1) > 0).flatten().tolist():
            found[token].add(expert)
        for value, old in zip(own, kept, strict=True):
            value.copy_(old)
    torch.testing.assert_close(output(), before, rtol=0, atol=0)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_traces_are_right_with_each_backend(family: str, backend: str) -> None:
    model = small(family)
    model.set_experts_implementation(backend)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "experts" in name:
                value.normal_(0, 0.5)
    adapter, texts = HuggingfaceAdapter(model), batch()
    seen = calls(adapter, texts)
    _, routing = adapter.trace(texts, logits=False)
    assert seen.keys() == routing.layers.keys()
    for name, layer in routing.layers.items():
        module, args, kwargs = seen[name]
        assert module.config._experts_implementation == backend  # type: ignore[union-attr]
        with torch.inference_mode():
            found = working(module, args, kwargs, layer.num_experts)
        chosen = layer.selected.flatten(0, 1).tolist()
        assert found == [{expert for expert in one if expert >= 0} for one in chosen], name


@pytest.mark.slow
@pytest.mark.parametrize("family", ONE_WAY)
def test_these_have_no_other_backend(family: str) -> None:
    assert not HuggingfaceAdapter(small(family)).model._can_set_experts_implementation()
