"""A comparison: a table with a line per metric, a sentence per family, then a table per metric; verdicts come first."""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.inputs.modality import ORDINARY, Modality, modality_of
from moeprobe.judging import weighting
from moeprobe.judging.excluded import Excluded
from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE, SAME, FamilyWord, is_side, word_of
from moeprobe.metrics.registry import compared_along_severities, compared_first, find
from moeprobe.results.layouts.cells import Table, TableCell, counts, severity, severity_heading, value
from moeprobe.results.numbers import decimals_of, end, number, sentence_case
from moeprobe.results.tables import agreement_of, modality_of_table, set_match_of

Row = Mapping[Hashable, Any]
Family = tuple[str, str, str]  # metric, null, tokens
FAMILY = ["metric", "null", "tokens"]
_PAIR = ["checkpoint", "reference"]
# Lines of the table that a comparison opens with: what an eye takes in.
_MOST_LINES = 10
_NOTE = (
    "A verdict goes by the simultaneous interval, which holds for all lines of a pair of checkpoints at once; "
    "comparison.csv has every difference."
)


def sentences(verdicts: pd.DataFrame, table: pd.DataFrame | None, *, extra: str | None = None) -> list[str]:
    """Return the sentence of each family that is read first, and one about all that is 0 for every checkpoint.

    Args:
        verdicts: metric, null, tokens, checkpoint and sentence of each family.
        table: the differences; None where they are not known.
        extra: a metric that is shown, too.
    """
    if verdicts.empty:
        return []
    modality = modality_of(verdicts["tokens"]) if table is None else modality_of_table(table)
    zero = {} if table is None else _zeros(read_first(table, extra), extra)
    rows = read_first(verdicts, extra)[[*FAMILY, "sentence"]].values
    lines = [f"{title((m, n, t), modality)}: {text}" for m, n, t, text in rows if (m, n, t) not in zero]
    if zero:
        names = ", ".join(find(metric).full_label(null, modality) for metric, null, _ in zero)
        images = counts(zero.values()).text
        lines.append(f"0 throughout, for every checkpoint ({modality.format_count(images)}): {names}.")
    return lines if table is None else [*lines, *weighting.sentences(table)]


def tables(table: pd.DataFrame, *, extra: str | None = None) -> list[Table]:
    """Return a table per family of the leading metrics, all but the first metric (and ``extra``) folded.

    What is 0 for every checkpoint has none. With many severities, only κ and metrics that are better when larger have
    one.
    """
    modality = modality_of_table(table)
    read = read_first(table, extra)
    zero = _zeros(read, extra)
    families = [tuple(key) for key in read[FAMILY].values]
    read = read[[key not in zero for key in families]]
    if read.empty:
        return []
    first = read["metric"].iloc[0]
    if read["severity"].notna().any():
        along = compared_along_severities(agreement_of(table), set_match_of(table))
        rows_along = read[read["metric"].isin([*along, extra])]
        read = rows_along if len(rows_along) else read
        first = read["metric"].iloc[0]
    return [
        _table(rows.to_dict("records"), key, modality, folded=key[0] not in (first, extra))
        for key, rows in read.groupby(FAMILY, sort=False)
    ]


def overview(
    table: pd.DataFrame, *, trainings: pd.DataFrame | None = None, extra: str | None = None
) -> Table:
    """Return a line per metric that is read first: its verdicts, and the differences with an interval for all of them.

    The interval reaches from the lowest to the highest end of the simultaneous intervals, which hold together. With
    several pairs of checkpoints a metric has a line for each; those that ``trainings`` makes a claim of have the line
    of the claim alone. What is 0 for every checkpoint has no line.
    """
    modality = modality_of_table(table)
    if trainings is not None and len(trainings):
        table = _trainings_first(table, trainings)
    read = read_first(table, extra)
    zero = _zeros(read, extra)
    several = len(table[_PAIR].drop_duplicates()) > 1
    lines = []
    for (*family, checkpoint, reference), rows in read.groupby([*FAMILY, *_PAIR], sort=False):
        metric, null, tokens = family
        if (metric, null, tokens) in zero:
            continue
        kind = "" if tokens in {*ORDINARY, ""} else f", {tokens_of(tokens, modality)}"
        heading = TableCell(sentence_case(find(metric).full_label(null, modality)) + kind)
        names = [TableCell(f"{checkpoint} − {reference}")] if several else []
        lines.append([heading, *names, _verdicts(rows), _differences(rows)])
    first = table.iloc[0]
    caption = "Verdicts" if several else f"Verdicts: {first['checkpoint']} against {first['reference']}"
    return Table(
        f"{caption}, the first {_MOST_LINES} of {len(lines)}" if len(lines) > _MOST_LINES else caption,
        ["metric", *(["compared"] if several else []), "verdict", "difference [simultaneous 95 %]"],
        lines[:_MOST_LINES],
        keys=2 if several else 1,
        place=1 if several else 0,
    )


def _trainings_first(table: pd.DataFrame, trainings: pd.DataFrame) -> pd.DataFrame:
    """Return the claims about trainings, then the differences of pairs that are in none of their metric."""
    groups = set(table["group"])
    claimed = set(trainings[[*FAMILY, "checkpoint"]].itertuples(index=False, name=None))
    # A claim about pairs by hand may be called after its checkpoints, which are no group; it is about all pairs.
    without_group = {tuple(family) for *family, name in claimed if name not in groups}
    has_claim = np.array(
        [
            (*family, group) in claimed or tuple(family) in without_group
            for *family, group in table[[*FAMILY, "group"]].itertuples(index=False, name=None)
        ],
        dtype=bool,
    )
    references = [
        f"{name} ({int(n)} pairs of trainings)" for name, n in trainings[["reference", "trainings"]].values
    ]
    claims = trainings.assign(reference=references, dataset=table["dataset"].iloc[0])
    pairs = table[~has_claim]
    return pd.concat([claims, pairs], ignore_index=True) if len(pairs) else claims


def _verdicts(rows: pd.DataFrame) -> TableCell:
    """Count the verdicts; an identical pair counts as the same. Without a side the excluded loss stands beside them."""
    records = rows.to_dict("records")
    words = [SAME if word == IDENTICAL else word for word in map(word_of, records)]
    bound = Excluded.of(records).text if NO_DIFFERENCE in words else ""
    if len(words) == 1:
        return TableCell(", ".join(part for part in (words[0], bound) if part))
    times = Counter(words)
    # What was shown comes first.
    ordered = sorted(times, key=lambda word: not is_side(word))
    counts_of_words = [f"{word} ({times[word]} of {len(words)})" for word in ordered]
    text = ", ".join([*counts_of_words, *([bound] if bound else [])])
    return TableCell(f"mixed: {text}" if FamilyWord.of(words).word == "mixed" else text)


def _differences(rows: pd.DataFrame) -> TableCell:
    """Return the lowest and the highest difference, and an interval for all of them, where each has one."""
    lowest, highest = float(rows["value"].min()), float(rows["value"].max())
    low, high = float(rows["sim_low"].min(skipna=False)), float(rows["sim_high"].max(skipna=False))
    decimals = decimals_of(
        {
            "metric": rows["metric"].iloc[0],
            "value": max(lowest, highest, key=abs),
            "ci_low": low,
            "ci_high": high,
        }
    )
    texts = dict.fromkeys(number(value, signed=True, decimals=decimals) for value in (lowest, highest))
    ends = [end(value, signed=True, decimals=decimals) for value in (low, high)]
    interval = f"[{', '.join(ends)}]" if low == low else ""
    return TableCell(" to ".join(texts), interval, None if lowest != lowest else highest)


def title(family: Family, modality: Modality) -> str:
    """Return what a family is about, with the metric's name in tables."""
    metric, null, tokens = family
    details = ", ".join(part for part in (metric, tokens_of(tokens, modality)) if part)
    return sentence_case(f"{find(metric).full_label(null, modality)} ({details})")


def tokens_of(tokens: str, modality: Modality) -> str:
    """Return what the tokens of a row are called; empty for the output."""
    names = {"": "", modality.token: modality.tokens, "prefix": modality.prefix}
    return names.get(tokens, f"{tokens} patches")


def read_first(rows: pd.DataFrame, extra: str | None) -> pd.DataFrame:
    """Return the rows of leading metrics (ordinary tokens and output), including ``extra``, by metric."""
    metrics = compared_first(agreement_of(rows), set_match_of(rows))
    order = {key: rank for rank, key in enumerate(metrics)}
    ordinary = rows["tokens"].isin([*ORDINARY, ""])
    is_extra = rows["metric"] == extra
    keys = list(zip(rows["metric"], rows["null"], strict=True))
    first = ordinary & pd.Series([key in order for key in keys], index=rows.index)
    if not first.any():
        # A run may have none of them (the jumps of discontinuity, say): then everything is read.
        first = ordinary if ordinary.any() else pd.Series(True, index=rows.index)
    read = rows[first | is_extra]
    ranks = [order.get(key, len(order)) for key in zip(read["metric"], read["null"], strict=True)]
    return read.assign(place=ranks).sort_values("place", kind="stable").drop(columns="place")


def _zeros(read: pd.DataFrame, extra: str | None) -> dict[Family, int]:
    """Return the families, except ``extra``, that are 0 in every image of both sides, with their number of images."""
    sides = ["checkpoint_value", "reference_value"]
    if not {"verdict", *sides} <= set(read.columns):
        return {}
    zeros = {}
    for key, rows in read.groupby(FAMILY, sort=False):
        nothing = (rows["verdict"] == IDENTICAL).all() and (rows[sides] == 0).all(axis=None)
        if nothing and key[0] != extra:
            zeros[key] = int(rows["images"].max())
    return zeros


def _table(rows: Sequence[Row], family: Family, modality: Modality, *, folded: bool) -> Table:
    pairs = list(dict.fromkeys((row["checkpoint"], row["reference"]) for row in rows))
    several = len(pairs) > 1
    steps = severity_heading([family[0]])
    keys = {
        "compared": several,
        "layer": any(row["layer"] for row in rows),
        steps: any(pd.notna(row["severity"]) for row in rows),
    }
    # A single pair is the heading of its values: the reference first, as in all tables.
    sides = ("reference", "checkpoint") if several else pairs[0][::-1]
    lines = []
    for row in rows:
        cells = {
            "compared": TableCell(f"{row['checkpoint']} − {row['reference']}"),
            "layer": TableCell(row["layer"]),
            steps: severity(row["severity"]),
        }
        lines.append(
            [
                *(cells[name] for name, included in keys.items() if included),
                TableCell(_verdict(row)),
                _difference(row),
                *(_plain(row.get(f"{side}_value", math.nan)) for side in ("reference", "checkpoint")),
                _p(row.get("p_holm", math.nan)),
                counts([row["images"]]),
                counts([row["trials"]]),
            ]
        )
    names = [name for name, included in keys.items() if included]
    columns = [*names, "verdict", "difference [simultaneous 95 %]", *sides, "p (Holm)"]
    return Table(
        title(family, modality),
        [*columns, modality.units, "trials"],
        lines,
        "" if folded else _NOTE,
        folded=folded,
        keys=len(names),
        place=max(len(names) - 1, 0),
    )


def _verdict(row: Row) -> str:
    """Return the verdict, with who has collapsed, or what these images could have shown."""
    word = str(row.get("verdict", ""))
    who, detectable = row.get("collapsed", ""), row.get("detectable", math.nan)
    if word == "collapsed" and who:
        return f"{'both' if who == 'both' else row[who]} collapsed"
    if word == NO_DIFFERENCE:
        parts = [Excluded.of([row]).text, f"detectable: {number(detectable)}" * (detectable == detectable)]
        text = "; ".join(part for part in parts if part)
        return f"{word} ({text})" if text else word
    return f"{row['judgement']} ({word})" if row.get("judgement") else word


def _difference(row: Row) -> TableCell:
    """Return the difference with the interval that its verdict goes by; a flag is in the verdict."""
    ends = {f"sim_{end}": row.get(f"sim_{end}", math.nan) for end in ("low", "high")}
    return value({"value": row["value"], "flag": "", **ends}, signed=True)


def _plain(measured: float) -> TableCell:
    """Return a value without an interval."""
    nothing = {"ci_low": math.nan, "ci_high": math.nan}
    text = number(measured, decimals=decimals_of({"value": measured, **nothing}))
    return TableCell(text, key=None if measured != measured else float(measured))


def _p(p: float) -> TableCell:
    if p != p:
        return TableCell("–")
    return TableCell("<0.001" if p < 0.001 else number(p), key=float(p))
