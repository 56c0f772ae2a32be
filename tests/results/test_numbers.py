"""How a number looks on the screen."""

import math

import pytest

from moeprobe.results.numbers import interval, number


@pytest.mark.parametrize(
    ("row", "signed", "text"),
    [
        ((0.5, 0.4, 0.6, ""), False, "0.500 [0.400, 0.600]"),
        ((-0.0001, -0.02, 0.02, ""), True, "+0.000 [-0.020, +0.020]"),
        ((0.0021, 0.0004, 0.0049, ""), False, "0.00210 [0.00040, 0.00490]"),
        ((0.0, 0.0, 0.0, ""), False, "0.000 [0.000, 0.000]"),
        ((0.7, math.nan, math.nan, "few_images"), False, "0.700 (few images)"),
        ((math.nan, math.nan, math.nan, "collapsed"), False, "– (collapsed)"),
        ((0.7, math.nan, math.nan, ""), False, "0.700"),
        ((56999400.0, math.nan, math.nan, ""), False, "56,999,400"),
    ],
)
def test_a_value_with_its_interval(row: tuple[float, float, float, str], signed: bool, text: str) -> None:
    assert (
        interval(dict(zip(("value", "ci_low", "ci_high", "flag"), row, strict=True)), signed=signed) == text
    )


def test_there_is_no_minus_before_a_zero() -> None:
    assert number(-1e-9) == "0.000" and number(-1e-9, signed=True) == "+0.000"
