"""Check a server: send requests, import what it answers, and compare it with the model and with itself."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.huggingface.sequence_pictures import media_tokens_of
from moeprobe.adapters.open import as_checkpoint
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.data.readers.naming import open_data
from moeprobe.inputs.modality import REQUEST
from moeprobe.inputs.texts import TextFraming
from moeprobe.probes.engine import run as engine
from moeprobe.probes.engine.run import Work
from moeprobe.probes.trace import Trace
from moeprobe.recorded.analyze_trace import AnalyzeTrace
from moeprobe.recorded.mismatch import Mismatch
from moeprobe.recordings.check_trace import check_trace
from moeprobe.recordings.import_experts import import_routed_experts
from moeprobe.recordings.model_config import read_moe_shape
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.runtime.device import AUTO, FLOAT32
from moeprobe.runtime.files import is_file, write_text
from moeprobe.runtime.progress import Progress
from moeprobe.runtime.seeds import generator
from moeprobe.studies.server import CheckServer
from moeprobe.studies.server.client import AnswerBounds, Client, Dialect, ask_all, detect
from moeprobe.studies.server.result import PAGE, PAGE_TEXT, ServerResult, page_html, page_text, sentences_of

# Tokens of a made-up prompt.
_LENGTHS = (8, 64)
FIRST, AGAIN = "alone", "again"


class ServerCheck(Work[ServerResult]):
    """Runs of requests, and their agreement with the model."""

    def __init__(self, question: CheckServer, options: Options) -> None:
        self.client = client = Client(question.address, timeout=question.timeout)
        model, texts = question.model, question.texts
        requests, batches, max_tokens = question.requests, question.batches, question.max_tokens
        self.options = options
        self.folder = Path(model.removeprefix("hf:"))
        if not is_file(self.folder / "config.json"):
            raise UserError(
                f"{option('model')} takes the folder of the served model; {self.folder} has no config.json."
            )
        self.bounds = AnswerBounds.of(read_moe_shape(self.folder / "config.json"), max_tokens)
        self.dialect: Dialect = detect(client)
        self.checkpoint = self._model(options.dtype)
        self.random = texts is None
        self.prompts = _prompts(self.checkpoint, texts, requests, max_tokens=max_tokens, seed=options.seed)
        self.at_once = {FIRST: 1, AGAIN: 1} | {f"batch-{size}": size for size in sorted({*batches} - {1})}
        self.request: dict[str, Any] = {
            "kind": CheckServer.kind, "data": REQUEST.data, "split": "", "address": client.address,
            "server": self.dialect.server, "texts": None if texts is None else str(texts),
            "requests": len(self.prompts), "batches": list(self.at_once.values()), "max_tokens": max_tokens,
            "seed": options.seed,
            "checkpoints": {self.checkpoint.name: {"sha256": self.checkpoint.provenance.get("sha256")}},
        }  # fmt: skip

    def compute(self, folder: OutputFolder | None, progress: Progress) -> ServerResult:
        """Send the requests, and measure what came of them."""
        assert folder is not None
        path = folder.path
        for name, at_once in self.at_once.items():
            ask_all(
                self._responses(path, name),
                folder.parts / name,
                self.prompts,
                client=self.client,
                dialect=self.dialect,
                bounds=self.bounds,
                at_once=at_once,
                progress=progress,
            )
        traces = [self._import(path, name, progress) for name in self.at_once]
        first = self._responses(path, FIRST)
        model_traces = [
            *engine.run(
                Trace(tokens=first),
                self._models(),
                options=self._inside(path / "model"),
                watcher=progress,
            ).files
        ]
        runs = {
            "agreement": AnalyzeTrace(traces=[model_traces[0], traces[0], *model_traces[1:]]).ask(
                self._inside(path / "agreement"), progress
            ),
            "determinism": AnalyzeTrace(traces=traces).ask(self._inside(path / "determinism"), progress),
        }
        left_out = self._split(path, runs, progress)
        checked = check_trace(traces[0], against=model_traces[0], watcher=progress)
        sentences = sentences_of(
            checked, runs["agreement"].table, runs["determinism"].table, dtype=self._dtype, random=self.random
        )  # fmt: skip
        if "mismatch" in runs:
            sentences += Mismatch.conclusions(runs["mismatch"].table)
        sidecar = self.make_sidecar(
            checkpoints={self.checkpoint.name: dict(self.checkpoint.provenance)},
            colors=colors([self.checkpoint.name]),
            sentences=sentences,
            left_out=left_out,
            runs=list(runs),
            wall_seconds=self.seconds,
        )
        return ServerResult(
            server=self.dialect.server, requests=len(self.prompts), sentences=sentences, checked=checked, runs=runs,
            left_out=left_out, sidecar=sidecar, folder=path,
        )  # fmt: skip

    def write(self, result: ServerResult, folder: OutputFolder) -> ServerResult:
        """Write the page."""
        write_text(folder.path / PAGE_TEXT, page_text(result))
        write_text(folder.path / PAGE, page_html(result))
        return result

    def _model(self, dtype: str) -> Checkpoint:
        return as_checkpoint(f"hf:{self.folder}", device=self.options.device, dtype=dtype)

    @property
    def _dtype(self) -> str:
        return str(self.checkpoint.provenance["dtype"])

    def _models(self) -> list[Checkpoint]:
        """Return the model; in a precision that was chosen, also in float32, to show what precision alone does."""
        if self.options.dtype in (AUTO, FLOAT32):
            return [self.checkpoint]
        return [self.checkpoint, self._model(FLOAT32)]

    def _responses(self, path: Path, name: str) -> Path:
        return path / "responses" / f"{name}.jsonl"

    def _import(self, path: Path, name: str, progress: Progress) -> Path:
        trace = path / "traces" / f"{name}.parquet"
        trace.parent.mkdir(exist_ok=True)
        import_routed_experts(
            self._responses(path, name), trace, model_config=self.folder / "config.json", name=name, overwrite=True,
            watcher=progress,
        )  # fmt: skip
        return trace

    def _split(self, path: Path, runs: dict[str, Result], progress: Progress) -> list[str]:
        """Add the mismatch of log-probabilities to the runs; returns why there is none."""
        try:
            mismatch = Mismatch(
                model=self.checkpoint,
                tokens=self._responses(path, FIRST),
                routing=path / "traces" / f"{FIRST}.parquet",
            )
            runs["mismatch"] = mismatch.ask(self._inside(path / "mismatch"), progress)
        except UserError as error:
            return [f"The difference of log-probabilities was not measured: {error.sentence}"]
        return []

    def _inside(self, out: Path) -> Options:
        """Return the options of a run inside of the folder, which an interrupted check may have begun."""
        # The models are loaded already, in their precisions.
        return dataclasses.replace(self.options, out=out, overwrite=True, dtype=AUTO)


def _prompts(
    checkpoint: Checkpoint, texts: Path | None, requests: int, *, max_tokens: int, seed: int
) -> dict[str, list[int]]:
    """Return the token ids of each request by its name.

    Raises:
        UserError: the model reads no texts, or its longest sequence holds no prompt.
    """
    framing = checkpoint.framing
    if not isinstance(framing, TextFraming):
        raise UserError(f"{checkpoint.name} reads {framing.modality.plural}; a server has a language model.")
    longest = framing.max_length if framing.longest is None else framing.longest
    room = longest - max_tokens
    if room < 1:
        raise UserError(
            f"{checkpoint.name} reads {longest} tokens; choose fewer than that: {option('max_tokens')}."
        )
    if texts is not None:
        data = open_data(f"text:{texts}", split="test")
        ids = [framing.clean(data.example(number).text).ids for number in range(min(len(data), requests))]
    else:
        described: dict[str, Any] = getattr(checkpoint.model, "describe", dict)()
        size = described.get("vocabulary")
        if not size:
            raise UserError(
                f"{checkpoint.name} does not say its vocabulary; give prompts: {option('texts')}."
            )
        random = generator(seed, "server")
        words = word_ids(checkpoint, size)
        ids = [words[random.integers(0, len(words), random.integers(*_LENGTHS))] for _ in range(requests)]
    return {f"r{number}": [int(token) for token in part[:room]] for number, part in enumerate(ids)}


def word_ids(checkpoint: Checkpoint, size: int) -> NDArray[np.int64]:
    """Return the ids of a vocabulary without placeholders: a picture's, without its picture, is no prompt."""
    media = media_tokens_of(checkpoint)
    placeholders = set() if media is None else media.special.union(*media.media.values())
    return np.setdiff1d(np.arange(size), sorted(placeholders))
