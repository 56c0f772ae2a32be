"""What a table of ``experts`` says of the experts that a layer can do without.

Of many experts one looks cheap by chance. So upper ends of the prices hold for all experts of a checkpoint at once:
normal bounds at Bonferroni's level, with the standard error that the pointwise interval has.
"""

from collections.abc import Iterator

import pandas as pd
from scipy import special

from moeprobe.metrics.analyses.expert_outputs import EXPERT_CKA, EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED
from moeprobe.metrics.analyses.experts import BANNED, intervention_metric
from moeprobe.metrics.stats.proportions import CONFIDENCE
from moeprobe.results.tables import first_and_last

# Experts that a sentence names.
_NAMED = 3


def dispensable(table: pd.DataFrame) -> pd.DataFrame:
    """Return for each checkpoint, layer and expert what it costs to ban it alone, cheapest first.

    Returns:
        Columns checkpoint, layer, expert, price, and ``highest``: the upper end of the price, of all experts of the
        checkpoint at once in 95 % of samples; the price itself where it is 0 in every input.
    """
    rows = table[table["metric"] == intervention_metric("price", BANNED).name]
    normal = float(special.ndtri((1 + CONFIDENCE) / 2))
    parts = []
    for _, of_one in rows.groupby("checkpoint", sort=False):
        reach = float(special.ndtri(1 - (1 - CONFIDENCE) / len(of_one))) / normal
        error = (of_one["ci_high"] - of_one["ci_low"]) / 2
        # Nothing changes in any input where the expert is never chosen: there is no interval, and no need of one.
        highest = (of_one["value"] + reach * error).mask(of_one["value"] == 0, of_one["value"])
        parts.append(of_one[["checkpoint", "layer", "expert"]].assign(price=of_one["value"], highest=highest))
    if not parts:
        return pd.DataFrame(columns=["checkpoint", "layer", "expert", "price", "highest"])
    bounds = pd.concat(parts).dropna(subset=["highest"])
    order = bounds.groupby(["checkpoint", "layer"], sort=False).ngroup()
    return bounds.assign(order=order).sort_values(["order", "highest"], kind="stable").drop(columns="order")


def nearest_pairs(table: pd.DataFrame) -> pd.DataFrame:
    """Return the pair of experts of each checkpoint and layer whose outputs are nearest, with all that is known of it.

    Returns:
        Columns checkpoint, layer, expert, expert_b, and one per metric of the pair.
    """
    metrics = [metric.name for metric in (EXPERT_DISTANCE, EXPERT_DISTANCE_PERMUTED, EXPERT_CKA)]
    rows = table[table["metric"].isin(metrics)]
    keys = ["checkpoint", "layer", "expert", "expert_b"]
    # Not by ``pivot``, which would sort the layers by their names.
    pairs = rows[rows["metric"] == EXPERT_DISTANCE.name][keys]
    for metric in metrics:
        values = rows[rows["metric"] == metric].set_index(keys)["value"]
        pairs = pairs.join(values.rename(metric), on=keys)
    nearest = pairs.dropna(subset=[EXPERT_DISTANCE.name]).groupby(["checkpoint", "layer"], sort=False)
    return pairs.loc[nearest[EXPERT_DISTANCE.name].idxmin()]


def sentences(table: pd.DataFrame) -> list[str]:
    """Return for each checkpoint and layer which experts are missed least and which two are nearest.

    Of more layers than have panels in a figure the first and the last are named.
    """
    lines = []
    for (checkpoint, layer), rows in _named_layers(dispensable(table)):
        cheapest, *next_ones = [
            (int(row.expert), f"{row.highest:.2g}") for row in rows.head(_NAMED).itertuples()
        ]
        remaining = "".join(f", {expert} by {highest}" for expert, highest in next_ones)
        lines.append(
            f"{checkpoint}, {layer}: without expert {cheapest[0]} the loss rises by at most {cheapest[1]} "
            f"nats{remaining} (upper ends for all experts at once)."
        )
    for (checkpoint, layer), rows in _named_layers(nearest_pairs(table)):
        nearest = rows.iloc[0]
        # In a file numbers of experts are texts.
        first, second = (int(float(nearest[name])) for name in ("expert", "expert_b"))
        lines.append(
            f"{checkpoint}, {layer}: the outputs of experts {first} and {second} are nearest: distance "
            f"{nearest[EXPERT_DISTANCE.name]:.2g}, {nearest[EXPERT_DISTANCE_PERMUTED.name]:.2g} "
            f"with permuted patches, CKA {nearest[EXPERT_CKA.name]:.2g}."
        )
    return lines


def _named_layers(rows: pd.DataFrame) -> Iterator[tuple[tuple[str, str], pd.DataFrame]]:
    """Yield the rows of each checkpoint and layer that is named."""
    for checkpoint, of_one in rows.groupby("checkpoint", sort=False):
        layers = list(dict.fromkeys(of_one["layer"]))
        for layer in first_and_last(layers):
            yield (str(checkpoint), layer), of_one[of_one["layer"] == layer]
