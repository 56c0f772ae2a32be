"""One vocabulary for differences: the words of cells, of families, and how many false sides chance gives."""

import numpy as np
import pytest

from moeprobe.judging import words
from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE, NO_INTERVAL, SAME, FamilyWord, false_sides
from moeprobe.metrics.stats.bootstrap import Replicates
from moeprobe.metrics.stats.families import Difference, Evidence, judge
from moeprobe.results.columns import UNJUDGED


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
    ],
)
def test_the_word_of_a_family(words: list[str], word: str, text: str) -> None:
    family = FamilyWord.of(words)
    assert (family.word, family.text("layers")) == (word, text)


def test_a_page_of_several_verdicts_says_what_chance_gives() -> None:
    assert false_sides(1) == ""
    assert "up to 0.5 of these 10 verdicts" in false_sides(10)


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
