"""The words for a difference: what its simultaneous interval allows to be said, and nothing more.

Every surface takes its words from here: screen, notebook, report, audit, the printout of ``compare`` and its exit code.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moeprobe.inputs.modality import modality_of_row
from moeprobe.judging.excluded import Excluded, images_to_detection, images_to_equivalence
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.families import Evidence, Judged
from moeprobe.results.numbers import number

MARGIN = 0.02

# Images of a side were left out since their gates or scores are no numbers.
NOT_FINITE = "not finite"
IDENTICAL, SAME, NO_DIFFERENCE, COLLAPSED = "identical", "same", "no significant difference", "collapsed"
# The values differ, and no interval says by how much chance moves them, as of counts of dead experts.
NO_INTERVAL = "no interval"
NO_VERDICT = "no verdict"
# A side: the opposite of each.
_OPPOSITE = {"better": "worse", "worse": "better", "higher": "lower", "lower": "higher"}
# What a family without a side comes to: the first of these words that one of its comparisons has.
_OPEN = (NO_DIFFERENCE, NO_INTERVAL)
# How often chance alone names a side in a family of comparisons, at the most.
FALSE_SIDES = 0.05


def verdict(evidence: Evidence, judged: Judged | None, *, margin: float) -> str:
    """Return the word of the column ``verdict``, from the simultaneous interval alone.

    * collapsed: a side sends everything to one choice, so its match says nothing (``judged`` is None);
    * no trials, few images, unstable, …: there is no interval (as in the column ``flag``);
    * identical: the same in every image;
    * higher, lower: the interval excludes 0;
    * same: it includes 0 and is inside ± margin (NaN = the metric has none);
    * no interval: the error vanishes to first order, and the values differ (dead experts);
    * no significant difference: anything else.
    """
    if judged is None or evidence.flag:
        return COLLAPSED if judged is None else evidence.flag.replace("_", " ")
    if evidence.identical:
        return IDENTICAL
    return word_of_interval(judged.sim_low, judged.sim_high, margin=margin)


def word_of_interval(low: float, high: float, *, margin: float) -> str:
    """Return the word that a simultaneous interval allows, see ``verdict``; NaN = there is none."""
    # Without an interval nothing is excluded, so nothing is said of significance.
    if low != low or high != high:
        return NO_INTERVAL
    if low > 0:
        return "higher"
    if high < 0:
        return "lower"
    return SAME if -margin < low and high < margin else NO_DIFFERENCE


def judgement(metric: str, verdict: str) -> str:
    """Return better, worse, or nothing where the verdict or the metric has no such side."""
    sign = find(metric).direction * {"higher": 1, "lower": -1}.get(verdict, 0)
    return {1: "better", -1: "worse"}.get(sign, "")


def collapse(sides: set[str]) -> str:
    """Return how a comparison reads where sides, "checkpoint" or "reference", are collapsed."""
    if sides == {"checkpoint"}:
        return f"worse ({COLLAPSED})"
    return f"better (the other {COLLAPSED})" if sides == {"reference"} else "both collapsed"


def word_of(row: Mapping[Any, Any]) -> str:
    """Return how the row of a judged difference reads: its judgement or, without one, its verdict."""
    # The column speaks of images, whatever was sampled.
    return str(row["judgement"] or modality_of_row(row).translate(row["verdict"]))


def is_side(word: str) -> bool:
    """Whether a word says that one of the two is better, worse, higher or lower."""
    return word in _OPPOSITE


@dataclass(frozen=True)
class FamilyWord:
    """What several comparisons of a family come to.

    Attributes:
        word: better, worse, higher, lower, mixed, same, identical, no significant difference, or why there is none.
        sides: number of comparisons by side, e.g. better -> 2.
        comparisons: number of all of them.
        bound: the loss that they exclude, in words (``Excluded.text``).
    """

    word: str
    sides: Mapping[str, int]
    comparisons: int
    bound: str = ""

    @classmethod
    def of_rows(cls, rows: Sequence[Mapping[Any, Any]]) -> "FamilyWord":
        """Return what judged differences of one metric come to, with the loss that they exclude."""
        of_words = cls.of([word_of(row) for row in rows])
        return replace(of_words, bound=Excluded.of(rows).text)

    @classmethod
    def of(cls, words: Sequence[str]) -> "FamilyWord":
        """Return what comparisons with these words (``word_of``) come to."""
        counts = Counter(words)
        sides = {word: count for word, count in counts.items() if is_side(word)}
        # The two names of one sign: a side without a judgement is none of better and worse.
        if len(sides) > 1:
            word = "mixed"
        elif sides:
            word = next(iter(sides))
        elif len(counts) == 1:
            word = next(iter(counts))
        elif counts.keys() == {SAME, IDENTICAL}:
            word = SAME
        else:
            # Where one comparison has no word, the family is not the same, whatever the others are.
            word = next((word for word in _OPEN if counts[word]), NO_VERDICT)
        return cls(word, sides, len(words))

    def text(self, unit: str = "comparisons") -> str:
        """Return it with its counts, e.g. ``mixed: better in 1, worse in 2 of 4 layers``.

        Where no side was found, the loss that is excluded stands beside it.
        """
        if self.word == NO_DIFFERENCE and self.bound:
            return f"{self.word} ({self.bound})"
        if not self.sides or self.comparisons == 1:
            return self.word
        parts = ", ".join(f"{word} in {count}" for word, count in self.sides.items())
        return f"{'mixed: ' if self.word == 'mixed' else ''}{parts} of {self.comparisons} {unit}"


def false_sides(families: int) -> str:
    """Return how many false sides chance alone gives, for a page with that many verdicts."""
    if families < 2:
        return ""
    return (
        f"If nothing differed, chance would name a side in up to {FALSE_SIDES * families:.2g} of these {families} "
        "verdicts, on average."
    )


def sentence(
    rows: Sequence[Mapping[Any, Any]],
    *,
    margin: float,
    units: str = "images",
    equivalent_within: float | None = None,
) -> str:
    """Summarize a family: each word with its number of comparisons, then whether the two are equivalent.

    Args:
        rows: the comparisons of the family, as in ``comparison.csv``.
        margin: up to where a difference is called small.
        units: the sampling units.
        equivalent_within: the margin of equivalence; None = nothing is said of it.
    """
    words = Counter(word_of(row) for row in rows)
    parts = []
    for word, times in words.most_common():
        these = [row for row in rows if word_of(row) == word]
        share = "" if len(rows) == 1 else f" in {times} of {len(rows)} comparisons"
        parts.append(f"{word}{share}{_detail(word, these, margin, units)}")
    mixed = "mixed, " if FamilyWord.of([word_of(row) for row in rows]).word == "mixed" else ""
    checkpoint, reference = rows[0]["checkpoint"], rows[0]["reference"]
    text = f"{checkpoint} against {reference}: {mixed}{'; '.join(parts)}."
    return text if equivalent_within is None else f"{text} {equivalence(rows, equivalent_within, units)}"


def equivalence(rows: Sequence[Mapping[Any, Any]], within: float, units: str = "images") -> str:
    """Return the sentence on whether two checkpoints are equivalent within ± ``within`` in every comparison."""
    if Excluded.of(rows).is_equivalent(within):
        return f"Equivalent within ±{within:g}."
    number_needed = images_to_equivalence(rows, within)
    advice = "" if number_needed is None else f"; about {number_needed:,} {units} show it if nothing differs"
    return f"Not shown to be equivalent within ±{within:g}{advice}."


def _detail(word: str, rows: Sequence[Mapping[Any, Any]], margin: float, units: str) -> str:
    decimals = 0 if find(rows[0]["metric"]).metric.unit == "whole" else 3
    if word == COLLAPSED:
        who = ", ".join(dict.fromkeys(name for row in rows if (name := _collapsed_side(row))))
        return f" ({who}: everything goes to one choice)" if who else " (chance is 1)"
    if is_side(word):
        small = all(max(abs(row["sim_low"]), abs(row["sim_high"])) < margin for row in rows)
        inside = f", all by less than {margin:g}" if small else ""
        return f" ({_range([row['value'] for row in rows], signed=True, decimals=decimals)}{inside})"
    if word == NO_INTERVAL:
        return f" ({_range([row['value'] for row in rows], signed=True, decimals=decimals)})"
    if word == SAME:
        return f" (all inside ±{margin:g})"
    return f" ({text})" if word == NO_DIFFERENCE and (text := _what_may_be(rows, margin, units)) else ""


def _what_may_be(rows: Sequence[Mapping[Any, Any]], margin: float, units: str) -> str:
    """Return what differences without a side leave possible, and how many images say more."""
    parts = [Excluded.of(rows).text]
    detectables = [row["detectable"] for row in rows if row["detectable"] == row["detectable"]]
    if detectables:
        images = min(int(row["images"]) for row in rows)
        parts.append(f"{images:,} {units} detect {_range(detectables)}")
    if margin > 0:
        detecting, equating = images_to_detection(rows, margin), images_to_equivalence(rows, margin)
        if detecting is not None and equating is not None:
            parts.append(f"about {detecting:,} detect {margin:g}")
            parts.append(f"about {equating:,} show ±{margin:g} if nothing differs")
    return "; ".join(part for part in parts if part)


def _collapsed_side(row: Mapping[Any, Any]) -> str:
    """Return who has collapsed, by name; empty where nobody has."""
    checkpoint, reference = row["checkpoint"], row["reference"]
    who = {"checkpoint": checkpoint, "reference": reference, "both": f"{checkpoint} and {reference}"}
    return who.get(row["collapsed"], "")


def _range(values: Sequence[float], *, signed: bool = False, decimals: int = 3) -> str:
    texts = [number(value, signed=signed, decimals=decimals) for value in (min(values), max(values))]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} to {texts[1]}"
