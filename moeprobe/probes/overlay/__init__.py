"""The declaration of ``overlay``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from moeprobe.declarations import Arg, AuditEntry, Layout, Probe, Views
from moeprobe.declarations.kinds import OUT_OF_FIGURES
from moeprobe.errors import UserError, option
from moeprobe.results.files_for_reports import PATCHES, PIXELS, TOKENS
from moeprobe.runtime.files import is_file

if TYPE_CHECKING:
    from moeprobe.probes.overlay.measure import OverlayResult  # noqa: F401  # named in the class
    from moeprobe.results.sidecars import Sidecar


@dataclass(frozen=True, kw_only=True)
class Overlay(Probe["OverlayResult"]):
    """Draw the expert of each patch or token, clean and perturbed, and outline those that changed their experts.

    Each expert tints its patches, or the tokens of a text, in its own color; of several experts the first one does.
    An outline says that the set of experts changed, dashes that only the first of the same set did. With --animate
    each layer of an image model gets a looping GIF, its single frames, and a strip of the first image: all severities
    scale one draw.

    Example: `moeprobe overlay checkpoints/demo-baseline checkpoints/demo-prc --severity 0.2 --out reports/overlay`
    """

    name = "overlay"
    title = "Expert of each patch"
    work = "moeprobe.probes.overlay.measure:Drawing"
    layout = Layout.OVERLAYS
    writes = (PATCHES, TOKENS, PIXELS)
    views = Views.SEVERITIES
    joinable = False
    splits = False
    compares = False
    printed = False
    option_help: ClassVar[Mapping[str, str]] = {"out": OUT_OF_FIGURES}
    ends_with = "drawing"
    resumes = False
    audit = AuditEntry(
        order=5, images={"severity": 0.2}, texts={"view": "typos", "severity": 0.2}, figures=("overlay",)
    )

    images: Annotated[
        Sequence[str], Arg("Names of images or texts of the data set, comma-separated.", in_request=False)
    ] = ()
    files: Annotated[
        Sequence[str | Path],
        Arg("An image file of your own; may be repeated.", flag="--file", in_request=False),
    ] = ()
    count: Annotated[
        int,
        Arg(
            "How many images or texts, if none is named.", in_request=False, low=1, what="a number of images"
        ),
    ] = 4
    view: Annotated[str, Arg("A view with a severity.")] = "gaussian_noise"
    severity: Annotated[float | None, Arg("Severity of the view; 0.2 if not given.", in_request=False)] = None
    animate: Annotated[
        bool, Arg("Show the routing as the severity grows: GIF, frames and a strip.", in_request=False)
    ] = False
    severities: Annotated[
        Sequence[float] | None,
        Arg(
            "Several, comma-separated: the steps of --animate (default: the view's own) and of the slider in a report. "
            "Other figures show the strongest.",
        ),
    ] = None

    def check(self) -> None:
        """Raise ``UserError`` where no image is wanted, or severities are given in two ways."""
        if self.severity is not None and (self.animate or self.severities is not None):
            raise UserError(
                f"{option('severity')} is one alone: give {option('severities')} for several, or leave out one of "
                "the two options."
                if self.severities is not None
                else f"An animation goes through several severities: give {option('severities')} instead of "
                f"{option('severity')}."
            )

    @classmethod
    def finished_content(cls, folder: Path, sidecar: "Sidecar") -> dict[str, Any]:
        """Return the patches or tokens, and the files."""
        from moeprobe.results.finished import read_table, written_files
        from moeprobe.results.tables import records

        name = PATCHES if is_file(folder / PATCHES) else TOKENS
        return {
            Path(name).stem: records(read_table(folder / name)),
            "files": written_files(folder, name, PIXELS),
        }
