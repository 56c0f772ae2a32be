"""The declaration of ``frames``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from moeprobe.declarations import Layout, Panel, Probe
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import CLIP

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

    from moeprobe.results.folder import Result

# What a frame is compared with, in the column ``view``.
BEFORE, FIRST, OTHER = "frame before", "first frame", "other clip"


@dataclass(frozen=True, kw_only=True)
class FrameFlips(Probe["Result"]):
    """How often does routing flip along the frames of a clip?

    Compares each frame with the one before and with the first of its clip. The chance line is the same frame of another
    clip. A patch is compared with the patch at its place, so movement counts as a flip. Intervals are over clips.

    Example: `moeprobe frames checkpoints/demo-baseline checkpoints/demo-prc --data frames:clips`
    """

    name = "frames"
    title = "Routing along the frames of clips"
    work = "moeprobe.probes.frame_flips.measure:FramesMeasurement"
    panel = Panel.STRESS
    analyses = ("match", "set_match", "output")
    optional = ("output",)
    headlines = ()
    layout = Layout.BY_VIEW
    joinable = False
    compares = False
    sampled = CLIP
    option_help: ClassVar[Mapping[str, str]] = {"limit": "Here: clips, not frames."}

    def check_data(self, kind: type, data: str) -> None:
        """Raise ``UserError`` unless the data are frames of clips."""
        from moeprobe.inputs.data.readers.clips import Clips  # not for the help of the command

        if not issubclass(kind, Clips):
            raise UserError(f"{data} holds no clips; use {option('data', 'frames:PATH')} or imagenet_p:PATH.")

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return what the lines of the table are."""
        return "Each frame against another; an image is a clip here"

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return the flip rates of the first layer beside the chance line."""
        from moeprobe.results.layouts.by_view import flips
        from moeprobe.results.numbers import interval
        from moeprobe.results.tables import set_match_of

        lines = []
        for checkpoint, of_checkpoint in flips(table, set_match_of(table)).groupby("checkpoint", sort=False):
            layer = of_checkpoint["layer"].iloc[0]
            of_layer = of_checkpoint[of_checkpoint["layer"] == layer]
            by_view = {row["view"]: row for row in of_layer.to_dict("records")}
            rates = [
                f"{interval(by_view[view])} against the {view}" for view in (BEFORE, FIRST) if view in by_view
            ]
            if OTHER in by_view:
                rates.append(f"{interval(by_view[OTHER])} against frames of another clip")
            lines.append(f"{checkpoint}, flip rate in {layer}: {', '.join(rates)}.")
        return lines

    def draw(self, result: "Result") -> "dict[str, Figure]":
        """Return flip rates, layer by layer."""
        from moeprobe.probes.determinism.figure import draw

        figures = draw(result.table, colors=result.sidecar.colors, title=self.title, sampled=self.sampled)
        return {self.name: figures["determinism"]} if figures else {}
