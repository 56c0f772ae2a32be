"""The work of ``coverage``: how soon the requests of recordings reach every expert.

Axes: n requests, E experts of a layer, X experts of all layers.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.declarations.options import Options
from moeprobe.errors import FinishedError, UserError, option
from moeprobe.inputs.modality import REQUEST, TEXT
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses import expert_coverage as coverage
from moeprobe.metrics.declaration import Metric, NumberName
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.statistic import Integers
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.recorded.coverage import Coverage
from moeprobe.recorded.coverage.collect import ENDS, EvenRouter, Orders, greedy_subset, grid_of, range_of
from moeprobe.recorded.engine.sequences import RECORDED, tokens_of
from moeprobe.recorded.engine.work import RecordingWork
from moeprobe.recordings.pairs import check_tokens, clusters_of, common_layers, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results import summaries
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.results.stored import SumsStore, concat, of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table, with_rows
from moeprobe.runtime.files import atomic_file, is_there
from moeprobe.runtime.progress import Progress

# Choices of one layer that are read at a time.
_CHOICES = 2**22
# Experts with too few tokens that a note lists; the table has all.
_LISTED = 20


@dataclass(frozen=True)
class _Uses:
    """What the requests of one recording bring to experts.

    Attributes:
        names: of the requests ``(n,)``.
        tokens: ``(n,)``.
        by_layer: ``(n, E)`` by layer.
    """

    names: list[str]
    tokens: Integers
    by_layer: dict[str, Integers]

    @property
    def of_all_layers(self) -> Integers:
        """``(n, X)``."""
        return np.concatenate(list(self.by_layer.values()), axis=1)


class Accumulation(RecordingWork[Coverage]):
    """Recordings whose requests are added up until every expert has enough tokens."""

    def __init__(self, probe: Coverage, options: Options) -> None:
        super().__init__(probe, options)
        if probe.write is not None and is_there(probe.write) and not options.overwrite:
            raise UserError(
                f"{probe.write} exists; choose another name, or replace it with {option('overwrite', True)}."
            )
        self.traces = [TraceFile(Path(path)) for path in probe.traces]
        self.names = [trace_view.name for trace_view in name_all(self.traces)]
        if len(set(self.names)) < len(self.names):
            self.names = [trace_view.trace.path.stem for trace_view in name_all(self.traces)]
        self.layers = common_layers(self.traces, options.layers)
        for trace in self.traces:
            check_tokens(trace, purpose="that experts could get")
            for name in self.layers:
                layer = trace.layers[name]
                if layer.experts_choose or not 0 < layer.top_k < layer.num_experts:
                    raise UserError(
                        f"In {name} of {trace.path} tokens do not choose some of several experts, so every expert "
                        f"gets its tokens anyway; leave the layer out with {option('layers')}."
                    )
        hashes = {name: trace.parts.sha256() for name, trace in zip(self.names, self.traces, strict=True)}
        self.request = self.make_request(
            RECORDED,
            data=self.traces[0].about["data"] or REQUEST.data,
            split=self.traces[0].about["split"] or "",
            need=probe.need,
            checkpoints={name: {"sha256": digest} for name, digest in hashes.items()},
        )

    def execute(self, progress: Progress) -> Result:
        """Do the work; of a finished run, the subset is still written if it is asked for."""
        try:
            return super().execute(progress)
        except FinishedError:
            if self.probe.write is not None:
                uses = self._all_uses(progress)
                _write(self.probe.write, uses, self._subsets(uses))
            raise

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Read the recordings, and put the tables together."""
        info = self.run_info(
            aligned=True, train_seeds=dict.fromkeys(self.names), groups=dict.fromkeys(self.names, "")
        )
        uses = self._all_uses(progress)
        subsets = self._subsets(uses)
        # Recordings are compared with as many tokens each: with all of the shortest one.
        least = min(int(of_one.tokens.sum()) for of_one in uses.values())
        tables, stores = [], []
        for name, of_one in uses.items():
            sums = self._sums(name, of_one)
            table, _ = summarize(sums, analyses=make_analyses(self.probe.analyses), run_info=info)
            rows = list(self._rows(name, of_one, subsets[name], least, info))
            tables.append(with_rows(table, rows))
            stores.append(sums)
        if self.probe.write is not None:
            _write(self.probe.write, uses, subsets)
        return self.make_result(
            pd.concat(tables, ignore_index=True),
            None,
            concat(stores),
            checkpoints={
                name: {"path": str(trace.path)} for name, trace in zip(self.names, self.traces, strict=True)
            },
            colors=colors(self.names),
            skipped_images=[],
            notes=self._notes(uses),
        )

    def _all_uses(self, progress: Progress) -> dict[str, _Uses]:
        """Read the recordings."""
        progress.start(self.probe.kind, sum(len(trace.ids) for trace in self.traces))
        return {
            name: self._uses(trace, progress) for name, trace in zip(self.names, self.traces, strict=True)
        }

    def _subsets(self, uses: Mapping[str, _Uses]) -> dict[str, list[int]]:
        """Return for each recording the requests that are enough."""
        return {
            name: greedy_subset(of_one.of_all_layers, of_one.tokens, self.probe.need)
            for name, of_one in uses.items()
        }

    def _uses(self, trace: TraceFile, progress: Progress) -> _Uses:
        """Return the tokens that each independent request brings to each expert."""
        clusters = clusters_of([trace])
        names = list(dict.fromkeys(clusters.get(name, name) for name in trace.ids))
        row_of = {name: index for index, name in enumerate(names)}
        tokens = np.zeros(len(names), np.int64)
        by_layer = {
            name: np.zeros((len(names), trace.layers[name].num_experts), np.int64) for name in self.layers
        }
        longest = max(
            int(trace.num_tokens(name, trace.ids).max(initial=1)) * trace.layers[name].top_k
            for name in self.layers
        )
        size = max(_CHOICES // max(longest, 1), 1)
        for start in range(0, len(trace.ids), size):
            part = trace.ids[start : start + size]
            rows = np.array([row_of[clusters.get(name, name)] for name in part])
            for name in self.layers:
                experts, present = tokens_of(trace.read(name, part))
                shape = by_layer[name].shape
                codes = (rows[:, None, None] * shape[1] + experts)[present[..., None] & (experts >= 0)]
                by_layer[name] += np.bincount(codes, minlength=by_layer[name].size).reshape(shape)
            # Layers have the same tokens.
            np.add.at(tokens, rows, present.sum(1))
            progress.advance(len(part))
        return _Uses(names, tokens, by_layer)

    def _sums(self, name: str, uses: _Uses) -> SumsStore:
        """Return the sums per request of a recording."""
        accumulator = Accumulator()
        label = {"label": np.full(len(uses.names), -1)}
        for layer in uses.by_layer:
            columns = {"covered_tokens": uses.tokens, "covered_uses": uses.by_layer[layer]}
            accumulator.add(self._cell(layer), uses.names, label | columns)
        return of_table(image_table(accumulator, checkpoint=name))

    def _cell(self, layer: str = "", tokens: float = float("nan")) -> Cell:
        """Return a cell of a layer, or of all layers."""
        info = self.traces[0].layers[layer or self.layers[0]]
        return Cell(layer, info.router, info.top_k, RECORDED, tokens, tokens=TEXT.token)

    def _rows(
        self, name: str, uses: _Uses, subset: Sequence[int], least: int, info: summaries.About
    ) -> Iterator[dict[str, Any]]:
        """Yield the lines on all layers of a recording together."""
        need, every = self.probe.need, uses.of_all_layers
        total = int(uses.tokens.sum())

        def line(
            metric: Metric, values: tuple[float, float, float] | float, tokens: float = float("nan")
        ) -> dict[str, Any]:
            point, low, high = values if isinstance(values, tuple) else (values, np.nan, np.nan)
            number = Replicates(point, np.empty(0), images=len(uses.names), trials=total)
            row = summaries.row(info, name, self._cell("", tokens), NumberName(metric.name, ""), number)
            interval = "permutations" if low == low else ""
            flag = "not_measurable" if np.isnan(point) else ""
            return row | {"ci_low": low, "ci_high": high, "interval": interval, "flag": flag}

        orders = Orders.of(every, uses.tokens, need, seed=self.options.seed)
        even = EvenRouter(
            tuple(
                (self.traces[0].layers[layer].num_experts, self.traces[0].layers[layer].top_k)
                for layer in self.layers
            ),
            need,
        )
        grid = sorted({*grid_of(total), least})
        for tokens, shares in zip(grid, orders.covered(grid).T, strict=True):
            yield line(coverage.COVERED, range_of(shares), float(tokens))
            yield line(coverage.COVERED_EVEN, even.covered(tokens), float(tokens))
        num_below = int((every.sum(0) < need).sum())
        # In whole requests: all orders reach every expert, or none does.
        nothing = (np.nan, np.nan, np.nan)
        yield line(coverage.TOKENS_NEEDED, nothing if num_below else range_of(orders.needed()))
        median, low, high = (float(even.quantile(probability)) for probability in (0.5, *ENDS))
        yield line(coverage.TOKENS_NEEDED_EVEN, (median, low, high))
        yield line(coverage.BELOW, float(num_below))
        yield line(coverage.SUBSET_TOKENS, float(uses.tokens[list(subset)].sum()))
        yield line(coverage.SUBSET_REQUESTS, float(len(subset)))

    def _notes(self, uses: dict[str, _Uses]) -> list[str]:
        """Return sentences that list the experts with too few tokens."""
        return [
            f"enough tokens in {name} of {', '.join(experts)}"
            for name, of_one in uses.items()
            if (experts := self._lacking(of_one))
        ]

    def _lacking(self, uses: _Uses) -> list[str]:
        """Return the experts that have fewest of too few tokens, and how many they have."""
        lacking = sorted(
            (int(total), f"{layer}: {expert} ({total:,})")
            for layer, of_layer in uses.by_layer.items()
            for expert, total in enumerate(of_layer.sum(0).tolist())
            if total < self.probe.need
        )
        num_unlisted = len(lacking) - _LISTED
        listed = [text for _, text in lacking[:_LISTED]]
        return [*listed, *([f"and {num_unlisted:,} more experts"] if num_unlisted > 0 else [])]


def _write(path: Path, uses: dict[str, _Uses], subsets: dict[str, list[int]]) -> None:
    """Write the requests of the subsets as JSON lines."""
    lines = [
        json.dumps({"recording": name, "id": uses[name].names[row], "tokens": int(uses[name].tokens[row])})
        for name, rows in subsets.items()
        for row in rows
    ]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
