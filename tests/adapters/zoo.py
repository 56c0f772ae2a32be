"""Foreign models made for tests: the way people write MoE layers, none of it moeprobe's own."""

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn

MEAN, STD = (0.2, 0.3, 0.4), (0.5, 0.6, 0.7)
# What ``vit`` must be told beside its routers.
VIT: dict[str, Any] = {"image_size": 32, "num_prefix_tokens": 1, "mean": MEAN, "std": STD}

Named = namedtuple("Named", ["weights", "logits", "chosen"])


@dataclass
class Record:
    logits: Tensor
    chosen: Tensor


class TokenMoe(nn.Module):
    """A gate, a top-k over its softmax, and experts in a loop; tokens are flattened."""

    def __init__(self, width: int, num_experts: int = 6, top_k: int = 2) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate: Any = nn.Linear(width, num_experts, bias=False)
        nn.init.normal_(self.gate.weight, std=0.5)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(num_experts))

    def forward(self, tokens: Tensor) -> Tensor:
        flat = tokens.reshape(-1, tokens.shape[-1])
        weights, chosen = self.choose(flat)
        return self.combine(flat, weights, chosen).view_as(tokens)

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        top = self.gate(flat).softmax(dim=-1).topk(self.top_k, dim=-1)
        return top.values / top.values.sum(-1, keepdim=True), top.indices

    def combine(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        output = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            output[token] += weights[token, slot, None] * expert(flat[token])
        return output


class StableMoe(TokenMoe):
    """A softmax written out, and a count of the load by the way: maxima that are no choice."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.gate(flat)
        self.load = logits.argmax(-1).bincount(minlength=logits.shape[-1])
        top = torch.softmax(logits - logits.max(dim=-1, keepdim=True).values, -1).topk(self.top_k)
        return top.values, top.indices


class SortingMoe(TokenMoe):
    """Sorts all experts and takes some."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        order = self.gate(flat).softmax(-1).sort(dim=-1, descending=True)
        return order.values[:, :2], order.indices[:, :2]


class SigmoidMoe(TokenMoe):
    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        top = torch.topk(torch.sigmoid(self.gate(flat)), self.top_k)
        return top.values, top.indices


class Gate(nn.Module):
    """A gate that chooses itself and tells it in one of several ways, by a score that its logits do not show."""

    def __init__(self, width: int, num_experts: int, top_k: int, style: str) -> None:
        super().__init__()
        self.bias: Tensor
        self.weight = nn.Parameter(torch.randn(num_experts, width) / 2)
        self.register_buffer("bias", torch.linspace(-2, 2, num_experts))
        self.top_k, self.style = top_k, style

    def forward(self, flat: Tensor) -> Any:
        logits = flat @ self.weight.T
        # The order of its choices means nothing: worst first.
        chosen = (logits + self.bias).topk(self.top_k).indices.flip(-1)
        weights = logits.softmax(-1).gather(-1, chosen)
        return {
            "tuple": (weights, logits, chosen),
            "named": Named(weights, logits, chosen),
            "dict": {"logits": logits, "chosen": chosen},
            "record": Record(logits, chosen),
        }[self.style]


class ChoosingMoe(TokenMoe):
    def __init__(self, width: int, style: str, num_experts: int = 6, top_k: int = 2) -> None:
        super().__init__(width, num_experts, top_k)
        self.gate = Gate(width, num_experts, top_k, style)

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        told = self.gate(flat)
        if isinstance(told, Record):
            logits, chosen = told.logits, told.chosen
        elif isinstance(told, dict):
            logits, chosen = told["logits"], told["chosen"]
        else:
            logits, chosen = told[1], told[2]
        return logits.softmax(-1).gather(-1, chosen), chosen


class CrowdedMoe(TokenMoe):
    """Experts have room for a share of a *batch's* tokens: who is served depends on batch-mates."""

    def combine(self, flat: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        room = max(len(flat) * self.top_k // (2 * len(self.experts)), 1)
        for number in range(len(self.experts)):
            token, slot = torch.where(chosen == number)
            weights = weights.index_put((token[room:], slot[room:]), torch.zeros(()))
        return super().combine(flat, weights, chosen)


class NoisyMoe(TokenMoe):
    """Draws noise in evaluation too."""

    def choose(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        return super().choose(flat + torch.randn_like(flat))


def vit(moe: Any = TokenMoe, *arguments: Any, seed: int = 0, blocks: tuple[int, ...] = (1, 3)) -> Any:
    """A ViT of timm's in whose blocks the MLP has been replaced, as people do it."""
    torch.manual_seed(seed)
    net = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=4, num_heads=2, num_classes=10
    )
    nn.init.normal_(net.head.weight, std=0.5)
    for block in blocks:
        net.blocks[block].mlp = moe(32, *arguments)
    return net


class Around(nn.Module):
    """A module around a gate, which hands its output on."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        self.linear = linear

    def forward(self, tokens: Tensor) -> Tensor:
        return self.linear(tokens)


class Pyramid(nn.Module):
    """Two stages of 8 x 8 and 4 x 4 tokens without a class token, laid out (B, rows, columns, D)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        stages = [TokenMoe(16), TokenMoe(32)]
        for stage in stages:
            stage.gate = Around(stage.gate)
        self.stages = nn.ModuleList(stages)
        self.merge = nn.Conv2d(16, 32, 2, stride=2)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.patches(images).movedim(1, -1)
        maps = maps + self._wide(self.stages[0], maps)
        maps = self.merge(maps.movedim(-1, 1)).movedim(1, -1)
        maps = maps + self._wide(self.stages[1], maps)
        return self.head(maps.mean((1, 2)))

    def _wide(self, stage: Any, maps: Tensor) -> Tensor:
        logits = stage.gate(maps)
        top = logits.topk(2, dim=-1)
        output = stage.combine(
            maps.flatten(0, 2), top.values.softmax(-1).flatten(0, 2), top.indices.flatten(0, 2)
        )
        return output.view_as(maps)


class SequenceFirst(nn.Module):
    """A transformer of torch's own layout (T, B, D); its gate sees tokens flattened in that order, or not at all."""

    def __init__(self, *, flat: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.attention = nn.MultiheadAttention(32, 2)
        self.gate = nn.Linear(32, 6)
        self.experts = nn.ModuleList(nn.Linear(32, 32) for _ in range(6))
        self.head = nn.Linear(32, 10)
        self.flat = flat

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.patches(images).flatten(2).permute(2, 0, 1)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        seen = tokens.reshape(-1, 32) if self.flat else tokens
        first = self.gate(seen).argmax(-1).reshape(tokens.shape[:2])
        outputs = torch.stack([expert(tokens) for expert in self.experts], dim=-2)
        chosen = outputs.gather(-2, first[..., None, None].expand(*first.shape, 1, 32)).squeeze(-2)
        return self.head((tokens + chosen).mean(0)), torch.zeros(())


class Shared(nn.Module):
    """One gate for two layers, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.patches = nn.Conv2d(3, 32, 8, stride=8)
        self.gate = nn.Linear(32, 6)
        self.unused_gate = nn.Linear(32, 6)
        self.head = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        for _ in range(2):
            top = self.gate(tokens).softmax(-1).topk(2)
            tokens = tokens * (1 + top.values.sum(-1, keepdim=True))
        return self.head(tokens.mean(1) + 0 * self.unused_gate.weight.sum())
