"""The declaration of ``trace mismatch``: a question to a language model and what a server recorded of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from moeprobe.declarations import Arg, Layout
from moeprobe.declarations.recording_probe import IMAGES, SEED_OF_INTERVALS, WRITING, MatchedTraces
from moeprobe.inputs.modality import TOKEN_KINDS, tokens_of_kind

if TYPE_CHECKING:
    from pandas import DataFrame

    from moeprobe.results.folder import Result  # noqa: F401  # named in the class

RECOMPUTED, REPLAYED = "recomputed", "replayed"


@dataclass(frozen=True, kw_only=True)
class Mismatch(MatchedTraces["Result"]):
    """How much of the mismatch between a server and the model is routing?

    The model scores the server's generated tokens twice: with its own routing, and with the server's choices of
    experts. Reports, for both, mean absolute difference of log-probability and k3 divergence from the server's, with
    intervals over requests. For requests with pictures, also where the tokens of one kind alone repeat the choices.

    Example: `moeprobe trace mismatch hf:model --tokens responses.jsonl --routing traces/served.parquet`
    """

    name = "trace mismatch"
    function = "mismatch"
    kind = "mismatch"
    title = "Log-probabilities of a server and of the model"
    raises = "a file is not as it should be, the two are not of one model, or its choices cannot be replayed"
    work = "moeprobe.recorded.mismatch.measure:Scoring"
    drawn_by = "moeprobe.recorded.mismatch.figure:draw"
    analyses = ("mismatch",)
    headlines = ()
    layout = Layout.IN_FULL
    joinable = False
    recordings = ("routing",)
    models = ("model",)
    splits = True
    unit = "requests"
    common = ("layers", "limit", "batch_size", "device", "dtype", *WRITING)
    defaults: ClassVar[Mapping[str, Any]] = {"batch_size": 8}
    option_help: ClassVar[Mapping[str, str]] = {
        "layers": "MoE layers that replay the server's routing, comma-separated; default all.",
        "limit": "Largest number of requests, from the first one on.",
        "batch_size": "Requests per batch.",
        "seed": SEED_OF_INTERVALS,
    }

    model: Annotated[Any, Arg("The language model that was served.", metavar="hf:MODEL")]
    tokens: Annotated[
        Path,
        Arg("The server's responses, with token ids and log-probabilities of the generated tokens."),
    ]
    routing: Annotated[Path, Arg("Trace of the same requests: moeprobe trace import.")]
    images: Annotated[Path | None, Arg(IMAGES, in_request=False)] = None
    gates: Annotated[
        str,
        Arg(
            "Weights of the replayed experts: recomputed by the model's routers, or replayed from the trace.",
            words=(RECOMPUTED, REPLAYED),
        ),
    ] = RECOMPUTED

    def heading(self, sidecar: Mapping[str, Any]) -> str:
        """Return the title of the tables."""
        return "Log-probabilities of server and model"

    @classmethod
    def conclusions(cls, table: "DataFrame") -> list[str]:
        """Return for each model how large the mismatch is, and how much of it goes with the server's routing."""
        from moeprobe.metrics.analyses.mismatch import ROUNDING
        from moeprobe.metrics.stats.statistic import PartOf
        from moeprobe.results.numbers import interval

        lines = []
        for name, checkpoint_rows in table.groupby("checkpoint", sort=False):
            rows = {
                row["metric"]: row
                for row in checkpoint_rows.to_dict("records")
                if row["tokens"] not in TOKEN_KINDS
            }
            total, replayed, routing = (rows[f"mismatch{part}"] for part in ("", "_rest", "_routing"))
            share = rows.get("mismatch_routing_share")
            sentence = (
                f"{name}: log-probabilities differ by {interval(total)} from the server's, and by "
                f"{interval(replayed)} where the model repeats the server's routing"
            )
            if share is None:
                lines.append(f"{sentence}. Server and model are two models, so no share of it is routing.")
            elif share["flag"] == PartOf.undefined:
                # There is no share either where the interval of a larger mismatch reaches rounding.
                is_so = (
                    "is rounding, so no share of it is routing"
                    if total["value"] <= ROUNDING
                    else "may be rounding, so its share of routing is left out"
                )
                lines.append(f"{sentence}. This {is_so}.")
            else:
                lines.append(
                    f"{sentence}: routing accounts for {interval(routing)} of it, a share of {interval(share)}."
                    + _by_kind(checkpoint_rows)
                )
        return lines


def _by_kind(rows: "DataFrame") -> str:
    """Return what the routing of each kind of tokens accounts for by itself; empty without pictures."""
    from moeprobe.results.numbers import interval

    parts = [
        f"{interval(row)} for {tokens_of_kind(row['tokens'])}"
        for row in rows[rows["metric"] == "mismatch_routing"].to_dict("records")
        if row["tokens"] in TOKEN_KINDS
    ]
    return f" Where one kind of tokens alone repeats it, that is {', '.join(parts)}." if parts else ""
