"""Routing that something else than the router decides: by class, and gates that a teacher draws near."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.models.config import TrainConfig
from moeprobe.models.nn.build import build_model
from moeprobe.models.nn.capture import capture
from moeprobe.models.training.guided import ByClass, Teacher, gate_divergence

GROUPS = [[1, 7], [2, 5], [3, 4], [6, 9], [8, 0]]
ONE = {"top_k": 1, "noise_std": 0.0, "capacity_factor": "none"}
MODEL: dict[str, Any] = {
    "image_size": 16, "depth": 1, "num_experts": 5, "layers": "every-1", **ONE,
}  # fmt: skip
FREE = {"name": "balanced", "importance_weight": 0.0, "load_weight": 0.0}
CONTENT: dict[str, Any] = {
    "name": "guided", "model": MODEL, "views_per_image": 1, "objective": FREE, "steps": 4, "batch_size": 8,
    "evaluate_every": 4,
}  # fmt: skip


def config(**changes: Any) -> TrainConfig:
    return TrainConfig.model_validate(CONTENT | changes)


def model(**changes: Any) -> Any:
    torch.manual_seed(0)
    return build_model(config(model=MODEL | {"num_classes": 10} | changes).model)


def images(rows: int) -> Tensor:
    return torch.randn(rows, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_every_token_goes_to_the_expert_of_its_class_with_all_the_weight() -> None:
    one, labels = model().eval(), torch.arange(10)
    by_class = ByClass(one, GROUPS)
    with by_class(one, labels), capture(one) as decisions:
        one(images(10))
    (decision,) = decisions.values()
    expected = [next(e for e, group in enumerate(GROUPS) if label in group) for label in labels.tolist()]
    chosen = decision.selected.reshape(10, -1)
    assert chosen.shape[1] == 5  # the class token too
    assert torch.equal(chosen, torch.tensor(expected)[:, None].expand_as(chosen))
    assert torch.equal(decision.gates.reshape(10, -1, 5).argmax(-1), chosen)
    assert (decision.gates.sum(-1) == 1).all() and decision.processed.all()


def test_what_an_expert_is_sent_does_not_depend_on_the_router() -> None:
    one, labels = model(), torch.tensor([1, 2])
    by_class = ByClass(one, GROUPS)

    def outputs() -> Tensor:
        with by_class(one, labels), torch.no_grad():
            found: Tensor = one.forward_features(images(2))
        return found

    before = outputs()
    with torch.no_grad():
        one.blocks[0].mlp.router.gate.weight.neg_()
        unrouted = one.forward_features(images(2))
    assert torch.equal(outputs(), before) and not torch.equal(unrouted, before)


def test_routers_do_not_learn_while_classes_route(tmp_path: Path) -> None:
    made = config(route_by_class=GROUPS)
    api.train(made, folder=tmp_path / "run", device="cpu")
    one, _ = api_weights(tmp_path / "run")
    torch.manual_seed(0)
    start = start_weights(made)
    moved = {name for name, tensor in one.items() if not tensor.equal(start[name])}
    assert not any(".router." in name for name in moved)
    assert any(".experts." in name for name in moved)


def api_weights(folder: Path) -> tuple[dict[str, Tensor], Any]:
    from moeprobe.models.checkpoints.checkpoint import read_tensors

    return read_tensors(folder / "last.safetensors")


def start_weights(made: TrainConfig) -> dict[str, Tensor]:
    from moeprobe.models.training.start import start_model

    names = tuple(map(str, range(10)))
    found, _ = start_model(made, made.model.model_copy(update={"num_classes": 10}), names)
    return dict(found.state_dict())


@pytest.mark.parametrize(
    ("groups", "changes", "said"),
    [
        ([[0, 1], [1, 2]], {}, "every class from 0 to 9 once"),
        ([[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]], {}, "classes for 2 experts, and blocks.0 has 5"),
        (GROUPS, {"top_k": 2}, "model.top_k=1 and model.capacity_factor=none"),
        (GROUPS, {"capacity_factor": 1.0}, "model.top_k=1 and model.capacity_factor=none"),
        (GROUPS, {"router": {"name": "dense"}, "top_k": None}, "a router of token choice"),
        (GROUPS, {"layers": "none"}, "a dense model has none"),
    ],
)
def test_classes_that_do_not_fit_are_refused(
    groups: list[list[int]], changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        ByClass(model(**changes), groups)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"route_by_class": GROUPS, "mixup": 0.2}, "every image's own label"),
        ({"kl_weight": 1.0, "mae": {"mask": 0.5}}, "set kl_weight to 0"),
    ],
)
def test_what_does_not_go_together_is_refused(changes: dict[str, Any], said: str) -> None:
    from moeprobe.models.config import parse

    with pytest.raises(UserError, match=said):
        parse(CONTENT | changes)


def test_the_divergence_is_that_of_a_loop() -> None:
    rng = np.random.default_rng(0)
    teacher, own = (rng.dirichlet(np.ones(4), size=(2, 3)) for _ in range(2))
    expected = sum(
        p * math.log(p / q) for one, other in zip(teacher.reshape(-1, 4), own.reshape(-1, 4), strict=True)
        for p, q in zip(one, other, strict=True)
    ) / 6  # fmt: skip
    found = gate_divergence(torch.tensor(teacher), torch.tensor(own))
    assert float(found) == pytest.approx(expected, rel=1e-5)
    certain = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert float(gate_divergence(certain, certain)) == 0.0


def test_a_teacher_is_the_checkpoint_as_it_was(tmp_path: Path) -> None:
    api.train(config(model=MODEL | {"router": {"name": "dense"}, "top_k": None}), folder=tmp_path / "teacher")
    start = {
        "checkpoint": str(tmp_path / "teacher"), "keep_head": True, "fresh": ["*.router.*"],
    }  # fmt: skip
    frozen = {"freeze": ["*", "!*.router.*"], "initialise": start, "steps": 40, "evaluate_every": 20}
    quick = {"optimizer": {"name": "adamw", "learning_rate": 0.03}}
    ends = {}
    for weight in (0.0, 10.0):
        made = config(**frozen, **quick, kl_weight=weight)
        api.train(made, folder=tmp_path / f"kl-{weight:g}", device="cpu")
        student: Any = api.load_model(tmp_path / f"kl-{weight:g}", device="cpu").model
        net = student.model
        with capture(net) as decisions, torch.no_grad():
            net(images(16))
            ends[weight] = float(
                Teacher(config(**frozen, kl_weight=1.0), net).divergence(images(16), decisions)
            )
    assert ends[10.0] < 0.5 * ends[0.0]
    text = (tmp_path / "kl-10" / "metrics.csv").read_text(encoding="utf-8")
    assert "train_gate_divergence" in text.splitlines()[0]


def test_a_teacher_needs_gates_of_as_many_experts(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"initialise\.checkpoint; name one"):
        Teacher(config(kl_weight=1.0), model())
    api.train(config(), folder=tmp_path / "run", device="cpu")
    made = config(kl_weight=1.0, initialise={"checkpoint": str(tmp_path / "run")})
    with pytest.raises(UserError, match=r"no gates of as many experts in blocks\.0"):
        Teacher(made, model(num_experts=4))
    with pytest.raises(UserError, match="a dense model has none"):
        Teacher(made, model(layers="none"))
