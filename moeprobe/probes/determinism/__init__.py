"""The declaration of ``determinism``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from moeprobe.declarations import Agreement, Arg, AuditEntry, Layout, Panel, Probe, Property
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from moeprobe.results.folder import Result  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class Determinism(Probe["Result"]):
    """Does routing depend on how the model is run: batch size, place in the batch, padding?

    Runs the same inputs again, in batches of other sizes, at another place in the batch, and texts with more padding.
    Each run is compared with the first run of the batch. Even where only the rounding of sums differs, near ties may
    change experts.

    Example: `moeprobe determinism checkpoints/demo-baseline checkpoints/demo-prc --batches 1,7 --repeats 2`
    """

    name = "determinism"
    title = "Routing of the same inputs run in other ways"
    work = "moeprobe.probes.determinism.measure:DeterminismMeasurement"
    drawn_by = "moeprobe.probes.determinism.figure:draw"
    panel = Panel.STRESS
    analyses = ("match", "set_match", "slot_match", "weights", "output", "output_features")
    optional = ("output", "output_features")
    headlines = ()
    layout = Layout.BY_VIEW
    joinable = False
    compares = False
    audit = AuditEntry(
        order=6,
        properties=(
            Property(
                "batch",
                "Depends on the batch",
                (Agreement(),),
                "repeated",
                advice={
                    "yes": "Serve it with fixed batches, or find the operation that mixes inputs.",
                    "near ties only": "Only near ties change; expect as much between any two servers.",
                },
                command="moeprobe determinism {models} --batches 1,8,32 --repeats 3",
            ),
        ),
        images={"batches": (1,)},
        texts={"batches": (1,)},
        most_images=200,
    )

    batches: Annotated[Sequence[int], Arg("Comma-separated batch sizes to try besides --batch-size.")] = (
        1,
        8,
    )
    padding: Annotated[int, Arg("Padding tokens added to texts; 0 = none.", low=0, high=1000)] = 16
    repeats: Annotated[int, Arg("How often the batch is run again unchanged.", low=0, high=1000)] = 1

    def check(self) -> None:
        """Raise ``UserError`` where a number is out of range."""
        if any(not isinstance(size, int) or size < 1 for size in self.batches) or len(
            set(self.batches)
        ) < len(self.batches):
            raise UserError(
                f"{option('batches')} takes different positive numbers; got {list(self.batches)}."
            )

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the compared variants."""
        return "The same inputs run in other ways, against the first run"
