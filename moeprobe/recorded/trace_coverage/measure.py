"""The work of ``trace coverage``: how soon the requests of recordings reach every expert.

Axes: n requests, E experts of a layer.
"""

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from moeprobe.declarations.options import Options
from moeprobe.errors import FinishedError, UserError, option
from moeprobe.inputs.modality import REQUEST
from moeprobe.judging.summarize import summarize
from moeprobe.metrics.analyses.expert_coverage import ExpertCoverage, ExpertTokens
from moeprobe.probes.coverage.collect import Counts
from moeprobe.probes.coverage.uses import (
    Uses,
    check_chooses,
    check_subset_file,
    lines_of,
    no_counts,
    slices_of,
    write_subsets,
)
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.recorded.engine.sequences import RECORDED, have_same_tokens, kind_of_tokens, tokens_of
from moeprobe.recorded.engine.work import RecordingWork
from moeprobe.recorded.trace_coverage import TraceCoverage
from moeprobe.recordings.pairs import check_tokens, clusters_of, common_layers, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results.folder import OutputFolder, Result
from moeprobe.results.palette import colors
from moeprobe.results.stored import SumsStore, concat, concat_parts, of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import image_table, with_rows
from moeprobe.runtime.progress import Progress
from moeprobe.runtime.short_paths import shortest_ends

# Choices of one layer that are read at a time.
_CHOICES = 2**22


class Accumulation(RecordingWork[TraceCoverage]):
    """Recordings whose requests are added up until every expert has enough tokens."""

    def __init__(self, probe: TraceCoverage, options: Options) -> None:
        super().__init__(probe, options)
        check_subset_file(probe.write, overwrite=options.overwrite)
        self.traces = [TraceFile(Path(path)) for path in probe.traces]
        self.names = [trace_view.name for trace_view in name_all(self.traces)]
        if len(set(self.names)) < len(self.names):
            self.names = shortest_ends([trace.unsuffixed_path for trace in self.traces])
        self.layers = common_layers(self.traces, options.layers)
        for trace in self.traces:
            check_tokens(trace, purpose="that experts could get")
            if not have_same_tokens(trace, self.layers):
                raise UserError(
                    f"The layers of {trace.path} have different numbers of tokens for one input, as an encoder and a "
                    f"decoder have; choose some with the same number by {option('layers')}."
                )
            for name in self.layers:
                layer = trace.layers[name]
                check_chooses(
                    name,
                    trace.path,
                    tokens_choose=not layer.experts_choose,
                    top_k=layer.top_k,
                    num_experts=layer.num_experts,
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
                self._write(uses, self._subsets(uses))
            raise

    def compute(self, folder: OutputFolder | None, progress: Progress) -> Result:
        """Read the recordings, and put the tables together."""
        info = self.run_info(
            aligned=True, train_seeds=dict.fromkeys(self.names), groups=dict.fromkeys(self.names, "")
        )
        uses = self._all_uses(progress)
        subsets = self._subsets(uses)
        # Recordings are compared with as many tokens each: with all of the shortest one.
        least = min(of_one.num_tokens for of_one in uses.values())
        tables, stores = [], []
        for (name, of_one), trace in zip(uses.items(), self.traces, strict=True):
            sums = self._sums(name, trace, of_one)
            table, _ = summarize(sums, analyses=make_analyses(self.probe.analyses), run_info=info)
            rows = list(
                lines_of(of_one, subsets[name], need=self.probe.need, least=least, checkpoint=name, info=info)
            )
            tables.append(with_rows(table, rows))
            stores.append(sums)
        self._write(uses, subsets)
        return self.make_result(
            pd.concat(tables, ignore_index=True),
            None,
            concat(stores),
            checkpoints={
                name: {"path": str(trace.path)} for name, trace in zip(self.names, self.traces, strict=True)
            },
            colors=colors(self.names),
            skipped_images=[],
            notes=[
                f"what {name} needs, where {lacking}"
                for name, of_one in uses.items()
                if (lacking := of_one.lacking(self.probe.need))
            ],
        )

    def _all_uses(self, progress: Progress) -> dict[str, Uses]:
        """Read the recordings."""
        progress.start(self.probe.kind, sum(len(trace.ids) for trace in self.traces))
        return {
            name: self._uses(trace, progress) for name, trace in zip(self.names, self.traces, strict=True)
        }

    def _subsets(self, uses: dict[str, Uses]) -> dict[str, list[int]]:
        """Return for each recording the requests that are enough."""
        return {name: of_one.subset(self.probe.need) for name, of_one in uses.items()}

    def _write(self, uses: dict[str, Uses], subsets: dict[str, list[int]]) -> None:
        """Write the subsets, if it is asked for."""
        if self.probe.write is not None:
            write_subsets(
                self.probe.write,
                [({"recording": name}, uses[name], subset) for name, subset in subsets.items()],
            )

    def _uses(self, trace: TraceFile, progress: Progress) -> Uses:
        """Return the tokens that each independent request brings to each expert."""
        clusters = clusters_of([trace])
        # Random orders belong to the names, whatever their order in the file.
        names = sorted({clusters.get(name, name) for name in trace.ids})
        row_of = {name: index for index, name in enumerate(names)}
        row_of_id = np.array([row_of[clusters.get(name, name)] for name in trace.ids])
        tokens, num_tokens = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
        of_layers = trace.num_tokens(self.layers[0], trace.ids)
        np.add.at(num_tokens, row_of_id, of_layers)
        widths = {name: trace.layers[name].num_experts for name in self.layers}
        counts, layers = no_counts(num_tokens, widths), slices_of(widths)
        longest = int(of_layers.max(initial=1))
        widest = longest * max(trace.layers[name].top_k for name in self.layers)
        size = max(min(_CHOICES // max(widest, 1), trace.fitting(longest)), 1)
        for start in range(0, len(trace.ids), size):
            part = trace.ids[start : start + size]
            # Several choices of one request are in one row.
            rows, row = np.unique(row_of_id[start : start + size], return_inverse=True)
            has_expert = []
            for name, width in widths.items():
                block = trace.read(name, part)
                experts, present = tokens_of(block)
                # What an expert has no capacity for does not reach it.
                reaches = block.processed[:, block.layer.num_prefix_tokens :] & (experts >= 0)
                codes = (row[:, None, None] * width + experts)[present[..., None] & reaches]
                of_part = np.bincount(codes, minlength=len(rows) * width).reshape(-1, width)
                counts[rows, layers[name]] += of_part.astype(counts.dtype)
                has_expert.append(present)
            # A token that one layer has no expert for counts where another layer has one.
            np.add.at(tokens, rows[row], np.logical_or.reduce(has_expert).sum(1))
            progress.advance(len(part))
        top_ks = {name: trace.layers[name].top_k for name in self.layers}
        return Uses(names, tokens, counts, layers, _cell(trace, self.layers[0], name=""), top_ks)

    def _sums(self, name: str, trace: TraceFile, uses: Uses) -> SumsStore:
        """Return the sums per request of a recording."""
        label = {"label": np.full(len(uses.names), -1)}
        tokens = torch.from_numpy(uses.tokens)

        def of_layer(layer: str, counts: Counts) -> SumsStore:
            accumulator = Accumulator()
            sums = ExpertCoverage().sums(ExpertTokens(tokens, torch.from_numpy(counts.astype(np.int64))))
            columns = {column: values.numpy() for column, values in sums.items()}
            accumulator.add(_cell(trace, layer, name=layer), uses.names, label | columns)
            return of_table(image_table(accumulator, checkpoint=name))

        parts = (of_layer(layer, counts) for layer, counts in uses.by_layer)
        return concat_parts(parts, in_files=uses.counts.size > _CHOICES)


def _cell(trace: TraceFile, layer: str, *, name: str) -> Cell:
    """Return a cell that is called by a layer, or by none, and has the router of this one."""
    info = trace.layers[layer]
    return Cell(name, info.router, info.top_k, RECORDED, tokens=kind_of_tokens(trace))
