"""The conclusion of a report: a sentence on each number that is read first, and a table of its verdicts.

A verdict reads one family: the differences of a number in all MoE layers, by their words in ``comparison.csv``. It
shows the difference of the first layer, or of another layer if that one alone names a side.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pandas as pd

from moeprobe.declarations import Headline
from moeprobe.inputs.modality import Modality
from moeprobe.judging import tables as judged_tables
from moeprobe.judging.headlines import HeadlineValues, Row, family_word
from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE, SAME, false_sides, is_side, word_of
from moeprobe.metrics import registry
from moeprobe.results.layouts.cells import Table, TableCell, value
from moeprobe.results.numbers import interval, sentence_case
from moeprobe.results.sidecars import Sidecar

# More numbers of a theme, or more pairs, are read in the table.
_MOST_NUMBERS, _MOST_PAIRS = 3, 2
_NOTE = (
    "Δ is the paired difference in one layer: the first or, where others alone name a side, the one with the largest. "
    "Its interval holds for all layers and severities of the number at once, and gives the verdict."
)


@dataclass(frozen=True)
class Theme:
    """What several properties say of two checkpoints, in words.

    Attributes:
        noun: what shows no difference.
        better: verb and comparative of the checkpoint with the better numbers.
        worse: the same of the one with the worse numbers.
        scales: the scales of an audit whose properties belong to it -> 1 where more is better, −1 where less is.
    """

    noun: str
    better: str
    worse: str
    scales: Mapping[str, int]


_THEMES = (
    Theme("routing stability", "routes more stably", "routes less stably", {"agreement": 1}),
    Theme("accuracy", "is more accurate", "is less accurate", {"accuracy": 1}),
    Theme("load", "loads its experts more evenly", "loads its experts less evenly", {"load": 1, "dead": -1}),
)


class ReportedRun(Protocol):
    """What a conclusion reads of a run: its headlines, and how it is called."""

    @property
    def label(self) -> str:
        """How it is called in the report."""

    @property
    def comparison(self) -> pd.DataFrame | None:
        """The judged differences; None where there are none."""

    @property
    def trainings(self) -> pd.DataFrame | None:
        """The claims about trainings of a comparison; None where there are none."""

    @property
    def sidecar(self) -> Sidecar:
        """Request and provenance."""

    @property
    def view(self) -> str:
        """The view in words; empty where inputs are clean."""

    @property
    def headlines(self) -> list[HeadlineValues]:
        """The headlines with their values."""

    @property
    def checkpoints(self) -> Mapping[str, Mapping[str, Any]]:
        """Provenance of each checkpoint, by name."""

    @property
    def modality(self) -> Modality:
        """What the checkpoints read."""

    @property
    def gate(self) -> str | None:
        """The metric whose worsening a comparison was to report."""


class Names:
    """Names of checkpoints over several runs: a name shared by different files gets the start of its hash."""

    def __init__(self, runs: Sequence[ReportedRun]) -> None:
        self._hashes: dict[str, set[str]] = {}
        for run in runs:
            for name in run.checkpoints:
                self._hashes.setdefault(name, set()).add(_hash(run, name))

    def of(self, run: ReportedRun, name: str) -> str:
        """Return how a run's checkpoint is called in the whole report."""
        return f"{name} ({_hash(run, name)[:8]})" if len(self._hashes.get(name, ())) > 1 else name

    def of_pair(self, run: ReportedRun, row: Row) -> str:
        """Return how a difference of a run is called in the whole report."""
        return f"{self.of(run, row['checkpoint'])} − {self.of(run, row['reference'])}"


def _hash(run: ReportedRun, name: str) -> str:
    return str(run.checkpoints.get(name, {}).get("sha256", ""))


@dataclass(frozen=True)
class Verdict:
    """The verdict on one property of a pair of checkpoints.

    Attributes:
        run: label of the run.
        label: the property.
        circumstances: view and severity, e.g. "under gaussian noise at σ 0.2"; empty = neither.
        noun: the property in a sentence.
        pair: checkpoint and reference, as the report calls them.
        word: what the family comes to; a collapse in place of it where one happened.
        text: the word with its counts.
        bound: the loss that all layers exclude, in words.
        direction: 1 where the checkpoint is higher in some layer and lower in none, −1 likewise, 0 otherwise.
        difference: the row that is shown.
        layer: where that is.
        theme: that it belongs to; None = none.
        sign: 1 where more is better in its theme, −1 where less is.
    """

    run: str
    label: str
    circumstances: str
    noun: str
    pair: tuple[str, str]
    word: str
    text: str
    bound: str
    direction: int
    difference: Row
    layer: str
    theme: Theme | None
    sign: int

    @property
    def heading(self) -> str:
        """The property with its circumstances."""
        return f"{self.label}, {self.circumstances}" if self.circumstances else self.label

    @property
    def sentence(self) -> str:
        """The verdict in a sentence, with the number that it shows."""
        checkpoint, reference = self.pair
        row, words = self.difference, self.theme
        where = f" in {row['layer']}" if row["layer"] else ""
        size = f"{self.noun} {interval(row, signed=True)}{where}" if row["value"] == row["value"] else ""
        counts = self.text.removeprefix(f"{self.word}: ") if self.text != self.word else ""
        if self.word == NO_DIFFERENCE:
            counts = self.bound
        numbers = ", ".join(part for part in (size, counts) if part)
        if words is not None and self.direction and is_side(self.word):
            verb = words.better if self.direction * self.sign > 0 else words.worse
            text = f"{checkpoint} {verb} than {reference}"
        elif self.word in (NO_DIFFERENCE, SAME, IDENTICAL) and words is not None:
            what = NO_DIFFERENCE if self.word == NO_DIFFERENCE else "no difference"
            text = f"{checkpoint} and {reference} show {what} in {words.noun}"
        else:
            what = f" in {words.noun}" if words is not None else ""
            text = f"{checkpoint} against {reference}: {self.word}{what}"
        begin = f"{sentence_case(self.circumstances)}, " if self.circumstances else ""
        return f"{begin}{text}{f': {numbers}' if numbers else ''}."


def judge(runs: Sequence[ReportedRun], scales: Mapping[str, str]) -> list[Verdict]:
    """Return the verdict on each headline of each pair of checkpoints, theme by theme; the same number once.

    Args:
        runs: of a report.
        scales: the scale by which an audit judges each metric, by its name; "" stands for agreement.
    """
    names = Names(runs)
    collected = [
        _verdict(run, headline, row, names, scales)
        for run in runs
        for headline in deciding_headlines(run)
        for row in headline.differences[headline.which]
    ]
    # Accuracy on clean inputs is measured by eval and by every sweep; the sweep's family is the larger one.
    once: dict[tuple[str, tuple[str, str], float], Verdict] = {}
    for item in collected:
        key = item.heading, item.pair, item.difference["value"]
        cells = item.difference["family_cells"]
        if key not in once or cells > once[key].difference["family_cells"]:
            once[key] = item
    keys = [(item.heading, item.pair) for item in once.values()]
    distinct = [
        dataclasses.replace(item, circumstances=f"{item.circumstances} ({item.run})".strip())
        if keys.count((item.heading, item.pair)) > 1
        else item
        for item in once.values()
    ]
    themes = [*_THEMES, None]
    return sorted(distinct, key=lambda item: themes.index(item.theme))


def deciding_headlines(run: ReportedRun) -> list[HeadlineValues]:
    """Return the headlines from which something is concluded, without all-zero ones."""
    return [
        headline
        for headline in run.headlines
        if headline.declared.concludes and any(row["value"] != 0 for row in headline.rows[headline.which])
    ]


def lead_of(run: ReportedRun, scales: Mapping[str, str]) -> str:
    """Return the verdict on the primary number of a run, with both values; empty where it compares nothing."""
    names = Names([run])
    for headline in deciding_headlines(run):
        for row in headline.differences[headline.which]:
            verdict = _verdict(run, headline, row, names, scales)
            sides = [
                f"{side['checkpoint']} {interval(side)}"
                for name in (row["reference"], row["checkpoint"])
                for side in headline.in_layers or headline.rows[headline.which]
                if (side["checkpoint"], side["layer"]) == (name, verdict.difference["layer"])
            ]
            where = run.modality.format_count(int(row["images"]))
            where = where if verdict.layer == "output" else f"{verdict.layer}, {where}"
            return f"{verdict.heading}: {', '.join(sides)} ({where}). Verdict: {verdict.text}."
    return ""


def _verdict(
    run: ReportedRun, headline: HeadlineValues, first: Row, names: Names, scales: Mapping[str, str]
) -> Verdict:
    """Return the verdict on a headline for one pair of checkpoints; ``first``: their difference in the first layer."""
    form, null = registry.find(headline.declared.metric), headline.which[1]
    pair = first["checkpoint"], first["reference"]
    rows = headline.in_all_layers(first)
    word = family_word(rows)
    decisive = [row for row in rows if is_side(word_of(row))]
    signs = {1 if row["verdict"] == "higher" else -1 for row in decisive}
    leading, layer = _leading_difference(first, len(rows), decisive)
    theme, sign = _theme_of(form, headline.declared, scales)
    collapsed = _collapse_verdict(run, headline, pair, names)
    return Verdict(
        run=run.label,
        label=sentence_case(
            headline.declared.noun if form.kind == "kappa" else form.full_label(null, run.modality)
        ),
        circumstances=_circumstances(run, headline),
        noun=headline.declared.noun,
        pair=(names.of(run, pair[0]), names.of(run, pair[1])),
        word=collapsed or word.word,
        text=collapsed or word.text("layers"),
        bound=word.bound,
        direction=signs.pop() if len(signs) == 1 else 0,
        difference=leading,
        layer=layer,
        # Beside κ by all inputs, κ within the image is read in the table.
        theme=theme if null in ("", "pooled") else None,
        sign=sign,
    )


def _leading_difference(first: Row, num_layers: int, decisive: Sequence[Row]) -> tuple[Row, str]:
    """Return the difference that stands for all layers, and where that is, e.g. "blocks.1, first of 2".

    It is the first layer's. Where that names no side, it is the largest of the ``decisive`` ones.
    """
    leading, position = first, "first"
    if decisive and not is_side(word_of(first)):
        leading, position = max(decisive, key=lambda row: abs(row["value"])), "largest"
    if not leading["layer"]:
        return leading, "output"
    return leading, leading["layer"] if num_layers == 1 else f"{leading['layer']}, {position} of {num_layers}"


def _circumstances(run: ReportedRun, headline: HeadlineValues) -> str:
    """Return the view and severity of a headline, e.g. "under gaussian noise at σ 0.2"; empty = it has neither.

    Of clean inputs only accuracy says so: routing without a view is of clean inputs anyway.
    """
    is_clean = headline.severity == 0 and headline.declared.at == "weakest"
    if is_clean or not (run.view or headline.severity is not None or headline.layer):
        return f"on clean {run.modality.plural}"
    parts = [f"under {run.view}"] if run.view else []
    if headline.declared.at == "mean":
        parts.append(headline.declared.severity)
    elif headline.severity is not None:
        # The unit of gaussian noise is "noise σ", and the view says noise already.
        unit = (run.sidecar.severity_unit or "severity").split(",")[0]
        unit = unit.removeprefix(f"{run.view.split(' ')[-1]} ")
        parts.append(f"at {unit} {headline.severity:g}")
    return " ".join(parts)


def _collapse_verdict(run: ReportedRun, headline: HeadlineValues, pair: tuple[str, str], names: Names) -> str:
    """Return which checkpoints of a pair collapsed, as a verdict; empty where neither did."""
    collapsed = [
        names.of(run, row["checkpoint"])
        for row in headline.rows[headline.which]
        if row["checkpoint"] in pair and row["flag"] == "collapsed"
    ]
    return f"{' and '.join(collapsed)} collapsed" if collapsed else ""


def _theme_of(form: registry.Form, headline: Headline, scales: Mapping[str, str]) -> tuple[Theme | None, int]:
    """Return the theme of a headline, with 1 where more of it is better there and −1 where less is."""
    agrees = form.kind == "kappa" and (form.metric.agreement or registry.is_set_match(form.metric.name))
    scale = scales.get("" if agrees else form.name, "")
    return next(((theme, theme.scales[scale]) for theme in _THEMES if scale in theme.scales), (None, 0))


@dataclass(frozen=True)
class Conclusion:
    """What runs come to: sentences, and tables of verdicts."""

    sentences: list[str]
    tables: list[Table]


def conclude(runs: Sequence[ReportedRun], scales: Mapping[str, str]) -> Conclusion:
    """Judge all headlines of the runs of a report; arguments as for ``judge``."""
    judged = judge(runs, scales)
    return Conclusion(_sentences(judged), _tables(judged, runs))


def _sentences(judged: Sequence[Verdict]) -> list[str]:
    """Return a sentence per verdict of a theme and pair: with many pairs one in all, without a theme the first ones."""
    pairs = list(dict.fromkeys(verdict.pair for verdict in judged))
    if len(pairs) > _MOST_PAIRS:
        return [f"{len(pairs)} pairs of checkpoints were compared; the table has their verdicts."]
    lines = []
    for pair in pairs:
        of_pair = [verdict for verdict in judged if verdict.pair == pair]
        themed = [
            verdict
            for theme in _THEMES
            for verdict in [verdict for verdict in of_pair if verdict.theme is theme][:_MOST_NUMBERS]
        ]
        lines += [verdict.sentence for verdict in themed or of_pair[:_MOST_NUMBERS]]
    return lines


def _tables(judged: Sequence[Verdict], runs: Sequence[ReportedRun]) -> list[Table]:
    """Return a line per property and pair, with its verdict; then the verdicts of comparisons."""
    overviews = [
        judged_tables.overview(run.comparison, trainings=run.trainings, extra=run.gate)
        for run in runs
        if run.sidecar.request.kind == "compare" and run.comparison is not None
    ]
    if not judged:
        return overviews
    pairs = list(dict.fromkeys(verdict.pair for verdict in judged))
    several = len(pairs) > 1
    rows = [
        [
            TableCell(verdict.heading),
            *([TableCell(" − ".join(verdict.pair))] if several else []),
            TableCell(verdict.text),
            value(verdict.difference, signed=True),
            TableCell(verdict.layer),
        ]
        for verdict in judged
    ]
    caption = "Verdicts" if several else f"Verdicts: {' against '.join(pairs[0])}"
    columns = [
        "property",
        *(["compared"] if several else []),
        "verdict",
        "Δ [simultaneous 95 %]",
        "layer",
    ]
    note = f"{_NOTE} {false_sides(len(judged))}".rstrip()
    return [Table(caption, columns, rows, note), *overviews]
