"""What ImageNet would take on eight accelerators: calculated from measured rates and published figures, not measured.

Every number is made here of: the shapes of V-MoE-S/32, the size of ImageNet, figures that NVIDIA publishes of the H200
(SXM), and the committed runs of ``python -m benchmarks.speed`` on a CPU.
"""

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

GPUS, EPOCHS, TRAIN_IMAGES, TEST_IMAGES, LEVELS = 8, 300, 1_281_167, 50_000, 10
# Published: bfloat16 operations without sparsity, bytes of memory, and bytes per second of NVLink in one direction.
PEAK, MEMORY, LINK = 989e12, 141e9, 450e9
# Which share of the peak a step reaches is not known before it is measured on the device: both ends are shown.
SHARES = (0.1, 0.4)
BATCH = 4096
# Weights, gradients, and the two moments of Adam, in float32.
_BYTES_TRAINED, _BYTES_SENT = 16, 4
# Of a stored ImageNet photograph, about.
_BYTES_OF_IMAGE = 110_000


@dataclass(frozen=True)
class Sizes:
    """A V-MoE: T tokens, D width, M hidden width, E experts, K choices; blocks, and those with experts."""

    tokens: int = 50
    width: int = 512
    hidden: int = 2048
    blocks: int = 8
    sparse: int = 2
    experts: int = 8
    top_k: int = 2
    patch: int = 32
    classes: int = 1000

    @property
    def parameters(self) -> int:
        """All of them."""
        d, m = self.width, self.hidden
        mlp = 2 * d * m + m + d
        block = 4 * d * d + 4 * d + 4 * d
        embedding = 3 * self.patch**2 * d + d + self.tokens * d + d
        head = 2 * d + d * d + d + d * self.classes + self.classes
        dense = self.blocks * block + (self.blocks - self.sparse) * mlp
        return dense + self.sparse * self.experts * (mlp + d) + embedding + head

    @property
    def flops(self) -> int:
        """Of one image forward; a multiply-add is two."""
        t, d, m = self.tokens, self.width, self.hidden
        attention = 4 * t * d * d + 2 * t * t * d
        mlps = self.blocks - self.sparse + self.sparse * self.top_k
        routers = self.sparse * t * d * self.experts
        ends = (t - 1) * 3 * self.patch**2 * d + d * d + d * self.classes
        return 2 * (self.blocks * attention + mlps * 2 * t * d * m + routers + ends)


def gigabytes_trained(sizes: Sizes) -> float:
    """Return what a rank holds for a replicated model: weights, gradients and Adam's moments, without activations."""
    return sizes.parameters * _BYTES_TRAINED / 1e9


def bytes_averaged(parameters: int, ranks: int) -> float:
    """Return what a rank sends in a step that averages its gradients in a ring: 2 (n - 1) / n of them."""
    return 2 * (ranks - 1) / ranks * parameters * _BYTES_SENT


def seconds_of_step(sizes: Sizes, *, share: float, images: int) -> float:
    """Return the time of computing a step of ``images`` on a device; backward is twice forward."""
    return 3 * sizes.flops * images / (PEAK * share)


def measured(folder: Path, part: str, race: str, contestant: str) -> float:
    """Return the median seconds of a committed benchmark."""
    table = pd.read_csv(folder / part / "table.csv")
    rows = table[(table["race"] == race) & (table["contestant"] == contestant)]
    return float(rows["median"].iloc[0])


def rates(folder: Path) -> list[str]:
    """Return what was measured on a CPU, and what it says of a device."""
    table = pd.read_csv(folder / "train" / "table.csv")
    sizes = Sizes()
    lines = ["| on a CPU (measured) | images per second | 10⁹ FLOP per second |", "|---|---|---|"]
    for race, passes in (("forward", 1), ("training step, balanced", 3)):
        row = table[(table["race"] == race) & (table["contestant"] == "moeprobe")].iloc[0]
        rate = float(row["items_per_second"])
        lines.append(f"| {race} of V-MoE-S/32 | {rate:.1f} | {rate * passes * sizes.flops / 1e9:.0f} |")
    return lines


def epochs(folder: Path) -> list[str]:
    """Return 300 epochs of training, at either share of the peak."""
    sizes, images = Sizes(), EPOCHS * TRAIN_IMAGES
    sent = bytes_averaged(sizes.parameters, GPUS)
    lines = [
        f"| of {GPUS} H200, {EPOCHS} epochs, batch {BATCH:,} | "
        + " | ".join(f"{share:.0%} of the peak" for share in SHARES)
        + " |",
        "|---|---|---|",
    ]
    steps = [seconds_of_step(sizes, share=share, images=BATCH // GPUS) for share in SHARES]
    lines.append(_line("computing a step, ms", [1e3 * step for step in steps], "{:.1f}"))
    lines.append(_line("averaging gradients, ms", [1e3 * sent / LINK] * 2, "{:.1f}"))
    needed = [BATCH / step for step in steps]
    lines.append(_line("images per second that must come in", needed, "{:,.0f}"))
    lines.append(
        _line(
            "bytes per second of stored images, GB", [one * _BYTES_OF_IMAGE / 1e9 for one in needed], "{:.1f}"
        )
    )
    lines.append(
        _line("hours in all, if computing is what limits", [images / one / 3600 for one in needed], "{:.1f}")
    )
    return lines


def sweep(folder: Path) -> list[str]:
    """Return a noise sweep over ImageNet's test images, as the sweep that was measured on a CPU."""
    race = f"noise-sweep, {LEVELS} levels, 256 images, V-MoE-S/32"
    whole, alone = (measured(folder, "sweep", race, name) for name in ("moeprobe", "forward passes alone"))
    clean = 1 / float(
        pd.read_csv(folder / "train/table.csv").query("race == 'forward'")["items_per_second"].iloc[0]
    )
    passes = alone / 256 / clean
    flops = passes * TEST_IMAGES * Sizes().flops
    lines = [
        "| noise sweep of 10 levels, 50,000 images | |",
        "|---|---|",
        f"| forward passes per image (measured: their time on a CPU, in single passes) | {passes:.1f} |",
        f"| all of it, in forward passes alone (measured on a CPU) | {whole / alone:.2f} |",
        f"| one CPU of the kind that was measured, hours | {whole / 256 * TEST_IMAGES / 3600:.1f} |",
    ]
    for share in SHARES:
        seconds = flops / (PEAK * share * GPUS)
        lines.append(f"| forward passes on {GPUS} H200 at {share:.0%} of the peak, seconds | {seconds:.1f} |")
    return lines


def experts(folder: Path) -> list[str]:
    """Return memory and messages for numbers of experts."""
    lines = [
        "| experts | parameters, 10⁶ | a rank holds, GB | share of an H200 | sent in a step, GB | ms on NVLink | "
        "held with experts spread over ranks, GB | held with fsdp, GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for number in (8, 16, 32, 64, 128, 256, 512):
        sizes = Sizes(experts=number)
        held, sent = gigabytes_trained(sizes), bytes_averaged(sizes.parameters, GPUS) / 1e9
        shared = Sizes(experts=0).parameters
        # Beside its share, a rank has the parameters of a whole block at a time, and of the next, with their gradients.
        largest = (sizes.parameters - shared) / sizes.sparse
        gathered = 2 * 2 * largest * _BYTES_SENT / 1e9
        spread = (shared + (sizes.parameters - shared) / GPUS) * _BYTES_TRAINED / 1e9
        lines.append(
            f"| {number} | {sizes.parameters / 1e6:,.0f} | {held:.1f} | {held * 1e9 / MEMORY:.0%} | {sent:.2f} | "
            f"{1e12 * sent / LINK:.1f} | {spread:.1f} | {gathered + held / GPUS:.1f} |"
        )
    return lines


def _line(name: str, values: list[float], form: str) -> str:
    return f"| {name} | {' | '.join(form.format(value) for value in values)} |"
