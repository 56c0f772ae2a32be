"""The tables of a run, just measured or read back, and its headlines: their numbers, their place there, and in words.

The first headline is the primary number of a kind of run. The word of a difference is that of its row, which
``judging.differences`` gave it. A router that has collapsed is called collapsed: its match of 1 says nothing.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.declarations import Agreement, Headline
from moeprobe.declarations.headlines import Which
from moeprobe.declarations.kinds import resolve
from moeprobe.declarations.registry import of_kind
from moeprobe.inputs.modality import ORDINARY, Modality, modality_of
from moeprobe.judging.excluded import Excluded
from moeprobe.judging.selection import Extreme
from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE, SAME, FamilyWord, is_side
from moeprobe.metrics import registry
from moeprobe.metrics.declaration import CHANCE, KAPPA
from moeprobe.metrics.registry import tokens_choose
from moeprobe.results.columns import UNIT
from moeprobe.results.layouts.cells import counts, trials_of
from moeprobe.results.numbers import decimals_of, ends_of, interval, number, sentence_case
from moeprobe.results.sidecars import Request, Sidecar
from moeprobe.results.tables import agreement_of, is_pooled, kappa_symbol, set_match_of

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class RunTables:
    """What sentences about a run are made of.

    Attributes:
        sidecar: request and provenance, as ``table.json`` holds them.
        table: the values; None where the run has none.
        comparison: the paired differences likewise.
    """

    sidecar: Sidecar
    table: pd.DataFrame | None
    comparison: pd.DataFrame | None

    @property
    def request(self) -> Request:
        """What was asked."""
        return self.sidecar.request

    @property
    def kind(self) -> str:
        """The kind of run, e.g. ``match-ratio``."""
        return self.request.kind

    @property
    def settings(self) -> dict[str, Any]:
        """The request; in a comparison, with the request of its probe."""
        probe = self.request.get("probe")
        own = {name: given for name, given in self.request.items() if name not in ("probe", "checkpoints")}
        return {**probe, **own} if isinstance(probe, dict) else self.request

    @property
    def images(self) -> int | None:
        """Number of images that the values rest on; None where the run has none."""
        tables = [table for table in (self.table, self.comparison) if table is not None]
        return int(max(table["images"].max() for table in tables)) if tables else None

    @property
    def modality(self) -> Modality:
        """What the checkpoints read."""
        tables = [table for table in (self.table, self.comparison) if table is not None]
        tokens = (token for table in tables for token in table["tokens"].unique())
        sampled = next((str(table[UNIT].iloc[0]) for table in tables if UNIT in table and len(table)), "")
        return replace(modality_of(tokens, data=self.request.data), sampled=sampled)

    @property
    def checkpoints(self) -> dict[str, dict[str, Any]]:
        """Provenance of each checkpoint, by name."""
        return self.sidecar.checkpoints


@dataclass(frozen=True)
class HeadlineValues:
    """A headline of a run in one layer.

    Attributes:
        declared: the headline, with a noun.
        layer: empty for the output.
        severity: None where the run has none.
        rows: for each metric and null a row per checkpoint whose first layer this is.
        differences: for each metric and null a row per pair of them.
        in_layers: a row per MoE layer and checkpoint; none where one layer is all.
        differences_in_layers: a row per MoE layer and pair of them.
    """

    declared: Headline
    layer: str
    severity: float | None
    rows: dict[Which, list[Row]]
    differences: dict[Which, list[Row]]
    in_layers: list[Row] = field(default_factory=list)
    differences_in_layers: list[Row] = field(default_factory=list)

    @property
    def which(self) -> Which:
        """Metric and null of the headline itself, which ``rows`` and ``differences`` have with its companions."""
        return self.declared.which

    @property
    def raw_rows(self) -> list[Row]:
        """The rows of the companion that is called raw; empty where there is none."""
        return next((self.rows[which] for noun, which in self.declared.companions if noun == "raw"), [])

    def in_all_layers(self, difference: Row) -> list[Row]:
        """Return the differences of its two checkpoints in all MoE layers; itself where one layer is all."""
        pair = difference["checkpoint"], difference["reference"]
        rows = [row for row in self.differences_in_layers if (row["checkpoint"], row["reference"]) == pair]
        return rows or [difference]


def headlines_of(run: RunTables) -> list[HeadlineValues]:
    """Return the headlines of a run with their values; none where its kind is not declared."""
    kind = of_kind(run.kind)
    return [] if kind is None else collect_headlines(run, kind.headlines)


def conclusions_of(run: RunTables) -> list[str]:
    """Return the sentences that the kind of a run has on several of its numbers together (``Kind.conclusions``)."""
    kind = of_kind(run.kind)
    if kind is None or run.table is None:
        return []
    if kind.concluded_with:
        sentences: list[str] = resolve(kind.concluded_with)(run.table, run.comparison, run.sidecar)
        return sentences
    return kind.conclusions(run.table)


def collect_headlines(run: RunTables, declared: Sequence[Headline | Agreement]) -> list[HeadlineValues]:
    """Return the headlines of a run, in their order; one per layer where the first layers of checkpoints differ.

    Args:
        run: its tables.
        declared: the headlines of its kind.
    """
    if run.table is None:
        return []
    collected = []
    table, comparison = (None if rows is None else _pooled_rows(rows) for rows in (run.table, run.comparison))
    for headline in resolve_headlines(declared, run.table, run.modality):
        every = (headline.which, *(which for _, which in headline.companions))
        values, differences = (
            {which: None if rows is None else _rows_about(rows, which) for which in every}
            for rows in (_of_view(table, headline.view), _of_view(comparison, headline.view))
        )
        leading = values[headline.which]
        assert leading is not None
        severity = severity_of(leading, headline.at)
        first_layers = leading.groupby("checkpoint", sort=False)["layer"].first()
        for layer in dict.fromkeys(first_layers):
            names = set(first_layers.index[first_layers == layer])
            rows, row_differences = (
                {which: _rows(selected, layer, severity, names) for which, selected in side.items()}
                for side in (values, differences)
            )
            in_layers, between_layers = (
                _in_layers(side[headline.which], severity, names) if layer else []
                for side in (values, differences)
            )
            collected.append(
                HeadlineValues(headline, layer, severity, rows, row_differences, in_layers, between_layers)
            )
    # The weakest severity is the strongest where there is but one.
    return list({(item.which, item.layer, item.severity): item for item in collected}.values())


def resolve_headlines(
    declared: Sequence[Headline | Agreement], table: pd.DataFrame, modality: Modality
) -> list[Headline]:
    """Return the headlines with their metrics and nouns, which of agreement depend on the checkpoints."""
    return [
        headline
        for item in declared
        for headline in (
            _of_agreement(item, table, modality) if isinstance(item, Agreement) else [_with_noun(item)]
        )
    ]


def _with_noun(declared: Headline) -> Headline:
    noun = declared.noun or registry.find(declared.metric).metric.noun
    return dataclasses.replace(declared, noun=noun)


def _of_agreement(declared: Agreement, table: pd.DataFrame, modality: Modality) -> list[Headline]:
    """Return the headline about what processes a token, and those beside it.

    That is κ of the set where tokens have several experts, with κ within the image and κ of the first kind of agreement
    beside it; else κ of that kind. It is called κ₁ where it is of the first of several experts.
    """
    first, sets = agreement_of(table), set_match_of(table)
    label = registry.find(f"{first}{KAPPA}").full_label("pooled")
    if tokens_choose(first):
        symbol = kappa_symbol(table, first)
        label = symbol if symbol == "κ" else f"{symbol} (first choice)"
    if not sets:
        return [_beyond_chance(first, "pooled", declared, label)]
    within = f"κ within the {modality.name}"
    beside = (
        _beyond_chance(sets, "image", declared, within),
        # What processes a token is its set, so nothing is concluded from the first choice, or from an overlap.
        dataclasses.replace(_beyond_chance(first, "pooled", declared, label), concludes=False),
    )
    return [
        _beyond_chance(sets, "pooled", declared, "κ"),
        *(dataclasses.replace(headline, beside=True) for headline in beside),
    ]


def _beyond_chance(metric: str, null: str, declared: Agreement, noun: str) -> Headline:
    companions = (("raw", (metric, "")), ("by chance", (f"{metric}{CHANCE}", null)))
    return Headline(
        f"{metric}{KAPPA}",
        null,
        at=declared.at,
        companions=companions,
        severity=declared.severity,
        noun=noun,
        view=declared.view,
    )


def select_rows(table: pd.DataFrame, which: Which) -> pd.DataFrame:
    """Return the rows of ordinary tokens, or the output, about a metric and null: of draws and experts their pool."""
    return _pooled_rows(_rows_about(table, which))


def _rows_about(table: pd.DataFrame, which: Which) -> pd.DataFrame:
    return table[(table["metric"] == which[0]) & (table["null"] == which[1])]


def _pooled_rows(table: pd.DataFrame) -> pd.DataFrame:
    keep = table["tokens"].isin([*ORDINARY, ""])
    for column in ("draw", "expert"):
        if column in table:
            keep &= is_pooled(table[column])
    return table[keep]


def _of_view(table: pd.DataFrame | None, view: str | tuple[str, ...]) -> pd.DataFrame | None:
    """Return the rows of one view, of several the first that there is, or all where none is named."""
    if table is None or not view or "view" not in table:
        return table
    views = (view,) if isinstance(view, str) else view
    return table[table["view"] == next((name for name in views if (table["view"] == name).any()), views[0])]


def severity_of(table: pd.DataFrame, at: str) -> float | None:
    """Return the severity that a headline means; None where the run has none, NaN for the mean over them."""
    if at == "mean":
        return np.nan
    steps = table["severity"].dropna()
    if steps.empty:
        return None
    return float(steps.min() if at == "weakest" else steps.max())


def _in_layers(selected: pd.DataFrame | None, severity: float | None, names: set[str]) -> list[Row]:
    """Return the rows of these checkpoints in each of several MoE layers."""
    rows = _rows(selected, None, severity, names)
    return rows if len({row["layer"] for row in rows}) > 1 else []


def _rows(
    selected: pd.DataFrame | None, layer: str | None, severity: float | None, names: set[str]
) -> list[Row]:
    """Return the rows of these checkpoints in a layer, None = each; of a comparison those between them."""
    if selected is None:
        return []
    in_place = selected["layer"] == layer if layer is not None else ~selected["layer"].isin(("", "all"))
    if severity is not None:
        severities = selected["severity"]
        in_place &= severities.isna() if np.isnan(severity) else severities == severity
    rows: Sequence[Row] = selected[in_place].to_dict("records")
    return [row for row in rows if {row["checkpoint"], row.get("reference", row["checkpoint"])} <= names]


# Headlines in words.

_NO_TRIALS = "no_trials"


def sentences_of(run: RunTables, headline: HeadlineValues) -> list[str]:
    """Return the sentences of one headline: its differences, then the values that are in no difference."""
    rows = {row["checkpoint"]: row for row in headline.rows[headline.which]}
    if rows and all(row["flag"] == _NO_TRIALS for row in rows.values()):
        return [_without_trials(run, headline)]
    sentences = []
    place, compared = _measured_on(run, headline, headline.rows[headline.which]), set[str]()
    for row in headline.differences[headline.which]:
        pair = rows[row["checkpoint"]], rows[row["reference"]]
        if "collapsed" not in {side["flag"] for side in pair}:
            noun, unit = headline.declared.noun, run.modality.unit
            sentences.append(f"{place}, {difference(row, *pair, noun=noun, unit=unit)}")
            compared |= {side["checkpoint"] for side in pair}
    alone = [row for name, row in rows.items() if name not in compared]
    stable = [row for row in alone if row["flag"] != "collapsed"]
    if stable:
        shown = "; ".join(
            f"{row['checkpoint']} {interval(row)}{_companions(headline, row)}" for row in stable
        )
        sentences.append(f"{place}, {_subject(headline.declared.noun)} is: {shown}.")
    sentences += [
        f"{place}, the router of {row['checkpoint']} has collapsed: chance alone reaches 1, so its match of "
        f"{_raw(headline, row)} says nothing about its stability, and κ does not exist."
        for row in alone
        if row["flag"] == "collapsed"
    ]
    across = _across_layers(headline)
    if not across:
        return sentences
    # With the last of the first layer, so that what is read first is about all of them.
    return [*sentences[:-1], " ".join([*sentences[-1:], across])]


def _across_layers(headline: HeadlineValues) -> str:
    """Return the range of a headline over all MoE layers, with the layers at its ends; empty for a single layer."""
    rows, differences = headline.in_layers, headline.differences_in_layers
    pairs = {(row["checkpoint"], row["reference"]): row for row in differences}
    compared = {name for pair in pairs for name in pair}
    parts = []
    for pair, difference_of_pair in pairs.items():
        of_pair = headline.in_all_layers(difference_of_pair)
        name = "difference" if len(pairs) == 1 else f"{pair[0]} − {pair[1]}"
        word = family_word(of_pair).text("layers")
        parts += [f"{name} {spread}, {word}" for spread in _spread(of_pair, signed=True)]
    worst = registry.find(headline.declared.metric).direction
    for name in dict.fromkeys(row["checkpoint"] for row in rows):
        if name not in compared:
            of_name = [row for row in rows if row["checkpoint"] == name]
            parts += [f"{name} {spread}" for spread in _spread(of_name, worst=worst)]
    if not parts:
        return ""
    layers = len({row["layer"] for row in rows})
    return f"{sentence_case(headline.declared.noun)} over all {layers} MoE layers: {'; '.join(parts)}."


def _spread(rows: Sequence[Row], *, worst: int = 0, signed: bool = False) -> list[str]:
    """Return the lowest and the highest value with their layers, as one text; none for fewer than two values.

    ``worst`` says which end is called so: 1 the lowest, -1 the highest, 0 neither.
    """
    ordered = sorted((row for row in rows if row["value"] == row["value"]), key=lambda row: row["value"])
    if len(ordered) < 2:
        return []
    ends = []
    for row, is_worst in ((ordered[0], worst > 0), (ordered[-1], worst < 0)):
        size = number(row["value"], signed=signed, decimals=decimals_of(row))
        name = ""
        if is_worst:
            # It was picked for its value, so those that are not separated from it are named with it.
            name = f", the worst{Extreme.of(pd.DataFrame(ordered), lowest=worst > 0).beside()}"
        ends.append(f"{size} ({row['layer']}{name})")
    return [" to ".join(ends)]


def _subject(noun: str) -> str:
    return noun if noun.startswith("κ") else f"the {noun}"


def beside_sentence(headlines: Sequence[HeadlineValues]) -> str:
    """Return what the numbers beside the primary one come to, in the same layer; empty where there are none."""
    parts = []
    for headline in headlines:
        differences = headline.differences[headline.which]
        for row in differences:
            name = "" if len(differences) == 1 else f" ({row['checkpoint']} − {row['reference']})"
            word = family_word(headline.in_all_layers(row)).text("layers")
            parts.append(f"{headline.declared.noun}{name} {interval(row, signed=True)}, {word}")
        if not differences:
            values = ", ".join(
                f"{row['checkpoint']} {interval(row)}" for row in headline.rows[headline.which]
            )
            parts.append(f"{headline.declared.noun}: {values}" if values else "")
    parts = [part for part in parts if part]
    layer = f" in {headlines[0].layer}" if headlines and headlines[0].layer else ""
    return f"Beside it{layer}: {'; '.join(parts)}." if parts else ""


def family_word(rows: Sequence[Row]) -> FamilyWord:
    """Return what differences that one sentence reads come to."""
    return FamilyWord.of_rows(rows)


def _without_trials(run: RunTables, headline: HeadlineValues) -> str:
    """Return why there is no headline of any checkpoint: what it is computed from did not occur."""
    rows, noun, unit = headline.raw_rows, headline.declared.noun, run.modality
    if not any(row["images"] for row in rows):
        return f"{_measured_on(run, headline, [])}, there is nothing to compute {_subject(noun)} from (no trials)."
    shown = "; ".join(f"{row['checkpoint']} {interval(row)}" for row in rows)
    why = (
        f"chance compares different {unit.plural}, and there is one alone"
        if all(row["images"] == 1 for row in rows)
        else "there is nothing to compute chance from (no trials)"
    )
    return f"{_measured_on(run, headline, rows)}, there is no {noun}: {why}. The raw value is: {shown}."


def _measured_on(run: RunTables, headline: HeadlineValues, rows: Sequence[Row]) -> str:
    """Return where a headline was measured, and on how much by these rows; the beginning of a sentence."""
    images, trials = (counts(row[what] for row in rows).text for what in ("images", "trials"))
    rests_on = run.modality.format_count(images)
    if images != trials:
        rests_on += f", {trials_of(trials)}"
    parts = []
    if headline.layer:
        first = "first MoE layer" if run.settings.get("layers") is None else "first MoE layer selected"
        of_each = headline.layer in ("first", "last")  # ``--layers first`` and ``--layers last``
        parts.append(f"in the {headline.layer} MoE layer" if of_each else f"in {headline.layer}, the {first}")
    if headline.severity is not None:
        at = "only one" if headline.declared.at == "only" else headline.declared.at
        parts.append(headline.declared.severity.format(severity=headline.severity, at=at))
    place = sentence_case(", ".join(parts) or "overall")
    return f"{place} ({rests_on})" if rows else place


def _companions(headline: HeadlineValues, row: Row) -> str:
    """Return the numbers without which a headline is not understood, in brackets."""
    parts = [
        f"{noun} {interval(other)}"
        for noun, which in headline.declared.companions
        for other in headline.rows[which]
        if other["checkpoint"] == row["checkpoint"]
    ]
    return f" ({', '.join(parts)})" if parts else ""


def _raw(headline: HeadlineValues, row: Row) -> str:
    """Return the match of a collapsed router."""
    values = (number(raw["value"]) for raw in headline.raw_rows if raw["checkpoint"] == row["checkpoint"])
    return next(values, "1")


def difference(row: Row, checkpoint: Row, reference: Row, *, noun: str, unit: str) -> str:
    """Return the verdict on a paired difference; the end of a sentence.

    Args:
        row: the judged difference.
        checkpoint: the value of the one.
        reference: the value of the other.
        noun: name of the compared quantity.
        unit: the sampled unit, e.g. image.
    """
    first, second = (f"{side['checkpoint']} ({interval(side)})" for side in (checkpoint, reference))
    subject, word = _subject(noun), row["verdict"]
    if word == IDENTICAL:
        return f"{subject} of {first} and {second} is the same in every {unit}."
    if is_side(word):
        low, high = sorted(abs(end) for end in ends_of(row))
        size = interval({**row, "value": abs(row["value"]), "sim_low": low, "sim_high": high})
        judged = f" ({row['judgement']})" if row["judgement"] else ""
        return f"{subject} is {word}{judged} in {first} than in {second}, by {size}."
    size = interval(row, signed=True)
    if word == SAME:
        return f"{first} and {second} have the same {noun} within ±{row['margin']:g} ({size})."
    if word == NO_DIFFERENCE:
        bound = Excluded.of([row]).text
        return f"{first} and {second} show {NO_DIFFERENCE} in {noun} ({size}){bound and f', which {bound}'}."
    return (
        f"nothing can be said of {subject} of {first} and {second}: their difference has no interval, {size}."
    )
