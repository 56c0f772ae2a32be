"""The inputs that change most: quantiles over inputs of the share of tokens that change experts, from finished runs.

A mean may hide that routing of a few inputs changes throughout. Sums per image are enough, so no model is loaded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from moeprobe.errors import UserError, option
from moeprobe.inputs.modality import Modality, modality_of
from moeprobe.metrics.base import trial_lists
from moeprobe.metrics.stats.order import Quantile, fewest, quantile
from moeprobe.metrics.stats.proportions import score_interval
from moeprobe.metrics.stats.statistic import Array
from moeprobe.metrics.stats.units import Units
from moeprobe.probes.engine.checks import analyses_of
from moeprobe.probes.engine.units import units_of_inputs
from moeprobe.results import finished
from moeprobe.results.stored_cell import StoredCell
from moeprobe.results.tables import FLOORS
from moeprobe.runtime.arguments import check_arguments, several

# The quantiles that are shown.
SHARES = (0.5, 0.9, 0.99)
_TRIALS = "trials"
_KEYS = ("checkpoint", "layer", "view", "severity", "tokens")


@dataclass(frozen=True)
class Tails:
    """Quantiles over inputs.

    Attributes:
        table: a row per number: checkpoint, layer, view, severity, tokens, ``metric`` (``quantile`` or ``above``),
            ``at`` (the share of inputs of a quantile, or the share of tokens of ``--above``), value, ci_low, ci_high
            (NaN where inputs are too few), and ``inputs``.
        modality: what the inputs are, and what was sampled.
    """

    table: pd.DataFrame
    modality: Modality

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


@check_arguments
def tails(
    runs: str | Path | Sequence[str | Path], *, above: float | None = None, unit: str | None = None
) -> Tails:
    """Return quantiles over inputs of the share of tokens that change experts, for each layer of finished runs.

    A token changes if its set of experts does; where it has one expert, if that does.

    Args:
        runs: folders of finished runs that compare two routings.
        above: also the share of inputs of which more than this share of tokens change.
        unit: what was sampled, as for ``compare``; its inputs are added up. None = as the runs were measured.

    Raises:
        UserError: a run cannot be read, or holds no matches of tokens that choose experts.
    """
    if above is not None and not 0 <= above < 1:
        raise UserError(f"{option('above')} takes a share from 0 to below 1; got {above}.")
    measured = finished.read_all([Path(str(path)) for path in several(runs)], with_units=unit is None)
    units = measured.units if unit is None else units_of_inputs(unit, measured.sums.names())
    lists = trial_lists(analyses_of(measured.request))
    rows = [
        row
        for stored in measured.sums.pool_draws(lists=lists)
        if stored.cell.view not in FLOORS
        for row in _rows(stored, above, None if units is None else units.unit_of)
    ]
    if not rows:
        raise UserError(
            "These runs hold no matches of tokens that choose experts, so no input has a share of changed tokens; name "
            "runs of match-ratio, sweep or trace analyze."
        )
    table = pd.DataFrame(rows)
    modality = modality_of(table["tokens"], data=measured.request.data)
    name = "" if units is None else units.name
    return Tails(table, replace(modality, sampled=name))


def _rows(
    stored: StoredCell, above: float | None, unit_of: Mapping[str, str] | None
) -> Iterator[dict[str, Any]]:
    shares = _changed_shares(stored, unit_of)
    if shares is None or not len(shares):
        return
    cell = stored.cell
    shared = dict(
        zip(_KEYS, (stored.checkpoint, cell.layer, cell.view, cell.severity, cell.tokens), strict=True)
    )
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
