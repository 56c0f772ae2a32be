"""The declaration of ``trace``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

from moeprobe.probes.base import CLEAN, Arg, Layout, Probe, Views

if TYPE_CHECKING:
    from moeprobe.adapters.base import Checkpoint
    from moeprobe.probes.engine.options import Options
    from moeprobe.probes.engine.work import Work
    from moeprobe.probes.trace.measure import Recorded


@dataclass(frozen=True, kw_only=True)
class Trace(Probe["Recorded"]):
    """Record which experts each token chooses, as Parquet files: OUT/CHECKPOINT/VIEW.parquet.

    Of a view its reference is recorded too: the clean image, or the first of two random views.

    Example: `moeprobe trace checkpoints/demo-prc --view gaussian_noise --severities 0.1,0.2 --out traces`
    """

    name: ClassVar[str] = "trace"
    title: ClassVar[str] = "Recorded routing"
    layout: ClassVar[Layout] = Layout.TRACES
    views: ClassVar[Views] = Views.ANY
    leaves_out: ClassVar[bool] = False
    joinable: ClassVar[bool] = False
    splits: ClassVar[bool] = False
    compares: ClassVar[bool] = False
    needs_folder: ClassVar[str] = "the traces"
    option_help: ClassVar[Mapping[str, str]] = {"out": "Folder for the traces; required."}
    ends_with: ClassVar[str] = "the last file is closed"

    view: Annotated[str, Arg("Perturbation to record as well; see: moeprobe list views.")] = CLEAN
    severities: Annotated[
        Sequence[float] | None,
        Arg("Comma-separated severities; default: the view's own steps."),
    ] = None
    all_gates: Annotated[
        bool, Arg("Keep every gate, not only those of chosen experts and a summary.", flag="--full-gates")
    ] = False

    def prepare(
        self, models: "Sequence[Checkpoint]", data: str | None, options: "Options"
    ) -> "Work[Recorded]":
        """Return the passes and the files."""
        from moeprobe.probes.trace.measure import Recording

        return Recording(self, models, data, options)
