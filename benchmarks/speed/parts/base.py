"""What a part of the benchmark is: a source of races."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from benchmarks.speed.race import Race
from moeprobe.errors import UserError
from moeprobe.runtime.catalog import describe_unknown

Clock = Literal["wall", "cpu"]


@dataclass(frozen=True)
class Settings:
    """How the benchmark is run.

    Attributes:
        quick: sizes that take no time and two rounds, to see that it runs; no target is judged.
        rounds: measured rounds of every race; None = the part's own number.
        threads: that torch computes with; None = as many as it takes.
        device: where to compute.
        clock: wall, or cpu: the seconds that this process and its children computed, all threads together, which hardly
            depend on what else the machine does.
        sweep: whose routers the part ``models`` times.
        layout: a configuration in the place of that sweep's base; None = its own.
        images: source images of a step there; None = as configured.
    """

    quick: bool = False
    rounds: int | None = None
    threads: int | None = None
    device: str = "cpu"
    clock: Clock = "wall"
    sweep: str = "routers-digits"
    layout: str | None = None
    images: int | None = None

    def __post_init__(self) -> None:
        for name in ("rounds", "threads", "images"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} must be at least 1; got {value}.")
        if self.clock not in get_args(Clock):
            raise UserError(describe_unknown("clock", self.clock, get_args(Clock)))


class Part(ABC):
    """Yields races; what a race needs may be freed when the next one is asked for.

    Attributes:
        rounds: measured rounds of a race, where nothing else is said.
    """

    rounds: ClassVar[int] = 11

    @abstractmethod
    def races(self, settings: Settings) -> Iterator[Race]:
        """Yield the races, in the order of the table."""
