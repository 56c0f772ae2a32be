"""How values look wherever people read them, on the screen and in reports."""

from collections.abc import Mapping
from typing import Any

from moeprobe.metrics.registry import find


def number(value: float, *, signed: bool = False, decimals: int = 3) -> str:
    """Return a value with three decimals, or as many as are said; a dash where there is none."""
    if value != value:
        return "–"
    value = round(value, decimals) + 0.0  # no minus before a zero
    return f"{value:{'+' if signed else ''},.{decimals}f}"


def decimals_of(row: Mapping[str, Any]) -> int:
    """Return how many decimals a table's row is shown with.

    Two more where all of it is small, none of thousands and of whole numbers.
    """
    if find(row.get("metric", "")).metric.unit == "whole":
        return 0
    ends = [abs(row[name]) for name in ("value", "ci_low", "ci_high") if row[name] == row[name]]
    largest = max(ends, default=0)
    if largest >= 1000:
        return 0
    return 5 if 0 < largest < 0.01 else 3


def between(row: Mapping[str, Any], *, signed: bool = False) -> str:
    """Return ``[low, high]`` of a table's row, and its flag in brackets: alone where there is no interval."""
    flag = f"({row['flag'].replace('_', ' ')})" if row["flag"] else ""
    if row["ci_low"] != row["ci_low"]:
        return flag
    ends = [number(row[name], signed=signed, decimals=decimals_of(row)) for name in ("ci_low", "ci_high")]
    return f"[{', '.join(ends)}] {flag}".rstrip()


def interval(row: Mapping[str, Any], *, signed: bool = False, stacked: bool = False) -> str:
    """Return ``value [low, high]`` of a table's row, with its flag where there is no interval.

    ``stacked`` puts the interval on a line of its own, for narrow windows.
    """
    text = number(row["value"], signed=signed, decimals=decimals_of(row))
    ends = between(row, signed=signed)
    return f"{text}{chr(10) if stacked and ends.startswith('[') else ' '}{ends}".rstrip()
