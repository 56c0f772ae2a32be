"""What a table of ``precision`` says in words: how much each format changes, and which part changes most."""

import pandas as pd

from moeprobe.judging.selection import Extreme, ends_of, extremes_of
from moeprobe.probes.precision import FORMATS, WHOLE, by_part
from moeprobe.results.layouts.cells import counts, trials_of
from moeprobe.results.numbers import interval
from moeprobe.results.tables import modality_of_table


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each checkpoint and format how many tokens change experts, and which part changes most."""
    rows = by_part(table)
    rows = rows[rows["value"].notna()]
    return [
        _of_format(of_checkpoint[of_checkpoint["format"] == form], f"{name}, {form}")
        for name, of_checkpoint in rows.groupby("checkpoint", sort=False)
        for form in FORMATS
        if form in set(of_checkpoint["format"])
    ]


def _of_format(rows: pd.DataFrame, name: str) -> str:
    """Return what a format changes with all parts rounded, or with the only one, and the part that changes most."""
    single, together = rows[rows["part"] != WHOLE], rows[rows["part"] == WHOLE]
    changed = single if together.empty else together
    highest = extremes_of(changed)[-1].row
    units = modality_of_table(rows)
    images, trials = (counts(changed[what]).text for what in ("images", "trials"))
    what = changed["part"].iloc[0] if together.empty else "all parts"
    layers = changed["layer"].nunique()
    is_unchanged = layers > 1 and not highest["value"] > 0
    # Where nothing changes anywhere, no layer is the end of a range.
    share = interval(highest) if is_unchanged else ends_of(changed)
    where = f" in each of {layers} layers" if is_unchanged else ""
    sentence = (
        f"{name} ({units.format_count(images)}, {trials_of(trials)}): rounding {what} changes the experts of "
        f"{share} of the {units.tokens}{where}."
    )
    of_layer = single[single["layer"] == highest["layer"]]
    if together.empty:
        return sentence
    largest = Extreme.of(of_layer, lowest=False, names=of_layer["part"])
    if not largest.row["value"] > 0:
        return f"{sentence} No part alone changes any in {highest['layer']}."
    return (
        f"{sentence} In {highest['layer']}, the single part that changes most is {largest.row['part']}: "
        f"{interval(largest.row)}{largest.appended()}."
    )
