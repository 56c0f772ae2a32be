"""What the experts specialize in: information along the layers, tokens per expert, per place, and experts in common."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from moeprobe.inputs.modality import modality_of
from moeprobe.metrics.coactivation import LIFT
from moeprobe.metrics.registry import find
from moeprobe.probes.routes import heat
from moeprobe.probes.routes.tables import Tables
from moeprobe.results.figures import panels
from moeprobe.results.figures.layers import draw_line, label_axis, shifts

_INFORMATION = tuple(f"{kind}_information" for kind in ("class", "position", "color"))
# Experts whose maps of places stand side by side, and of which each two are a cell.
_MOST_EXPERTS = 16
_MOST_PAIRS = 64


def draw(table: pd.DataFrame, *, colors: Mapping[str, str]) -> dict[str, Figure]:
    """Return the information on class, place and color along the layers; colors are of checkpoints."""
    rows = panels.ordinary(table[table["metric"].isin(_INFORMATION)])
    kinds = [name for name in _INFORMATION if (rows["metric"] == name).any()]
    if not kinds:
        return {}
    layers, checkpoints = panels.layers(rows), panels.checkpoints(rows)
    figure, axes = panels.panels(1, len(kinds), width=3.6)
    for panel, metric in zip(axes[0], kinds, strict=True):
        panel.axhline(0, color="#808080", linewidth=1)
        for checkpoint, shift in zip(checkpoints, shifts(len(checkpoints)), strict=True):
            of_kind = panels.select(rows, checkpoint=checkpoint, metric=metric)
            draw_line(panel, of_kind, layers, color=colors[checkpoint], label=checkpoint, shift=shift)
        panel.set_title(find(metric).label())
        label_axis(panel, layers)
    axes[0, 0].set_ylabel("share of the most, beyond permutation")
    title = "What a token's expert says of its image's class, its place, its color"
    return {"information": panels.finish(figure, rows, title=title)}


def experts(found: Sequence[Tables], table: pd.DataFrame) -> dict[str, Figure]:
    """Return the tokens per expert and layer: a heat map per checkpoint, 1 / E marked in the color bar."""
    if not found:
        return {}
    checkpoints = list(dict.fromkeys(one.checkpoint for one in found))
    of = {name: [one for one in found if one.checkpoint == name] for name in checkpoints}
    numbers = sorted({one.total.shares.shape[-1] for one in found})
    layers = max(len(part) for part in of.values())
    width = float(np.clip(0.5 * numbers[-1], 2.8, 9.0))
    figure, axes = heat.grid(len(of), 1, width=width, height=max(1.2, 0.4 * layers + 0.7))
    scale = Normalize(0, max(float(one.total.shares.max()) for one in found))
    for panel, (name, part) in zip(axes[:, 0], of.items(), strict=True):
        most = max(one.total.shares.shape[-1] for one in part)
        values = np.full((len(part), most), np.nan)
        for row, one in enumerate(part):
            values[row, : one.total.shares.shape[-1]] = one.total.shares[0]
        heat.heat_map(
            panel, values, scale, rows=[one.layer for one in part], columns=[str(e) for e in range(most)]
        )
        panel.set_title(name)
    axes[-1, 0].set_xlabel("expert")
    marks = {f"1/{number}": 1 / number for number in numbers}
    heat.bar(figure, axes, scale, "share of the tokens", mark=marks)
    modality = modality_of([one.tokens for one in found])
    return {"experts": heat.finish(figure, table, title=f"{_sentence(modality.tokens)} per expert and layer")}


def places(
    found: Sequence[Tables], grids: Mapping[tuple[str, str], tuple[int, int]], table: pd.DataFrame
) -> dict[str, Figure]:
    """Return, by checkpoint, which share of the tokens at each place an expert has; a row of maps per layer."""
    figures = {}
    for name in dict.fromkeys(one.checkpoint for one in found):
        part = [one for one in found if one.checkpoint == name]
        most = max(one.by_place.tokens.shape[-1] for one in part)
        if most > _MOST_EXPERTS:
            continue
        with_grid = all((name, one.layer) in grids for one in part)
        columns = most if with_grid else 1
        width, height = (1.05, 1.2) if with_grid else (6.0, 2.4)
        figure, axes = heat.grid(len(part), columns, width=width, height=height)
        shares_of = [one.by_place.shares[one.by_place.images > 0] for one in part]
        scale = Normalize(0, max(float(shares.max()) for shares in shares_of))
        for row, one in enumerate(part):
            # Of texts the places that any reaches; images have all.
            shares = shares_of[row]
            if with_grid:
                for expert, panel in enumerate(axes[row]):
                    panel.set_axis_off() if expert >= shares.shape[1] else _map(
                        panel,
                        shares[:, expert].reshape(grids[name, one.layer]),
                        scale,
                        first=row == 0,
                        expert=expert,
                    )
                axes[row, 0].set_ylabel(one.layer, fontsize=9)
            else:
                heat.heat_map(
                    axes[row, 0], shares.T, scale, rows=[str(e) for e in range(shares.shape[1])],
                    columns=[str(place) for place in range(len(shares))],
                )  # fmt: skip
                axes[row, 0].set(title=one.layer, ylabel="expert", xlabel="place in the text")
        heat.bar(figure, axes, scale, "share of the place", mark={f"1/{most}": 1 / most})
        title = f"{name}: experts at each place"
        figures[f"places-{name}"] = heat.finish(figure, panels.select(table, checkpoint=name), title=title)
    return figures


def _map(panel: Axes, values: np.ndarray, scale: Normalize, *, first: bool, expert: int) -> None:
    panel.imshow(values, cmap=heat.MAP, norm=scale, interpolation="nearest")
    panel.set_xticks([])
    panel.set_yticks([])
    if first:
        panel.set_title(f"expert {expert}", fontsize=8)


def together(table: pd.DataFrame) -> dict[str, Figure]:
    """Return the lift of each two experts: a row per checkpoint, a column per layer."""
    rows = panels.ordinary(table[table["metric"] == LIFT.name])
    if rows.empty or rows["expert_b"].max() >= _MOST_PAIRS:
        return {}
    layers, checkpoints = panels.layers(rows), panels.checkpoints(rows)
    # Of many, the few pairs of rare experts would leave the rest without contrast.
    many = rows["expert_b"].max() >= _MOST_EXPERTS
    highest = float(rows["value"].quantile(0.99) if many else rows["value"].max())
    scale = Normalize(0, highest if highest > 0 else 1.0)
    side = float(np.clip(0.22 * (rows["expert_b"].max() + 1), 3.3, 7.5))
    figure, axes = heat.grid(len(checkpoints), len(layers), width=side, height=side - 0.2)
    for (i, j), panel in np.ndenumerate(axes):
        here = panels.select(rows, checkpoint=checkpoints[i], layer=layers[j])
        if here.empty:
            panel.set_axis_off()
            continue
        number = int(here["expert_b"].max()) + 1
        values = np.full((number, number), np.nan)
        one, other = (here[name].to_numpy(int) for name in ("expert", "expert_b"))
        values[one, other] = values[other, one] = here["value"].to_numpy(float)
        names = [str(expert) for expert in range(number)]
        heat.heat_map(panel, values, scale, rows=names, columns=names)
        panel.set(title=f"{checkpoints[i]}, {layers[j]}", xlabel="expert", ylabel="expert")
    marks = {"independent": 1.0} if scale.vmax and scale.vmax >= 1 else {}
    heat.bar(
        figure, axes, scale, "lift of two experts", mark=marks, above=bool(rows["value"].max() > highest)
    )
    tokens = modality_of(rows["tokens"]).tokens
    notes = [f"White: an expert with itself, or without any {tokens}"]
    return {
        "coactivation": heat.finish(
            figure, rows, title=f"Experts that process the same {tokens}", notes=notes
        )
    }


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
