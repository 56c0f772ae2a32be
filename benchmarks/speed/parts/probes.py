"""Whole runs of the probes, each against the forward passes that it makes.

Ours goes from JPEG files to tables and figures. Its passes are counted first: a block of the model that runs is a part
of a pass. The limit is as many whole passes of one batch in memory, with gradients where the probe takes any. The rest
of the time surrounds the passes: files, views, sums, statistics, tables, figures. The name of a race says how many
passes an image takes, which shows a probe that makes more than it needs.
"""

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor, nn

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.parts.sweep import BARE, MANY, OURS, TINY
from benchmarks.speed.race import Contestant, Race, Target
from benchmarks.speed.sweeps import Sizes, Subject
from moeprobe.declarations import Probe, registry

DIGITS = Sizes(
    "the size of the digits models",
    {
        "name": "vmoe", "image_size": 32, "patch_size": 4, "width": 64, "depth": 4, "num_heads": 4,
        "hidden_width": 128, "layers": [1, 3], "num_experts": 8, "top_k": 2,
    },
    images=256,
    batch=32,
)  # fmt: skip
# Probes that ask one model about images and need no choice of a user's, and what share of its passes each is to reach.
# Corruptions are drawn in the CPU, and margins look at each pass of a small model: these may take as long again.
SHARES = {
    "match-ratio": 0.9,
    "noise-sweep": 0.9,
    "confidence": 0.75,
    "contagion": 0.75,
    "precision": 0.75,
    "margins": 0.5,
    "flips": 0.75,
    "experts": 0.75,
    "attack": 0.75,
    "corruptions": 0.5,
}
PROBES = {kind.name: kind for kind in registry.probes()}
# Images of the larger model, on which a run takes minutes.
_FEW = 32
# Of all, to see that the part runs.
_QUICK = ("match-ratio", "flips")


@dataclass(frozen=True)
class Passes:
    """How many whole passes of a batch a run takes.

    Attributes:
        plain: without a gradient.
        graded: with one.
    """

    plain: float
    graded: float

    def said(self, batches: float) -> str:
        """Return both per image."""
        plain, graded = self.plain / batches, self.graded / batches
        return f"{plain:.1f} passes" + (f" and {graded:.1f} with gradients" if graded else "") + " per image"


class Probes(Part):
    """Every probe of images from files to figures, against its forward passes."""

    rounds: ClassVar[int] = 3

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield a race per probe and model."""
        for sizes in (TINY,) if settings.quick else (DIGITS, replace(MANY, images=_FEW)):
            with tempfile.TemporaryDirectory() as folder:
                subject = Subject(sizes, Path(folder), settings.device)
                for name in _QUICK if settings.quick else SHARES:
                    yield _race(PROBES[name](), subject)


def _race(probe: Probe[Any], subject: Subject) -> Race:
    ours = partial(subject.ask, probe)
    passes = count_passes(ours, subject)
    return Race(
        f"{probe.name}, {subject.sizes.images} images, {subject.sizes.name}: {passes.said(subject.num_batches)}",
        [
            Contestant(OURS, ours, "ours"),
            Contestant(BARE, partial(_bare, subject, passes), "limit"),
        ],
        tolerance=None,
        targets=[Target(OURS, BARE, at_least=SHARES[probe.name])],
        items=subject.sizes.images,
    )


def count_passes(work: Callable[[], object], subject: Subject) -> Passes:
    """Do the work, and return how many passes of a batch its blocks come to; a part of a batch counts as its share."""
    counted = {False: 0.0, True: 0.0}
    blocks: list[nn.Module] = [*subject.net.blocks]

    def count(_block: nn.Module, _inputs: object, output: Any) -> None:
        tokens: Tensor = output[0] if isinstance(output, tuple) else output
        counted[tokens.requires_grad] += len(tokens) / subject.sizes.batch / len(blocks)

    handles = [block.register_forward_hook(count) for block in blocks]
    try:
        work()
    finally:
        for handle in handles:
            handle.remove()
    return Passes(plain=counted[False], graded=counted[True])


def _bare(subject: Subject, passes: Passes) -> None:
    for _ in range(round(passes.plain)):
        subject.whole()
    for _ in range(round(passes.graded)):
        pixels = subject.pixels.clone().requires_grad_()
        subject.net(pixels).sum().backward()
        subject.net.zero_grad(set_to_none=True)
