"""Measure how much of the mismatch between a server and a model is routing: each sequence is scored twice.

Axes: B requests of a batch, T tokens.
"""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.adapters.base import Checkpoint
from moeprobe.adapters.open import as_checkpoint
from moeprobe.declarations.options import Options
from moeprobe.errors import RunWarning, UserError, option
from moeprobe.inputs.modality import REQUEST
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.mismatch import MismatchAnalysis, Scores
from moeprobe.probes.engine.batch_sums import to_host
from moeprobe.probes.engine.run_spec import check_layers, chosen_layers
from moeprobe.probes.trace.sequence_batches import SequenceBatches
from moeprobe.probes.trace.sequences import check_vocabulary
from moeprobe.recorded.engine.division import share_of
from moeprobe.recorded.engine.work import DividedWork
from moeprobe.recorded.mismatch import Mismatch
from moeprobe.recordings.check_trace import is_by_chance
from moeprobe.recordings.log_probs import read_log_probabilities, read_sequences
from moeprobe.recordings.matching import TOKENS, with_names_of
from moeprobe.recordings.pairs import check_placed, clusters_of
from moeprobe.recordings.reading import TraceFile
from moeprobe.recordings.rows import to_routing
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.results.stored import SumsStore, concat, of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from moeprobe.routing.capabilities import Rerouted
from moeprobe.routing.record import LayerRouting, RoutingTrace
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.files import sha256
from moeprobe.runtime.progress import Progress

_DATA, _VIEW, _SUMS = REQUEST.data, "generated", "sums"
# Requests by which it is checked that the server has the model.
_CHECKED = 16


class Scoring(DividedWork[Mismatch]):
    """Two passes over each sequence: with the model's routing, and with the server's."""

    def __init__(self, probe: Mismatch, options: Options) -> None:
        super().__init__(probe, options)
        self.gates = gates = probe.gates
        tokens, routing = probe.tokens, probe.routing
        self.served = _Served(tokens, TraceFile(routing), match=probe.match, limit=options.limit)
        self.checkpoint = checkpoint = as_checkpoint(probe.model, device=options.device, dtype=options.dtype)
        if not isinstance(checkpoint.model, Rerouted):
            raise UserError(f"{checkpoint.name} is not a language model that can repeat a server's routing.")
        self.model = checkpoint.model
        check_layers({checkpoint.name: checkpoint.model.layer_names}, options.layers)
        self.layers = chosen_layers(checkpoint.model.layer_names, options.layers)
        self.served.check(checkpoint, self.layers, gates=gates)
        sequences = {name: self.served.sequences[name] for name in self.served.names}
        self.batches = SequenceBatches(checkpoint, sequences, images=probe.images)
        self.kinds = self.batches.all_kinds()
        self.request = self.make_request(
            _VIEW,
            gates=gates,
            replayed_gates=gates,
            tokens=sha256(tokens),
            routing=self.served.trace.parts.sha256(),
            limit=options.limit,
            trained_capacity=False,
            class_null=False,
            labels_used=False,
            checkpoints={checkpoint.name: {"sha256": checkpoint.provenance.get("sha256")}},
            **probe.matching(),
            **self.batches.request(),
        )

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Score all sequences, and put the tables together."""
        checkpoint = self.checkpoint
        is_served = self._is_served()
        progress.start(self.probe.kind, self.num_inputs)
        sums = self.measure(progress)
        info = self.run_info(
            aligned=True,
            train_seeds={checkpoint.name: checkpoint.train_seed},
            groups={checkpoint.name: checkpoint.group},
        )
        table, comparison = summarize(sums, analyses=(MismatchAnalysis(shares=is_served),), run_info=info)
        return self.make_result(
            table,
            comparison,
            sums,
            checkpoints={checkpoint.name: dict(checkpoint.provenance)},
            colors=colors([checkpoint.name]),
            skipped_images=[],
            notes=self.served.notes(),
        )

    @property
    def num_inputs(self) -> int:
        """Requests that are scored."""
        return len(self.served.names)

    @property
    def device(self) -> str:
        """Where the model is."""
        return str(choose_device(self.options.device))

    def measure(self, progress: Progress) -> SumsStore:
        """Return the sums per request, of those that are measured here or were in other processes."""
        if self.division.measured:
            return concat(self.division.read(_SUMS, 1))
        names = self.served.names
        if self.division.shard is None:
            return self._sums(names, progress)
        first, last = share_of(self._batch_starts(), len(names), self.division.shard)
        self.division.inputs = last - first
        stores = iter([(0, self._sums(names[first:last], progress))] if first < last else [])
        return self.division.write(_SUMS, stores, {})

    def _batch_starts(self) -> list[int]:
        """Return where batches begin before which all requests of each cluster are, or none of it."""
        names, clusters = self.served.names, clusters_of([self.served.trace])
        last = {clusters.get(name, name): index for index, name in enumerate(names)}
        # The last request of all clusters that have begun.
        ends = np.maximum.accumulate([last[clusters.get(name, name)] for name in names])
        return [
            start
            for start in range(0, len(names), self.options.batch_size)
            if not start or ends[start - 1] < start
        ]

    def _sums(self, request_names: Sequence[str], progress: Progress) -> SumsStore:
        accumulator = Accumulator()
        for start in range(0, len(request_names), self.options.batch_size):
            names = request_names[start : start + self.options.batch_size]
            for kind, scores in self._scores(names):
                columns = {name: to_host(column) for name, column in MismatchAnalysis().sums(scores).items()}
                cell = Cell(view=_VIEW, tokens=kind)
                accumulator.add(cell, names, {"label": np.full(len(names), -1)} | columns)
            progress.advance(len(names))
        clustered = accumulator.by_cluster(clusters_of([self.served.trace]))
        return of_table(image_table(clustered, checkpoint=self.checkpoint.name))

    def _scores(self, names: Sequence[str]) -> Iterator[tuple[str, Scores]]:
        """Yield the log-probabilities of the generated tokens of some requests, NaN elsewhere.

        First where all tokens repeat the server's routing (""), then where the tokens of one kind alone do.
        """
        texts = self.batches.batch(names)
        tokens = texts.ids.shape[1]
        routing = self.served.routing(names, self.layers, num_tokens=tokens)
        server = torch.full(texts.ids.shape, float("nan"))
        for row, name in enumerate(names):
            sequence = self.served.sequences[name]
            server[row, sequence.prompt : len(sequence.ids)] = torch.from_numpy(self.served.scores[name])
        own_scores = self.model.log_probabilities(texts)
        server = server.to(own_scores.device)
        masks = self.batches.masks(names, self.kinds, num_tokens=tokens)
        for kind, repeated in (
            ("", routing),
            *((kind, _of_tokens(routing, mask)) for kind, mask in masks.items()),
        ):
            replayed = self.model.replayed_log_probabilities(texts, repeated, gates=self.gates)
            yield kind, Scores(server, own_scores, replayed)

    def _is_served(self) -> bool:
        """Return whether the server has this model; warn if their experts agree by chance alone."""
        names = self.served.names[:_CHECKED]
        texts = self.batches.batch(names)
        served = self.served.routing(names, self.layers, num_tokens=texts.ids.shape[1])
        _, routing = self.checkpoint.model.trace(texts, layers=self.layers, logits=False)
        overlaps = [_overlap(routing.layers[layer], served.layers[layer]) for layer in self.layers]
        agreement, chance = np.mean(overlaps, axis=0)
        is_served = not is_by_chance(agreement, chance)
        if not is_served:
            warnings.warn(
                RunWarning(
                    f"The server's experts agree with those of {self.checkpoint.name} hardly better than by chance "
                    f"({agreement:.3f}, chance {chance:.3f}): the server has another model, or its capture is wrong. "
                    f"Run moeprobe trace check {self.served.trace.path} --against a trace of this model."
                ),
                stacklevel=2,
            )
        return is_served


def _of_tokens(routing: RoutingTrace, tokens: torch.Tensor) -> RoutingTrace:
    """Return a routing in which only some tokens ``(B, T)`` have choices."""
    without = ~tokens[..., None]
    return RoutingTrace(
        {
            name: replace(layer, selected=layer.selected.masked_fill(without, -1))
            for name, layer in routing.layers.items()
        }
    )


def _overlap(routing: LayerRouting, served: LayerRouting) -> tuple[float, float]:
    """Return the share of served choices that a routing has too, and the share by chance."""
    present = (routing.valid & served.valid.to(routing.valid.device)).cpu()
    first, second = (side.selected_mask.cpu()[present].double() for side in (routing, served))
    total = second.sum()
    if not total:
        return 1.0, 0.0
    chance = first.mean(0) @ second.mean(0) * len(second) / total
    return float((first * second).sum() / total), float(chance)


class _Served:
    """What a server recorded: sequences, log-probabilities and routing of the requests that have all three."""

    def __init__(self, path: Path, trace: TraceFile, *, match: str, limit: int | None) -> None:
        self.path = path
        check_placed(trace)
        self.sequences, self.scores = read_sequences(path), read_log_probabilities(path)
        scored_names = [name for name in self.sequences if name in self.scores]
        self._matching: list[str] = []
        if match == TOKENS:
            ids = {name: self.sequences[name].ids for name in scored_names}
            trace, self._matching = with_names_of(ids, trace, clusters={})
        self.trace, routed_ids = trace, set(trace.ids)
        self.names = [name for name in scored_names if name in routed_ids][:limit]
        self._without = {
            "log-probabilities": len(self.sequences) - len(scored_names),
            "routing": sum(name not in routed_ids for name in scored_names),
        }
        if not self.names:
            raise UserError(
                f"{path} and {trace.path} have no request in common; their names look like {next(iter(self.scores))!r} "
                f"and {trace.ids[0]!r}. Match them by their tokens: {option('match', TOKENS)}."
            )

    def check(self, checkpoint: Checkpoint, layers: Sequence[str], *, gates: str) -> None:
        """Raise ``UserError`` unless the trace is of the model's layers, and the model can repeat it."""
        assert isinstance(checkpoint.model, Rerouted)
        for name in layers:
            if name not in self.trace.layers:
                raise UserError(
                    f"{self.trace.path} has no layer {name}; it has {', '.join(self.trace.layers)}: choose with "
                    f"{option('layers')}."
                )
            layer = self.trace.layers[name]
            if layer.load_only or not layer.top_k or layer.experts_choose:
                raise UserError(
                    f"{self.trace.path}: tokens of {name} choose no experts that could be repeated."
                )
            if gates == "replayed" and layer.gates_kept == "none":
                raise UserError(
                    f"{self.trace.path} holds no gates of {name}; use {option('gates', 'recomputed')}."
                )
        checkpoint.model.check_replay(layers)
        sequences = {name: self.sequences[name] for name in self.names}
        check_vocabulary(checkpoint, sequences)
        longest = getattr(checkpoint.framing, "longest", None)
        for name, sequence in sequences.items():
            if longest is not None and len(sequence.ids) > longest:
                raise UserError(
                    f"{name} has {len(sequence.ids)} tokens, and {checkpoint.name} reads {longest}."
                )

    def routing(self, names: Sequence[str], layers: Sequence[str], *, num_tokens: int) -> RoutingTrace:
        """Return the recorded routing of requests, no choice beyond its end.

        Raises:
            UserError: the trace says that its tokens are others.
        """
        layers_routing = {}
        for layer in layers:
            for name, rows in zip(names, self.trace.num_tokens(layer, names), strict=True):
                length = len(self.sequences[name].ids)
                # Nothing routes the last token.
                if not length - 1 <= rows <= length:
                    raise UserError(
                        f"{name} has {rows} rows in {self.trace.path} and {length} tokens in {self.path}: rows are "
                        "missing, or the two are of different runs."
                    )
            block = self.trace.read(layer, names, num_tokens=num_tokens)
            if block.token_ids is not None:
                self._check_tokens(names, block.token_ids)
            layers_routing[layer] = to_routing(block)
        return RoutingTrace(layers_routing)

    def _check_tokens(self, names: Sequence[str], ids: NDArray[np.int32]) -> None:
        for name, recorded_ids in zip(names, ids, strict=True):
            sent = self.sequences[name].ids
            if ((recorded_ids[: len(sent)] >= 0) & (recorded_ids[: len(sent)] != sent)).any():
                raise UserError(f"{name} has other tokens in {self.trace.path} than in {self.path}.")

    def notes(self) -> list[str]:
        """Return sentences on omitted parts."""
        without = [f"{count:,} requests without {what}" for what, count in self._without.items() if count]
        return without + self._matching
