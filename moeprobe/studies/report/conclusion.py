"""The conclusion of a report: a sentence on each theme, and a verdict on each property of two checkpoints.

Verdicts go by the paired 95 % intervals of the runs. They count all MoE layers and show the
number of the first layer, or of another layer if that one alone shows a difference.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moeprobe.metrics import registry
from moeprobe.metrics.declaration import KAPPA
from moeprobe.probes.base import audit_entry
from moeprobe.probes.registry import kinds
from moeprobe.results.headlines.collected import HeadlineValues, Row, sentences_of
from moeprobe.results.headlines.declared import Agreement, Headline
from moeprobe.results.layouts import verdicts
from moeprobe.results.layouts.cells import Table, TableCell, value
from moeprobe.results.numbers import interval, sentence_case
from moeprobe.results.tables import agreement_of
from moeprobe.results.verdicts import NO_DIFFERENCE, SAME
from moeprobe.studies.report.about import listing
from moeprobe.studies.report.reading import Run
from moeprobe.studies.report.summary import Names, remarks_of

_WORDS = {1: ("better", "worse"), -1: ("worse", "better"), 0: ("higher", "lower")}
# More numbers, or more pairs, are read in the table.
_MOST_NUMBERS, _MOST_PAIRS = 3, 2
_NOTE = (
    "Δ is the paired difference [95 % interval], of the first MoE layer. Where another layer alone shows a difference, "
    "it is the largest one. Intervals are not corrected for the number of lines."
)


@dataclass(frozen=True)
class Theme:
    """What several properties say together of two checkpoints, in words.

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


@dataclass(frozen=True)
class Verdict:
    """The verdict on one property of a pair of checkpoints.

    Attributes:
        run: label of the run.
        label: the property.
        circumstances: view and severity, e.g. "under gaussian noise at σ 0.2"; empty = neither.
        noun: the property in a sentence.
        pair: checkpoint and reference, as the report calls them.
        word: the verdict.
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
    direction: int
    difference: Row
    layer: str
    theme: Theme | None
    sign: int

    @property
    def property(self) -> str:
        """The property with its circumstances."""
        return f"{self.label}, {self.circumstances}" if self.circumstances else self.label


def _verdicts(runs: Sequence[Run]) -> list[Verdict]:
    """Return the verdict on each headline of each pair of checkpoints, theme by theme; the same number once."""
    names = Names(runs)
    collected = [
        _verdict(run, headline, row, names)
        for run in runs
        for headline in deciding_headlines(run)
        for row in headline.differences[headline.which]
    ]
    # Accuracy on clean inputs is measured by eval and by every sweep.
    once = list(
        {(item.property, item.pair, interval(item.difference)): item for item in collected[::-1]}.values()
    )
    keys = [(item.property, item.pair) for item in once]
    distinct = [
        dataclasses.replace(item, circumstances=f"{item.circumstances} ({item.run})".strip())
        if keys.count((item.property, item.pair)) > 1
        else item
        for item in once[::-1]
    ]
    themes = [*_THEMES, None]
    return sorted(distinct, key=lambda item: themes.index(item.theme))


def deciding_headlines(run: Run) -> list[HeadlineValues]:
    """Return the headlines, without all-zero ones; where sets of experts decide, without the first choices."""
    headlines = [
        headline
        for headline in run.headlines
        if any(row["value"] != 0 for row in headline.rows[headline.which])
    ]
    if run.table is None or not any(headline.declared.beside for headline in headlines):
        return headlines
    first = f"{agreement_of(run.table)}{KAPPA}"
    return [headline for headline in headlines if headline.which[0] != first]


def lead_of(run: Run) -> str:
    """Return the sentence that a section begins with: the first headline and its verdict; empty where it has none."""
    headlines, names = deciding_headlines(run), Names([run])
    for headline in headlines:
        for row in headline.differences[headline.which]:
            verdict = _verdict(run, headline, row, names)
            sides = [
                f"{side['checkpoint']} {interval(side)}"
                for name in (row["reference"], row["checkpoint"])
                for side in headline.in_layers or headline.rows[headline.which]
                if (side["checkpoint"], side["layer"]) == (name, verdict.difference["layer"])
            ]
            where = run.modality.format_count(int(row["images"]))
            where = where if verdict.layer == "output" else f"{verdict.layer}, {where}"
            return f"{verdict.property}: {', '.join(sides)} ({where}). Verdict: {verdict.word}."
    sentences = [
        *(text for headline in headlines[:1] for text in sentences_of(run, headline)),
        *remarks_of(run),
    ]
    return sentences[0] if sentences else ""


def _verdict(run: Run, headline: HeadlineValues, first: Row, names: Names) -> Verdict:
    """Return the verdict on a headline for one pair of checkpoints; ``first``: their difference in the first layer."""
    form, null = registry.find(headline.declared.metric), headline.which[1]
    pair = first["checkpoint"], first["reference"]
    rows = [row for row in headline.differences_in_layers if (row["checkpoint"], row["reference"]) == pair]
    rows = rows or [first]
    higher, lower = [row for row in rows if row["ci_low"] > 0], [row for row in rows if row["ci_high"] < 0]
    leading, layer = _leading_difference(first, len(rows), [*higher, *lower])
    theme, sign = _theme_of(form, headline.declared)
    return Verdict(
        run=run.label,
        label=sentence_case(form.full_label(null, run.modality)),
        circumstances=_circumstances(run, headline),
        noun="κ" if form.kind == "kappa" and null == "pooled" else headline.declared.noun,
        pair=(names.of(run, pair[0]), names.of(run, pair[1])),
        word=_collapsed(run, headline, pair, names) or _word(rows, higher, lower, form.direction),
        direction=bool(higher) - bool(lower),
        difference=leading,
        layer=layer,
        # Beside κ by all inputs, κ within the image is read in the table.
        theme=theme if null in ("", "pooled") else None,
        sign=sign,
    )


def _leading_difference(first: Row, num_layers: int, decisive: Sequence[Row]) -> tuple[Row, str]:
    """Return the difference that stands for all layers, and where that is, e.g. "blocks.1, first of 2".

    It is the first layer's. Where its interval does not exclude 0 it is the largest of the ``decisive`` ones.
    """
    leading, position = first, "first"
    # Not ``ci_low <= 0 <= ci_high``, which a difference without an interval is not either.
    if decisive and not (first["ci_low"] > 0 or first["ci_high"] < 0):
        leading, position = max(decisive, key=lambda row: abs(row["value"])), "largest"
    if not leading["layer"]:
        return leading, "output"
    return leading, leading["layer"] if num_layers == 1 else f"{leading['layer']}, {position} of {num_layers}"


def _circumstances(run: Run, headline: HeadlineValues) -> str:
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


def _collapsed(run: Run, headline: HeadlineValues, pair: tuple[str, str], names: Names) -> str:
    """Return which checkpoints of a pair collapsed, as a verdict; empty where neither did."""
    collapsed = [
        names.of(run, row["checkpoint"])
        for row in headline.rows[headline.which]
        if row["checkpoint"] in pair and row["flag"] == "collapsed"
    ]
    return f"{' and '.join(collapsed)} collapsed" if collapsed else ""


def _word(rows: Sequence[Row], higher: Sequence[Row], lower: Sequence[Row], direction: int) -> str:
    """Return the verdict by the differences in all layers."""
    if all(row["value"] == row["ci_low"] == row["ci_high"] == 0 for row in rows):
        return SAME
    if all(row["ci_low"] != row["ci_low"] for row in rows):
        return "no verdict"
    words = [(word, len(side)) for word, side in zip(_WORDS[direction], (higher, lower), strict=True) if side]
    if not words:
        return NO_DIFFERENCE
    if len(rows) == 1:
        return words[0][0]
    if words[0][1] == len(rows):
        return f"{words[0][0]} in all {len(rows)} layers"
    return f"{', '.join(f'{word} in {number}' for word, number in words)} of {len(rows)} layers"


def _scales() -> dict[str, str]:
    """Return the scale by which an audit judges each metric, by its name; "" stands for agreement."""
    return {
        "" if isinstance(number, Agreement) else number.metric: item.scale
        for kind in kinds()
        if (entry := audit_entry(kind)) is not None
        for item in entry.properties
        for number in item.numbers
        if not item.companion and (not isinstance(number, Agreement) or item.scale == "agreement")
    }


def _theme_of(form: registry.Form, headline: Headline) -> tuple[Theme | None, int]:
    """Return the theme of a headline, with 1 where more of it is better there and −1 where less is."""
    agrees = form.kind == "kappa" and (form.metric.agreement or headline.beside)
    scale = _scales().get("" if agrees else form.name, "")
    return next(((theme, theme.scales[scale]) for theme in _THEMES if scale in theme.scales), (None, 0))


@dataclass(frozen=True)
class Conclusion:
    """What runs come to: sentences, and tables of verdicts."""

    sentences: list[str]
    tables: list[Table]


def conclude(runs: Sequence[Run]) -> Conclusion:
    """Judge all headlines of the runs of a report."""
    judged = _verdicts(runs)
    return Conclusion(_sentences(judged, runs), _tables(judged, runs))


def _sentences(judged: Sequence[Verdict], runs: Sequence[Run]) -> list[str]:
    """Return a sentence per theme and pair: with many pairs one in all, without a theme the first numbers.

    Without a comparison return the first sentences of the runs.
    """
    if not judged:
        return [lead for run in runs if (lead := lead_of(run))][:_MOST_NUMBERS]
    pairs = list(dict.fromkeys(verdict.pair for verdict in judged))
    if len(pairs) > _MOST_PAIRS:
        return [f"{len(pairs)} pairs of checkpoints were compared; the table has their verdicts."]
    lines = []
    for pair in pairs:
        of_pair = [verdict for verdict in judged if verdict.pair == pair]
        themed = [
            _sentence(theme, [verdict for verdict in of_pair if verdict.theme is theme][:_MOST_NUMBERS])
            for theme in _THEMES
            if any(verdict.theme is theme for verdict in of_pair)
        ]
        lines += themed or [_plain(verdict) for verdict in of_pair[:_MOST_NUMBERS]]
    return lines


def _sentence(theme: Theme, judged: Sequence[Verdict]) -> str:
    """Return what a theme comes to, each number with its interval."""
    checkpoint, reference = judged[0].pair
    same = [verdict for verdict in judged if verdict.word in (NO_DIFFERENCE, SAME)]
    if same == list(judged):
        return f"{checkpoint} and {reference} show {NO_DIFFERENCE} in {theme.noun}: {_numbers(same)}."
    better = [verdict for verdict in judged if verdict.direction * verdict.sign > 0]
    worse = [verdict for verdict in judged if verdict.direction * verdict.sign < 0]
    unclear = [verdict for verdict in judged if verdict not in better + worse + same]
    sides = [(words, group) for words, group in ((theme.better, better), (theme.worse, worse)) if group]
    parts = [f"{words}: {_numbers(group)}" for words, group in sides]
    if parts:
        parts[0] = f"{checkpoint} {parts[0].replace(':', f' than {reference}:', 1)}"
    elif unclear:
        parts = [
            f"{checkpoint} and {reference} show no clear difference in {theme.noun}: {_numbers(unclear)}"
        ]
        unclear = []
    parts += [f"unclear: {_numbers(unclear)}"] if unclear else []
    parts += [f"{NO_DIFFERENCE}: {_numbers(same)}"] if same else []
    return f"{'; '.join(parts)}."


def _plain(verdict: Verdict) -> str:
    checkpoint, reference = verdict.pair
    numbers, word = _numbers([verdict]), f"({verdict.word})"
    return f"{checkpoint} against {reference}: {numbers if word in numbers else f'{numbers} {word}'}."


def _numbers(judged: Sequence[Verdict]) -> str:
    """Return differences with their intervals; a noun that all share stands once."""
    texts = []
    for number, verdict in enumerate(judged):
        has_value = verdict.difference["value"] == verdict.difference["value"]
        parts = [
            verdict.noun if not number or verdict.noun != judged[0].noun else "",
            interval(verdict.difference, signed=True) if has_value else "",
            verdict.circumstances,
            f"({verdict.word})" if " of " in verdict.word or not has_value else "",
        ]
        texts.append(" ".join(part for part in parts if part))
    layers = {verdict.difference["layer"] for verdict in judged} - {""}
    where = f" in {layers.pop()}" if len(layers) == 1 else ""
    return listing(texts) + where


def _tables(judged: Sequence[Verdict], runs: Sequence[Run]) -> list[Table]:
    """Return a line per property and pair, with its verdict; then the verdicts of comparisons."""
    overviews = [
        verdicts.overview(run.comparison, extra=run.gate)
        for run in runs
        if run.comparison is not None and {"verdict", "judgement"} <= set(run.comparison.columns)
    ]
    if not judged:
        return overviews
    pairs = list(dict.fromkeys(verdict.pair for verdict in judged))
    several = len(pairs) > 1
    rows = [
        [
            TableCell(verdict.property),
            *([TableCell(" − ".join(verdict.pair))] if several else []),
            TableCell(verdict.word),
            value(verdict.difference, signed=True),
            TableCell(verdict.layer),
        ]
        for verdict in judged
    ]
    caption = "Verdicts" if several else f"Verdicts: {' against '.join(pairs[0])}"
    columns = ["property", *(["compared"] if several else []), "verdict", "Δ [95 % interval]", "layer"]
    return [Table(caption, columns, rows, _NOTE), *overviews]
