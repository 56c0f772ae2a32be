"""What a table of ``align`` says in words."""

import pandas as pd

from moeprobe.inputs.modality import ORDINARY
from moeprobe.metrics import alignment
from moeprobe.metrics.analyses.expert_overlap import EXPERT_OVERLAP
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.results.layouts.agreement import is_difference
from moeprobe.results.numbers import interval, number
from moeprobe.results.tables import first_and_last

_KAPPA = f"{EXPERT_OVERLAP.name}{KAPPA}"
_FITTED, _UNRELATED = alignment.FITTED.name, alignment.FITTED_UNRELATED.name


def sentences(table: pd.DataFrame) -> list[str]:
    """Return which share of routing data determine, then which pairs align no better than unrelated inputs.

    Where nothing is known of a share, which takes three trainings: how well the pairs agree.
    """
    return [*(_shares(table) or _agreement(table)), *_no_better_than_chance(table)]


def _shares(table: pd.DataFrame) -> list[str]:
    shares = table[table["metric"].isin([metric.name for metric in alignment.measures])]
    lines = []
    for (name, layer), rows in shares.groupby(["checkpoint", "layer"], sort=False):
        by_metric = {row["metric"]: row for row in rows.to_dict("records")}
        data = by_metric.get(alignment.SHARE_DATA.name)
        if data is None or data["value"] != data["value"]:
            continue
        if is_difference(name):
            lines.append(
                f"{name}, {layer}: the share that data determine differs by {interval(data, signed=True)}."
            )
            continue
        position = by_metric.get(alignment.SHARE_POSITION.name)
        by_position = "" if position is None else f" ({number(position['value'])} of it by position alone)"
        # Nothing says that they do not differ in their data or their router, too.
        if_alike = ", if they differ in nothing else" if name == alignment.ALL else ""
        lines.append(
            f"{name}, {layer}: data determine {interval(data)} of the routing{by_position}; the rest goes with the "
            f"seed{if_alike}."
        )
    return lines


def _agreement(table: pd.DataFrame) -> list[str]:
    ordinary = table[table["tokens"].isin(ORDINARY) & table["null"].isin(["", "pooled"])]
    by_chance = set(_by_chance(table)[["checkpoint", "layer"]].itertuples(index=False, name=None))
    lines = []
    for pair, of_pair in ordinary.groupby("checkpoint", sort=False):
        layers = list(dict.fromkeys(of_pair.loc[of_pair["metric"] == _KAPPA, "layer"]))
        for layer in first_and_last(layers):
            if (pair, layer) in by_chance:
                continue
            rows = of_pair[of_pair["layer"] == layer].drop_duplicates("metric").set_index("metric")
            kappa = {**rows.loc[_KAPPA].to_dict(), "metric": _KAPPA}
            fitted, unrelated = (number(rows.loc[name, "value"]) for name in (_FITTED, _UNRELATED))
            lines.append(
                f"{pair}, {layer}: aligned experts agree with κ {interval(kappa)}; in sample {fitted}, "
                f"unrelated inputs {unrelated}."
            )
    return lines


def _no_better_than_chance(table: pd.DataFrame) -> list[str]:
    return [
        f"{row['checkpoint']}, {row['layer']}: the best alignment is no better than of unrelated inputs "
        f"(p {number(row['value'])})."
        for row in _by_chance(table).to_dict("records")
    ]


def _by_chance(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of pairs and layers whose best alignment unrelated inputs reach, too."""
    rows = table[table["metric"] == alignment.FITTED_P.name]
    return rows[rows["value"] > 1 - CONFIDENCE]
