"""A running server against the model that it serves: its routing is asked for, checked, and compared.

Requests are sent alone, again, and many at a time. What the server answers goes the way of any recorded routing: it is
imported, checked, compared with the model and with itself, and the difference of log-probabilities is split.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from moeprobe.declarations import Arg, Layout, Panel
from moeprobe.declarations.question import StandaloneQuestion
from moeprobe.declarations.recording_probe import SEED_OF_INTERVALS, WRITING
from moeprobe.errors import UserError, option

if TYPE_CHECKING:
    from moeprobe.studies.server.result import ServerResult  # noqa: F401  # named in the class


@dataclass(frozen=True, kw_only=True)
class CheckServer(StandaloneQuestion["ServerResult"]):
    """Does a running server route as the model that it serves, and as itself?

    Sends each request alone, again, and many at a time, and keeps every answer. Then it imports the routing, checks it
    for faults of capture, compares it with the model and with the server's other runs, and splits the difference of
    log-probabilities into routing and the rest. After Ctrl-C the same command continues. With --dtype of the server's
    precision, the model in float32 stands beside the server: what precision alone changes.

    Example: `moeprobe server http://127.0.0.1:8000 --model model --texts prompts.txt --out reports/server`
    """

    name = "server"
    function = "check_server"
    title = "A server and the model that it serves"
    raises = "the server refuses, does not answer or returns no routing"
    work = "moeprobe.studies.server.run:ServerCheck"
    layout = Layout.SERVER
    panel = Panel.TRACES
    joinable = False
    unit = "requests"
    writes = ("server.html", "tables.md", "responses/*.jsonl", "traces/*.parquet")
    needs_folder = "every answer of the server"
    defaults: ClassVar[Mapping[str, int]] = {"batch_size": 8}
    common = ("batch_size", "device", "dtype", *WRITING)
    option_help: ClassVar[Mapping[str, str]] = {
        "batch_size": "Requests per batch of the model here.",
        "device": "auto, cpu, cuda or mps, for the model here.",
        "seed": SEED_OF_INTERVALS,
        "out": "Folder for answers, traces, tables and the page; required.",
    }

    address: Annotated[str, Arg("Address of vLLM or SGLang, e.g. http://127.0.0.1:8000.", metavar="URL")]
    model: Annotated[str, Arg("Folder of the served model, with its tokenizer and config.json.")]
    texts: Annotated[
        Path | None,
        Arg("Prompts: a .txt with one per line, or a .jsonl; default: random tokens."),
    ] = None
    requests: Annotated[int, Arg("Requests in each run.", low=1)] = 400
    batches: Annotated[
        Sequence[int],
        Arg("Concurrent requests, comma-separated: a run for each; with 1 always two runs.", low=1),
    ] = (1, 8, 32)
    max_tokens: Annotated[int, Arg("Tokens to generate for each request.", low=1)] = 32
    timeout: Annotated[
        float,
        Arg(
            "Seconds from sending a request to the end of its answer; each is tried three times.",
            low=0.1,
            high=86_400,
        ),
    ] = 120.0

    def check(self) -> None:
        """Raise ``UserError`` where a number of concurrent requests is none."""
        if not self.batches or any(size % 1 for size in self.batches):
            sizes = ",".join(f"{size:g}" for size in self.batches)
            raise UserError(f"{option('batches')} takes whole numbers from 1 up, e.g. 1,8,32; got {sizes!r}.")
