"""How values look wherever people read them, on the screen and in reports, and the phrases that go with them."""

from collections.abc import Mapping
from numbers import Integral
from typing import Any

from moeprobe.inputs.modality import modality_of_row
from moeprobe.metrics.analyses import attribution as parts
from moeprobe.metrics.registry import find
from moeprobe.metrics.stats.bootstrap import FEW_CARRIERS, MIN_IMAGES, SCORE
from moeprobe.metrics.stats.load import NOT_MEASURABLE

_ROUNDING = 1e-9
# More decimals are as hard to count as they are to compare: 4.5e-07.
_MOST = 6
# Flags of values that have no interval by their nature.
_BARE = ("maximum", "level", "fitted")


def number(value: float, *, signed: bool = False, decimals: int = 3) -> str:
    """Return a value with three decimals, or as many as are said; a dash where there is none.

    A value that takes more than six decimals is written with an exponent and two digits.
    """
    if value != value:
        return "–"
    if decimals > _MOST and abs(value) >= _ROUNDING:
        return f"{value:{'+' if signed else ''}.1e}"
    decimals = min(decimals, _MOST)
    value = round(value, decimals) + 0.0  # no minus before a zero
    return f"{value:{'+' if signed else ''},.{decimals}f}"


def end(value: float, *, signed: bool = False, decimals: int = 3) -> str:
    """Return the end of an interval, with as many decimals as show on which side of 0 it is."""
    # Less than this is the rounding of sums.
    if abs(value) >= _ROUNDING:
        while round(value, decimals) == 0:
            decimals += 1
    return number(value, signed=signed, decimals=decimals)


def ends_of(row: Mapping[str, Any]) -> tuple[float, float]:
    """Return the ends of the interval that a table's row is shown with; NaN where there is none.

    A difference has the interval of its family, which its word goes by; its own stands in ``comparison.csv`` alone.
    """
    kind = "sim" if "sim_low" in row else "ci"
    return float(row[f"{kind}_low"]), float(row[f"{kind}_high"])


def decimals_of(row: Mapping[str, Any]) -> int:
    """Return how many decimals a table's row is shown with.

    Two more where all of it is small, an exponent where it is tiny, none of thousands and of whole numbers.
    """
    if find(row.get("metric", "")).metric.unit == "whole":
        return 0
    ends = [abs(end) for end in (row["value"], *ends_of(row)) if end == end]
    largest = max(ends, default=0)
    if largest >= 1000:
        return 0
    if _ROUNDING <= largest < 1e-4:
        return _MOST + 1
    return 5 if 0 < largest < 0.01 else 3


def between(row: Mapping[str, Any], *, signed: bool = False) -> str:
    """Return ``[low, high]`` of a table's row, and its flag in brackets: alone where there is no interval."""
    if row["flag"] == NOT_MEASURABLE:
        return f"not measurable with {modality_of_row(row).format_count(int(row['images']))}"
    flag = few_carriers(row) if row["flag"] == FEW_CARRIERS else words_of_flag(row)
    # What never has an interval does not say so each time.
    flag = f"({flag})" if flag and flag not in _BARE else ""
    low, high = ends_of(row)
    if low != low:
        return flag
    ends = [end(value, signed=signed, decimals=decimals_of(row)) for value in (low, high)]
    return f"[{', '.join(ends)}] {flag}".rstrip()


def few_carriers(row: Mapping[str, Any]) -> str:
    """Return that few inputs carry a table's row, and how many where a table says it."""
    number = row.get("carriers")
    count_text = f": {number:.0f}" if isinstance(number, float | Integral) and number == number else ""
    return modality_of_row(row).translate(f"carried by few images{count_text}")


def words_of_flag(row: Mapping[str, Any]) -> str:
    """Return the flag of a table's row as people read it: few images, few texts, few requests."""
    return modality_of_row(row).translate(row["flag"].replace("_", " "))


def count(row: Mapping[str, Any], *, signed: bool = False) -> str:
    """Return ``(0 of n)`` of a table's row where nothing was seen of a share; of other rows nothing."""
    is_unseen = (
        row["value"] == 0
        and row.get("interval") == SCORE
        and find(row.get("metric", "")).metric.unit == "share"
    )
    return f"(0 of {row['trials']:,.0f})" if is_unseen and not row.get("null") and not signed else ""


def interval(row: Mapping[str, Any], *, signed: bool = False, stacked: bool = False) -> str:
    """Return ``value [low, high]`` of a table's row, with its flag where there is no interval.

    A share of 0 says of how many trials it is. ``stacked`` puts the interval on a line of its own, for narrow windows.
    """
    text = number(row["value"], signed=signed, decimals=decimals_of(row))
    ends = between(row, signed=signed)
    if row["flag"] == NOT_MEASURABLE:
        return ends
    line = "\n" if stacked and ends.startswith("[") else " "
    return f"{text}{line}{ends} {count(row, signed=signed)}".rstrip()


# What is attributed -> its columns: (metric, null, heading).
ATTRIBUTION = {
    what: tuple((family.make(share).name, "", share) for share in parts.SHARES)
    for what, family in (("class probability", parts.CLASS_PROBABILITY), ("accuracy", parts.ACCURACY))
}


def attribution(name: str, gates: str) -> str:
    """Return the heading over what features and switching have in the change of the output."""
    return f"what changes the {name}, features (pixels) or switching (experts)? Gates {gates}"


def floors(dtype: str | None) -> tuple[str, str, str]:
    """Return what the columns of a noise floor are called, in ``tables.FLOORS``' order; ``dtype`` is the other one."""
    return "same batch again", "other batch size", dtype or "other dtype"


def no_intervals(units: str) -> str:
    """Return why there are no intervals over images, texts or requests."""
    return f"no intervals: they need at least {MIN_IMAGES} {units}"


def sentence_case(text: str) -> str:
    """Return the beginning of a sentence; κ stays what it is."""
    return text if text.startswith("κ") else text[:1].upper() + text[1:]
