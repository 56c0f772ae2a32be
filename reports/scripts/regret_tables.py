"""What the page on the router's choices shows, from ``reports/regret``: tables in Markdown, and a figure."""

from collections.abc import Iterator
from pathlib import Path

import matplotlib as mpl
import pandas as pd
from matplotlib.figure import Figure

from moeprobe.probes.regret import EQUAL, ROUTER
from moeprobe.results.figures import STYLE, panels
from moeprobe.results.palette import COLORS
from reports.scripts.claims import cell_of
from reports.scripts.more_tables import span
from reports.scripts.objectives import MODELS
from reports.scripts.seeds import spread

_WEIGHTS = {ROUTER: "weighted by the router", EQUAL: "at equal weights"}
_TOKENS = {"patch": "a patch", "prefix": "class"}
_PLACE = ["data", "top_k", "layer", "tokens"]
_FIRST = "| data | k | MoE layer | token |"
_THOUSANDTHS = 1000


def ranks(folder: Path, values: str = "values", trainings: str = "trainings") -> list[str]:
    """Return κ of the rank of the router's choice: a line per data set, k, layer and kind of token.

    Args:
        folder: of the report.
        values: its table of single models.
        trainings: its table of differences over trainings and inputs.
    """
    of_models, apart = _read(folder, values), _read(folder, trainings)
    heads = [f"{model}, {said}" for said in _WEIGHTS.values() for model in MODELS.values()]
    heads += [f"Δ, {said}" for said in _WEIGHTS.values()]
    lines = [f"{_FIRST} {' | '.join(heads)} |", f"|{'---|' * (4 + len(heads))}"]
    kappas, differences = (table[table["metric"] == "choice_rank_kappa"] for table in (of_models, apart))
    for place, name in _places(kappas):
        here, changes = kappas.loc[[place]], differences.loc[[place]]
        cells = [
            spread(here[(here["weights"] == weights) & (here["model"] == model)])
            for weights in _WEIGHTS
            for model in MODELS
        ]
        cells += [cell_of(changes[changes["weights"] == weights]) for weights in _WEIGHTS]
        lines.append(f"{name} {' | '.join(cells)} |")
    return lines


def losses(folder: Path) -> list[str]:
    """Return how often no other choice is better, and the regret, beside a random option: lowest to highest seed."""
    values = _read(folder, "values")
    values = values[values["weights"] == ROUTER]
    numbers = {
        "no better choice": ("choice_right", "choice_right_chance", 1, 3),
        "regret": ("choice_regret", "choice_regret_random", _THOUSANDTHS, 1),
    }
    heads = [
        f"{name}, {who}"
        for name in numbers
        for model in MODELS.values()
        for who in (model, "a random option")
    ]
    lines = [f"{_FIRST} {' | '.join(heads)} |", f"|{'---|' * (4 + len(heads))}"]
    for place, name in _places(values[values["metric"] == "choice_rank_kappa"]):
        here = values.loc[[place]]
        cells = [
            span(scale * here.loc[(here["metric"] == metric) & (here["model"] == model), "value"], digits)
            for own, random, scale, digits in numbers.values()
            for model in MODELS
            for metric in (own, random)
        ]
        lines.append(f"{name} {' | '.join(cells)} |")
    return lines


def figure(folder: Path) -> Figure:
    """Draw κ of the rank of the router's choice: a row per place, a dot per training, bars over images."""
    kappas = _read(folder, "values")
    kappas = kappas[kappas["metric"] == "choice_rank_kappa"]
    places = list(_places(kappas))
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(11, 1.2 + 0.4 * len(places)), layout="constrained")
        axes = drawn.subplots(1, len(_WEIGHTS), sharex=True, sharey=True)
    for axis, (weights, said) in zip(axes, _WEIGHTS.items(), strict=True):
        for (model, label), color, shift in zip(MODELS.items(), COLORS, (-0.15, 0.15), strict=False):
            for number, (place, _) in enumerate(places):
                here = kappas.loc[[place]]
                here = here[(here["weights"] == weights) & (here["model"] == model)]
                y = number + shift + 0.08 * (here["train_seed"] - here["train_seed"].mean())
                axis.hlines(y, here["ci_low"], here["ci_high"], color=color, linewidth=1)
                axis.plot(here["value"], y, "o", color=color, markersize=3.5, label=label)
        axis.axvline(0, color="0.6", linewidth=1)
        axis.set_title(said, fontsize=10)
        axis.set_xlabel("κ of the rank of the router's choice")
    names = [f"{data}, k = {top_k}, {layer}, {_TOKENS[tokens]}" for (data, top_k, layer, tokens), _ in places]
    axes[0].set_yticks(range(len(places)), names)
    axes[0].invert_yaxis()
    return panels.add_caption(
        drawn, "0: as good as a random choice. A dot per training. Bars: 95 % intervals over images."
    )


def _read(folder: Path, name: str) -> pd.DataFrame:
    """Return a table whose rows are found by their place."""
    table = pd.read_csv(folder / f"{name}.csv")
    if "checkpoint" in table:
        table = table.assign(model=table["checkpoint"].str.split("-").str[1])
    return table.set_index(_PLACE).sort_index()


def _places(table: pd.DataFrame) -> Iterator[tuple[tuple[str, int, str, str], str]]:
    """Yield each place, and how its line begins."""
    for data, top_k, layer, tokens in table.index.unique():
        yield (data, top_k, layer, tokens), f"| {data} | {top_k} | `{layer}` | {_TOKENS[tokens]} |"
