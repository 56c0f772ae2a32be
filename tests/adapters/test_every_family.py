"""Every family of the installed transformers: what the page of the reference says is what happens.

The tries are in ``family_table``, whose oracle changes experts by itself. A few kinds run with every test.
"""

import dataclasses
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")

from moeprobe.adapters.huggingface import HuggingfaceAdapter, expert_check
from moeprobe.errors import UserError
from moeprobe.routing.record import RoutingTrace
from tests.adapters import families, family_table
from tests.adapters.family_table import PAGE, choice_is_right, replay_is_right

# One of each way in which experts are kept and choices handed on.
KINDS = [
    "qwen3_vl_moe",
    "llama4",
    "switch_transformers",
    "jetmoe",
    "dbrx",
    "longcat_flash",
    "ernie4_5_vl_moe",
]


def rows_of_page() -> dict[str, str]:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return {line.split("|")[1].strip(): line for line in lines if not line.startswith("| family ")}


@families.of_pinned_release
def test_the_page_names_every_family_and_nothing_else() -> None:
    assert list(rows_of_page()) == families.recorded()


def test_most_families_are_right() -> None:
    right = [line for line in rows_of_page().values() if line.split("|")[3].strip() == "yes"]
    assert len(right) >= 66


@pytest.mark.slow
@pytest.mark.parametrize("family", families.recorded())
def test_the_page_says_what_happens(family: str) -> None:
    assert family_table.row_of(family).line() == rows_of_page()[family]


@pytest.mark.parametrize("family", families.parameters(KINDS))
def test_records_and_replays_reach_the_experts(family: str) -> None:
    adapter = HuggingfaceAdapter(families.complete(family))
    assert adapter.expert_checks and not any(check.reason for check in adapter.expert_checks)
    assert choice_is_right(adapter) and replay_is_right(adapter)


@pytest.mark.parametrize("family", sorted({*families.LATER} & {*families.recorded()}))
def test_later_families_are_right_as_the_page_says(family: str) -> None:
    row = family_table.row_of(family)
    assert (row.choice, row.replay, row.predicts, row.reason) == (True, True, "the next token", "")
    assert f"`{family}`" in PAGE.read_text(encoding="utf-8").partition("| family |")[0]


def test_the_oracle_of_the_table_sees_a_wrong_record(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = HuggingfaceAdapter(families.complete("mixtral"))
    assert choice_is_right(adapter)
    own = adapter.trace

    def wrong(*arguments: Any, **keywords: Any) -> Any:
        scores, routing = own(*arguments, **keywords)
        layers = {
            name: dataclasses.replace(layer, selected=(layer.selected + 1) % 8)
            for name, layer in routing.layers.items()
        }
        return scores, RoutingTrace(layers)

    monkeypatch.setattr(adapter, "trace", wrong)
    assert not choice_is_right(adapter)


def test_experts_that_do_not_follow_their_router_are_refused() -> None:
    """NLLB-MoE of transformers 5.23: its experts take the router's 0/1 marks for numbers of experts."""
    with pytest.raises(
        UserError, match=r"experts of layers\.1 \(NllbMoeTop2Router\) do not follow their router"
    ):
        HuggingfaceAdapter(families.complete("nllb_moe"))


@pytest.mark.parametrize(
    "family", families.parameters(["gpt_oss", "mixtral", "jetmoe", "switch_transformers", "llama4"])
)
def test_a_wiring_fault_is_refused_and_the_check_leaves_every_bit(family: str) -> None:
    model = families.complete(family)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    adapter = HuggingfaceAdapter(model)
    layer = next(iter(adapter._layers.values()))
    router = layer.module

    # The block computes with the choice of the token before, while the adapter's hook still reads the router's own.
    def roll(value: object) -> object:
        is_row = isinstance(value, torch.Tensor) and value.ndim > 1
        return value.roll(1, value.ndim - 2) if is_row else value  # type: ignore[attr-defined]

    def behind(module: object, args: object, output: tuple[object, ...]) -> tuple[object, ...]:
        if family == "jetmoe":  # places, tokens, weights, counts, logits: other tokens get the experts
            tokens = output[1]
            assert isinstance(tokens, torch.Tensor)
            return (output[0], tokens.flip(0), *output[2:])
        return tuple(map(roll, output))

    router.register_forward_hook(behind)
    # Behind every hook that reads: those that are added later are called before it.
    router.register_forward_hook = (  # type: ignore[method-assign]
        lambda hook, **more: type(router).register_forward_hook(router, hook, prepend=True, **more)
    )
    with pytest.raises(UserError, match="do not follow their router"):
        list(adapter.try_experts())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_check_that_is_not_possible_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_check, "expert_parameters", lambda layer, trunk: [])
    adapter = HuggingfaceAdapter(families.complete("mixtral"))
    assert str(adapter.expert_checks[0]) == "layers.0: not checked, its experts' parameters were not found"
