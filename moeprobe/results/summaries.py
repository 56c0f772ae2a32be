"""The lines of a table: values with their intervals, by the names of its columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from moeprobe.metrics.declaration import KAPPA, NumberName
from moeprobe.metrics.stats.bootstrap import SCORE, Replicates, with_observations
from moeprobe.results.columns import UNIT
from moeprobe.results.sampled_units import SampledUnits
from moeprobe.results.sums import Cell
from moeprobe.routing.finite import COLUMN

# What a line is of, until the whole table is there; no column.
REPLICATES = "replicates"
# Cells that a design effect is read off, at least.
_FEWEST_CELLS = 2


@dataclass(frozen=True)
class About:
    """What all lines of a run share, and what belongs to each checkpoint."""

    run: str
    dataset: str
    split: str
    seed: int
    aligned: bool
    train_seeds: Mapping[str, int | None]
    groups: Mapping[str, str]
    units: SampledUnits | None = None

    @classmethod
    def of_request(
        cls,
        request: Mapping[str, Any],
        *,
        run: str,
        aligned: bool,
        train_seeds: Mapping[str, int | None],
        groups: Mapping[str, str],
        units: SampledUnits | None = None,
    ) -> Self:
        """Return it for a run, with the data and the seed of its request; ``units`` None = inputs were sampled."""
        dataset, split, seed = request["data"], request["split"], request["seed"]
        return cls(run, dataset, split, seed, aligned, train_seeds, groups, units)

    @property
    def unit_of(self) -> Mapping[str, str] | None:
        """The unit of each input; None = the inputs themselves."""
        return None if self.units is None else self.units.unit_of


def with_unseen(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the lines of a run; shares of 0 or 1 have intervals by the design effect that others of their metric have.

    The effect is the mean of at least two other cells, of the same kind of tokens, weighted by their counts:
    a match lends it to its kappa. It grows with the trials of an image, so pooled draws lend to pooled draws alone,
    and counts for one expert to other counts for one expert.
    """
    effects: dict[tuple[Any, ...], list[tuple[float, float]]] = {}
    for line in lines:
        number = line[REPLICATES]
        if np.isfinite(number.effect):
            weight = number.trials * min(number.point, 1 - number.point)
            effects.setdefault(_design_effect_key(line, line["metric"]), []).append((number.effect, weight))
    means = {
        lender: float(np.average([effect for effect, _ in cells], weights=[weight for _, weight in cells]))
        for lender, cells in effects.items()
        if len(cells) >= _FEWEST_CELLS
    }
    for line in lines:
        number, lender = line[REPLICATES], _design_effect_key(line, line["metric"].removesuffix(KAPPA))
        if line["interval"] == SCORE and number.bounds is not None and lender in means:
            interval = with_observations(number, means[lender]).interval()
            line |= {"ci_low": interval.low, "ci_high": interval.high}
    return lines


def _design_effect_key(line: Mapping[str, Any], metric: str) -> tuple[Any, ...]:
    """Return what tells the design effects of a run apart."""
    return metric, line["tokens"], line["draw"] is None, line["expert"] is None


def row(
    run_info: About,
    checkpoint: str,
    cell: Cell,
    name: NumberName,
    replicates: Replicates,
    *,
    not_finite: bool = False,
) -> dict[str, Any]:
    """Return the line of one value (or difference), by the names of ``columns.COLUMNS``."""
    interval = replicates.interval()
    return {
        "run": run_info.run,
        "checkpoint": checkpoint,
        "group": run_info.groups.get(checkpoint, ""),
        "train_seed": run_info.train_seeds.get(checkpoint),
        "dataset": run_info.dataset,
        "split": run_info.split,
        "layer": cell.layer,
        "router": cell.router,
        "top_k": cell.top_k or None,
        "view": cell.view,
        "severity": None if np.isnan(cell.severity) else cell.severity,
        "draw": cell.draw or None,
        "tokens": cell.tokens,
        "metric": name.metric,
        "null": name.null,
        "expert": name.expert,
        "expert_b": name.expert_b,
        "value": interval.value,
        "ci_low": interval.low,
        "ci_high": interval.high,
        "interval": interval.method,
        "images": replicates.images,
        "trials": replicates.trials,
        "seed": run_info.seed,
        # Above all others: what else there is to say is said of the images that are left.
        "flag": COLUMN if not_finite else interval.flag,
        "carriers": interval.carriers,
        **({} if run_info.units is None else {UNIT: run_info.units.name}),
    }
