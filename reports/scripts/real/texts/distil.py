"""Train sparse MiniLM with and without PRC, each to give the dense model's own embeddings; three seeds.

    python -m reports.scripts.real.texts.distil build/real-texts

Each text of a batch comes in two versions, clean and with typos. Both are to have the dense model's embedding of the
clean text, and each of their tokens the dense model's token at its place in the clean text. To this come V-MoE's
balancing losses, or PRC over the tokens of the two versions that represent the same piece of the text.

Only the MoE layers are trained. A finished training is not repeated, and an interrupted one is resumed.

Axes: B texts, T tokens, D width, E experts, M pairs of tokens.
"""

import dataclasses
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from moeprobe.errors import UserError
from moeprobe.inputs.data.text import Text
from moeprobe.inputs.spans import align
from moeprobe.inputs.texts import TextFraming, TextSample, TokenBatch, stack
from moeprobe.inputs.views.typos import Typos
from moeprobe.models.checkpoints.checkpoint import read_tensors, write_tensors
from moeprobe.models.checkpoints.header import read_header
from moeprobe.models.nn.capture import capture, moe_layers
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.training import state
from moeprobe.models.training.objectives.base import Term, balancing_terms, paired_gates
from moeprobe.models.training.objectives.prc import consistency_terms, correlation
from moeprobe.models.training.optimize import clip, total_loss
from moeprobe.models.training.parallel.layouts import ProcessLayout
from moeprobe.runtime.distributed import Alone
from moeprobe.runtime.seeds import generator, torch_seed
from reports.scripts.at_once import each
from reports.scripts.real.texts.encoder import (
    dense_model,
    framing,
    hash_of,
    make_sparse,
    moe_part,
    sentences_of,
    tokens_of,
)
from reports.scripts.real.texts.names import MODELS, SEEDS, checkpoint

WEIGHTS, STATE = "moe.safetensors", "state.safetensors"
# In the description of both files: what their tensors follow from.
_ORIGIN = "origin"


@dataclass(frozen=True)
class Settings:
    """What a training does; the weights of the objectives are those of the photographs.

    Attributes:
        prc: Pairwise Router Consistency in the place of the balancing losses.
        seed: of the routers' start, of their noise, of the order of texts and of their typos.
        steps: in all.
        batch_size: texts, each in two versions.
        typos: share of words with a slip in the second version.
        learning_rate: of the experts, the highest, after ``warmup`` steps; then it falls to 0 along a cosine.
        router_rate: of the routers, which begin at random and have far fewer steps than a pretraining would.
        warmup: steps.
        weight_decay: of experts and routers.
        clip_norm: of all gradients together.
        balance: weight of the importance and of the load loss.
        diagonal: weight of PRC's diagonal term.
        offdiagonal: weight of its other term.
        saved_every: steps.
    """

    prc: bool
    seed: int
    steps: int = 240
    batch_size: int = 8
    typos: float = 0.3
    learning_rate: float = 2e-4
    router_rate: float = 4e-3
    warmup: int = 20
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    balance: float = 0.05
    diagonal: float = 0.05
    offdiagonal: float = 0.5
    saved_every: int = 80

    def share(self, step: int) -> float:
        """Return the share of the highest learning rates that holds in a step."""
        if step < self.warmup:
            return step / self.warmup
        done = (step - self.warmup) / (self.steps - self.warmup)
        return (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True, eq=False)
class Lessons:
    """The texts of a training, and what the dense model makes of them.

    Attributes:
        texts: as data sets give them.
        names: their ids.
        clean: their tokens.
        tokens: a tensor ``(T, D)`` of each, the dense model's.
        sentences: ``(N, D)`` the dense model's embeddings.
    """

    texts: Sequence[str]
    names: Sequence[str]
    clean: Sequence[TextSample]
    tokens: Sequence[Tensor]
    sentences: Tensor

    @classmethod
    def of(cls, data: Text, dense: Any, texts: TextFraming) -> "Lessons":
        """Return the lessons of a data set."""
        examples = [data.example(number) for number in range(len(data))]
        clean = [texts.clean(example.text) for example in examples]
        tokens, sentences = [], []
        with torch.inference_mode():
            for start in range(0, len(clean), 32):
                batch = stack(clean[start : start + 32])
                hidden = tokens_of(dense, batch)
                sentences.append(sentences_of(hidden, batch.present))
                tokens += [row[mask] for row, mask in zip(hidden, batch.present, strict=True)]
        names = [example.image_id for example in examples]
        return cls([example.text for example in examples], names, clean, tokens, torch.cat(sentences))


@dataclass(frozen=True, eq=False)
class Batch:
    """Two versions of each of B texts: rows are text 0 clean, text 0 with typos, text 1 clean, ...

    Attributes:
        rows: ``2 B`` texts.
        numbers: ``(2 B,)`` the text of each row.
        clean: ``(2 B, T)`` place in the clean text of each token, -1 = none.
        pairs: ``(B, M)`` twice: tokens of either version that represent the same, -1 = none.
    """

    rows: TokenBatch
    numbers: Tensor
    clean: Tensor
    pairs: tuple[NDArray[np.int64], NDArray[np.int64]]


def batch_of(lessons: Lessons, texts: TextFraming, settings: Settings, step: int) -> Batch:
    """Return the batch of a step, which depends on the settings and the step alone."""
    size, view = settings.batch_size, Typos()
    per_epoch = len(lessons.texts) // size
    epoch, place = divmod(step, per_epoch)
    order = generator(settings.seed, "order", draw=epoch).permutation(len(lessons.texts))
    numbers = order[place * size : (place + 1) * size]
    samples: list[TextSample] = []
    for number in numbers:
        rng = generator(settings.seed, "typos", lessons.names[number], draw=epoch)
        severities = (0.0, settings.typos)
        samples += view.perturb(lessons.texts[number], framing=texts, severities=severities, rng=rng)
    rows = stack(samples)
    clean = torch.full(rows.ids.shape, -1)
    first, second = (np.full((size, rows.ids.shape[1]), -1) for _ in range(2))
    for row, sample in enumerate(samples):
        partners = align(sample.spans, lessons.clean[numbers[row // 2]].spans)
        clean[row, : len(partners)] = torch.from_numpy(partners)
    for row in range(size):
        partners = align(samples[2 * row].spans, samples[2 * row + 1].spans)
        second[row, : len(partners)] = partners
        first[row, : len(partners)] = np.where(partners >= 0, np.arange(len(partners)), -1)
    return Batch(rows, torch.from_numpy(numbers.repeat(2)), clean, (first, second))


def distance(hidden: Tensor, batch: Batch, lessons: Lessons) -> Tensor:
    """Return 1 minus the cosine with the dense model: mean over versions of the embedding's, plus mean over tokens."""
    embeddings = sentences_of(hidden, batch.rows.present)
    targets = torch.cat(
        [
            lessons.tokens[number][places[places >= 0]]
            for number, places in zip(batch.numbers.tolist(), batch.clean, strict=True)
        ]
    )
    tokens = nn.functional.cosine_similarity(hidden[batch.clean >= 0], targets, dim=-1)
    sentences = (embeddings * lessons.sentences[batch.numbers]).sum(-1)
    return 2 - sentences.mean() - tokens.mean()


def balance(decisions: Mapping[str, Decision], present: Tensor, weight: float) -> dict[str, Term]:
    """Return V-MoE's balancing terms over the tokens of a batch that are ``present`` ``(B, T)``, as one group."""
    rows = present.flatten()

    def kept(values: Tensor) -> Tensor:
        return values.flatten(0, 1)[rows][None]

    of_texts = {
        name: dataclasses.replace(
            decision,
            logits=kept(decision.logits),
            noisy_logits=kept(decision.noisy_logits),
            gates=kept(decision.gates),
            clean_gates=kept(decision.clean_gates),
        )
        for name, decision in decisions.items()
    }
    return balancing_terms(of_texts, importance_weight=weight, load_weight=weight)


def consistency(
    decisions: Mapping[str, Decision], pairs: tuple[NDArray[np.int64], NDArray[np.int64]], settings: Settings
) -> dict[str, Term]:
    """Return PRC's terms over the pairs of tokens, summed over the layers."""
    terms = []
    for decision in decisions.values():
        first, second, valid = paired_gates(decision.clean_gates, *pairs)
        terms.append(consistency_terms(correlation(first, second, valid)[0]))
    diagonal, offdiagonal = (torch.stack(values).sum() for values in zip(*terms, strict=True))
    return {
        "prc_diagonal": Term(diagonal, settings.diagonal),
        "prc_offdiagonal": Term(offdiagonal, settings.offdiagonal),
    }


def loss_of(
    model: Any, batch: Batch, lessons: Lessons, settings: Settings
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of a batch, and its parts for the log."""
    with capture(model) as decisions:
        hidden = tokens_of(model, batch.rows)
    near = distance(hidden, batch, lessons)
    terms = (
        consistency(decisions, batch.pairs, settings)
        if settings.prc
        else balance(decisions, batch.rows.present, settings.balance)
    )
    return total_loss(near, terms), {"distance": near.item()} | {
        name: term.value.item() for name, term in terms.items()
    }


def make_optimizer(part: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW for the MoE layers: routers, experts' weights, and their biases, which do not decay."""
    kinds: dict[str, list[nn.Parameter]] = {"router": [], "weight": [], "bias": []}
    for name, parameter in part.named_parameters():
        kinds["router" if ".router." in name else name.rpartition(".")[2]].append(parameter)
    groups = [
        {"params": kinds["router"], "lr": settings.router_rate, "weight_decay": settings.weight_decay},
        {"params": kinds["weight"], "weight_decay": settings.weight_decay},
        {"params": kinds["bias"], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def step_with(optimizer: torch.optim.Optimizer, highest: Sequence[float], share: float) -> None:
    """Take a step with a share of the highest learning rate of each group."""
    for group, rate in zip(optimizer.param_groups, highest, strict=True):
        group["lr"] = share * rate
    optimizer.step()


def start(folder: Path, settings: Settings) -> tuple[Any, Any]:
    """Return the dense model in a folder, and the sparse one that begins as it."""
    torch.manual_seed(torch_seed(settings.seed, "initialise"))
    model = make_sparse(dense_model(folder))
    for layer in moe_layers(model).values():
        # Routers draw noise in training; the rest of the model, and its dropout, is left as it is used.
        layer.train().requires_grad_(True)
    return dense_model(folder), model


def origin_of(settings: Settings, data: Text, dense: Any) -> dict[str, Any]:
    """Return what a training's weights follow from: its settings, and hashes of its texts and of the dense model."""
    return {
        "settings": dataclasses.asdict(settings),
        "texts": data.content_hash(),
        "dense": hash_of(dense),
    }


def distil(folder: Path, data: Text, out: Path, settings: Settings) -> None:
    """Train one model to its end, and write its MoE layers to ``out``.

    Args:
        folder: of the dense model.
        data: texts to train on.
        out: folder of the training.
        settings: of the training.

    Raises:
        UserError: ``out`` holds a training with other settings, texts or another dense model.
    """
    dense, model = start(folder, settings)
    origin = {_ORIGIN: origin_of(settings, data, dense)}
    for file in (WEIGHTS, STATE):
        if (out / file).exists() and read_header(out / file).description.get(_ORIGIN) != origin[_ORIGIN]:
            raise UserError(
                f"{out} holds a training with other settings, texts or dense weights; remove it to train again."
            )
    if (out / WEIGHTS).exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    texts = framing(folder)
    lessons = Lessons.of(data, dense, texts)
    part = moe_part(model)
    optimizer, layout = make_optimizer(part, settings), ProcessLayout(Alone())
    rates = [group["lr"] for group in optimizer.param_groups]
    averages, first = state.Averages(), 0
    if (out / STATE).exists():
        averages, description = state.load(out / STATE, layout, part, optimizer, device=torch.device("cpu"))
        first = description["step"]
    for step in range(first, settings.steps):
        torch.manual_seed(torch_seed(settings.seed, "noise", draw=step))
        loss, parts = loss_of(model, batch_of(lessons, texts, settings, step), lessons, settings)
        optimizer.zero_grad()
        loss.backward()
        clip(part, norm=settings.clip_norm)
        step_with(optimizer, rates, settings.share(step))
        averages.add({name: torch.tensor(value) for name, value in parts.items()})
        if (step + 1) % settings.saved_every == 0:
            means = {name: round(value, 4) for name, value in averages.means().items()}
            print(out.name, step + 1, means, flush=True)
            averages = state.Averages()
            state.save(out / STATE, layout, part, optimizer, averages, {"step": step + 1} | origin)
    write_tensors(out / WEIGHTS, dict(part.state_dict()), origin)
    state.discard(out)


def trained(folder: Path, run: Path, tensors: Mapping[str, Tensor] | None = None) -> Any:
    """Return a trained sparse model.

    Args:
        folder: of the dense model, whose parameters are those outside of the MoE layers.
        run: folder of the training.
        tensors: in the place of the dense model's, such as those of another form of it.
    """
    dense = dense_model(folder)
    if tensors is not None:
        dense.load_state_dict(tensors)
    model = make_sparse(dense)
    moe_part(model).load_state_dict(read_tensors(run / WEIGHTS)[0])
    return model


def train(work: str) -> None:
    """Train one model; ``work`` is JSON of the folder of everything, the model and its seed."""
    root, model, seed = json.loads(work)
    data = Text(split="train", location=f"{root}/train.jsonl")
    distil(
        Path(root) / "minilm",
        data,
        checkpoint(Path(root), model, seed),
        Settings(prc=model == "prc", seed=seed),
    )


if __name__ == "__main__":
    each(train, [json.dumps([sys.argv[1], kind, number]) for number in SEEDS for kind in MODELS])
