"""One vocabulary for differences: the words of cells, of families, and how many false sides chance gives."""

import pytest

from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE, SAME, FamilyWord, false_sides


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
    ],
)
def test_the_word_of_a_family(words: list[str], word: str, text: str) -> None:
    family = FamilyWord.of(words)
    assert (family.word, family.text("layers")) == (word, text)


def test_a_page_of_several_verdicts_says_what_chance_gives() -> None:
    assert false_sides(1) == ""
    assert "up to 0.5 of these 10 verdicts" in false_sides(10)
