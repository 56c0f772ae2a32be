"""What a benchmark is made of: races of contestants that do the same work, and what ours is to reach against them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

# Against the quickest of the others, whichever that turns out to be; limits do not count.
BEST = "best"
Role = Literal["ours", "other", "limit"]
Ratio = Literal["speed", "time"]


class DisagreementError(Exception):
    """Contestants that should compute the same do not, so their times mean nothing."""


@dataclass(frozen=True)
class Contestant:
    """One way to do the work of a race.

    Attributes:
        name: as the table calls it.
        work: what is timed; what it returns (numbers, arrays, tensors, or mappings and sequences of these) is compared.
        role: ours, another way, or a limit: something else that nothing can beat, whose values are not compared.
        before: called before every call of ``work``, outside of the time.
        scale: what is measured counts so many times, for someone who does less of the work (fewer FLOPs).
    """

    name: str
    work: Callable[[], object]
    role: Role = "other"
    before: Callable[[], object] | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Target:
    """What a contestant is to reach against another; ratios only, never seconds.

    Attributes:
        of: name of the contestant.
        against: name of the other, or ``BEST``.
        at_least: of the other's speed.
        at_most: of the other's time; one of the two is given.
    """

    of: str
    against: str
    at_least: float | None = None
    at_most: float | None = None

    def __post_init__(self) -> None:
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError("a target is either at_least or at_most")

    @property
    def ratio(self) -> Ratio:
        """Whether the target is about the speed or the time."""
        return "time" if self.at_least is None else "speed"

    @property
    def text(self) -> str:
        """The target as the table shows it."""
        return f"≤ {self.at_most:g}" if self.at_least is None else f"≥ {self.at_least:g}"

    def reached(self, ratio: float) -> bool:
        """Whether a measured ratio is good enough."""
        return ratio >= self.at_least if self.at_least is not None else ratio <= (self.at_most or 0)


@dataclass(frozen=True)
class Race:
    """Contestants that are measured in turn, round by round, so that whatever else the machine does meets all of them.

    Attributes:
        name: as the table calls it, unique in its part.
        contestants: what is compared.
        tolerance: largest difference of values, relative to the largest value of the first contestant; None where
            contestants compute different things.
        targets: what is to be reached.
        against: whom contestants without a target are put against, one for all or each its own.
        ratio: how, for these.
        rounds: how many, where the part's own number does not fit.
        items: of what a call does (images, say), for a rate; 0 for none.
        unit: of what is measured: "s", or that of ``meter``.
        meter: takes the measured number (seconds of CPU, megabytes) from what ``work`` returned; None = wall time.
        values: takes what is compared from what ``work`` returned.
    """

    name: str
    contestants: Sequence[Contestant]
    tolerance: float | None
    targets: Sequence[Target] = ()
    against: str | Mapping[str, str] = BEST
    ratio: Ratio = "speed"
    rounds: int | None = None
    items: int = 0
    unit: str = "s"
    meter: Callable[[object], float] | None = None
    values: Callable[[object], object] = field(default=lambda returned: returned)

    def opponent(self, name: str) -> str:
        """Return whom a contestant without a target is put against."""
        return self.against if isinstance(self.against, str) else self.against[name]
