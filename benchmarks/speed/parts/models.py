"""What a router costs in a whole model: passes of every cell of a sweep in turn, against softmax token choice.

Each is put against the softmax cell of its own budget, k or c. A training step is forward, losses and backward, without
the update of the parameters, which is the same for all.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import ClassVar

from benchmarks.speed.parts.base import Part, Settings
from benchmarks.speed.parts.routers import REFERENCE
from benchmarks.speed.race import Contestant, Race
from benchmarks.speed.routed import Routed, cells_of
from moeprobe.models.config import TrainConfig

STEP, FORWARD = "training step", "forward pass"
_QUICK_IMAGES = 2


class Models(Part):
    """Training steps and forward passes of a whole model with every router of a sweep, against softmax token choice."""

    rounds: ClassVar[int] = 15

    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield the race of training steps and that of forward passes."""
        cells = cells_of(settings.sweep, settings.layout)
        images = settings.images or (_QUICK_IMAGES if settings.quick else None)
        one = Routed(cells, images=images, device=settings.device)
        against = opponents(cells)
        for name, work in ((STEP, one.step), (FORWARD, one.forward)):
            contestants = [
                Contestant(cell.group, partial(work, cell.group), "ours", partial(one.use, cell.group))
                for cell in cells
            ]
            yield Race(
                name, contestants, tolerance=None, against=against, ratio="time", items=len(one.pixels)
            )


def opponents(cells: Sequence[TrainConfig]) -> dict[str, str]:
    """Return whom each cell is put against: softmax token choice of its budget, or the first cell."""
    softmax = {_budget(cell): cell.group for cell in cells if cell.model.router_name == REFERENCE}
    return {cell.group: softmax.get(_budget(cell), cells[0].group) for cell in cells}


def _budget(cell: TrainConfig) -> object:
    return cell.model.top_k or cell.model.capacity_factor
