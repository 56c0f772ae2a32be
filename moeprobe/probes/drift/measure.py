"""Measure the drift of recorded routing: each trace of a series against the first and against the last."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Unpack

from matplotlib.figure import Figure

from moeprobe.errors import UserError
from moeprobe.probes.analyze_trace.describe import notes_of, request_of, sidecar_of
from moeprobe.probes.analyze_trace.measure import Measuring
from moeprobe.probes.drift import Drift
from moeprobe.probes.drift.figure import draw
from moeprobe.probes.drift.steps import FIRST, LAST, steps_of, view_of
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.options import Keywords, Options, combine, with_options
from moeprobe.recordings.pairs import Named, common_ids, common_layers, name_all
from moeprobe.recordings.reading import TraceFile
from moeprobe.results import summaries
from moeprobe.results.completing import complete
from moeprobe.results.folder import Result, output_folder
from moeprobe.results.stored import concat
from moeprobe.runtime.arguments import several
from moeprobe.runtime.paths import shortest_ends
from moeprobe.runtime.progress import Progress, progress_of


@with_options
def drift(
    paths: str | Path | Sequence[str | Path],
    *,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Measure how far the routing of a training's checkpoints is from the first and the last one.

    Args:
        paths: traces of the same inputs, in the order of the training. Its steps are the numbers in their names, where
            these grow.
        options: only ``layers``, ``seed`` (of the intervals), ``out``, ``overwrite``, ``figures`` and ``svg``;
            ``changes`` are applied to them by name.
        watcher: receives the progress of the run.

    Raises:
        UserError: there are fewer than two, a file is damaged or no trace, or they cannot be compared.
    """
    options = combine(options, changes)
    watcher, started = progress_of(watcher), time.perf_counter()
    traces = [TraceFile(Path(path)) for path in several(paths)]
    if len(traces) < 2:
        raise UserError("Name at least two traces: of the first and of the last checkpoint.")
    if any(named.has_moved for named in name_all(traces)):
        raise UserError("The traces are of moved views; record the checkpoints on the same inputs.")
    for trace in traces:
        for name, layer in trace.layers.items():
            if layer.load_only:
                raise UserError(
                    f"{trace.path} holds counts of choices in {name}, and no tokens that could agree."
                )
    labels = shortest_ends([trace.path.resolve().with_suffix("") for trace in traces])
    layers = common_layers(traces, options.layers)
    ids = common_ids(traces, layers)
    since, until = _series(traces, labels, 0, FIRST), _series(traces, labels, -1, LAST)
    found = steps_of(labels)
    steps = dict(zip(labels, found or map(float, range(len(labels))), strict=True))
    request = request_of([*since, *until], ids, options)
    request |= {
        "kind": Drift.kind, "view": {"name": Drift.name}, "analyses": list(Drift.analyses), "steps": steps,
        "severities": [], "aligned": True,
    }  # fmt: skip
    with output_folder(options.out, request, overwrite=options.overwrite) as folder:
        watcher.start(Drift.kind, 2 * len(ids))
        measured = [Measuring(series, layers, ids, alone=False) for series in (since, until)]
        sums = concat(one.sums(watcher) for one in measured)
        if sums.num_rows == 0:
            raise UserError(
                f"Nothing can be said of {', '.join(layers)}: there is one expert, or all are chosen."
            )
        name = since[0].name
        about = summaries.About(
            run=Drift.kind if options.out is None else options.out.name,
            dataset=request["data"],
            split=request["split"],
            seed=options.seed,
            aligned=True,
            train_seeds={name: traces[0].about["checkpoint"].get("seed")},
            groups={name: traces[0].about["checkpoint"].get("group") or ""},
        )
        table, comparison = summaries.summarize(sums, analyses=make_analyses(Drift.analyses), run_info=about)
        left_out = measured[0].left_out | measured[1].left_out
        notes = notes_of(since, layers, ids, left_out)

        def figures(result: Result) -> dict[str, Figure]:
            return draw(result.table, steps=steps, numbered=found is not None)

        sidecar = sidecar_of([*since, *until], request, notes, options, started)
        result = Result(table, comparison, sums, sidecar, figures)
        return complete(folder, result, figures=options.figures, svg=options.svg)


def _series(traces: Sequence[TraceFile], labels: Sequence[str], place: int, reference: str) -> list[Named]:
    """Return the reference, then the other traces, each named after its reference."""
    names = {trace.about["checkpoint"]["name"] for trace in traces}
    name = names.pop() if len(names) == 1 else "series"
    found = [
        Named(trace, name, view_of(label, reference), float("nan"), has_moved=False)
        for trace, label in zip(traces, labels, strict=True)
    ]
    own = found.pop(place)
    return [own, *found]
