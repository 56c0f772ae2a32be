"""Trainings of a few steps to be monitored: a V-MoE on digits, a tiny OLMoE on sentences."""

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import moeprobe.models.nn.vit  # noqa: F401  (registers the models)
from moeprobe.inputs.data.digits import Digits
from moeprobe.inputs.images import to_tensor
from moeprobe.models.timm import timm

STEPS = 6
# Of the two random states that foreign code may draw from besides torch's.
Draws = tuple[float, float, float]


@functools.cache
def digits(count: int = 96) -> tuple[Tensor, Tensor]:
    """Images ``(count, 3, 32, 32)`` in [0, 1] and their labels."""
    data = Digits(split="train")
    return torch.stack([to_tensor(data.example(index).image) for index in range(count)]), torch.from_numpy(
        data.labels()[:count]
    )


def vmoe(**changes: Any) -> nn.Module:
    """A V-MoE of two blocks with dropout and router noise, the same each time."""
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0,
             "layers": [0, 1]}  # fmt: skip
    return timm.create_model("vmoe", num_classes=10, num_experts=4, drop_rate=0.2, **(sizes | changes))


def train(net: nn.Module, at_step: Callable[[int], Any] | None = None, *, steps: int = STEPS) -> Draws:
    """Train for a few steps on random batches; returns what is drawn at random afterwards.

    Args:
        net: the model.
        at_step: called with the number of steps done, from 0 on.
        steps: how many.
    """
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    images, labels = digits()
    optimizer = torch.optim.AdamW([p for p in net.parameters() if p.requires_grad], lr=1e-3)
    net.train()
    if at_step is not None:
        at_step(0)
    for step in range(1, steps + 1):
        rows = torch.randint(len(images), (16,))
        loss = nn.functional.cross_entropy(net((images[rows] - 0.5) / 0.5), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if at_step is not None:
            at_step(step)
    return random.random(), float(np.random.rand()), torch.rand(1).item()


def olmoe_trainer(folder: Path, out: Path, callbacks: list[Any], *, steps: int = STEPS, **more: Any) -> Any:
    """The ``Trainer`` of ``transformers`` with a tiny OLMoE from a folder."""
    from transformers import (
        AutoTokenizer,
        DataCollatorForLanguageModeling,
        OlmoeForCausalLM,
        Trainer,
        TrainingArguments,
    )

    from tests.adapters.tiny_texts import texts

    tokenizer = AutoTokenizer.from_pretrained(folder)
    arguments = TrainingArguments(
        output_dir=str(out), max_steps=steps, per_device_train_batch_size=4, report_to=[],
        use_cpu=True, disable_tqdm=True, seed=3, logging_steps=100, **{"save_strategy": "no"} | more,
    )  # fmt: skip
    return Trainer(
        model=OlmoeForCausalLM.from_pretrained(folder),
        args=arguments,
        train_dataset=[{"input_ids": tokenizer(text)["input_ids"]} for text in texts(32)],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
        processing_class=tokenizer,
        callbacks=callbacks,
    )


def lightning_module(net: nn.Module) -> Any:
    """A module of Lightning around a model of images."""
    from lightning.pytorch import LightningModule

    class Module(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def training_step(self, batch: Any, index: int) -> Tensor:
            return nn.functional.cross_entropy(self.net((batch[0] - 0.5) / 0.5), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 1e-3)

    return Module()


def lightning_loader() -> Any:
    """Batches of digits."""
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*digits()), batch_size=16, shuffle=True)


def equal(first: nn.Module, second: nn.Module) -> bool:
    """Whether two models have the same bits."""
    states = first.state_dict(), second.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(value, states[1][name]) for name, value in states[0].items()
    )


def random_states() -> list[Any]:
    """The random states of Python, NumPy and torch."""
    numpy: Any = np.random.get_state()
    return [random.getstate(), numpy[1].tolist(), numpy[2], torch.get_rng_state().tolist()]
