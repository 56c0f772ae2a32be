"""Measure recorded routing: from trace files to tables, figures and an output folder, without the model.

The analyses are those of the probes, fed with the same records, so that the numbers are the same.
"""

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from moeprobe.errors import UserError
from moeprobe.metrics.base import LayerAnalysis
from moeprobe.metrics.weights import Weights
from moeprobe.probes.analyze_trace import AnalyzeTrace
from moeprobe.probes.analyze_trace.describe import LONGEST, most_tokens, notes_of, request_of, sidecar_of
from moeprobe.probes.analyze_trace.figure import figures_of
from moeprobe.probes.engine.batch_sums import sums_of_layer, to_host
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.results import summaries
from moeprobe.results.folder import Result, output_folder
from moeprobe.results.stored import Stored, of_file, of_table, together, write
from moeprobe.results.sums import Accumulator
from moeprobe.results.tables import image_table
from moeprobe.routing.pairs import LayerPair
from moeprobe.routing.traces.pairs import Named, common_ids, common_layers, name_all, pair, weighted
from moeprobe.routing.traces.reading import TraceFile
from moeprobe.runtime.arguments import several
from moeprobe.runtime.files import Scratch
from moeprobe.runtime.progress import Progress, progress_of

_KIND = AnalyzeTrace.kind
# What is said of a single trace.
_ALONE = ("confidence", "load", "unserved", "dropped", "experts_per_token")
# Inputs whose sums are held at a time.
_PART = 1024
# Inputs of a block that is read, and gates of one (64 MiB); the smaller of the two limits.
_BLOCK, _GATES = 256, 2**24


@with_options
def analyze_trace(
    paths: str | Path | Sequence[str | Path],
    *,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure routing that was recorded by ``record`` or made of a log by ``import_trace``.

    Of each trace: confidence and load. Of each but the first: how well its choices match those of the first, input by
    input and token by token. Inputs that not all of them have are left out.

    Args:
        paths: trace files; the first is the reference.
        options: only ``layers``, ``seed`` (of the intervals), ``out``, ``overwrite``, ``figures`` and ``svg``;
            ``changes`` are applied to them by name.
        watcher: receives the progress of the run.

    Raises:
        UserError: a file is damaged or no trace, or they cannot be compared.
    """
    options = combine(options, changes)
    watcher, started = progress_of(watcher), time.perf_counter()
    trace_paths = several(paths)
    if not trace_paths:
        raise UserError("Name at least one trace.")
    traces = name_all([TraceFile(Path(path)) for path in trace_paths])
    files = [named.trace for named in traces]
    layers = common_layers(files, options.layers)
    ids = common_ids(files, layers)
    request = request_of(traces, ids, options)
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        watcher.start(_KIND, len(ids))
        sums = _measure(traces, layers, ids, watcher)
        if sums.num_rows == 0:
            raise UserError(
                f"Nothing can be said of {', '.join(layers)} of {files[0].path}: there is one expert, or no choices "
                "and no gates are recorded."
            )
        about = summaries.About(
            run=_KIND if options.out is None else options.out.name,
            dataset=request["data"],
            split=request["split"],
            seed=options.seed,
            aligned=request["aligned"],
            train_seeds={named.name: named.trace.about["checkpoint"].get("seed") for named in traces},
            groups={named.name: named.trace.about["checkpoint"].get("group") or "" for named in traces},
        )
        analyses = make_analyses(AnalyzeTrace.analyses)
        table, comparison = summaries.summarize(sums, analyses=analyses, about=about)
        result = Result(
            table,
            comparison,
            sums,
            sidecar_of(traces, request, notes_of(traces, layers, ids), options, started),
            figures_of,
        )
        if folder is not None:
            result = folder.write(result)
            if options.figures:
                from moeprobe.results.figures import save_all

                save_all(result.plot(), folder.path / "figures", svg=options.svg)
            folder.finish(result.sidecar)
    return result


def _measure(traces: Sequence[Named], layers: Sequence[str], ids: Sequence[str], watcher: Progress) -> Stored:
    """Return the sums per input of every trace; of more inputs than one part holds they are kept in files."""
    tokens = {layer: most_tokens(traces, layer, ids) for layer in layers}
    parts: list[Stored] = []
    scratch = Scratch() if len(ids) > _PART else None
    for start in range(0, len(ids), _PART):
        part = _sums(traces, tokens, ids[start : start + _PART], watcher)
        if scratch is not None:
            path = scratch.path / f"{len(parts):05d}.parquet"
            write(path, part)
            part = of_file(path)
        parts.append(part)
    return Stored((one for part in parts for one in part), keep=(scratch,))


def _sums(
    traces: Sequence[Named], tokens: Mapping[str, int], ids: Sequence[str], watcher: Progress
) -> Stored:
    """Return the sums of some inputs; ``tokens``: of each layer as many as the longest of all inputs has."""
    accumulators: dict[str, Accumulator] = {}
    of_one = max(most * traces[0].trace.layers[layer].num_experts for layer, most in tokens.items())
    size = max(min(_BLOCK, _GATES // of_one), 1)
    for start in range(0, len(ids), size):
        block = ids[start : start + size]
        for layer, most in tokens.items():
            blocks = [named.trace.read(layer, block, num_tokens=most) for named in traces]
            for number, (named, recorded) in enumerate(zip(traces, blocks, strict=True)):
                subject = pair(blocks[0], recorded, named=named)
                known = weighted(recorded.layer) and weighted(blocks[0].layer) and most <= LONGEST
                names = AnalyzeTrace.analyses if number else _ALONE
                analyses = [one for one in make_analyses(names) if known or not isinstance(one, Weights)]
                _add(
                    accumulators.setdefault(named.name, Accumulator()), named, layer, subject, block, analyses
                )
        watcher.advance(len(block))
    return together(
        of_table(image_table(sums, checkpoint=name)) for name, sums in accumulators.items() if sums.cells()
    )


def _add(
    accumulator: Accumulator,
    named: Named,
    layer: str,
    subject: LayerPair,
    ids: Sequence[str],
    analyses: Sequence[Any],
) -> None:
    wanted = [analysis for analysis in analyses if isinstance(analysis, LayerAnalysis)]
    for cell, columns in sums_of_layer(wanted, layer, subject).items():
        placed = dataclasses.replace(cell, view=named.view, severity=named.severity)
        label = {"label": np.full(len(ids), -1)}
        accumulator.add(placed, ids, label | {name: to_host(column) for name, column in columns.items()})
