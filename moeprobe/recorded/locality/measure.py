"""The work of ``trace locality``: how experts are used again along sequences, and what caches find.

Axes: B sequences, J tokens after the prefix, K choices of a token.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from moeprobe.declarations.options import Options
from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import REQUEST
from moeprobe.metrics.analyses.next_token import NextToken
from moeprobe.metrics.analyses.reuse_distance import ReuseDistance
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.stats.bootstrap import MIN_IMAGES
from moeprobe.metrics.token_kinds import PARTS
from moeprobe.recorded.engine.folds import folds_of
from moeprobe.recorded.engine.input_sums import InputSums
from moeprobe.recorded.engine.loads import loads_elsewhere
from moeprobe.recorded.engine.sequences import RECORDED, SequencesWork, have_same_tokens, kinds_of
from moeprobe.recorded.locality import Locality
from moeprobe.recorded.locality.caches import CacheSettings, CacheSums, LayerTokens
from moeprobe.recorded.locality.transfer import expert_size, read_bandwidth
from moeprobe.recordings.pairs import NamedTrace, clusters_of
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.sampled_units import SampledUnits
from moeprobe.results.stored import SumsStore
from moeprobe.results.sums import Cell
from moeprobe.runtime.progress import Progress
from moeprobe.runtime.seeds import generator

# Tokens for which caches of single layers are simulated, and one cache of all layers, in whole random requests. More
# would narrow intervals that are narrow already; in the cache of all layers a token takes a hundred times as long.
CACHED_TOKENS, SHARED_TOKENS = 2**18, 2**15


class Reuse(SequencesWork[Locality]):
    """Traces of sequences, each measured by itself; the others are paired with the first by request."""

    def __init__(self, probe: Locality, options: Options) -> None:
        self._settings = CacheSettings(
            None if probe.cache is None else tuple(int(size) for size in probe.cache),
            probe.batch,
            expert_size(probe.expert_bytes, probe.model_config),
            read_bandwidth(probe.bandwidth),
        )
        if probe.batch > 1 and options.unit not in (None, REQUEST.name):
            raise UserError(
                f"A batch of requests is one sample, so {option('batch')} takes no {option('unit')}; leave one of "
                "them out."
            )
        super().__init__(probe, options)
        if probe.batch > 1:
            self.units = SampledUnits("batch", _batches_of(self.ids, probe.batch))
        self._samples: tuple[tuple[str, frozenset[str]], ...] = ()
        self._lacking: list[str] = []

    def check(self, files: Sequence[TraceFile]) -> None:
        """Raise ``UserError`` where a trace has no tokens that follow one another, or caches do not fit its layers."""
        super().check(files)
        for trace in files:
            for layer in self.layers:
                self._settings.sizes_of(layer, trace.layers[layer])
            if self.probe.batch > 1 and clusters_of([trace]):
                raise UserError(
                    f"{trace.path} has requests with several sequences, which {option('batch')} does not take apart; "
                    "leave it out."
                )

    def changed_request(self) -> dict[str, Any]:
        """Return what differs from other questions to traces."""
        return super().changed_request() | {"caches": dataclasses.asdict(self._settings)}

    def measure(self, progress: Progress) -> tuple[SumsStore, None]:
        """Return the sums per request, of all tokens."""
        unit_of = {} if self.units is None else self.units.unit_of
        sums = _SequenceSums(
            self.traces, self.layers, self.ids, self._settings, unit_of=unit_of, seed=self.options.seed
        )
        self._samples = (("caches", sums.cached_ids), ("one cache for all layers", sums.shared_ids))
        self._lacking = sums.without_others
        return sums.sums(progress, self.division), None

    def notes(self) -> list[str]:
        """Return sentences on requests that not all traces have, on unknown parts, and on caches left out."""
        notes = [*super().notes(), *self.unmarked()]
        if self.probe.batch > 1:
            notes.append(
                f"intervals over single requests: of {len(self.ids):,} requests, {self.probe.batch} that are served at "
                "once are one sample"
            )
        if self._lacking:
            verb = "has" if len(self._lacking) == 1 else "have"
            notes.append(
                f"the busiest experts of other requests, as {' and '.join(self._lacking)} {verb} none: caches begin "
                "empty"
            )
        notes += [
            f"{what} in {len(self.ids) - len(sample_ids):,} of the {len(self.ids):,} requests, as it takes long: "
            "the others were drawn at random"
            for what, sample_ids in self._samples
            if len(sample_ids) < len(self.ids)
        ]
        num_all = len(self.traces[0].trace.layers)
        if num_others := num_all - len(self.layers):
            notes.append(
                f"what {num_others:,} of the {num_all:,} MoE layers {'loads' if num_others == 1 else 'load'}: experts, "
                "bytes and tokens per second are of the chosen layers alone"
            )
        differing = dict.fromkeys(
            what for trace_view in self.traces for what in _differing(trace_view.trace, self.layers)
        )
        if differing:
            notes.append(f"caches over all layers, which have different numbers of {' and '.join(differing)}")
        return notes


class _SequenceSums(InputSums):
    """The sums per request of every trace; of several that are served at once, per batch of them.

    Attributes:
        cached_ids: requests for which caches of single layers are simulated.
        shared_ids: those of them for which one cache of all layers is, too.
    """

    in_processes = True
    has_gates = False

    def __init__(
        self,
        traces: Sequence[NamedTrace],
        layers: Sequence[str],
        ids: Sequence[str],
        settings: CacheSettings,
        *,
        unit_of: Mapping[str, str],
        seed: int,
    ) -> None:
        batches = _batches_of(ids, settings.batch) if settings.batch > 1 else None
        super().__init__(
            traces,
            layers,
            ids,
            lists=trial_lists([NextToken()]),
            clusters=batches,
            together=settings.batch,
        )
        self._marked = [trace_view.trace.marks("generated") for trace_view in traces]
        folds = folds_of(ids, self._clusters)
        self.shared_ids, self.cached_ids = self._draw(
            layers[0], unit_of, seed, (SHARED_TOKENS, CACHED_TOKENS)
        )
        self._caches = [
            CacheSums(
                settings,
                loads_elsewhere(trace_view.trace, layers, ids, folds),
                folds,
                self.cached_ids,
                self.shared_ids,
                adds_layers=not _differing(trace_view.trace, layers),
            )
            for trace_view in traces
        ]

    @property
    def without_others(self) -> list[str]:
        """The traces in which no other requests say which experts are busy."""
        return [
            trace_view.name
            for trace_view, caches in zip(self.traces, self._caches, strict=True)
            if not caches.has_others
        ]

    def _draw(
        self, layer: str, unit_of: Mapping[str, str], seed: int, limits: Sequence[int]
    ) -> list[frozenset[str]]:
        """Return whole samples in one random order, until they have as many tokens as each limit, and an interval."""
        tokens = dict(zip(self._ids, self.traces[0].trace.num_tokens(layer, self._ids).tolist(), strict=True))
        samples: dict[str, list[str]] = {}
        for name in self._ids:
            samples.setdefault(unit_of.get(name, self._cluster(name)), []).append(name)
        members = list(samples.values())
        members = [members[index] for index in generator(seed, "shared_cache").permutation(len(members))]
        ends = np.cumsum([sum(tokens[name] for name in sample) for sample in members])
        numbers = [max(MIN_IMAGES, int(np.searchsorted(ends, limit)) + 1) for limit in limits]
        return [frozenset(itertools.chain.from_iterable(members[:number])) for number in numbers]

    def cell_of(self, trace_view: NamedTrace, cell: Cell) -> Cell:
        """Return the cell with the view of all recordings; its severity is the size of caches."""
        return replace(cell, view=RECORDED)

    def numbers_of_input(self) -> int:
        """Return how many numbers the sums of the longest request hold: its choices, of all tokens and of parts.

        Half of them, since they are copied less often than those of other questions: the fewer the parts are, the
        fewer cells are written, and the more requests go through caches at once.
        """
        kinds = 1 + len(PARTS) * any(self._marked)
        return max(kinds * super().numbers_of_input() // 2, 1)

    def of_block(self, ids: Sequence[str]) -> list[dict[Cell, dict[str, Tensor]]]:
        """Return the sums of some requests for each trace: reuse, then what caches find."""
        sums_of_traces: list[dict[Cell, dict[str, Tensor]]] = []
        for trace_view, is_marked, caches in zip(self.traces, self._marked, self._caches, strict=True):
            sums: dict[Cell, dict[str, Tensor]] = {}
            tokens: dict[str, LayerTokens] = {}
            for name, longest in self.num_tokens.items():
                block = trace_view.trace.read(name, ids, num_tokens=longest)
                masks = {}
                for kind, sequences in kinds_of(block, is_marked=is_marked):
                    cell = Cell(layer=name, router=block.layer.router, top_k=block.layer.top_k, tokens=kind)
                    sums[cell] = NextToken().sums(sequences) | ReuseDistance().sums(sequences)
                    masks[kind] = sequences.present.numpy()
                tokens[name] = LayerTokens(
                    block.layer, block.experts[:, block.layer.num_prefix_tokens :], masks
                )
            for cell, columns in caches.of(tokens, ids).items():
                sums[cell] = sums.get(cell, {}) | columns
            sums_of_traces.append(sums)
        return sums_of_traces


def _differing(trace: TraceFile, layers: Sequence[str]) -> list[str]:
    """Return what layers have different numbers of, so that their caches are not added up; empty where they are."""
    shapes = {(trace.layers[name].num_experts, trace.layers[name].top_k) for name in layers}
    return ["experts"] * (len(shapes) > 1) + ["tokens"] * (not have_same_tokens(trace, layers))


def _batches_of(ids: Sequence[str], batch: int) -> dict[str, str]:
    """Return the batch of each request, which is called by its first one."""
    return {name: ids[index - index % batch] for index, name in enumerate(ids)}
