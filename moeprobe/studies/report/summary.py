"""What a report says first: in words, and in one table of headline numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from moeprobe.declarations.registry import of_kind, scales
from moeprobe.inputs.modality import IMAGE
from moeprobe.judging import conclusions
from moeprobe.judging import tables as judged_tables
from moeprobe.judging.conclusions import Names
from moeprobe.judging.headlines import conclusions_of, sentences_of
from moeprobe.metrics import registry
from moeprobe.results.caveats import sentences_of as caveats_of
from moeprobe.results.layouts.cells import Table, TableCell, counts, severity, severity_heading, value
from moeprobe.studies.report.reading import Run

_ROW = [
    "run", "checkpoint", "reference", "dataset", "split", "layer", "view", "severity", "metric", "null", "value",
    "ci_low", "ci_high", "images", "trials", "flag",
]  # fmt: skip


@dataclass(frozen=True)
class RunSummary:
    """What one run found, in sentences."""

    run: Run
    title: str
    warnings: Sequence[str]
    sentences: Sequence[str]


def title_of(run: Run) -> str:
    """Return what a run is about, e.g. ``Match of corresponding patches: random crop``."""
    kind = of_kind(run.kind)
    plain = run.kind.replace("-", " ").replace("_", " ").capitalize()
    name = plain if kind is None else run.modality.translate(kind.title)
    return f"{name}: {run.view}" if run.view else name


def headline_rows(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the headline numbers of all runs as rows of their tables: values, then differences, run by run."""
    rows = [
        {"reference": ""} | row | {"run": run.label}
        for run in runs
        for headline in run.headlines
        for part in (headline.rows, headline.differences)
        for of_metric in part.values()
        for row in of_metric
    ]
    return pd.DataFrame(rows, columns=_ROW).astype({"images": int, "trials": int})


def headline_table(runs: Sequence[Run]) -> Table | None:
    """Return the table of the headline numbers of all runs; None where no run has one."""
    names = Names(runs)
    # Several headlines of a run may share a companion, which has one line.
    lines = list(
        {
            (run.label, headline.layer, headline.severity, which): (run, headline, which)
            for run in runs
            for headline in run.headlines
            for which, rows in headline.rows.items()
            if rows
        }.values()
    )
    if not lines:
        return None
    checkpoints = dict.fromkeys(
        names.of(run, row["checkpoint"]) for run, headline, which in lines for row in headline.rows[which]
    )
    pairs = dict.fromkeys(
        names.of_pair(run, row) for run, headline, which in lines for row in headline.differences[which]
    )
    steps = severity_heading(which[0] for _, headline, which in lines if headline.severity is not None)
    rows = []
    for run, headline, which in lines:
        by_name = {names.of(run, row["checkpoint"]): row for row in headline.rows[which]}
        by_pair = {names.of_pair(run, row): row for row in headline.differences[which]}
        rows.append(
            [
                TableCell(run.label),
                TableCell(registry.find(which[0]).full_label(which[1], run.modality)),
                *(value(by_name.get(name)) for name in checkpoints),
                *(value(by_pair.get(pair), signed=True) for pair in pairs),
                TableCell(headline.layer or "output"),
                severity(headline.severity),
                *(counts(row[what] for row in headline.rows[which]) for what in ("images", "trials")),
            ]
        )
    modalities = list(dict.fromkeys(run.modality for run, _, _ in lines))
    tokens = " or ".join("patch tokens" if modality is IMAGE else modality.tokens for modality in modalities)
    units, unit = (
        " or ".join(getattr(modality, kind) for modality in modalities) for kind in ("units", "unit")
    )
    columns = ["run", "metric", *checkpoints, *pairs, "layer", steps, units, "trials"]
    keep = [i for i, column in enumerate(columns) if column != steps or any(row[i].text for row in rows)]
    note = (
        f"Each checkpoint is shown by its first MoE layer in the run, {tokens}. "
        f"Intervals [low, high] are 95 % over {units}; "
        f"differences are paired, {unit} by {unit}; theirs hold for all layers and severities of a number at once."
    )
    rows = [[row[i] for i in keep] for row in rows]
    return Table("Headline numbers", [columns[i] for i in keep], rows, note)


def findings(runs: Sequence[Run]) -> list[RunSummary]:
    """Return what each run found, in words; a title that several runs have is followed by the run's name."""
    titles = [title_of(run) for run in runs]
    return [
        RunSummary(
            run,
            title if titles.count(title) == 1 else f"{title} ({run.label})",
            [
                f"Warning: {name} {info['warning']}"
                for name, info in run.checkpoints.items()
                if "warning" in info
            ],
            [
                *(sentence for headline in run.headlines for sentence in sentences_of(run, headline)),
                *remarks_of(run),
            ],
        )
        for run, title in zip(runs, titles, strict=True)
    ]


def lead_of(run: Run) -> str:
    """Return the first sentence of a section: the primary number and its verdict, or else the first finding."""
    if lead := conclusions.lead_of(run, scales()):
        return lead
    headlines = conclusions.deciding_headlines(run)
    sentences = [
        *(sentence for headline in headlines[:1] for sentence in sentences_of(run, headline)),
        *remarks_of(run),
    ]
    return sentences[0] if sentences else ""


def remarks_of(run: Run) -> list[str]:
    """Return the sentences on a run besides its headlines: on several numbers, verdicts and drawn patches."""
    return [
        *conclusions_of(run),
        *_verdicts(run),
        *_changed_patches(run),
        *caveats_of(run.sidecar),
    ]


def changed_column(patches: pd.DataFrame) -> str:
    """Return the column that says which tokens changed their set of experts; of earlier runs their first expert."""
    return "changed_set" if "changed_set" in patches else "changed"


def _changed_patches(run: Run) -> list[str]:
    """Return how many patches or tokens of the drawn inputs changed their expert; none where nothing was drawn."""
    patches = run.overlay
    if patches is None or not {"checkpoint", "image_id", "compared", "changed"} <= set(patches.columns):
        return []
    steps = [float(text) for text in patches["severity"]] if "severity" in patches else []
    if steps:
        patches = patches[[step == max(steps) for step in steps]]
    column = changed_column(patches)
    counts_of = [
        f"{(part[column] == 'True').sum():,} of {(part['compared'] == 'True').sum():,} in {name}"
        for name, part in patches.groupby("checkpoint", sort=False)
    ]
    images = run.modality.format_count(patches["image_id"].nunique())
    at = f" at severity {max(steps):g}" if steps else ""
    return [
        f"On {images}{at}, over all layers, the {run.modality.tokens} that change their experts are "
        f"{', '.join(counts_of)}."
    ]


def _verdicts(run: Run) -> list[str]:
    """Return what a comparison came to, in its own words."""
    recorded = run.sidecar.get("verdicts")
    families = (
        [family for family in recorded if isinstance(family, dict)] if isinstance(recorded, list) else []
    )
    table = (
        pd.DataFrame(families, columns=["checkpoint", *judged_tables.FAMILY, "sentence"]).dropna().astype(str)
    )
    sentences = judged_tables.sentences(table, run.comparison, extra=run.gate)
    if sentences and run.images:
        sentences.append(
            f"Verdicts go by simultaneous intervals over {run.modality.format_count(run.images)}."
        )
    return sentences
