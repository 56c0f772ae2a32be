"""The work of ``trace prefetch``: experts predicted from the layer before and from the previous token.

Axes: B sequences, J tokens after the prefix, E experts, P predictors, F folds, S sizes.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.declarations.options import Options
from moeprobe.errors import UserError
from moeprobe.metrics.analyses.prefetch import PREDICTORS, Prefetch, PrefetchHits
from moeprobe.metrics.stats.statistic import Integers
from moeprobe.probes.router_prefetch import sizes_of
from moeprobe.recorded.engine.folds import NUM_FOLDS, folds_of
from moeprobe.recorded.engine.input_sums import InputSums
from moeprobe.recorded.engine.sequences import (
    RECORDED,
    SequencesWork,
    have_same_tokens,
    kinds_of,
    tokens_of,
)
from moeprobe.recorded.trace_prefetch import TracePrefetch
from moeprobe.recorded.trace_prefetch.frequencies import (
    Frequencies,
    found_among,
    marks_of,
    pair_counts,
    parts,
)
from moeprobe.recordings.pairs import NamedTrace, clusters_of
from moeprobe.recordings.reading import Block, Layer, TraceFile
from moeprobe.results.stored import SumsStore
from moeprobe.results.sums import Cell
from moeprobe.runtime.progress import Progress

Marks = NDArray[np.float32]


class Prediction(SequencesWork[TracePrefetch]):
    """Traces of sequences, in each of which the next experts are predicted."""

    def __init__(self, probe: TracePrefetch, options: Options) -> None:
        super().__init__(probe, options)
        clusters = clusters_of([trace_view.trace for trace_view in self.traces])
        if len({clusters.get(name, name) for name in self.ids}) == 1:
            raise UserError(
                f"{self.traces[0].trace.path} has one request, and predictions are made from other requests; record "
                "more."
            )

    def check(self, files: Sequence[TraceFile]) -> None:
        """Raise ``UserError`` where a trace has no tokens that follow one another, or fewer experts than are loaded."""
        super().check(files)
        for trace in files:
            for name in self.layers:
                _sizes(self.probe.loaded, name, trace.layers[name])

    def changed_request(self) -> dict[str, Any]:
        """Return what differs from other questions to traces."""
        loaded = None if self.probe.loaded is None else list(self.probe.loaded)
        return super().changed_request() | {"loaded": loaded}

    def notes(self) -> list[str]:
        """Return sentences on requests that not all traces have, and on tokens whose part is not known."""
        return [*super().notes(), *self.unmarked()]

    def measure(self, progress: Progress) -> tuple[SumsStore, None]:
        """Return the sums per request."""
        return _PrefetchSums(self.traces, self.layers, self.ids, self.probe.loaded).sums(progress), None


def _sizes(loaded: Sequence[int] | None, name: str, layer: Layer) -> list[int]:
    return sizes_of(loaded, name, top_k=layer.top_k, num_experts=layer.num_experts)


@dataclass
class _Counts:
    """Counts by fold of one predictor in one layer; as in ``Frequencies.of``."""

    pairs: Integers
    cues: Integers
    targets: Integers
    tokens: Integers

    @classmethod
    def empty(cls, num_known: int, num_experts: int) -> "_Counts":
        """Return counts of 0."""
        shapes = (NUM_FOLDS, num_known, num_experts), (NUM_FOLDS, num_known), (NUM_FOLDS, num_experts)
        return cls(*(np.zeros(shape, np.int64) for shape in (*shapes, (NUM_FOLDS,))))

    def add(self, fold: int, cues: Marks, targets: Marks) -> None:
        """Add tokens of a fold: marks ``(..., D)`` and ``(..., E)``; those without either do not count."""
        has_both = cues.any(-1) & targets.any(-1)
        cues, targets = cues[has_both], targets[has_both]
        self.pairs[fold] += pair_counts(cues, targets)
        self.cues[fold] += np.rint(cues.sum(0, dtype=np.float64)).astype(np.int64)
        self.targets[fold] += np.rint(targets.sum(0, dtype=np.float64)).astype(np.int64)
        self.tokens[fold] += len(cues)

    def frequencies(self) -> Frequencies:
        """Return what other folds say."""
        return Frequencies.of(self.pairs, self.cues, self.targets, self.tokens)


def _known_experts(before: Marks | None, marks: Marks) -> Iterator[tuple[str, Marks]]:
    """Yield the experts that single predictors know at each token: of the layer before, of the previous token."""
    if before is not None:
        yield "layer", before
    previous = np.zeros_like(marks)
    previous[:, 1:] = marks[:, :-1]
    yield "token", previous


class _PrefetchSums(InputSums):
    """The sums per request of every trace."""

    in_processes = True

    def __init__(
        self,
        traces: Sequence[NamedTrace],
        layers: Sequence[str],
        ids: Sequence[str],
        loaded: Sequence[int] | None,
    ) -> None:
        super().__init__(traces, layers, ids, lists=())
        self._loaded = loaded
        self._folds = folds_of(ids, self._clusters)
        self._before = {
            trace_view.trace: {name: _layer_before(trace_view.trace, name) for name in layers}
            for trace_view in traces
        }
        self._fitted = [self._fit(trace_view.trace) for trace_view in traces]
        self._marked = [trace_view.trace.marks("generated") for trace_view in traces]

    def _fit(self, trace: TraceFile) -> dict[tuple[str, str], Frequencies]:
        """Return the frequencies of each layer and single predictor."""
        counts: dict[tuple[str, str], _Counts] = {}
        by_fold: dict[int, list[str]] = {}
        for name in self._ids:
            by_fold.setdefault(self._folds[name], []).append(name)
        widest = max(trace.layers[name].num_experts for name in self.num_tokens)
        for fold, of_fold in by_fold.items():
            for part in parts(len(of_fold), max(self.num_tokens.values()), widest):
                for name, _, before, marks in self._read(trace, of_fold[part]):
                    for predictor, cues_by_name in _known_experts(before, marks):
                        key = name, predictor
                        if key not in counts:
                            counts[key] = _Counts.empty(cues_by_name.shape[-1], marks.shape[-1])
                        counts[key].add(fold, cues_by_name, marks)
        return {key: fold_counts.frequencies() for key, fold_counts in counts.items()}

    def _read(self, trace: TraceFile, ids: Sequence[str]) -> Iterator[tuple[str, Block, Marks | None, Marks]]:
        """Yield each chosen layer, the marks of the layer before it in the recording, chosen or not, and its own.

        None where there is no layer before, or every expert of it gets a share of every token.
        """
        last: tuple[str, Marks] | None = None
        for name, longest in self.num_tokens.items():
            before_name = self._before[trace][name]
            if before_name is None:
                before = None
            elif last is not None and last[0] == before_name:
                before = last[1]
            else:
                before = _marks(trace.read(before_name, ids, num_tokens=longest))
            block = trace.read(name, ids, num_tokens=longest)
            last = name, _marks(block)
            yield name, block, before, last[1]

    def cell_of(self, trace_view: NamedTrace, cell: Cell) -> Cell:
        """Return the cell with the view of all recordings; its severity is the number of loaded experts."""
        return replace(cell, view=RECORDED)

    def of_block(self, ids: Sequence[str]) -> list[dict[Cell, dict[str, Tensor]]]:
        """Return the sums of some requests for each trace."""
        return [
            self._of_trace(trace_view.trace, ids, fitted, is_marked=is_marked)
            for trace_view, fitted, is_marked in zip(self.traces, self._fitted, self._marked, strict=True)
        ]

    def _of_trace(
        self,
        trace: TraceFile,
        ids: Sequence[str],
        fitted: Mapping[tuple[str, str], Frequencies],
        *,
        is_marked: bool,
    ) -> dict[Cell, dict[str, Tensor]]:
        sums: dict[Cell, dict[str, Tensor]] = {}
        totals: dict[str, list[_Found]] = {}
        # Predictors are compared over the same layers, those with one before; where none has one, over all.
        compared = {name for name, before in self._before[trace].items() if before} or set(self.num_tokens)
        folds = np.array([self._folds[name] for name in ids])
        for name, block, before, marks in self._read(trace, ids):
            kinds = {kind: part.present.numpy() for kind, part in kinds_of(block, is_marked=is_marked)}
            sizes = _sizes(self._loaded, name, block.layer)
            of_tokens = _hits(before, marks, folds, sizes, name, fitted)
            for kind, mask in kinds.items():
                predicted = of_tokens.of(mask)
                cell = Cell(layer=name, router=block.layer.router, top_k=block.layer.top_k, tokens=kind)
                sums |= predicted.sums(cell, sizes, block.layer)
                if name in compared:
                    totals.setdefault(kind, []).append(predicted)
        layers = [trace.layers[name] for name in self.num_tokens]
        # Only layers alike can be added up.
        if len(layers) > 1 and len({(layer.num_experts, layer.top_k) for layer in layers}) == 1:
            for kind, parts_of_kind in totals.items():
                predicted = _Found(*(np.sum(part, axis=0) for part in zip(*parts_of_kind, strict=True)))
                cell = Cell(router=layers[0].router, top_k=layers[0].top_k, tokens=kind)
                sums |= predicted.sums(cell, sizes, layers[0])
        return sums


def _layer_before(trace: TraceFile, name: str) -> str | None:
    """Return the layer before one in a recording; None where there is none whose same tokens choose experts."""
    names = list(trace.layers)
    if name == names[0]:
        return None
    before = names[names.index(name) - 1]
    layer = trace.layers[before]
    is_alike = (
        layer.grid_rows is None
        and not layer.experts_choose
        and layer.top_k > 0
        and have_same_tokens(trace, (before, name))
    )
    return before if is_alike else None


def _marks(block: Block) -> Marks:
    """Return which experts the tokens after the prefix have ``(B, J, E)``."""
    experts, present = tokens_of(block)
    return marks_of(experts, present, block.layer.num_experts)


class _Found(NamedTuple):
    """What predictions found: of single tokens, with an axis ``J`` behind the first one, or of requests.

    Attributes:
        hits: ``(B, S, P)`` of each predictor.
        busiest: ``(B, S, P)`` of the busiest experts, of the same choices.
        choices: ``(B, P)``.
    """

    hits: Integers
    busiest: Integers
    choices: Integers

    def of(self, mask: NDArray[np.bool_]) -> "_Found":
        """Return the sums over the tokens of a mask ``(B, J)``."""
        return _Found(*((part * mask.reshape(*mask.shape, *[1] * (part.ndim - 2))).sum(1) for part in self))

    def sums(self, cell: Cell, sizes: Sequence[int], layer: Layer) -> dict[Cell, dict[str, Tensor]]:
        """Return the sums of a cell, by the number of loaded experts."""
        choices = torch.from_numpy(self.choices)
        return {
            replace(cell, severity=float(size)): Prefetch().sums(
                PrefetchHits(
                    torch.from_numpy(self.hits[:, index].copy()),
                    torch.from_numpy(self.busiest[:, index].copy()),
                    choices,
                    choices * (size / layer.num_experts),
                )
            )
            for index, size in enumerate(sizes)
        }


def _hits(
    before: Marks | None,
    marks: Marks,
    folds: Integers,
    sizes: Sequence[int],
    name: str,
    fitted: Mapping[tuple[str, str], Frequencies],
) -> _Found:
    """Return the hits of each token ``(B, J, ...)``."""
    shape = *marks.shape[:2], len(sizes), len(PREDICTORS)
    predicted = _Found(*(np.zeros(part, np.int64) for part in (shape, shape, (*shape[:2], shape[3]))))
    cues_by_name = dict(_known_experts(before, marks))
    # All predictors are judged on the tokens that have a previous one.
    judged = np.logical_and.reduce([marks.any(-1), *(part.any(-1) for part in cues_by_name.values())])
    for fold in np.unique(folds).tolist():
        at = np.flatnonzero(folds == fold)
        targets = marks[at] * judged[at, :, None]
        busiest = fitted[name, "token"].busiest[fold]
        scores = {
            predictor: fitted[name, predictor].scores(marks_known[at], fold)
            for predictor, marks_known in cues_by_name.items()
        }
        if "layer" in scores:
            scores["both"] = scores["layer"] + scores["token"]
        of_busiest = found_among(np.broadcast_to(busiest, targets.shape), busiest, targets, sizes)
        for index, predictor in enumerate(PREDICTORS):
            if predictor in scores:
                predicted.hits[at, :, :, index] = found_among(scores[predictor], busiest, targets, sizes)
                predicted.busiest[at, :, :, index] = of_busiest
                predicted.choices[at, :, index] = np.count_nonzero(targets, axis=-1)
    return predicted
