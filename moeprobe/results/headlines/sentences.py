"""Headlines in words.

A difference is called higher or lower where its 95 % interval over images does not contain 0, and "cannot be
distinguished" where it does. A router that has collapsed is called collapsed: its match of 1 says nothing.
"""

from collections.abc import Sequence

from moeprobe.metrics import registry
from moeprobe.results.headlines.collected import HeadlineValues, Row, RunTables
from moeprobe.results.layouts.cells import counts, trials_of
from moeprobe.results.numbers import decimals_of, interval, number, sentence_case

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
            sentences.append(f"{place}, {difference(row, *pair, noun=headline.declared.noun)}")
            compared |= {side["checkpoint"] for side in pair}
    alone = [row for name, row in rows.items() if name not in compared]
    stable = [row for row in alone if row["flag"] != "collapsed"]
    if stable:
        shown = "; ".join(
            f"{row['checkpoint']} {interval(row)}{_companions(headline, row)}" for row in stable
        )
        sentences.append(f"{place}, the {headline.declared.noun} is: {shown}.")
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
    pairs = dict.fromkeys((row["checkpoint"], row["reference"]) for row in differences)
    compared = {name for pair in pairs for name in pair}
    parts = []
    for pair in pairs:
        of_pair = [row for row in differences if (row["checkpoint"], row["reference"]) == pair]
        name = "difference" if len(pairs) == 1 else f"{pair[0]} − {pair[1]}"
        parts += [f"{name} {spread}, {_count_layers(of_pair)}" for spread in _spread(of_pair, signed=True)]
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
        ends.append(f"{size} ({row['layer']}{', the worst' if is_worst else ''})")
    return [" to ".join(ends)]


def _count_layers(rows: Sequence[Row]) -> str:
    """Return in how many layers a difference is higher, lower, or neither."""
    higher = sum(row["ci_low"] > 0 for row in rows)
    lower = sum(row["ci_high"] < 0 for row in rows)
    words = {
        "higher in": higher,
        "lower in": lower,
        "no significant difference in": len(rows) - higher - lower,
    }
    return ", ".join(f"{text} {count}" for text, count in words.items() if count)


def _without_trials(run: RunTables, headline: HeadlineValues) -> str:
    """Return why there is no headline of any checkpoint: what it is computed from did not occur."""
    raw = next((which for noun, which in headline.declared.companions if noun == "raw"), None)
    rows = [] if raw is None else headline.rows[raw]
    noun, unit = headline.declared.noun, run.modality
    if not any(row["images"] for row in rows):
        return f"{_measured_on(run, headline, [])}, there is nothing to compute the {noun} from (no trials)."
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
    raw = next((which for noun, which in headline.declared.companions if noun == "raw"), None)
    rows = [] if raw is None else headline.rows[raw]
    return next((number(other["value"]) for other in rows if other["checkpoint"] == row["checkpoint"]), "1")


def difference(row: Row, checkpoint: Row, reference: Row, *, noun: str) -> str:
    """Return what the interval of a paired difference allows to say; the end of a sentence.

    Args:
        row: the difference.
        checkpoint: the value of the one.
        reference: the value of the other.
        noun: name of the compared quantity.
    """
    first, second = (f"{side['checkpoint']} ({interval(side)})" for side in (checkpoint, reference))
    by, low, high = row["value"], row["ci_low"], row["ci_high"]
    if low != low:
        why = f" ({row['flag'].replace('_', ' ')})" if row["flag"] else ""
        return (
            f"nothing can be said of the {noun} of {first} and {second}: their difference of "
            f"{number(by, signed=True, decimals=decimals_of(row))} has no interval{why}."
        )
    if by == low == high == 0:
        return f"the {noun} of {first} and {second} is the same in every resample."
    if low > 0 or high < 0:
        word, (low, high) = "higher" if by > 0 else "lower", sorted((abs(low), abs(high)))
        size = interval({**row, "value": abs(by), "ci_low": low, "ci_high": high})
        return f"the {noun} is {word} in {first} than in {second}, by {size}."
    return f"{first} and {second} show no significant difference in {noun} ({interval(row, signed=True)})."
