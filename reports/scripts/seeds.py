"""What three training seeds say, in a cell of a table; seeds are never pooled."""

import gzip
from collections.abc import Collection, Sequence
from pathlib import Path

import pandas as pd

from moeprobe.judging.summarize import summarize
from moeprobe.judging.trainings import TRAININGS
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results import finished, summaries
from moeprobe.results.packed import PACK, PACKED_IMAGES
from moeprobe.results.stored import SumsStore, concat
from moeprobe.results.stored_cell import StoredCell
from moeprobe.runtime.files import atomic_file

# Heading of a column, and its rows: metric, null, view (None: any), severity (None: any).
Column = tuple[str, str, str, str | None, float | None]
CLEAN = ("", "clean", None)
_TOKENS = ("patch", "")


def read(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the committed table and differences of a sweep.

    Sweeps were measured when the load was that of the first choices alone, which with one expert per token are all.
    """
    table = read_table(folder)
    of_one = (table["top_k"] == 1) & table["metric"].isin(["load_entropy", "dead_experts"])
    table.loc[of_one, "metric"] += "_first"
    return table, pd.read_csv(folder / "differences.csv", dtype={"layer": str}).fillna({"layer": ""})


def read_table(folder: Path) -> pd.DataFrame:
    """Return the committed table of a sweep as its trade-off wrote it."""
    words = dict.fromkeys(("layer", "tokens", "null", "view", "flag", "split"), str)
    return pd.read_csv(folder / "table.csv.gz", dtype=words).fillna(dict.fromkeys(words, ""))


def compress(folder: Path) -> None:
    """Put ``table.csv.gz`` in the place of a sweep's ``table.csv``: the same table, a tenth of its size.

    A sweep's own claims about trainings go: those of ``reports/trainings`` are about the references of its page.
    """
    plain = folder / "table.csv"
    with atomic_file(folder / "table.csv.gz") as temporary:
        temporary.write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    plain.unlink()
    (folder / TRAININGS).unlink(missing_ok=True)


def with_cells(root: Path, names: Sequence[str]) -> list[str]:
    """Return the sweeps that can be made again: of all without names, those whose sums per image are here.

    The others are named on the screen, and stay as they are.
    """
    found = []
    for name in names or sorted(path.name for path in root.iterdir() if path.is_dir()):
        if all((root / name / file).exists() for file in (PACK, PACKED_IMAGES)):
            found.append(name)
        else:
            print(f"{root / name} stays as it is: its sums per image come from make fetch-archive")
    return found


def layers(table: pd.DataFrame) -> list[str]:
    """Return the MoE layers, the first one first."""
    return sorted({layer for layer in table["layer"] if layer}, key=lambda name: int(name.rpartition(".")[2]))


def rows_of(rows: pd.DataFrame, layer: str, column: Column) -> pd.DataFrame:
    """Return the rows of a number of patches or of the output, one per cell; those without a value are left out."""
    _, metric, null, view, severity = column
    here = rows[(rows["metric"] == metric) & (rows["null"] == null) & (rows["layer"] == layer)]
    here = here[here["draw"].isna() & here["tokens"].isin(_TOKENS) & here["value"].notna()]
    if view is not None:
        here = here[here["view"] == view]
    if severity is not None:
        here = here[here["severity"] == severity]
    return here.drop_duplicates("checkpoint")


def middle(rows: pd.DataFrame, layer: str, column: Column, *, digits: int = 3, scale: float = 1.0) -> str:
    """Return a number of one group of cells: the middle seed with its interval, then the lowest and the highest.

    Args:
        rows: of the group.
        layer: "" for numbers of the output.
        column: which number.
        digits: after the point.
        scale: what it is multiplied with.
    """
    return middle_of(rows_of(rows, layer, column), digits=digits, scale=scale)


def middle_of(seeds: pd.DataFrame, *, digits: int = 3, scale: float = 1.0) -> str:
    """Return the same of rows that are one per training seed; "–" without any."""
    here = seeds.sort_values("value", kind="stable")
    if here.empty:
        return "–"

    def said(value: float) -> str:
        return f"{value * scale:,.{digits}f}"

    row = here.iloc[len(here) // 2]
    interval = "" if pd.isna(row["ci_low"]) else f" [{said(row['ci_low'])}, {said(row['ci_high'])}]"
    ends = dict.fromkeys(said(value) for value in (here["value"].iloc[0], here["value"].iloc[-1]))
    return f"{said(row['value'])}{interval}" + (f"; {' to '.join(ends)}" if len(ends) > 1 else "")


def spread(rows: pd.DataFrame, *, digits: int = 3) -> str:
    """Return the lowest and highest difference of the seeds, and how many intervals lie on one side of zero.

    Of a single seed it is the difference with its interval.
    """
    if rows.empty:
        return "–"
    if len(rows) == 1:
        value, low, high = (
            f"{round(rows.iloc[0][name], digits) + 0.0:+.{digits}f}"
            for name in ("value", "ci_low", "ci_high")
        )
        return value if pd.isna(rows.iloc[0]["ci_low"]) else f"{value} [{low}, {high}]"
    counted = {"+": int((rows["ci_low"] > 0).sum()), "−": int((rows["ci_high"] < 0).sum())}
    said = ", ".join(f"{number}{sign}" for sign, number in counted.items() if number) or "0"
    # A difference that is rounded to 0 is not negative.
    ends = (round(value, digits) + 0.0 for value in (rows["value"].min(), rows["value"].max()))
    return f"{' to '.join(f'{end:+.{digits}f}' for end in ends)} ({said})"


def compared(
    out: Path,
    pair: tuple[str, str],
    folder: str,
    analysis: str,
    *,
    severities: Collection[float | None],
    layered: bool,
) -> pd.DataFrame:
    """Return the differences that an analysis of one probe gives of two cells, image by image.

    There are none of a layer that one of them lacks, or that has one expert.

    Args:
        out: the trade-off's folder.
        pair: names of the cells, the reference first.
        folder: of the probe, in that of a cell.
        analysis: by name.
        severities: of a noise sweep, those that are wanted.
        layered: whether it is of layers, or of the output.
    """
    sums, about = sums_of_cells(out, pair, folder, severities=severities, layered=layered)
    _, found = summarize(sums, analyses=make_analyses([analysis]), run_info=about)
    return pd.DataFrame() if found is None else found


def sums_of_cells(
    out: Path,
    cells: Sequence[str],
    folder: str,
    *,
    severities: Collection[float | None],
    layered: bool,
) -> tuple[SumsStore, summaries.About]:
    """Return the sums per image that one probe has of some cells, and what they share; arguments as ``compared``."""
    runs = [finished.read(out / "cells" / one / folder) for one in cells]

    def wanted(stored: StoredCell) -> bool:
        cell = stored.cell
        return (
            bool(cell.layer) == layered
            and cell.tokens in _TOKENS
            and (folder != "noise" or cell.severity in severities)
        )

    # The last stages of pipelines are called the same.
    named = (
        run.sums.rename({found.checkpoint: one for found in run.sums})
        for run, one in zip(runs, cells, strict=True)
    )
    request = runs[0].request
    about = summaries.About(
        run=out.name, dataset=request["data"], split=request["split"], seed=request["seed"],
        aligned=folder == "noise", train_seeds={}, groups={},
    )  # fmt: skip
    return concat(named).select(wanted), about
