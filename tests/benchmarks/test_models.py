"""Routers of a sweep timed in one model: each is in it in its turn, and all else is shared."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.speed.parts.base import Settings
from benchmarks.speed.parts.models import FORWARD, STEP, opponents
from benchmarks.speed.routed import Routed, cells_of
from benchmarks.speed.run import bench
from moeprobe.errors import UserError
from moeprobe.models.nn.capture import moe_layers

SWEEP = """
base: digits-baseline
fixed: {steps: 4, schedule.warmup_steps: 1, model.image_size: 16, batch_size: 4}
cells:
  - {model.router: softmax_token_choice, model.top_k: [1, 2]}
  - model.router: [softmax_expert_choice, soft_moe]
    model.capacity_factor: 2
    fixed: {objective.importance_weight: 0.0, objective.load_weight: 0.0}
seeds: [0, 1]
"""
GROUPS = ["softmax_token_choice-k1", "softmax_token_choice-k2", "softmax_expert_choice-c2", "soft_moe-c2"]


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP, encoding="utf-8")
    return str(path)


def test_each_is_put_against_softmax_token_choice_of_its_budget(sweep: str) -> None:
    table = bench(["models"], settings=Settings(quick=True, sweep=sweep)).table
    assert list(dict.fromkeys(table["race"])) == [STEP, FORWARD]
    for _, rows in table.groupby("race"):
        assert list(rows["contestant"]) == GROUPS
        assert list(rows["against"]) == ["", "", GROUPS[1], GROUPS[1]]
    assert (table["median"] > 0).all() and set(table["ratio_of"]) == {"", "time"}


def test_only_the_routers_differ(sweep: str) -> None:
    cells = cells_of(sweep, None)
    one = Routed(cells, images=2, device="cpu")
    seen, experts = {}, set()
    for group in GROUPS:
        one.use(group)
        layers: dict[str, Any] = dict(moe_layers(one.model))
        seen[group] = {name: type(layer.router).__name__ for name, layer in layers.items()}
        experts |= {id(layer.experts.fc1.weight) for layer in layers.values()}
        assert all(parameter.grad is None for parameter in one.model.parameters())
        one.step(group)
        assert all(layer.experts.fc1.weight.grad is not None for layer in layers.values())
        assert all(parameter.grad is not None for parameter in layers["blocks.3"].router.parameters())
    assert len(experts) == 2
    assert set(seen["soft_moe-c2"].values()) == {"SoftMoe"}
    assert set(seen[GROUPS[0]].values()) == {"SoftmaxTokenChoice"}


def test_the_layout_can_be_another(sweep: str) -> None:
    (first, *_) = cells_of(sweep, "routers/vmoe-b32")
    assert first.model.name == "vmoe_base_patch32_224" and first.model.num_experts == 32
    assert set(opponents(cells_of(sweep, "routers/vmoe-b32"))) == set(GROUPS)


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        ("[{model.layers: none}]", "has no router to be timed"),
        ("[{model.num_experts: [4, 8]}]", "differ in more than their routing"),
    ],
)
def test_what_cannot_be_timed_is_refused(cells: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "other.yaml"
    path.write_text(f"base: digits-baseline\ncells: {cells}\n", encoding="utf-8")
    with pytest.raises(UserError, match=said):
        bench(["models"], settings=Settings(quick=True, sweep=str(path)))
