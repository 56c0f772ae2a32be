"""What the page on redundant experts says, in Markdown."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from moeprobe.metrics.analyses.experts import BANNED, PRICE_BAND, PRICE_BEYOND, intervention_metric
from reports.scripts import experts_numbers as numbers
from reports.scripts.claims import cell_of
from reports.scripts.more_tables import SIDES, signed, span
from reports.scripts.objectives import MODELS
from reports.scripts.regenerate_experts import ALL, OFF

# Nats are shown in thousandths.
_SCALE = 1000
_BANNED = intervention_metric("price", BANNED).name
_WHOLE = {
    intervention_metric("price", "forced").name: "one expert on every token",
    intervention_metric("price", "random").name: "random sets",
    intervention_metric("price", "permuted").name: "experts relabeled",
}
_CRITERIA = {
    numbers.SALIENCY: "saliency",
    numbers.LOAD: "patches processed",
    numbers.HALVES: "itself on other images",
}


def bans(folder: Path) -> list[str]:
    """Return what bans cost, in thousandths of a nat, and how many images they change: a line per k and layer."""
    heads = [
        *(f"mean price: {side}" for side in SIDES),
        *(f"dearest expert: {side}" for side in SIDES[:2]),
        *(f"prices with an interval: {side}" for side in SIDES[:2]),
        *(f"images that change: {side}" for side in SIDES[:2]),
    ]
    lines = _head("MoE layer", heads)
    for name, rows in _layers(_prices(folder)):
        mean = rows[(rows["metric"] == _BANNED) & rows["expert"].isna()]
        values = rows[rows["kind"] == "value"]
        band = values[values["metric"] == PRICE_BAND.name]
        beyond = values[values["metric"] == PRICE_BEYOND.name]
        of_models = [band[band["model"] == model] for model in MODELS.values()]
        dearest = [span(one.groupby("train_seed")["value"].max(), 1) for one in of_models]
        judged = [f"{one['ci_low'].notna().sum()} of {len(one)}" for one in of_models]
        changed = [
            f"{span(100 * beyond.loc[beyond['model'] == model, 'value'], 1)} %" for model in MODELS.values()
        ]
        lines.append(f"{name} | {' | '.join([*_sides(mean, 1), *dearest, *judged, *changed])} |")
    return lines


def interventions(folder: Path) -> list[str]:
    """Return what other interventions cost, in thousandths of a nat: a line per k, layer and intervention."""
    table = _prices(folder)
    lines = _head("MoE layer", ["", *SIDES])
    for name, rows in _layers(table):
        for metric, words in _WHOLE.items():
            whole = rows[(rows["metric"] == metric) & rows["expert"].isna()]
            lines.append(f"{name} | {words} | {' | '.join(_sides(whole, 1))} |")
    for k, rows in table[table["metric"] == OFF].groupby("k"):
        sides = [span(rows.loc[rows["model"] == model, "value"], 1) for model in MODELS.values()]
        lines.append(f"| {k} | both | all experts off | {' | '.join(sides)} | – |")
    return lines


def likeness(folder: Path) -> list[str]:
    """Return how alike two experts are, on average and at most: a line per k and layer."""
    table, pairs = pd.read_csv(folder / "likeness.csv"), pd.read_csv(folder / "pairs.csv")
    pairs = pairs.assign(distance=pairs["expert_distance"] / pairs["expert_distance_permuted"])
    heads = [f"{what}: {side}" for what in ("mean distance", "mean CKA") for side in SIDES]
    heads += [f"nearest pair: {side}" for side in SIDES[:2]]
    lines = _head("MoE layer", heads)
    for (name, rows), (_, of_pairs) in zip(_layers(table), _layers(pairs), strict=True):
        means = []
        for metric in (numbers.DISTANCE, numbers.CKA):
            own = rows[rows["metric"] == metric]
            together = own[own["kind"] == "trainings"].rename(
                columns={"ci_low": "sim_low", "ci_high": "sim_high"}
            )
            means += [*_values(own, 3), cell_of(together)]
        nearest = of_pairs.groupby(["model", "train_seed"])["distance"].min()
        least = [span(nearest[model], 2) for model in MODELS.values()]
        lines.append(f"{name} | {' | '.join([*means, *least])} |")
    return lines


def ranks(folder: Path) -> list[str]:
    """Return rank correlations over experts: a line per layer and criterion, the mean over models and its range."""
    table = pd.read_csv(folder / "ranks.csv")
    targets = (numbers.PRICE, numbers.SIZE)
    heads = [f"{target}: {what}" for target in targets for what in ("mean of models", "single models")]
    lines = ["| MoE layer | ranked by | " + " | ".join(heads) + " |", f"|{'---|' * (2 + len(heads))}"]
    for layer in dict.fromkeys(table["layer"]):
        for criterion, words in _CRITERIA.items():
            cells = []
            for target in targets:
                here = [table["layer"] == layer, table["criterion"] == criterion, table["target"] == target]
                rows = table[here[0] & here[1] & here[2]]
                mean = rows[rows["model"] == ALL].iloc[0]
                interval = (
                    "" if pd.isna(mean["ci_low"]) else f" [{mean['ci_low']:.2f}, {mean['ci_high']:.2f}]"
                )
                cells += [f"{mean['value']:.2f}{interval}", span(rows.loc[rows["model"] != ALL, "value"], 2)]
            lines.append(f"| `{layer}` | {words} | {' | '.join(cells)} |")
    return lines


def _prices(folder: Path) -> pd.DataFrame:
    """Return the prices in thousandths of a nat; what is no price stays as it is."""
    table = pd.read_csv(folder / "prices.csv")
    is_price = table["metric"].str.contains("price") & (table["metric"] != PRICE_BEYOND.name)
    is_price |= table["metric"] == OFF
    factor = is_price.map({True: _SCALE, False: 1})
    return table.assign(**{column: table[column] * factor for column in ("value", "ci_low", "ci_high")})


def _layers(table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the first cells of a line, and the rows, of each k and layer."""
    for (k, layer), rows in table.groupby(["k", "layer"]):
        yield f"| {k} | `{layer}`", rows


def _head(first: str, heads: list[str]) -> list[str]:
    return [f"| k | {first} | {' | '.join(heads)} |", f"|{'---|' * (2 + len(heads))}"]


def _sides(rows: pd.DataFrame, digits: int) -> list[str]:
    """Return the values of both models and their difference."""
    return [*_values(rows, digits), signed(rows[rows["kind"] == "difference"], digits, of_known=True)]


def _values(rows: pd.DataFrame, digits: int) -> list[str]:
    values = rows[rows["kind"] == "value"]
    return [span(values.loc[values["model"] == model, "value"], digits) for model in MODELS.values()]
