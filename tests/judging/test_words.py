"""One vocabulary for differences: the words of cells, of families, and how many false sides chance gives."""

from typing import Any

import numpy as np
import pytest

from moeprobe.judging import words
from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE, NO_INTERVAL, SAME, FamilyWord, false_sides
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.families import Difference, Evidence, judge
from moeprobe.metrics.stats.planning import images_needed
from moeprobe.results.columns import UNJUDGED
from tests.studies.report.making import NAN, judged, row

MATCH = ("blocks.1", "patch", "top1_match", "")


def compared(value: float, reach: float, **more: Any) -> dict[str, Any]:
    """A judged difference of b from a, whose interval reaches two standard errors to either side."""
    line = judged(row("b", MATCH, (value, value - reach, value + reach), reference="a"))
    return line | {"se": reach / 2, "detectable": 1.4 * reach} | more


@pytest.mark.parametrize(
    ("words", "word", "text"),
    [
        (["better"], "better", "better"),
        (["better", NO_DIFFERENCE], "better", "better in 1 of 2 layers"),
        (["better", "worse", SAME], "mixed", "mixed: better in 1, worse in 1 of 3 layers"),
        (["lower", "higher", "higher"], "mixed", "mixed: lower in 1, higher in 2 of 3 layers"),
        ([SAME, NO_DIFFERENCE], NO_DIFFERENCE, NO_DIFFERENCE),
        ([SAME, IDENTICAL], SAME, SAME),
        ([IDENTICAL, IDENTICAL], IDENTICAL, IDENTICAL),
        (["few images", "few images"], "few images", "few images"),
        (["few images", "unstable"], "no verdict", "no verdict"),
        (["collapsed", "better"], "better", "better in 1 of 2 layers"),
        ([IDENTICAL, NO_INTERVAL], NO_INTERVAL, NO_INTERVAL),
        ([NO_INTERVAL, NO_DIFFERENCE], NO_DIFFERENCE, NO_DIFFERENCE),
        (["few carriers", IDENTICAL], "no verdict", "no verdict"),
        (["few images", SAME, IDENTICAL], "no verdict", "no verdict"),
        (["few carriers", NO_DIFFERENCE], NO_DIFFERENCE, NO_DIFFERENCE),
    ],
)
def test_the_word_of_a_family(words: list[str], word: str, text: str) -> None:
    family = FamilyWord.of(words)
    assert (family.word, family.text("layers")) == (word, text)


def test_a_page_of_several_verdicts_says_what_chance_gives() -> None:
    assert false_sides(1) == ""
    assert false_sides(2) == (
        "If nothing differed, chance would name a side in up to 0.1 of these 2 verdicts, on average."
    )
    assert "up to 0.5 of these 10 verdicts" in false_sides(10)


def test_a_sentence_has_each_word_with_what_it_rests_on() -> None:
    """Five comparisons: of those without a side, the wider one has fewer images."""
    open_ones = [compared(0.01, 0.04), compared(0.02, 0.06, images=300)]
    rows = [compared(0.1, 0.03), compared(-0.08, 0.02), compared(0.0, 0.01, verdict=SAME), *open_ones]
    detecting, showing = (
        images_needed(300, factor=2, error=0.03, size=0.02, both_ends=both, assurance=None if both else 0.8)
        for both in (False, True)
    )
    what = (
        "(excludes a loss above 0.040; 300 images detect 0.056 to 0.084; "
        f"about {detecting:,} detect 0.02; about {showing:,} show ±0.02 if nothing differs)"
    )
    assert words.sentence(rows, margin=0.02) == (
        f"b against a: mixed, no significant difference in 2 of 5 comparisons {what}; better in 1 of 5 comparisons "
        "(+0.100); worse in 1 of 5 comparisons (-0.080); same in 1 of 5 comparisons (all inside ±0.02)."
    )
    assert words.sentence(open_ones, margin=0.02, equivalent_within=0.02) == (
        f"b against a: no significant difference in 2 of 2 comparisons {what}. Not shown to be equivalent within "
        f"±0.02; about {showing:,} images show it if nothing differs."
    )
    assert FamilyWord.of_rows(rows).text() == "mixed: better in 1, worse in 1 of 5 comparisons"
    assert (
        FamilyWord.of_rows(open_ones).text("layers")
        == "no significant difference (excludes a loss above 0.040)"
    )


def test_a_sentence_on_one_comparison() -> None:
    one = compared(0.01, 0.005)
    assert words.sentence([one], margin=0.02, equivalent_within=0.02) == (
        "b against a: better (+0.010, all by less than 0.02). Equivalent within ±0.02."
    )
    # Its far end is at the margin, so that it may be that large.
    assert words.sentence([one], margin=0.015) == "b against a: better (+0.010)."
    # Without a margin, or without an error, no number of images is named.
    assert words.sentence([compared(0.01, 0.04)], margin=0.0) == (
        "b against a: no significant difference (excludes a loss above 0.030; 360 images detect 0.056)."
    )
    assert words.sentence([compared(0.01, 0.04, se=NAN)], margin=0.02, equivalent_within=0.02) == (
        "b against a: no significant difference (excludes a loss above 0.030; 360 images detect 0.056). "
        "Not shown to be equivalent within ±0.02."
    )


def test_who_has_collapsed_is_named_once() -> None:
    rows = [
        compared(NAN, NAN, verdict="collapsed", collapsed=who) for who in ("both", "reference", "reference")
    ]
    assert words.sentence(rows, margin=0.02) == (
        "b against a: collapsed in 3 of 3 comparisons (b and a, a: everything goes to one choice)."
    )
    assert words.sentence([compared(NAN, NAN, verdict="collapsed")], margin=0.02) == (
        "b against a: collapsed (chance is 1)."
    )
    assert [words.collapse({side}) for side in ("checkpoint", "reference", "both")] == [
        "worse (collapsed)", "better (the other collapsed)", "both collapsed",
    ]  # fmt: skip


def test_without_an_interval_nothing_is_said_of_significance() -> None:
    """One more dead expert: a step, whose influences are 0 in every image while some resamples differ."""
    steps = Replicates(1.0, np.repeat([1.0, 2.0], 1000), images=40, trials=40)
    dead = Difference(steps, standard_error=0.0)
    (judged,) = judge([dead])
    word = words.verdict(Evidence.of(dead), judged, margin=np.nan)
    assert np.isnan(judged.sim_low) and word == NO_INTERVAL
    row = {"metric": "dead_experts", "value": 1.0, "sim_low": np.nan, "sim_high": np.nan, "judgement": ""}
    row |= {"verdict": word, "checkpoint": "b", "reference": "a", "tokens": "patch", "detectable": np.nan}
    sentence = words.sentence([row], margin=np.nan)
    assert sentence == "b against a: no interval (+1)."
    # A gate cannot vouch for it.
    assert NO_INTERVAL in UNJUDGED
