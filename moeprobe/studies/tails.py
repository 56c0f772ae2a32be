"""The inputs that change most: quantiles over inputs of the share of tokens that change experts, from finished runs.

A mean may hide that routing of a few inputs changes throughout. Sums per image are enough, so no model is loaded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import ORDINARY, Modality, modality_of
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.stats.order import Quantile, fewest, quantile
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.statistic import Array
from moeprobe.metrics.stats.units import Units
from moeprobe.probes.engine.checks import analyses_of
from moeprobe.probes.engine.units import units_of_inputs
from moeprobe.results import finished
from moeprobe.results.columns import TAILS_COLUMNS
from moeprobe.results.sampled_units import SampledUnits
from moeprobe.results.showing import Figures
from moeprobe.results.sidecars import Request
from moeprobe.results.stored import SumsStore
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.tables import FLOORS
from moeprobe.runtime.arguments import check_arguments, several
from moeprobe.runtime.files import write_csv
from moeprobe.runtime.table_folders import check_table_folder, family_of_table, table_folder

# The quantiles that are shown.
SHARES = (0.5, 0.9, 0.99)
_TRIALS = "trials"
# The analyses whose sums say which tokens change.
MATCHES = ("match", "set_match")
# Rows of sums per input up to which reports and audits have the tails; of more, moeprobe tails says them.
MOST_SUMS = 200_000
_KEYS = ("checkpoint", "layer", "view", "severity", "tokens")
_TABLE = "tails.csv"
_FAMILY = family_of_table("tails", TAILS_COLUMNS, files=("tails.png",))


@dataclass(frozen=True)
class Tails:
    """Quantiles over inputs.

    Attributes:
        table: a row per number, with ``columns.TAILS_COLUMNS``.
        modality: of the inputs, with the sampling unit.
        shares: of tokens that change in each input ``(n,)``, by the first five columns.
        files: written files; empty where no folder was named.
    """

    table: pd.DataFrame
    modality: Modality
    shares: Mapping[tuple[Any, ...], Array] = field(repr=False, default_factory=dict)
    files: tuple[Path, ...] = ()

    def sentences(self) -> list[str]:
        """Return which quantiles have no interval, and how many inputs they take."""
        quantiles = self.table[self.table["metric"] == "quantile"]
        lacking = quantiles[quantiles["ci_low"].isna()].groupby("at")["inputs"].min()
        units = self.modality.units
        return [
            f"The {at:.0%} quantile has no interval here: it takes {fewest(float(at)):,} {units}, and there are "
            f"{int(inputs):,}."
            for at, inputs in lacking.items()
        ]

    def plot(self) -> Figures:
        """Return the figure, of ordinary tokens; nothing is written."""
        from moeprobe.results.figures.tails import TailCurve, draw

        ordinary = [key for key in self.shares if key[-1] in ORDINARY] or list(self.shares)
        quantiles = self.table[self.table["metric"] == "quantile"]
        rows = {key: quantiles[_is_cell(quantiles, key)] for key in ordinary}
        curves = [
            TailCurve(dict(zip(_KEYS, key, strict=True)), self.shares[key], rows[key]) for key in ordinary
        ]
        return Figures(tails=draw(curves, self.modality))


def _is_cell(table: pd.DataFrame, key: tuple[Any, ...]) -> pd.Series:
    """Return which rows are of a cell."""
    same = pd.Series(True, index=table.index)
    for name, value in zip(_KEYS, key, strict=True):
        same &= table[name].isna() if value != value else table[name] == value
    return same


@check_arguments
def tails(
    runs: str | Path | Sequence[str | Path],
    *,
    above: float | None = None,
    unit: str | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
) -> Tails:
    """Return quantiles over inputs of the share of tokens that change experts, for each layer of finished runs.

    A token changes if its set of experts does; where it has one expert, if that does.

    Args:
        runs: folders of finished runs that compare two routings.
        above: also the share of inputs of which more than this share of tokens change.
        unit: what was sampled, as for ``compare``; its inputs are added up. None = as the runs were measured.
        out: folder for ``tails.csv`` and ``tails.png``; None = nothing is written.
        overwrite: replace what earlier tails left there.

    Raises:
        UserError: a run cannot be read, or holds no matches of tokens that choose experts.
    """
    if above is not None and not 0 <= above < 1:
        raise UserError(f"{option('above')} takes a share from 0 to below 1; got {above}.")
    folder = None if out is None else Path(out)
    if folder is not None:
        check_table_folder(folder, _FAMILY, overwrite=overwrite)
    measured = finished.read_all([Path(str(path)) for path in several(runs)], with_units=unit is None)
    units = measured.units if unit is None else units_of_inputs(unit, measured.sums.names())
    result = tails_of(measured.sums, measured.request, above=above, units=units)
    if result is None:
        raise UserError(
            "These runs hold no matches of tokens that choose experts, so no input has a share of changed tokens; name "
            "runs of match-ratio, sweep or trace analyze."
        )
    return result if folder is None else replace(result, files=_write(result, folder, overwrite=overwrite))


def tails_of(
    sums: SumsStore, request: Request, *, above: float | None = None, units: SampledUnits | None = None
) -> Tails | None:
    """Return the tails of sums per input, as ``tails`` does; None where they hold no matches of tokens that choose."""
    rows: list[dict[str, Any]] = []
    shares: dict[tuple[Any, ...], Array] = {}
    for stored in sums.pool_draws(lists=trial_lists(analyses_of(request))):
        if stored.cell.view in FLOORS:
            continue
        of_cell = _changed_shares(stored, None if units is None else units.unit_of)
        if of_cell is not None and len(of_cell):
            cell = stored.cell
            key = stored.checkpoint, cell.layer, cell.view, cell.severity, cell.tokens
            shares[key] = of_cell
            rows += _rows(key, of_cell, above)
    if not rows:
        return None
    table = pd.DataFrame(rows, columns=list(TAILS_COLUMNS))
    modality = modality_of(table["tokens"], data=request.data)
    return Tails(table, replace(modality, sampled="" if units is None else units.name), shares)


def _write(result: Tails, folder: Path, *, overwrite: bool) -> tuple[Path, ...]:
    from moeprobe.results.figures import save_all

    with table_folder(folder, _FAMILY, overwrite=overwrite) as path:
        write_csv(path / _TABLE, result.table)
        pictures = save_all(result.plot(), path, svg=False)
    return (folder / _TABLE, *(folder / picture.name for picture in pictures))


def _rows(key: tuple[Any, ...], shares: Array, above: float | None) -> Iterator[dict[str, Any]]:
    shared = dict(zip(_KEYS, key, strict=True))
    for at in SHARES:
        yield shared | _row("quantile", at, quantile(shares, at), len(shares))
    if above is not None:
        yield shared | _row("above", above, _share_above(shares, above), len(shares))


def _row(metric: str, at: float, number: Quantile, inputs: int) -> dict[str, Any]:
    ends = {"ci_low": number.low, "ci_high": number.high}
    return {"metric": metric, "at": at, "value": number.value, **ends, "inputs": inputs}


def _share_above(shares: Array, above: float) -> Quantile:
    """Return the share of inputs above a share of tokens, with Wilson's interval."""
    share, n = float((shares > above).mean()), len(shares)
    if fewest(0.5) > n:
        return Quantile(share, np.nan, np.nan)
    low, high = score_interval(share, float(np.sqrt(share * (1 - share) / (n - 1))), n)
    return Quantile(share, low, high)


def _changed_shares(stored: StoredCell, unit_of: Mapping[str, str] | None) -> Array | None:
    """Return the share of tokens of each input, or unit, that change ``(n,)``; None where tokens do not choose.

    Inputs without a token to compare have none.
    """
    top_k = stored.cell.top_k
    metric = f"top{top_k}_set_match" if top_k > 1 else "top1_match"
    hits, trials = list[Array](), list[Array]()
    for _, columns in stored.blocks():
        if metric not in columns or _TRIALS not in columns:
            return None
        hits.append(columns[metric].astype(np.float64))
        trials.append(columns[_TRIALS].astype(np.float64))
    matches, number = np.concatenate(hits), np.concatenate(trials)
    if unit_of is not None:
        units = Units.of(stored.names(), unit_of)
        matches, number = units.add_up(matches), units.add_up(number)
    matches, number = matches[number > 0], number[number > 0]
    # Not one less the share of matches, which rounding lifts above a limit that it equals.
    return (number - matches) / number
