"""How often does a page name a side where nothing differs? The images of two models, exchanged at random.

Writes ``reports/exchanged/table.csv``, which docs/concepts/interval-coverage.md shows.

    python -m benchmarks.exchanged build/exchanged --runs 200

Real runs of two models are made once. In every experiment some of their images are drawn, and of each image the sums of
the two models are exchanged with probability one half, in all cells alike. Then no number differs in truth, whatever
the images are like, and every side that is named is false. The exchanged sums take the way of any run: tables, then the
words on the screen, in a report, in an audit, of ``compare`` and of the Action. The column ``plain`` counts what the
plain 95 % intervals of the same numbers would have named.
"""

import argparse
import csv
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa

from moeprobe import api
from moeprobe.declarations.kinds import audit_entry
from moeprobe.declarations.registry import of_kind, scales
from moeprobe.judging import conclusions, differences, summarize
from moeprobe.judging.headlines import RunTables, headlines_of, sentences_of
from moeprobe.judging.properties import judge_run
from moeprobe.judging.tables import overview
from moeprobe.judging.words import FALSE_SIDES
from moeprobe.metrics.registry import analyses_of, compared_first, find
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.probes.engine.leading import leading_sentences
from moeprobe.results.finished import Measured, read
from moeprobe.results.folder import Result
from moeprobe.results.sidecars import Sidecar
from moeprobe.results.stored import of_table
from moeprobe.results.summaries import About
from moeprobe.results.tables import agreement_of, set_match_of
from moeprobe.results.values import Evaluator
from moeprobe.studies.report.reading import Run, read_runs

ROOT = Path(__file__).parents[1]
CSV = ROOT / "reports" / "exchanged" / "table.csv"
FIELDS = (
    "run", "surface", "images", "runs", "families", "false", "share", "plain", "pages", "pages_plain", "nominal",
)  # fmt: skip
IMAGES = (40, 200)
RUNS = ("match-ratio", "noise-sweep", "margins", "flips", "experts", "traces")
SURFACES = ("screen", "report", "audit", "compare", "action")
_CHECKPOINTS = tuple(
    ROOT / "checkpoints" / "reference" / f"digits-{name}-k2-seed0" for name in ("baseline", "prc")
)
# Images of probes that take many passes.
_ENOUGH = 240
_SIDE = re.compile(r"\b(better|worse|higher|lower|mixed|stably|evenly|accurate)\b")
_SCALES = scales()


def prepare(folder: Path, names: Sequence[str] = RUNS, *, limit: int | None = None) -> dict[str, Path]:
    """Make the runs that are not there yet; returns their folders.

    Args:
        folder: where they lie.
        names: which of ``RUNS``.
        limit: number of images; None = all 360.
    """
    making: dict[str, Callable[[Path], object]] = {
        "match-ratio": lambda out: api.match_ratio(_CHECKPOINTS, limit=limit, out=out, figures=False),
        "noise-sweep": lambda out: api.noise_sweep(
            _CHECKPOINTS, sigmas=(0, 0.1, 0.3), limit=limit, out=out, figures=False
        ),
        "margins": lambda out: api.margins(_CHECKPOINTS, limit=limit or _ENOUGH, out=out, figures=False),
        "flips": lambda out: api.flips(_CHECKPOINTS, limit=limit or _ENOUGH, out=out, figures=False),
        "experts": lambda out: api.experts(_CHECKPOINTS, limit=limit or _ENOUGH, out=out, figures=False),
        "traces": partial(_traces, limit=limit),
    }
    for name in names:
        if not (folder / name / "table.json").exists():
            making[name](folder / name)
    return {name: folder / name for name in names}


def _traces(out: Path, *, limit: int | None) -> None:
    """Record two models with eight experts per token, clean and under noise, and compare the recordings."""
    files = []
    for seed in (0, 1):
        trained = out.parent / f"trained-{seed}"
        changes = ["model.num_experts=16", "model.top_k=8", f"seed={seed}", "epochs=1", "warmup_steps=1"]
        if not (trained / "last.safetensors").exists():
            api.train("digits-baseline", overrides=changes, folder=trained)
        recorded = out.parent / f"recorded-{seed}"
        if not recorded.exists():
            api.record(trained, view="gaussian_noise", severities=[0.1, 0.2], limit=limit, out=recorded)
        files += sorted(recorded.rglob("*.parquet"))
    api.analyze_trace(files, out=out, figures=False)


@dataclass(frozen=True)
class Page:
    """What a surface says of one experiment: for each family whether a side is named, by our words and plainly."""

    named: list[bool]
    plain: list[bool]


def experiment(folder: Path, num_images: int, run: int, *, seed: int = 0) -> dict[str, Page]:
    """Return what every surface says of an exchanged run."""
    rng = np.random.default_rng([seed, num_images, run])
    measured = read(folder)
    sums = of_table(exchange(measured.sums.table(), num_images, rng))
    names = list(measured.checkpoints)
    exchanged = Measured(sums, measured.request, measured.checkpoints, {})
    info = About.of_request(
        measured.request, run=measured.request.kind, aligned=exchanged.is_aligned, train_seeds={}, groups={}
    )
    analyses = make_analyses(_read_first(folder, measured.request.analyses))
    # Linearized: resamples of so many experiments take hours.
    with mock.patch.object(summarize, "Evaluator", partial(Evaluator, largest=num_images - 1)):
        table, comparison = summarize.summarize(sums, analyses=analyses, run_info=info)
    assert comparison is not None
    sidecar = Sidecar(
        {
            "request": {**measured.request, "checkpoints": {name: {} for name in names}},
            "checkpoints": measured.checkpoints,
        }
    )
    result = Result(table, comparison, sums, sidecar)
    texts = {
        "screen": _screen(result),
        "report": _report(result),
        "audit": _audit(result),
        "compare": differences.sentences(comparison)["sentence"].tolist(),
        "action": [row[1].text for row in overview(comparison).rows],
    }
    plain = _plain(result)
    return {
        surface: Page([bool(_SIDE.search(text)) for text in said], plain)
        for surface, said in texts.items()
        if said
    }


def exchange(table: pa.Table, num_images: int, rng: np.random.Generator) -> pa.Table:
    """Return the sums of some images, each of which the two checkpoints exchange or keep."""
    names = np.unique(table["image_id"].to_numpy(zero_copy_only=False))
    chosen = rng.choice(names, min(num_images, len(names)), replace=False)
    table = table.filter(pa.compute.is_in(table["image_id"], pa.array(chosen)))
    swapped = set(chosen[rng.random(len(chosen)) < 0.5])
    frame = table.select(["checkpoint", "image_id"]).to_pandas()
    first, second = dict.fromkeys(frame["checkpoint"])
    other = frame["checkpoint"].map({first: second, second: first})
    exchanged = frame["checkpoint"].where(~frame["image_id"].isin(swapped), other)
    place = table.column_names.index("checkpoint")
    table = table.set_column(place, "checkpoint", pa.array(exchanged))
    # The reference comes first, as in any run.
    order = np.argsort((exchanged != first).to_numpy(), kind="stable")
    return table.take(pa.array(order))


@functools.cache
def _metrics_read_first(folder: Path) -> frozenset[str]:
    """Return the metrics that a run's surfaces read first, and their companions."""
    (run,) = read_runs([folder])
    assert run.table is not None
    which = {which for headline in run.headlines for which in headline.rows}
    which |= set(compared_first(agreement_of(run.table), set_match_of(run.table)))
    return frozenset(find(metric).metric.name for metric, _ in which)


def _read_first(folder: Path, analyses: Sequence[str]) -> list[str]:
    """Return the analyses of the metrics that surfaces read first: the others take most of the time and are folded."""
    wanted = {name for metric in _metrics_read_first(folder) for name in analyses_of(metric)}
    return [name for name in analyses if name in wanted]


def _screen(result: Result) -> list[str]:
    kind = of_kind(result.sidecar.request.kind)
    assert kind is not None
    run = RunTables(sidecar=result.sidecar, table=result.table, comparison=result.comparison)
    sentences = leading_sentences(result, kind.layout) or [
        text for headline in headlines_of(run) for text in sentences_of(run, headline)
    ]
    differing = [text for text in sentences if " than in " in text or "significant" in text or "same" in text]
    return [
        part for text in differing for part in (text.split("; ") if text.startswith("Beside") else [text])
    ]


def _report(result: Result) -> list[str]:
    run = Run(
        label="run", csvs={}, files={}, pictures=[], frames={}, sidecar=result.sidecar, table=result.table,
        comparison=result.comparison,
    )  # fmt: skip
    return [verdict.sentence for verdict in conclusions.judge([run], _SCALES)]


def _audit(result: Result) -> list[str]:
    kind = of_kind(result.sidecar.request.kind)
    entry = None if kind is None else audit_entry(kind)
    if entry is None:
        return []
    commands = dict.fromkeys((item.name for item in entry.properties), "")
    models = list(dict.fromkeys(result.table["checkpoint"]))
    rows = judge_run(entry.properties, result, run="run", classes=10, commands=commands, models=models)
    return [str(row["judgement"]) for row in rows if row["reference"]]


def _plain(result: Result) -> list[bool]:
    """Return for each headline whether the plain interval of any layer excludes 0."""
    run = RunTables(sidecar=result.sidecar, table=result.table, comparison=result.comparison)
    return [
        any(row["ci_low"] > 0 or row["ci_high"] < 0 for row in rows)
        for headline in headlines_of(run)
        if (rows := headline.differences_in_layers or headline.differences[headline.which])
    ]


def rates(
    name: str, folder: Path, num_images: int, *, runs: int, seed: int = 0, processes: int = 1
) -> Iterator[dict[str, Any]]:
    """Yield a row per surface, see ``FIELDS``: shares of families and of pages that name a side."""
    one = partial(experiment, folder, num_images, seed=seed)
    if processes == 1:
        pages = [one(run) for run in range(runs)]
    else:
        with ProcessPoolExecutor(processes) as pool:
            pages = list(pool.map(one, range(runs), chunksize=5))
    for surface in SURFACES:
        said = [page[surface] for page in pages if surface in page]
        if not said:
            continue
        named = [is_named for page in said for is_named in page.named]
        plain = [is_named for page in said for is_named in page.plain]
        values = (
            name, surface, num_images, len(said), round(len(named) / len(said), 1), sum(named),
            round(float(np.mean(named)), 4), round(float(np.mean(plain)), 4),
            round(float(np.mean([any(page.named) for page in said])), 4),
            round(float(np.mean([any(page.plain) for page in said])), 4), FALSE_SIDES,
        )  # fmt: skip
        yield dict(zip(FIELDS, values, strict=True))


def main() -> None:
    """Make the runs, do the experiments and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="where the runs lie, or are made")
    parser.add_argument("--runs", type=int, default=200, help="experiments per run and number of images")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    folders = prepare(asked.folder)
    rows = [
        row
        for name, folder in folders.items()
        for number in IMAGES
        for row in rates(name, folder, number, runs=asked.runs, processes=asked.processes)
    ]
    CSV.parent.mkdir(parents=True, exist_ok=True)
    with CSV.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(pd.DataFrame(rows).to_string())


if __name__ == "__main__":
    main()
