"""How a number looks on the screen."""

import math

import pytest

from moeprobe.judging.words import word_of
from moeprobe.results.layouts.cells import value
from moeprobe.results.numbers import interval, number


@pytest.mark.parametrize(
    ("row", "signed", "text"),
    [
        ((0.5, 0.4, 0.6, ""), False, "0.500 [0.400, 0.600]"),
        ((-0.0001, -0.02, 0.02, ""), True, "+0.000 [-0.020, +0.020]"),
        ((0.012, -0.0004, 0.02, ""), True, "+0.012 [-0.0004, +0.020]"),
        ((0.012, 0.00004, 0.02, ""), False, "0.012 [0.00004, 0.020]"),
        ((0.012, -1e-12, 0.02, ""), True, "+0.012 [+0.000, +0.020]"),
        ((5000.0, -0.3, 9000.0, ""), True, "+5,000 [-0.3, +9,000]"),
        ((0.0021, 0.0004, 0.0049, ""), False, "0.00210 [0.00040, 0.00490]"),
        ((4.5e-07, 4e-07, 5.1e-07, ""), False, "4.5e-07 [4.0e-07, 5.1e-07]"),
        ((-2e-06, -3.21e-06, 0.0, ""), True, "-2.0e-06 [-3.2e-06, +0.000000]"),
        ((0.012, -0.0000004, 0.02, ""), True, "+0.012 [-4.0e-07, +0.020]"),
        ((1e-12, 0.0, 2e-12, ""), False, "0.00000 [0.00000, 0.00000]"),
        ((0.0, 0.0, 0.0, ""), False, "0.000 [0.000, 0.000]"),
        ((0.7, math.nan, math.nan, "few_images"), False, "0.700 (few images)"),
        ((math.nan, math.nan, math.nan, "collapsed"), False, "– (collapsed)"),
        ((0.7, math.nan, math.nan, "few_carriers"), False, "0.700 (carried by few images)"),
        ((1.315, math.nan, math.nan, "maximum"), False, "1.315"),
        ((0.006, math.nan, math.nan, "level"), False, "0.00600"),
        ((0.7, math.nan, math.nan, ""), False, "0.700"),
        ((56999400.0, math.nan, math.nan, ""), False, "56,999,400"),
    ],
)
def test_a_value_with_its_interval(row: tuple[float, float, float, str], signed: bool, text: str) -> None:
    assert (
        interval(dict(zip(("value", "ci_low", "ci_high", "flag"), row, strict=True)), signed=signed) == text
    )


@pytest.mark.parametrize(
    ("tokens", "dataset", "words"),
    [
        ("patch", "digits", "carried by few images: 4"),
        ("", "text:lines.txt", "carried by few texts: 4"),
        ("token", "requests", "carried by few requests: 4"),
    ],
)
def test_a_mean_that_few_inputs_carry_says_how_many(tokens: str, dataset: str, words: str) -> None:
    row = {"value": 0.02, "ci_low": math.nan, "ci_high": math.nan, "flag": "few_carriers", "carriers": 4}
    assert interval(row | {"tokens": tokens, "dataset": dataset}) == f"0.020 ({words})"


@pytest.mark.parametrize(("dataset", "unit"), [("text:lines.txt", "texts"), ("requests", "requests")])
def test_too_few_of_a_unit_are_called_by_its_name(dataset: str, unit: str) -> None:
    row = {"value": 1.5, "ci_low": math.nan, "ci_high": math.nan, "flag": "few_images", "dataset": dataset}
    assert interval(row) == f"1.500 (few {unit})"
    assert word_of(row | {"judgement": "", "verdict": "few images"}) == f"few {unit}"


def test_nothing_seen_says_of_how_many() -> None:
    row = {"value": 0.0, "ci_low": 0.0, "ci_high": 0.0009, "flag": "", "interval": "score", "trials": 6372}
    row |= {"metric": "tokens_touched", "null": ""}
    assert interval(row) == "0.00000 [0.00000, 0.00090] (0 of 6,372)"
    assert "of" not in interval(row | {"value": 0.0004}) and "of" not in interval(
        row | {"interval": "percentile"}
    )


@pytest.mark.parametrize(
    ("tokens", "dataset", "units"),
    [("patch", "digits", "24 images"), ("token", "lines", "24 texts"), ("token", "requests", "24 requests")],
)
def test_a_number_that_is_not_measurable_says_with_how_many(tokens: str, dataset: str, units: str) -> None:
    row = {"value": math.nan, "ci_low": math.nan, "ci_high": math.nan, "flag": "not_measurable"}
    row |= {"metric": "dead_experts", "tokens": tokens, "dataset": dataset, "images": 24}
    assert interval(row) == f"not measurable with {units}"
    assert value(row).line == f"– not measurable with {units}"


def test_there_is_no_minus_before_a_zero() -> None:
    assert number(-1e-9) == "0.000" and number(-1e-9, signed=True) == "+0.000"
