"""The work of ``trace indexer``: two captures of sparse-attention indexers, whose queries select keys.

Axes: n sequences, R queries of one, L layers.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprobe.declarations.options import Options
from moeprobe.errors import RunWarning, UserError, option
from moeprobe.inputs.modality import REQUEST
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.indexer import IndexerAnalysis, KeyOverlap
from moeprobe.metrics.token_kinds import PARTS, POSITION
from moeprobe.recorded.engine.work import RecordingWork
from moeprobe.recorded.indexer import Indexer
from moeprobe.recorded.indexer.overlaps import (
    Overlaps,
    Pair,
    common_layers,
    overlaps_of,
    pair_sequences,
    shift_sentence,
)
from moeprobe.recordings.indexer import Selections, read_selections
from moeprobe.recordings.model_config import read_indexer_shape
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.results.stored import SumsStore, of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table
from moeprobe.runtime.files import Scratch, is_file, resolve, sha256
from moeprobe.runtime.processes import spread, usable
from moeprobe.runtime.progress import Progress
from moeprobe.runtime.short_paths import shortest_ends
from moeprobe.runtime.similar_paths import did_you_mean_path

_VIEW, _ROUTER = "selected keys", "indexer"


class Captures(RecordingWork[Indexer]):
    """Two files of responses with the keys that queries selected."""

    def __init__(self, probe: Indexer, options: Options) -> None:
        super().__init__(probe, options)
        self.start = probe.start
        self.paths = first, second = Path(probe.first), Path(probe.second)
        for path in self.paths:
            if not is_file(path):
                raise UserError(f"There is no file of responses {path}.{did_you_mean_path(path)}")
        if resolve(first) == resolve(second):
            raise UserError(f"{first} was named twice; name the responses of two captures.")
        self.shape = read_indexer_shape(probe.model_config)
        self.name = shortest_ends([resolve(path).with_suffix("") for path in self.paths])[1]
        self.hashes = [sha256(path) for path in self.paths]
        self.request = self.make_request(
            _VIEW,
            start=probe.start,
            reference=self.hashes[0],
            config=sha256(probe.model_config),
            checkpoints={self.name: {"sha256": self.hashes[1]}},
        )

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Read both files, and put the tables together."""
        scratch = Scratch()

        def read(side: int) -> Selections:
            return read_selections(self.paths[side], self.shape, scratch.path / str(side), start=self.start)

        first, second = spread(read, 2, processes=min(usable(), 2))
        pairs = pair_sequences(first, second)
        layers = self._layers(first, second)
        self._check(first, second, pairs)
        shift = shift_sentence(pairs, first, second)
        if shift:
            warnings.warn(RunWarning(f"{self.paths[1].name} {shift}."), stacklevel=2)
        progress.start(self.probe.kind, len(pairs))
        sums = self._sums(pairs, layers, _overlaps(pairs, first, second), progress)
        info = self.run_info(aligned=True, train_seeds={self.name: None}, groups={self.name: ""})
        table, comparison = summarize(sums, analyses=(IndexerAnalysis(),), run_info=info)
        checkpoint = {"path": str(self.paths[1]), "sha256": self.hashes[1], "reference": str(self.paths[0])}
        return self.make_result(
            table,
            comparison,
            sums,
            checkpoints={self.name: checkpoint | ({"warning": shift} if shift else {})},
            colors=colors([self.name]),
            skipped_images=[],
            notes=_notes(first, second, pairs),
        )

    def _layers(self, first: Selections, second: Selections) -> dict[str, int]:
        """Return the layers that are looked at: the index of each among the common ones by its name."""
        names = [f"layers.{number}" for number in common_layers(first, second)[0]]
        requested = self.options.layers
        lacking = set(requested or ()) - set(names)
        if lacking:
            raise UserError(
                f"The captures have no layer {min(lacking)} in common; choose of {', '.join(names) or 'none'} with "
                f"{option('layers')}."
            )
        return {name: index for index, name in enumerate(names) if requested is None or name in requested}

    def _check(self, first: Selections, second: Selections, pairs: list[Pair]) -> None:
        """Raise ``UserError`` where nothing can be compared."""
        if not pairs:
            names = [next(iter(side.sequences), "none") for side in (first, second)]
            raise UserError(
                f"{first.path} and {second.path} have no request in common; their names look like {names[0]!r} and "
                f"{names[1]!r}. Send the same request_id both times."
            )
        if not any(pair.end > pair.begin for pair in pairs):
            raise UserError(
                f"No query sees more than {self.shape.top_k:,} keys, so each selects all of them and nothing can "
                "differ; send longer requests."
            )

    def _sums(
        self, pairs: list[Pair], layers: dict[str, int], overlaps: Iterator[Overlaps], progress: Progress
    ) -> SumsStore:
        """Return the sums of each layer, and of all, per request and kind of tokens."""
        parts: dict[Cell, dict[str, dict[str, NDArray[Any]]]] = {}
        for pair, of_pair in zip(pairs, overlaps, strict=True):
            if pair.end > pair.begin:
                for kind, queries in _kinds(pair).items():
                    columns = _columns(of_pair, queries, list(layers.values()))
                    for index, layer in enumerate(layers):
                        parts.setdefault(self._cell(layer, kind), {})[pair.name] = {
                            name: column[index : index + 1] for name, column in columns.items()
                        }
                    parts.setdefault(self._cell("", kind), {})[pair.name] = {
                        name: column.sum(keepdims=True) for name, column in columns.items()
                    }
            progress.advance(1)
        accumulator, order = Accumulator(), [*layers, ""]
        for cell in sorted(parts, key=lambda cell: order.index(cell.layer)):
            for name, columns in parts[cell].items():
                accumulator.add(cell, [name], {"label": np.full(1, -1)} | columns)
        clusters = {pair.name: pair.first.cluster for pair in pairs if pair.first.cluster != pair.name}
        return of_table(image_table(accumulator.by_cluster(clusters), checkpoint=self.name))

    def _cell(self, layer: str, kind: str) -> Cell:
        return Cell(layer=layer, router=_ROUTER, top_k=self.shape.top_k, view=_VIEW, tokens=kind)


def _columns(overlaps: Overlaps, queries: Any, layers: list[int]) -> dict[str, NDArray[Any]]:
    """Return the sums ``(L,)`` over some queries of a sequence, in each of some layers."""
    fields = {
        name: torch.from_numpy(values[queries][:, layers].T.copy()) for name, values in overlaps.items()
    }
    return {name: column.numpy() for name, column in IndexerAnalysis().sums(KeyOverlap(**fields)).items()}


def _overlaps(pairs: list[Pair], first: Selections, second: Selections) -> Iterator[Overlaps]:
    """Return the overlaps of each pair, computed in several processes."""

    def compute(index: int) -> Overlaps:
        return overlaps_of(pairs[index], first, second)

    return spread(compute, len(pairs), processes=usable())


def _kinds(pair: Pair) -> dict[str, Any]:
    """Return which queries ``(R,)`` are of each kind of tokens: all, prompt and generated where known, by position."""
    position = np.arange(pair.begin, pair.end)
    kinds: dict[str, Any] = {REQUEST.token: slice(None)}
    if pair.first.tokens is not None:
        generated = position >= pair.first.tokens.prompt
        for name, which in zip(PARTS, (~generated, generated), strict=True):
            if which.any():
                kinds[name] = which
    start = 1 << (int(pair.begin).bit_length() - 1) if pair.begin else 0
    while start < pair.end:
        end = max(2 * start, 1)
        name = f"{POSITION} {start}" if end == start + 1 else f"{POSITION} {start}-{end - 1}"
        kinds[name] = (position >= start) & (position < end)
        start = end
    return kinds


def _notes(first: Selections, second: Selections, pairs: list[Pair]) -> list[str]:
    """Return sentences on everything that was left out."""
    notes = []
    alone = len(first.sequences) + len(second.sequences) - 2 * len(pairs)
    if alone:
        notes.append(f"{alone:,} sequences that only one of the captures has")
    for side in (first, second):
        if side.nulls:
            notes.append(f"{side.nulls:,} sequences of {side.path.name} whose selections are null")
        if side.uncaptured:
            notes.append(
                f"{side.uncaptured:,} selections of {side.path.name} that are -1 in every place: known of the prefix "
                "cache"
            )
    if first.complete:
        notes.append(
            f"{first.complete:,} selections of {first.path.name} by queries that see no more than K keys, and so "
            "select all of them"
        )
    later = sum(min(pair.first.end, pair.second.end) - pair.end for pair in pairs if pair.end > pair.begin)
    if later > 0:
        notes.append(f"{later:,} queries after the first token in which two sequences differ")
    if any(pair.first.tokens is None or pair.second.tokens is None for pair in pairs):
        notes.append("whether both captures are of the same tokens, whose ids are not in the responses")
    return notes
