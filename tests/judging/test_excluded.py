"""What intervals exclude: the bound beside every missing difference, and planted losses and equal models."""

from typing import Any

import numpy as np
import pytest

from moeprobe.judging import differences, words
from moeprobe.judging.excluded import Excluded, images_to_equivalence
from moeprobe.judging.words import NO_DIFFERENCE, FamilyWord
from moeprobe.metrics.stats.families import Difference, judge
from moeprobe.metrics.stats.linearized import linearize_all, multiply_influences
from moeprobe.metrics.stats.statistic import Ratio
from moeprobe.results.tables import frame
from tests.judging.test_tables import judged, kappa


def row(
    low: float, high: float, *, metric: str = "accuracy", se: float = np.nan, images: int = 100
) -> dict[str, Any]:
    value = (low + high) / 2
    ends = {"value": value, "sim_low": low, "sim_high": high, "se": se, "images": images}
    return {"metric": metric, "verdict": NO_DIFFERENCE, "judgement": "", "tokens": ""} | ends


@pytest.mark.parametrize(
    ("metric", "loss", "text"),
    [
        ("accuracy", 0.03, "excludes a loss above 0.030"),
        ("loss", 0.05, "excludes a loss above 0.050"),
        ("gate_highest", 0.05, "excludes a difference above 0.050"),
    ],
)
def test_the_loss_lies_on_the_worse_side(metric: str, loss: float, text: str) -> None:
    rows = [row(-0.03, 0.02, metric=metric), row(-0.01, 0.05, metric=metric)]
    excluded = Excluded.of(rows)
    assert excluded.loss == pytest.approx(loss) and excluded.text == text
    assert FamilyWord.of_rows(rows).text() == f"{NO_DIFFERENCE} ({text})"
    assert not excluded.is_equivalent(0.05) and excluded.is_equivalent(0.0501)


def test_a_comparison_without_an_interval_is_neither_bounded_nor_equivalent() -> None:
    rows = [row(-0.03, 0.02), row(np.nan, np.nan)]
    assert Excluded.of(rows).text == "excludes a loss above 0.030 in 1 of 2"
    assert not Excluded.of(rows).is_equivalent(1.0) and images_to_equivalence(rows, 1.0) is None
    assert Excluded.of(rows[1:]).text == "" and FamilyWord.of_rows(rows[1:]).text() == NO_DIFFERENCE


def test_the_largest_number_of_images_counts() -> None:
    """n₀ ((c + 1.2816) SE / x)², by hand: c = 0.02 / 0.01 = 2 and 0.06 / 0.02 = 3."""
    rows = [row(-0.02, 0.02, se=0.01), row(-0.06, 0.06, se=0.02)]
    by_hand = [100 * ((c + 1.281552) * se / 0.05) ** 2 for c, se in ((2, 0.01), (3, 0.02))]
    assert images_to_equivalence(rows, 0.05) == int(np.ceil(max(by_hand)))
    assert words.equivalence(rows, 0.05) == (
        f"Not shown to be equivalent within ±0.05; about {np.ceil(max(by_hand)):.0f} images show it if nothing differs."
    )
    assert words.equivalence(rows, 0.07) == "Equivalent within ±0.07."


def test_verdicts_say_in_numbers_what_their_sentence_says() -> None:
    rows = [
        judged(kappa(layer), 0.01, verdict=NO_DIFFERENCE, judgement="", se=0.04) for layer in ("b.1", "b.3")
    ]
    table = frame(rows, judged=True)
    (plain,) = differences.sentences(table).to_dict("records")
    assert plain["equivalent"] is plain["images_to_equivalence"] is None
    assert plain["excluded_loss"] == pytest.approx(0.07)
    assert "excludes a loss above 0.070; 360 images detect 0.090; about" in plain["sentence"]
    for within, equivalent in ((0.08, False), (0.1, True)):
        (said,) = differences.sentences(table, equivalent_within=within).to_dict("records")
        assert said["equivalent"] is equivalent
        assert ("Equivalent within" in said["sentence"]) is equivalent
        assert said["images_to_equivalence"] == images_to_equivalence(rows, within) is not None


def experiment(
    rng: np.random.Generator, images: int, *, cells: int, shift: float, spread: float, seed: int
) -> list[dict[str, Any]]:
    """Judge differences of cells that share an image effect; each is ``shift`` in truth, with this spread."""
    common = rng.standard_normal((images, 1))
    values = shift + spread * (common + rng.standard_normal((images, cells))) / np.sqrt(2)
    numbers = [linearize_all(Ratio(one, np.ones(images)), np.ones(images)) for one in values.T]
    errors = values.std(0, ddof=1) / np.sqrt(images)
    resampled = multiply_influences(numbers, seed=seed)
    members = [Difference(number, float(error)) for number, error in zip(resampled, errors, strict=True)]
    return [
        row(one.sim_low, one.sim_high, se=float(error), images=images)
        for one, error in zip(judge(members), errors, strict=True)
    ]


def equivalent_share(runs: int, within: float, **truth: Any) -> float:
    rng = np.random.default_rng(0)
    found = [Excluded.of(experiment(rng, seed=run, **truth)).is_equivalent(within) for run in range(runs)]
    return float(np.mean(found))


def test_a_planted_loss_is_no_equivalence_and_equal_models_are() -> None:
    truth = {"images": 400, "cells": 3, "spread": 0.1}
    assert equivalent_share(40, 0.03, shift=-0.03, **truth) == 0
    assert equivalent_share(40, 0.03, shift=0.0, **truth) >= 0.9


@pytest.mark.slow
def test_how_often_a_planted_loss_and_equal_models_are_called_equivalent() -> None:
    """400 experiments of 1,600 images over six cells, x = 0.02. A loss of x: at most 2.5 %, equal models: 95 %."""
    truth = {"images": 1600, "cells": 6, "spread": 0.15}
    planted, equal = (equivalent_share(400, 0.02, shift=shift, **truth) for shift in (-0.02, 0.0))
    print(f"called equivalent: planted loss {planted:.3f}, equal models {equal:.3f} of 400")
    assert planted <= 0.025
    assert equal >= 0.95


@pytest.mark.slow
def test_the_planned_number_of_images_shows_equivalence_as_often_as_it_says() -> None:
    """A pilot of 2,000 images plans; 600 experiments of that size. 80 %, with an error of 1.6 points."""
    within = 0.03
    truth: dict[str, Any] = {"cells": 1, "shift": 0.0, "spread": 0.15}
    pilot = experiment(np.random.default_rng(1), 2000, seed=0, **truth)
    planned = images_to_equivalence(pilot, within)
    assert planned is not None
    share = equivalent_share(600, within, images=planned, **truth)
    print(f"{planned} images planned; equivalent in {share:.3f} of 600")
    assert 0.75 <= share <= 0.85
