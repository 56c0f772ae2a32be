"""Verdicts in words, the same on the screen and on the page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import IMAGE, REQUEST, TEXT, Modality
from moeprobe.judging.properties import is_exactly_0
from moeprobe.judging.scales import EXPERTS, MEASURED, REFERENCES
from moeprobe.judging.words import IDENTICAL, NO_DIFFERENCE, SAME, false_sides
from moeprobe.results.numbers import decimals_of, end, number

Row = dict[str, Any]
_MODALITIES = {modality.name: modality for modality in (IMAGE, TEXT, REQUEST)}


@dataclass(frozen=True)
class PropertyLine:
    """A property as shown: a statement on each model, and which of two is better.

    Attributes:
        name: of the property.
        title: of the property.
        values: the verdict on each model.
        difference: that on the second model minus the first; None with one model.
    """

    name: str
    title: str
    values: list[Row]
    difference: Row | None

    @property
    def judgement(self) -> str:
        """Which of two models is better; empty with one model, or where they are not compared."""
        return "" if self.difference is None else str(self.difference["judgement"])

    @property
    def advice(self) -> list[str]:
        """What to do next, once each."""
        return list(dict.fromkeys(row["advice"] for row in self.values if row["advice"]))

    @property
    def command(self) -> str:
        """The command that gives more."""
        return str(self.values[0]["command"])

    @property
    def run(self) -> str:
        """The folder of its run."""
        return str(self.values[0]["run"])


def lines_of(verdicts: pd.DataFrame) -> list[PropertyLine]:
    """Return a line per property, in their order."""
    lines = []
    for name, rows in verdicts.groupby("property", sort=False):
        records: list[Row] = [
            {str(key): cell for key, cell in row.items()} for row in rows.to_dict("records")
        ]
        values = [row for row in records if not row["reference"]]
        differences = [row for row in records if row["reference"]]
        title = str(values[0]["title"])
        lines.append(PropertyLine(str(name), title, values, differences[0] if differences else None))
    return lines


def value_text(row: Row, *, signed: bool = False) -> str:
    """Return a value with its interval, e.g. ``κ 0.27 [0.25, 0.28]``; of counts of experts, of how many."""
    if row["value"] != row["value"]:
        return ""
    if row["experts"] and row["metric"] == "dead_experts" and not signed:
        return f"{number(row['value'], decimals=0)} of {row['experts']:.0f}"
    ends = {
        "value": row["value"],
        "ci_low": row["ci_low"],
        "ci_high": row["ci_high"],
        "metric": row["metric"],
    }
    if is_exactly_0(ends):
        return f"{'' if signed else row['symbol']} exactly 0".strip()
    decimals = decimals_of(ends)
    text = number(row["value"], signed=signed, decimals=decimals)
    name = "" if signed else row["symbol"]
    return f"{name} {text} {interval_text(row, signed=signed, decimals=decimals)}".strip()


def short_value(row: Row) -> str:
    """Return a value without its interval, in brackets; empty where there is none."""
    bare = {**row, "ci_low": math.nan, "ci_high": math.nan}
    return "" if row["value"] != row["value"] else f"({value_text(bare)})"


def verdict_text(row: Row) -> str:
    """Return a verdict with its value, e.g. ``unstable (κ 0.27)``."""
    return f"{row['verdict']} {short_value(row)}".rstrip()


def difference_text(row: Row) -> str:
    """Return both values and their difference with its interval, and the cell that these are of.

    Empty where every image gives the same.
    """
    if row["judgement"] == IDENTICAL:
        return ""
    decimals = decimals_of(row)
    values = [number(row[f"{side}_value"], decimals=decimals) for side in ("reference", "checkpoint")]
    return f"{' → '.join(values)}, {value_text(row, signed=True)}{cell_text(row)}"


def cell_text(row: Row) -> str:
    """Return the cell of a difference, where several are read, e.g. `` in blocks.1, fog``; empty of the output."""
    parts = [str(row["layer"])] if row["layer"] else []
    parts += [str(row["view"])] if row["variants"] > 1 else []
    return f" in {', '.join(parts)}" if parts else ""


def interval_text(row: Row, *, signed: bool = False, decimals: int = 3) -> str:
    """Return ``[low, high]``; empty without an interval."""
    if row["ci_low"] != row["ci_low"]:
        return ""
    ends = (end(row[name], signed=signed, decimals=decimals) for name in ("ci_low", "ci_high"))
    return f"[{', '.join(ends)}]"


def location(row: Row) -> str:
    """Return where a number is from, e.g. ``blocks.3, the worst of 2 layers``."""
    if not row["layer"]:
        return ""
    if row["layers"] <= 1:
        return str(row["layer"])
    return f"{row['layer']}, {row['of_layers']} of {row['layers']:.0f}"


def _denominator(row: Row, modality: Modality, trials: str) -> str:
    """Return on how much a number rests, e.g. ``360 images, 5,520 patches``; ``trials``: as a property has it."""
    images = modality.format_count(int(row["images"]))
    if not row["layer"] or row["images"] == row["trials"]:
        return images
    return f"{images}, {row['trials']:,.0f} {trials or modality.tokens}"


def modality_of_audit(sidecar: Mapping[str, Any]) -> Modality:
    """Return what the models of an audit read."""
    return _MODALITIES.get(str(sidecar.get("modality")), IMAGE)


def sentence(row: Row, modality: Modality, trials: str) -> str:
    """Return all that is known of a verdict, for the page; ``trials``: as its property has it."""
    if row["property"] == "recording":
        return f"{modality.format_count(int(row['images']))} recorded. {row['beside']}".strip()
    if row["verdict"] == "collapsed" and row["value"] != row["value"]:
        text = f"Every token makes the same choice in {row['layer']}, so κ does not exist"
    else:
        text = value_text(row, signed=bool(row["reference"]))
    variant = f", {row['view']}" if row["variants"] > 1 else ""
    where = f" in {location(row)}{variant}" if row["layer"] and "in " + str(row["layer"]) not in text else ""
    where = where + " layers" if row["layer"] and row["layers"] > 1 and not variant else where
    parts = [f"{text}{where} ({_denominator(row, modality, trials)})."]
    first = {"value": row["first_value"], "ci_low": row["first_low"], "ci_high": row["first_high"]}
    if row["layers"] > 1 and row["first_layer"] != row["layer"] and not math.isnan(first["value"]):
        of_first = value_text({**row, **first}, signed=bool(row["reference"]))
        parts.append(f"First MoE layer, {row['first_layer']}: {of_first}.")
    if row["beside"]:
        parts.append(f"Beside it: {row['beside']}.")
    return " ".join(parts)


def references(line: PropertyLine) -> str:
    """Return what known routers reach in a property, beside the models; empty where nothing was measured."""
    values = short_references(line)
    return values and f"In the first MoE layer: {values} (reference values: {MEASURED})."


def short_references(line: PropertyLine) -> str:
    """Return what models and known routers reach in the first layer, e.g. ``here 0.36; hash router 0.09, V-MoE 0.31``.

    Empty for other numbers of experts than the known routers have.
    """
    row = line.values[0]
    known_values = REFERENCES.get((line.name, str(row["metric"]), str(row["view"])), {})
    if not known_values or any(row["experts"] != EXPERTS for row in line.values):
        return ""
    several = len(line.values) > 1
    models = ", ".join(
        f"{row['checkpoint'] if several else 'here'} {number(row['first_value'], decimals=2)}"
        for row in line.values
    )
    return f"{models}; {', '.join(f'{name} {value:.2f}' for name, value in known_values.items())}"


def summary(lines: list[PropertyLine], models: list[str]) -> str:
    """Return what an audit comes to in a few sentences; each property is named once."""
    if len(models) == 2:
        # Only properties without a difference are listed here; the others are told by how the two models differ.
        attention = _properties_of_grade([line for line in lines if line.difference is None], "poor")
        parts = [
            f"Needs attention: {attention}." if attention else "",
            _of_second(lines, models),
            _of_pair(lines, models),
        ]
        return " ".join(part for part in parts if part)
    attention = _properties_of_grade(lines, "poor") or _properties_of_grade(lines, "fair")
    good = [
        f"{line.title.lower()} ({line.values[0]['verdict']})"
        for line in lines
        if all(row["grade"] == "good" for row in line.values)
    ]
    parts = [
        f"Needs attention: {attention}." if attention else "Nothing needs attention.",
        f"Good: {', '.join(good)}." if good else "",
    ]
    return " ".join(part for part in parts if part)


def _properties_of_grade(lines: list[PropertyLine], grade: str) -> str:
    """Return the properties with a verdict of a grade, e.g. ``routing under crops: unstable (κ 0.25)``."""
    texts = [
        f"{line.title.lower()}: {verdict_text(row)}"
        for line in lines
        for row in line.values
        if row["grade"] == grade
    ]
    return "; ".join(dict.fromkeys(texts))


def _of_second(lines: list[PropertyLine], models: list[str]) -> str:
    """Return the verdicts that only the second model has: how it relates to the first; empty where there are none."""
    texts = [
        f"{line.title.lower()}: {verdict_text(line.values[0])}"
        for line in lines
        if [row["checkpoint"] for row in line.values] == models[1:]
    ]
    return f"{models[1]} — {'; '.join(texts)}." if texts else ""


def _of_pair(lines: list[PropertyLine], models: list[str]) -> str:
    """Return in what the second model is better, worse or no different."""
    titles: dict[str, list[str]] = {}
    for line in lines:
        if line.judgement:
            titles.setdefault(line.judgement, []).append(line.title.lower())
    order = sorted(titles, key=lambda word: (word.startswith((NO_DIFFERENCE, SAME, IDENTICAL)), word))
    parts = [f"{word}: {', '.join(titles[word])}" for word in order]
    if not parts:
        return ""
    chance = false_sides(sum(map(len, titles.values())))
    return f"{models[1]} against {models[0]} — {'; '.join(parts)}. {chance}".rstrip()
