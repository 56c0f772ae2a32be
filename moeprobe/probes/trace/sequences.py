"""Record the routing of given sequences of tokens: those that a server was sent, and what it generated.

The model reads each sequence in one pass (teacher forcing), so that its routing can be compared with the server's.

Axes: B sequences of a batch, T tokens.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from moeprobe.adapters.base import Checkpoint
from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import REQUEST, TEXT
from moeprobe.inputs.texts import TextFraming, TokenBatch
from moeprobe.probes.engine.run import Plan, ProbeWork, unread_weights
from moeprobe.probes.engine.run_spec import check_layers, chosen_layers, precision_request
from moeprobe.probes.trace import Trace
from moeprobe.probes.trace.measure import Recorded
from moeprobe.probes.trace.recording import about_checkpoint, rows_of_texts
from moeprobe.probes.trace.sequence_batches import SequenceBatches
from moeprobe.recordings.format import FORMAT, VERSION, metadata, writing
from moeprobe.recordings.log_probs import read_sequences
from moeprobe.recordings.log_rows import Tokens
from moeprobe.results.folder import OutputFolder
from moeprobe.routing import finite
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.files import sha256
from moeprobe.runtime.progress import Progress

# Name of the trace, and what its inputs are called in tables and in plans.
_NAME, _DATA, _UNIT = "tokens", REQUEST.data, "sequence"


class RecordingTokens(ProbeWork[Recorded]):
    """Passes over given tokens whose routing is written: CHECKPOINT/tokens.parquet."""

    def __init__(self, probe: Trace, models: Sequence[Checkpoint], options: Options) -> None:
        assert probe.tokens is not None
        self.probe, self.models, self.options = probe, models, options
        for model in models:
            if model.framing.modality is not TEXT:
                raise UserError(
                    f"{model.name} reads {model.framing.modality.plural}; leave {option('tokens')} out."
                )
        check_layers({model.name: model.model.layer_names for model in models}, options.layers)
        self.sequences = read_sequences(probe.tokens)
        if options.limit is not None:
            self.sequences = dict(list(self.sequences.items())[: options.limit])
        self.skipped = {model.name: self._too_long(model) for model in models}
        self.batches = {}
        for model in models:
            check_vocabulary(model, self.sequences)
            self.batches[model.name] = SequenceBatches(model, self.sequences, images=probe.images)
        self.request = {
            "kind": probe.kind,
            "data": _DATA,
            "tokens": sha256(probe.tokens),
            "limit": options.limit,
            "layers": None if options.layers is None else list(options.layers),
            "all_gates": probe.all_gates,
            "format": f"{FORMAT} {VERSION}",
            "checkpoints": {model.name: {"sha256": model.provenance.get("sha256")} for model in models},
            **precision_request(options),
            **self.batches[models[0].name].request(),
        }

    def floor_inputs(self, model: Checkpoint) -> Iterable[TokenBatch]:
        """Return the first sequences in batches."""
        names = list(self._of(model))[: self.options.floor_images]
        size, batches = self.options.batch_size, self.batches[model.name]
        return (batches.batch(names[start : start + size]) for start in range(0, len(names), size))

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Recorded:
        """Write a trace per checkpoint."""
        assert folder is not None, "``needs_folder`` says so"
        files = []
        for model in self.models:
            progress.start(f"{self.probe.kind}: {model.name}", len(self._of(model)))
            path = folder.path / model.name / f"{_NAME}.parquet"
            with writing(path) as file:
                for rows in self._rows(model, self._of(model), progress.advance):
                    file.write(rows)
                file_metadata = metadata(
                    checkpoint=about_checkpoint(model),
                    layers=self._layers(model),
                    skipped=self.skipped[model.name],
                    data=_DATA,
                )
                file.close(file_metadata)
            files.append(path)
        sidecar = self.make_sidecar(
            checkpoints={model.name: dict(model.provenance) for model in self.models},
            files=[str(path.relative_to(folder.path)) for path in files],
            skipped_images=sorted({name for names in self.skipped.values() for name in names}),
            wall_seconds=self.seconds,
            batch_size=self.options.batch_size,
            device=str(choose_device(self.options.device)),
        )
        size = sum(path.stat().st_size for path in files)
        layers = {model.name: self._layers(model) for model in self.models}
        return Recorded(files, len(self.sequences), "sequences of tokens", layers, size, sidecar)

    def plan(self) -> Plan:
        """Return what it would take, by running a batch of each checkpoint."""
        weights = unread_weights(self.models)
        if weights:
            return Plan(len(self.models), len(self.sequences), 1, 0, math.nan, weights, _UNIT)
        seconds, timed = 0.0, min(self.options.batch_size, len(self.sequences))
        for model in self.models:
            sample = dict(list(self._of(model).items())[:timed])
            begun = time.perf_counter()
            for _ in self._rows(model, sample, lambda count: None):
                pass
            seconds += time.perf_counter() - begun
        total_seconds = seconds * len(self.sequences) / max(timed, 1)
        return Plan(len(self.models), len(self.sequences), 1, timed, total_seconds, unit=_UNIT)

    def _layers(self, model: Checkpoint) -> list[str]:
        return chosen_layers(model.model.layer_names, self.options.layers)

    def _of(self, model: Checkpoint) -> dict[str, Tokens]:
        """Return the sequences that a model can read."""
        left_out = set(self.skipped[model.name])
        return {name: tokens for name, tokens in self.sequences.items() if name not in left_out}

    def _too_long(self, model: Checkpoint) -> list[str]:
        assert isinstance(model.framing, TextFraming)
        longest = model.framing.longest
        names = [
            name
            for name, sequence in self.sequences.items()
            if longest is not None and len(sequence.ids) > longest
        ]
        if len(names) == len(self.sequences):
            raise UserError(
                f"All sequences of {self.probe.tokens} are longer than the {longest} tokens that {model.name} reads."
            )
        return names

    def _rows(
        self, model: Checkpoint, sequences: dict[str, Tokens], progress: Callable[[int], None]
    ) -> Iterator[list[pa.RecordBatch]]:
        """Yield the rows of a batch, each sequence without the padding of its batch."""
        names, batches = list(sequences), self.batches[model.name]
        for start in range(0, len(names), self.options.batch_size):
            batch = names[start : start + self.options.batch_size]
            texts = batches.batch(batch)
            routing = model.model.trace(texts, layers=self._layers(model), logits=False)[1]
            finite.check(routing.layers, None, batch, checkpoint=model.name)
            yield rows_of_texts(
                batch,
                routing,
                texts,
                all_gates=self.probe.all_gates,
                generated=[sequences[name].generated for name in batch],
                kinds=[batches.kinds(name) for name in batch],
            )
            progress(len(batch))


def check_vocabulary(model: Checkpoint, sequences: dict[str, Tokens]) -> None:
    """Raise ``UserError`` where a token is none of the model's."""
    described: dict[str, Any] = getattr(model.model, "describe", dict)()
    size = described.get("vocabulary")
    for name, sequence in sequences.items():
        if size is not None and sequence.ids.max(initial=0) >= size:
            raise UserError(
                f"Sequence {name} has the token {sequence.ids.max()}, and {model.name} has tokens 0 to "
                f"{size - 1}: the ids "
                "come from another tokenizer."
            )
