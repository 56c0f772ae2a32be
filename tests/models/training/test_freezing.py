"""Parameters that stay as they are, and parameters that start new: nothing else moves, or stays."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from moeprobe.errors import UserError
from moeprobe.models.checkpoints.checkpoint import read_tensors
from moeprobe.models.config import choose
from moeprobe.models.nn.capture import moe_layers
from moeprobe.models.training.start import start_model
from tests.models.training.tiny import STEPS, finish, tiny_config, trainer

NAMES = [
    "head.weight",
    "blocks.1.mlp.router.gate.weight",
    "blocks.3.mlp.router.gate.weight",
    "blocks.3.norm1.bias",
]
DISTIL = ["*", "!*.router.*"]
# Everything that could move a parameter without a gradient: decay, momentum, moments.
OPTIMIZERS = [
    {"name": "adamw", "learning_rate": 1e-2, "weight_decay": 0.5},
    {"name": "momentum", "learning_rate": 1e-2, "weight_decay": 0.5},
]


def copied(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in state.items()}


def moved(before: dict[str, Tensor], after: dict[str, Tensor]) -> set[str]:
    assert before.keys() == after.keys()
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


@pytest.mark.parametrize(
    ("patterns", "wanted"),
    [
        ([], []),
        (["*.router.*"], NAMES[1:3]),
        (["*", "!*.router.*"], [NAMES[0], NAMES[3]]),
        (["*", "!blocks.*", "blocks.3.norm?.*"], [NAMES[0], NAMES[3]]),
        (["!head.*"], []),
    ],
)
def test_the_last_pattern_that_matches_decides(patterns: list[str], wanted: list[str]) -> None:
    assert choose(patterns, NAMES, key="freeze") == set(wanted)


def test_a_pattern_that_matches_nothing_names_what_is_near() -> None:
    with pytest.raises(UserError) as refused:
        choose(["*.ruoter.*"], NAMES, key="freeze")
    said = str(refused.value)
    assert (
        "freeze: the pattern '*.ruoter.*' matches no parameter. Did you mean 'blocks.1.mlp.router.gate"
        in said
    )
    assert said.endswith("Their names begin with: head, blocks.1, blocks.3.")


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: optimizer["name"])
def test_nothing_but_what_is_left_moves(optimizer: dict[str, object], tmp_path: Path) -> None:
    one = trainer(tmp_path, freeze=DISTIL, optimizer=optimizer)
    # A fresh head of zeros sends no gradient back.
    torch.nn.init.normal_(one.model.head.weight)
    start, buffers = copied(one.model.state_dict()), copied(dict(one.model.named_buffers()))
    one.run()
    left = {name for name in start if ".router." in name}
    assert moved(start, one.model.state_dict()) == left and len(left) == 2
    assert not moved(buffers, dict(one.model.named_buffers()))
    of_optimizer = {id(p) for group in one.optimizer.param_groups for p in group["params"]}
    parameters = dict(one.model.named_parameters())
    assert of_optimizer == {id(parameters[name]) for name in left}
    assert {id(parameter) for parameter in one.optimizer.state} == of_optimizer
    assert all(parameters[name].grad is None for name in parameters.keys() - left)


def test_without_freezing_everything_moves(tmp_path: Path) -> None:
    one = trainer(tmp_path)
    start = copied(one.model.state_dict())
    one.run()
    # The class token and the like start at zero, and move too.
    assert moved(start, one.model.state_dict()) == set(start)


def test_a_frozen_run_goes_on_exactly(tmp_path: Path) -> None:
    for name in ("whole", "cut"):
        one = trainer(tmp_path / name, freeze=["blocks.*", "!*.router.*"])
        if name == "cut":
            batches = one.batches()
            for _ in range(STEPS // 2):
                one.train_step(next(batches))
            one.folder.mkdir()
            one._save_state()
            finish(tmp_path / name, freeze=["blocks.*", "!*.router.*"])
        else:
            one.run()
    whole, cut = (read_tensors(tmp_path / name / "last.safetensors")[0] for name in ("whole", "cut"))
    assert not moved(whole, cut)


def test_what_is_fresh_starts_as_without_a_checkpoint_and_the_rest_as_in_it(tmp_path: Path) -> None:
    trainer(tmp_path / "first", seed=5).run()
    first = read_tensors(tmp_path / "first" / "last.safetensors")[0]
    start = {"checkpoint": str(tmp_path / "first"), "keep_head": True, "fresh": ["*.router.*"]}
    settings = tiny_config(initialise=start, seed=1)
    model_config = settings.model.model_copy(update={"num_classes": 3})
    classes = ("dark", "gray", "light")
    begun = start_model(settings, model_config, classes)[0].state_dict()
    scratch = start_model(tiny_config(seed=1), model_config, classes)[0].state_dict()
    new = {name for name in begun if ".router." in name}
    assert len(new) == 2
    for name, tensor in begun.items():
        assert torch.equal(tensor, (scratch if name in new else first)[name]), name


def test_a_fresh_router_may_be_of_another_kind(tmp_path: Path) -> None:
    trainer(tmp_path / "first", model__router={"name": "cosine_token_choice"}, model__top_k=1).run()
    start = {"checkpoint": str(tmp_path / "first"), "keep_head": True, "fresh": ["*.router.*"]}
    one = trainer(tmp_path / "second", initialise=start, freeze=DISTIL, model__top_k=1)
    assert all(hasattr(layer.router, "gate") for layer in moe_layers(one.model).values())
    with pytest.raises(UserError, match=r"does not fit the configured model: blocks\.1\.mlp\.router"):
        trainer(tmp_path / "third", initialise=start | {"fresh": []})


def test_what_cannot_learn_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"leaves no parameter to train"):
        trainer(tmp_path, freeze=["*"])
    trainer(tmp_path / "first", steps=1, schedule__warmup_steps=0).run()
    with pytest.raises(UserError, match=r"^initialise.fresh: the pattern 'gates' matches no parameter"):
        trainer(tmp_path / "two", initialise={"checkpoint": str(tmp_path / "first"), "fresh": ["gates"]})
    weighed = {"name": "softmax_token_choice", "renormalise": True}
    with pytest.raises(
        UserError, match=r"top_k 1 and renormalized weights .* set model\.router\.renormalise=false"
    ):
        trainer(tmp_path, freeze=DISTIL, model__router=weighed, model__top_k=1)
    trainer(tmp_path, freeze=DISTIL, model__router=weighed, model__top_k=2)
    trainer(tmp_path, freeze=["head.*"], model__router=weighed, model__top_k=1)
