"""What a router costs: a training step of one MoE layer with every router of the catalog, side by side in one run.

    make bench

Each round times every router once, in turn, so that whatever else the machine does meets all of them; the ratio to
``softmax_token_choice`` is taken within a round, and medians over the rounds are shown. A step is forward and backward
of the layer, to its parameters and its input; the router's own time is forward and backward of the router alone. All
experts get as many places, so they cost as much everywhere: capacity factor 1.05 where tokens choose k experts,
1.05 · k where experts choose. Tokens are standard normal, grouped as each router groups images by default.
"""

import inspect
import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

from moeprobe.models.config import MoeConfig
from moeprobe.models.nn.experts import MlpExperts
from moeprobe.models.nn.moe import MoeLayer
from moeprobe.models.nn.plans import SoftPlan
from moeprobe.models.nn.routers.base import Decision
from moeprobe.models.nn.sparse import make_router
from moeprobe.runtime.catalog import ROUTERS
from moeprobe.runtime.files import atomic_file
from moeprobe.runtime.schema import Plugin

REFERENCE = "softmax_token_choice"
FACTOR = 1.05


@dataclass(frozen=True)
class Sizes:
    """Of the layer and its batch: B images of T tokens, width D, hidden width M, E experts, k choices."""

    images: int
    tokens: int
    width: int
    hidden: int
    experts: int
    top_k: int


def layer(name: str, sizes: Sizes) -> MoeLayer:
    """Return a layer in training mode with the router called ``name``."""
    chooses = "top_k" in inspect.signature(ROUTERS.get(name)).parameters
    config = MoeConfig(
        num_experts=sizes.experts,
        router=Plugin(name=name),
        top_k=sizes.top_k if chooses else None,
        capacity_factor=FACTOR if chooses else FACTOR * sizes.top_k,
        capacity_multiple_of=1,
    )
    router = make_router(config, sizes.width, num_tokens=sizes.tokens)
    experts = MlpExperts(sizes.experts, sizes.width, sizes.hidden)
    return MoeLayer(router, experts, group_images=router.default_group_images).train()


def routing(made: MoeLayer, tokens: Tensor) -> Decision:
    """Route as the layer does."""
    groups = tokens.view(len(tokens) // made.group_images, -1, tokens.shape[-1])
    noise = None
    if made.router.noise_std:
        noise = torch.randn(*groups.shape[:2], made.router.num_logits, device=tokens.device)
    decision: Decision = made.router(groups, noise)
    return decision


def places(decision: Decision) -> int:
    """Return the rows that all experts together run on."""
    plan = decision.plan
    if isinstance(plan, SoftPlan):
        return plan.dispatch[:, 0].numel()
    assert plan.capacity is not None
    return plan.num_groups * plan.num_experts * plan.capacity


def step(made: MoeLayer, tokens: Tensor) -> None:
    """Make the step that is timed."""
    made(tokens).square().sum().backward()


def route(made: MoeLayer, tokens: Tensor) -> None:
    """Make the router's part of it."""
    plan = routing(made, tokens).plan
    weights = [plan.dispatch, plan.combine] if isinstance(plan, SoftPlan) else [plan.weight]
    total = torch.stack([weight.square().sum() for weight in weights]).sum()
    if total.requires_grad:
        total.backward()


def milliseconds(work: Callable[[MoeLayer, Tensor], None], made: MoeLayer, tokens: Tensor) -> float:
    """Time one call; gradients are cleared before, as an optimizer would."""
    made.zero_grad(set_to_none=True)
    given = tokens.clone().requires_grad_()
    _wait(tokens)
    start = time.perf_counter()
    work(made, given)
    _wait(tokens)
    return 1000 * (time.perf_counter() - start)


def measure(sizes: Sizes, *, rounds: int, device: str) -> pd.DataFrame:
    """Return one row per router: medians over the rounds, and the lowest and highest ratio."""
    torch.manual_seed(0)
    layers = {name: layer(name, sizes).to(device) for name in ROUTERS.names()}
    tokens = torch.randn(sizes.images, sizes.tokens, sizes.width, device=device)
    steps: dict[str, list[float]] = {name: [] for name in layers}
    routes: dict[str, list[float]] = {name: [] for name in layers}
    names = list(layers)
    for number in track(range(rounds + 1), "Rounds", console=Console(stderr=True), transient=True):
        # Another one begins each time, and the first round only warms up.
        for name in names[number % len(names) :] + names[: number % len(names)]:
            times = milliseconds(step, layers[name], tokens), milliseconds(route, layers[name], tokens)
            if number:
                steps[name].append(times[0])
                routes[name].append(times[1])
    rows = []
    for name in names:
        ratios = [own / other for own, other in zip(steps[name], steps[REFERENCE], strict=True)]
        rows.append(
            {
                "router": name,
                "step_ms": statistics.median(steps[name]),
                "ratio": statistics.median(ratios),
                "ratio_low": min(ratios),
                "ratio_high": max(ratios),
                "router_ms": statistics.median(routes[name]),
                "places": places(routing(layers[name], tokens)),
                "group_images": layers[name].group_images,
                "rounds": rounds,
            }
        )
    return pd.DataFrame(rows)


def cells(frame: pd.DataFrame) -> list[list[str]]:
    """Return the table to look at, its head first."""
    head = ["router", "step ms", "ratio", "router ms", "places"]
    rows = [
        [
            f"{row.router}",
            f"{row.step_ms:.0f}",
            f"{row.ratio:.2f} [{row.ratio_low:.2f}, {row.ratio_high:.2f}]",
            f"{row.router_ms:.1f}",
            f"{row.places:,}",
        ]
        for row in frame.itertuples()
    ]
    return [head, *rows]


def foot(sizes: Sizes, *, rounds: int, device: str) -> str:
    """Return what the numbers rest on."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    where = torch.cuda.get_device_name() if device == "cuda" else f"{platform.machine()} CPU"
    return (
        f"Medians of {rounds} interleaved rounds; ratio of the step to that of {REFERENCE} in the same round, "
        "[lowest, highest]; router ms: the router alone; places: rows the experts run on. "
        f"{sizes.images} × {sizes.tokens} = {sizes.images * sizes.tokens:,} tokens, D {sizes.width}, "
        f"H {sizes.hidden}, E {sizes.experts}, k {sizes.top_k}; float32, forward and backward; "
        f"torch {torch.__version__}, {where}, {torch.get_num_threads()} thread(s) of {os.cpu_count()} cores, "
        f"load average at the end {load}."
    )


def main(
    images: Annotated[int, typer.Option(help="Images of the batch.")] = 16,
    tokens: Annotated[int, typer.Option(help="Tokens of an image.")] = 197,
    width: Annotated[int, typer.Option(help="Width of a token.")] = 384,
    hidden: Annotated[int, typer.Option(help="Hidden width of an expert.")] = 1536,
    experts: Annotated[int, typer.Option(help="Experts.")] = 32,
    top_k: Annotated[int, typer.Option(help="Experts per token.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Timed rounds.")] = 9,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    out: Annotated[Path, typer.Option(help="Folder of the table.")] = Path("reports/benchmarks"),
) -> None:
    """Time a training step of one MoE layer with every router, and write the table."""
    sizes = Sizes(images, tokens, width, hidden, experts, top_k)
    frame = measure(sizes, rounds=rounds, device=device)
    head, *rows = cells(frame)
    below = foot(sizes, rounds=rounds, device=device)
    screen = Console()
    table = Table(title="A training step of one MoE layer")
    for name in head:
        table.add_column(name, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    screen.print(table)
    screen.print(below, markup=False, highlight=False)
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    with atomic_file(out / "routers.md") as path:
        path.write_text(
            f"# A training step of one MoE layer, by router\n\n{text}\n\n{below}\n", encoding="utf-8"
        )
    with atomic_file(out / "routers.csv") as path:
        frame.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    screen.print(f"Written to {out}/: routers.md, routers.csv", soft_wrap=True)


def _wait(tokens: Tensor) -> None:
    if tokens.is_cuda:
        torch.cuda.synchronize()


if __name__ == "__main__":
    typer.run(main)
