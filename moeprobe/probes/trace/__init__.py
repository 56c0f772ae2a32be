"""The declaration of ``trace record``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from moeprobe.declarations import CLEAN, Arg, Layout, Panel, Probe, Views
from moeprobe.declarations.kinds import resolve
from moeprobe.declarations.recording_probe import IMAGES
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from moeprobe.adapters.base import Checkpoint
    from moeprobe.declarations.options import Options
    from moeprobe.probes.engine.run import ProbeWork
    from moeprobe.probes.trace.measure import Recorded
    from moeprobe.results.sidecars import Sidecar


@dataclass(frozen=True, kw_only=True)
class Trace(Probe["Recorded"]):
    """Record which experts each token chooses, as Parquet files: OUT/CHECKPOINT/VIEW.parquet.

    The reference of a view is recorded too: the clean image, or the first of two random views. With a language model,
    texts (--data text:FILE) are recorded, or the sequences of a server's responses (--tokens), each in one pass:
    OUT/CHECKPOINT/tokens.parquet.

    Example: `moeprobe trace record checkpoints/demo-prc --view gaussian_noise --severities 0.1,0.2 --out traces`
    """

    name = "trace record"
    function = "record"
    kind = "trace"
    title = "Recorded routing"
    work = "moeprobe.probes.trace.measure:Recording"
    panel = Panel.TRACES
    layout = Layout.TRACES
    writes = ("*/*.parquet", "*/*/*.parquet")  # called by checkpoints and views
    views = Views.ANY
    leaves_out = False
    joinable = False
    splits = False
    compares = False
    needs_folder = "the traces"
    option_help: ClassVar[Mapping[str, str]] = {"out": "Folder for the traces; required."}
    ends_with = "the last file is closed"

    view: Annotated[str, Arg("Perturbation to record as well; see: moeprobe list views.")] = CLEAN
    severities: Annotated[
        Sequence[float] | None,
        Arg("Comma-separated severities; default: the view's own steps."),
    ] = None
    all_gates: Annotated[
        bool, Arg("Keep every gate, not only the chosen experts' and a summary.", flag="--full-gates")
    ] = False

    tokens: Annotated[
        Path | None,
        Arg(
            "File of a server's responses with token ids, which a language model reads instead of --data.",
            in_request=False,
        ),
    ] = None
    images: Annotated[
        Path | None,
        Arg(IMAGES, in_request=False),
    ] = None

    def check(self) -> None:
        """Refuse a view of sequences that are given, and pictures without sequences."""
        if self.images is not None and self.tokens is None:
            raise UserError(
                f"{option('images')} holds the pictures of {option('tokens')}; name that file too."
            )
        if self.tokens is not None and (self.view != CLEAN or self.severities is not None):
            raise UserError(
                f"The sequences of {option('tokens')} are recorded as they are; leave {option('view')} and "
                f"{option('severities')} out."
            )

    def prepare(
        self, models: "Sequence[Checkpoint]", data: str | None, options: "Options"
    ) -> "ProbeWork[Recorded]":
        """Return the passes and the files.

        Raises:
            UserError: data and token ids are both named.
        """
        if options.names is not None:
            raise UserError(
                f"The files of a trace are named after the checkpoints; leave {option('names')} out."
            )
        if self.tokens is None:
            return super().prepare(models, data, options)
        if data is not None:
            raise UserError(f"{option('tokens')} takes the place of {option('data')}; leave one of them out.")
        return resolve("moeprobe.probes.trace.sequences:RecordingTokens")(self, models, options)

    @classmethod
    def finished_content(cls, folder: Path, sidecar: "Sidecar") -> dict[str, Any]:
        """Return the files and their contents."""
        from moeprobe.recordings.reading import TraceFile

        files = [folder / name for name in sidecar["files"]]
        traces = [TraceFile(path) for path in files]
        # Sequences of tokens that one of the models cannot read are inputs of the run all the same.
        left_out = traces[0].about["skipped"] if "tokens" in sidecar["request"] else []
        return {
            "files": [str(path) for path in files],
            "images": len(traces[0].ids) + len(left_out),
            "layers": {trace.about["checkpoint"]["name"]: list(trace.layers) for trace in traces},
            "bytes": sum(path.stat().st_size for path in files),
            "sidecar": sidecar,
        }
