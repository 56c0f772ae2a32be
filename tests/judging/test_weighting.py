"""Tokens alike or texts alike: both matches, and the sentence where they conclude differently."""

import numpy as np
import pandas as pd
import pytest

from moeprobe.judging import tables, weighting
from moeprobe.judging.differences import compare, sentences
from moeprobe.metrics.analyses.match import Match
from moeprobe.results.stored import of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from moeprobe.results.values import Evaluator

TEXTS, LONGEST = 80, 200
NAMES = [f"t{number:02d}" for number in range(TEXTS)]
# Every tenth text is long.
LENGTHS = np.where(np.arange(TEXTS) % 10 == 0, LONGEST, 4)
ABOUT = About("run", "text:lines", "test", 5, aligned=True, train_seeds={}, groups={})


def columns(short: float, long: float, seed: int, *, ids: bool = True) -> dict[str, np.ndarray]:
    """Tokens that keep their expert with a probability that depends on the length of the text."""
    rng = np.random.default_rng(seed)
    present = np.arange(LONGEST) < LENGTHS[:, None]
    kept = rng.random(present.shape) < np.where(LENGTHS == 4, short, long)[:, None]
    reference = rng.integers(0, 4, present.shape)
    view = np.where(kept, reference, (reference + 1) % 4)
    sides = (np.where(present, side, -1)[..., None].astype(np.int16) for side in (reference, view))
    return {
        "trials": present.sum(1),
        "top1_match": (kept & present).sum(1),
        **dict(zip(("reference_selected", "view_selected"), sides, strict=True)),
        "experts": np.full(TEXTS, 4),
        "unmoved": np.ones(TEXTS, dtype=np.int64),
        **({"token_id": np.where(present, 7, -1).astype(np.int32)} if ids else {}),
    }


def comparison(*pairs: tuple[float, float]) -> pd.DataFrame:
    parts = []
    for number, (short, long) in enumerate(pairs):
        accumulator = Accumulator()
        cell = Cell("layers.1", "r", 1, "typos", 0.1, 0, "token")
        accumulator.add(cell, NAMES, columns(short, long, seed=number))
        parts.append(image_table(accumulator, checkpoint=f"model{number}"))
    sums = of_table(concatenate(parts))
    return compare(sums, analyses=(Match(),), run_info=ABOUT, selected_pairs=[("model1", "model0")])


@pytest.mark.parametrize("largest", [2000, 0])
def test_both_matches_are_those_of_a_count(largest: int) -> None:
    of_texts = columns(0.3, 0.9, seed=0)
    accumulator = Accumulator()
    accumulator.add(Cell("layers.1", "r", 1, "typos", 0.1, 0, "token"), NAMES, of_texts)
    (stored,) = of_table(image_table(accumulator, checkpoint="a"))
    values = Evaluator((Match(),), aligned=True, seed=0, largest=largest)(stored)
    numbers = {name.metric: number for name, number in values.numbers.items() if not name.null}
    shares = [hits / length for hits, length in zip(of_texts["top1_match"], LENGTHS, strict=True)]
    assert numbers["match_by_input"].point == pytest.approx(sum(shares) / TEXTS)
    assert numbers["top1_match"].point == pytest.approx(of_texts["top1_match"].sum() / LENGTHS.sum())
    assert numbers["match_by_input"].trials == numbers["match_by_input"].images == TEXTS
    # The error over texts is that of a plain mean.
    interval = numbers["match_by_input"].interval()
    error = np.std(shares, ddof=1) / np.sqrt(TEXTS)
    assert (interval.high - interval.low) / 2 == pytest.approx(1.99 * error, rel=0.05)


def test_images_have_as_many_tokens_and_no_such_row() -> None:
    names = {one.name for one in Match().estimators(columns(0.5, 0.5, 0, ids=False), aligned=True)}
    assert "match_by_input" not in names


def test_a_sentence_says_where_long_texts_rule() -> None:
    """Better in few long texts, worse in many short ones: the two weightings name other sides."""
    judged = comparison((0.7, 0.5), (0.5, 0.9))
    (line,) = weighting.sentences(judged)
    assert line == (
        "model1 against model0, match: better with all tokens alike, worse with all texts alike. Long texts rule the "
        "first."
    )
    assert tables.sentences(sentences(judged), judged)[-1] == line
    assert weighting.sentences(comparison((0.5, 0.5), (0.9, 0.9))) == []
    # In the order of the pairs.
    first = judged.assign(checkpoint="model2")
    lines = weighting.sentences(pd.concat([first, judged], ignore_index=True))
    assert [text.split()[0] for text in lines] == ["model2", "model1"]
