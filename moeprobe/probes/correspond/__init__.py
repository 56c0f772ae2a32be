"""The declaration of ``correspond``: a picture of views, with or without a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from moeprobe.declarations import Arg, Layout
from moeprobe.declarations.kinds import OUT_OF_FIGURES
from moeprobe.declarations.question import StandaloneQuestion

if TYPE_CHECKING:
    from moeprobe.probes.correspond.measure import CorrespondResult  # noqa: F401  # named in the class
    from moeprobe.results.sidecars import Sidecar

# The table: a row per patch of view 1.
PAIRS = "pairs.csv"
# Lines of an image that an eye can follow.
LINES = 16


@dataclass(frozen=True, kw_only=True)
class Correspond(StandaloneQuestion["CorrespondResult"]):
    """Draw lines between the patches of two views that show the same part of the image.

    Probes draw the same views with the same seed. Without a checkpoint the grid follows V-MoE-S/32,
    7 x 7 patches of 32 pixels.

    Example: `moeprobe correspond checkpoints/demo-prc --view random_crop --out reports/correspond`
    """

    name = "correspond"
    title = "Corresponding patches of two views"
    work = "moeprobe.probes.correspond.measure:Matching"
    layout = Layout.PAIRS
    writes = (PAIRS,)
    joinable = False
    models = ("model",)
    unit = "images"
    common = ("split", "seed", "out", "overwrite", "svg", "command")
    printed = False
    option_help: ClassVar[Mapping[str, str]] = {
        "seed": "Seed of the choice of images and of the views.",
        "out": OUT_OF_FIGURES,
    }

    model: Annotated[
        str | Path | None,
        Arg(
            "A run folder or .safetensors file whose image and patch size are used; its experts color the lines.",
            metavar="CHECKPOINT",
        ),
    ] = None
    data: Annotated[
        str | None,
        Arg(
            "Data set: NAME or NAME:LOCATION, e.g. folder:photos; default: the one that the checkpoint was trained on."
        ),
    ] = None
    images: Annotated[Sequence[str], Arg("Names of images of the data set, comma-separated.")] = ()
    files: Annotated[
        Sequence[str | Path], Arg("An image file of your own; may be repeated.", flag="--file")
    ] = ()
    count: Annotated[int, Arg("How many images, if none is named.", low=1, what="a number of images")] = 4
    view: Annotated[
        str, Arg("A view that makes pairs, or one with a severity; see: moeprobe list views.")
    ] = "random_crop"
    severity: Annotated[float | None, Arg("Compare the clean image with the view at this severity.")] = None
    lines: Annotated[
        int,
        Arg(
            "Largest number of lines per image, spread evenly; the table holds all pairs.",
            low=1,
            of_figures=True,
        ),
    ] = LINES
    image_size: Annotated[
        int | None, Arg("Side of the model's input in pixels, without a checkpoint; 224 if not given.", low=1)
    ] = None
    patch_size: Annotated[
        int | None, Arg("Side of a patch in pixels, without a checkpoint; 32 if not given.", low=1)
    ] = None

    @classmethod
    def finished_content(cls, folder: Path, sidecar: "Sidecar") -> dict[str, Any]:
        """Return the pairs, and the files."""
        from moeprobe.results.finished import read_table, written_files
        from moeprobe.results.tables import records

        return {"pairs": records(read_table(folder / PAIRS)), "files": written_files(folder, PAIRS)}
