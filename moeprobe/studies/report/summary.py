"""What a report says first: in words, and in one table of headline numbers.

A difference is called higher or lower where its 95 % interval over images does not contain 0, and "cannot be
distinguished" where it does. A router that has collapsed is called collapsed: its match of 1 says nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from moeprobe.inputs.modality import IMAGE
from moeprobe.metrics import registry
from moeprobe.probes.registry import of_kind
from moeprobe.results.layouts import verdicts
from moeprobe.results.layouts.cells import Cell, Table, counts, severity, severity_heading, trials_of, value
from moeprobe.results.numbers import decimals_of, interval, number
from moeprobe.results.phrases import sentence_case
from moeprobe.studies.report.headlines import Found, Row, find
from moeprobe.studies.report.reading import Run

# What is no probe's.
_STUDIES = {
    "compare": "Comparison of checkpoints",
    "tradeoff": "Trainings side by side",
    "bench": "How fast moeprobe is",
}

_NO_TRIALS = "no_trials"
_ROW = [
    "run", "checkpoint", "reference", "dataset", "split", "layer", "view", "severity", "metric", "null", "value",
    "ci_low", "ci_high", "images", "trials", "flag",
]  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """What one run found, in sentences."""

    run: Run
    title: str
    sentences: Sequence[str]


class Names:
    """Names of checkpoints over several runs: a name shared by different files gets the start of its hash."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._hashes: dict[str, set[str]] = {}
        for run in runs:
            for name in run.checkpoints:
                self._hashes.setdefault(name, set()).add(_hash(run, name))

    def of(self, run: Run, name: str) -> str:
        """Return how a run's checkpoint is called in the whole report."""
        return f"{name} ({_hash(run, name)[:8]})" if len(self._hashes.get(name, ())) > 1 else name

    def of_pair(self, run: Run, row: Row) -> str:
        """Return how a difference of a run is called in the whole report."""
        return f"{self.of(run, row['checkpoint'])} − {self.of(run, row['reference'])}"


def _hash(run: Run, name: str) -> str:
    return str(run.checkpoints.get(name, {}).get("sha256", ""))


def title_of(run: Run) -> str:
    """Return what a run is about, e.g. ``Match of corresponding patches: random_crop``."""
    kind = of_kind(run.kind)
    plain = run.kind.replace("-", " ").replace("_", " ").capitalize()
    name = _STUDIES.get(run.kind, plain) if kind is None else kind.title
    view = run.settings.get("view")
    view = view.get("name") if isinstance(view, dict) else view
    return f"{name}: {view}" if isinstance(view, str) and view != "clean" else name


def headline_rows(runs: Sequence[Run]) -> pd.DataFrame:
    """Return the headline numbers of all runs as rows of their tables: values, then differences, run by run."""
    rows = [
        {"reference": ""} | row | {"run": run.label}
        for run in runs
        for found in find(run)
        for part in (found.rows, found.differences)
        for of_metric in part.values()
        for row in of_metric
    ]
    return pd.DataFrame(rows, columns=_ROW).astype({"images": int, "trials": int})


def headline_table(runs: Sequence[Run]) -> Table | None:
    """Return the table of the headline numbers of all runs; None where no run has one."""
    names = Names(runs)
    lines = [
        (run, found, which)
        for run in runs
        for found in find(run)
        for which, rows in found.rows.items()
        if rows
    ]
    if not lines:
        return None
    checkpoints = dict.fromkeys(
        names.of(run, row["checkpoint"]) for run, found, which in lines for row in found.rows[which]
    )
    pairs = dict.fromkeys(
        names.of_pair(run, row) for run, found, which in lines for row in found.differences[which]
    )
    steps = severity_heading(which[0] for _, found, which in lines if found.severity is not None)
    rows = []
    for run, found, which in lines:
        by_name = {names.of(run, row["checkpoint"]): row for row in found.rows[which]}
        by_pair = {names.of_pair(run, row): row for row in found.differences[which]}
        rows.append(
            [
                Cell(run.label),
                Cell(registry.find(which[0]).full_label(which[1], run.modality)),
                *(value(by_name.get(name)) for name in checkpoints),
                *(value(by_pair.get(pair), signed=True) for pair in pairs),
                Cell(found.layer or "output"),
                severity(found.severity),
                *(counts(row[what] for row in found.rows[which]) for what in ("images", "trials")),
            ]
        )
    modalities = list(dict.fromkeys(run.modality for run, _, _ in lines))
    tokens = " or ".join("patch tokens" if modality is IMAGE else modality.tokens for modality in modalities)
    units, unit = (
        " or ".join(getattr(modality, kind) for modality in modalities) for kind in ("plural", "name")
    )
    columns = ["run", "metric", *checkpoints, *pairs, "layer", steps, units, "trials"]
    keep = [i for i, column in enumerate(columns) if column != steps or any(row[i].text for row in rows)]
    note = (
        f"Of each checkpoint its first MoE layer in the run, {tokens}. Intervals [low, high] are 95 % over {units}; "
        f"differences are paired, {unit} by {unit}, and not corrected for their number."
    )
    rows = [[row[i] for i in keep] for row in rows]
    return Table("Headline numbers", [columns[i] for i in keep], rows, note)


def findings(runs: Sequence[Run]) -> list[Finding]:
    """Return what each run found, in words; runs without a headline number are omitted."""
    titles = [title_of(run) for run in runs]
    sections = [
        Finding(
            run,
            title if titles.count(title) == 1 else f"{title} ({run.label})",
            [*_warnings(run), *_sentences(run), *_verdicts(run)],
        )
        for run, title in zip(runs, titles, strict=True)
    ]
    return [finding for finding in sections if finding.sentences]


def _warnings(run: Run) -> list[str]:
    """Return the warnings about a run's checkpoints."""
    return [
        f"Warning: {name} {about['warning']}" for name, about in run.checkpoints.items() if "warning" in about
    ]


def _sentences(run: Run) -> list[str]:
    """Return the sentences of all headlines, then those on several numbers."""
    return [*(sentence for found in find(run) for sentence in sentences_of(run, found)), *sentences_on(run)]


def sentences_on(run: Run) -> list[str]:
    """Return the sentences that a kind of run has on several of its numbers together."""
    kind = of_kind(run.kind)
    return [] if kind is None or run.table is None else kind.says(run.table)


def sentences_of(run: Run, found: Found) -> list[str]:
    """Return the sentences of one headline: its differences, then the values that are in no difference."""
    rows = {row["checkpoint"]: row for row in found.rows[found.headline.which]}
    if rows and all(row["flag"] == _NO_TRIALS for row in rows.values()):
        return [_without_trials(run, found)]
    sentences = []
    place, compared = _place(run, found, found.rows[found.headline.which]), set[str]()
    for row in found.differences[found.headline.which]:
        pair = rows[row["checkpoint"]], rows[row["reference"]]
        if "collapsed" not in {side["flag"] for side in pair}:
            sentences.append(f"{place}, {difference(row, *pair, noun=found.headline.noun)}")
            compared |= {side["checkpoint"] for side in pair}
    rest = [row for name, row in rows.items() if name not in compared]
    steady = [row for row in rest if row["flag"] != "collapsed"]
    if steady:
        values = "; ".join(f"{row['checkpoint']} {interval(row)}{_companions(found, row)}" for row in steady)
        sentences.append(f"{place}, the {found.headline.noun} is: {values}.")
    sentences += [
        f"{place}, the router of {row['checkpoint']} has collapsed: chance alone reaches 1, so its match of "
        f"{_raw(found, row)} says nothing about how steady it is, and κ does not exist."
        for row in rest
        if row["flag"] == "collapsed"
    ]
    return sentences


def _without_trials(run: Run, found: Found) -> str:
    """Return why there is no headline of any checkpoint: what it is computed from did not occur."""
    raw = next((which for noun, which in found.headline.companions if noun == "raw"), None)
    rows = [] if raw is None else found.rows[raw]
    noun, unit = found.headline.noun, run.modality
    if not any(row["images"] for row in rows):
        return f"{_place(run, found, [])}, there is nothing to compute the {noun} from (no trials)."
    values = "; ".join(f"{row['checkpoint']} {interval(row)}" for row in rows)
    why = (
        f"chance compares different {unit.plural}, and there is one alone"
        if all(row["images"] == 1 for row in rows)
        else "there is nothing to compute chance from (no trials)"
    )
    return f"{_place(run, found, rows)}, there is no {noun}: {why}. The raw value is: {values}."


def _place(run: Run, found: Found, rows: Sequence[Row]) -> str:
    """Return where a headline was measured, and on how much by these rows; the beginning of a sentence."""
    images, trials = (counts(row[what] for row in rows).text for what in ("images", "trials"))
    rests_on = run.modality.counted(images)
    if images != trials:
        rests_on += f", {trials_of(trials)}"
    parts = []
    if found.layer:
        first = "first MoE layer" if run.settings.get("layers") is None else "first MoE layer selected"
        of_each = found.layer in ("first", "last")  # ``--layers first`` and ``--layers last``
        parts.append(f"in the {found.layer} MoE layer" if of_each else f"in {found.layer}, the {first}")
    if found.severity is not None:
        parts.append(found.headline.severity.format(severity=found.severity, at=found.headline.at))
    place = sentence_case(", ".join(parts) or "overall")
    return f"{place} ({rests_on})" if rows else place


def _companions(found: Found, row: Row) -> str:
    """Return the numbers without which a headline is not understood, in brackets."""
    parts = [
        f"{noun} {interval(other)}"
        for noun, which in found.headline.companions
        for other in found.rows[which]
        if other["checkpoint"] == row["checkpoint"]
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _raw(found: Found, row: Row) -> str:
    """Return the match of a collapsed router."""
    raw = next((which for noun, which in found.headline.companions if noun == "raw"), None)
    rows = [] if raw is None else found.rows[raw]
    return next((number(other["value"]) for other in rows if other["checkpoint"] == row["checkpoint"]), "1")


def difference(row: Row, checkpoint: Row, reference: Row, *, noun: str) -> str:
    """Return what the interval of a paired difference allows to say; the end of a sentence.

    Args:
        row: the difference.
        checkpoint: the value of the one.
        reference: the value of the other.
        noun: what is compared.
    """
    one, other = (f"{side['checkpoint']} ({interval(side)})" for side in (checkpoint, reference))
    by, low, high = row["value"], row["ci_low"], row["ci_high"]
    if low != low:
        why = f" ({row['flag'].replace('_', ' ')})" if row["flag"] else ""
        return (
            f"nothing can be said of the {noun} of {one} and {other}: their difference of "
            f"{number(by, signed=True, decimals=decimals_of(row))} has no interval{why}."
        )
    if by == low == high == 0:
        return f"the {noun} of {one} and {other} is the same in every resample."
    if low > 0 or high < 0:
        word, (low, high) = "higher" if by > 0 else "lower", sorted((abs(low), abs(high)))
        size = interval({**row, "value": abs(by), "ci_low": low, "ci_high": high})
        return f"the {noun} of {one} is {word} than that of {other} by {size}."
    return f"{one} and {other} cannot be distinguished by their {noun} (difference {interval(row, signed=True)})."


def _verdicts(run: Run) -> list[str]:
    """Return what a comparison came to, in its own words."""
    said = run.sidecar.get("verdicts")
    families = [family for family in said if isinstance(family, dict)] if isinstance(said, list) else []
    named = pd.DataFrame(families, columns=["checkpoint", *verdicts.FAMILY, "sentence"]).dropna().astype(str)
    sentences = verdicts.sentences(named, run.comparison, extra=run.gate)
    if sentences and run.images:
        sentences.insert(0, f"Verdicts go by simultaneous intervals over {run.modality.counted(run.images)}.")
    return sentences
