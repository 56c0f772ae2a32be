"""The output along a severity, with the moments at which tokens switch, and how large the jumps are."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.metrics.discontinuity import SWITCHES_ABOVE
from moeprobe.results.figures import panels

if TYPE_CHECKING:
    from moeprobe.metrics.discontinuity import Path

# Jumps that are marked on a path.
_LARGE = 0.01


def draw(
    table: pd.DataFrame,
    paths: "Sequence[Path]",
    *,
    colors: Mapping[str, str],
    unit: str,
    class_names: Mapping[str, Sequence[str]],
) -> dict[str, Figure]:
    """Return the figures: the paths (a panel per image) and the sizes of the jumps over all images."""
    return {
        "paths": _draw_paths(table, paths, unit, colors, class_names),
        "jumps": draw_jumps(table, colors, until=f"up to {paths[0].severity[-1]:g} ({unit})"),
    }


def _draw_paths(
    table: pd.DataFrame,
    paths: "Sequence[Path]",
    unit: str,
    colors: Mapping[str, str],
    class_names: Mapping[str, Sequence[str]],
) -> Figure:
    images = list(dict.fromkeys(path.image_id for path in paths))
    figure, axes = panels.panels(len(images), 1, width=7.6, height=2.7)
    for panel, image in zip(axes[:, 0], images, strict=True):
        of_image = [path for path in paths if path.image_id == image]
        for number, path in enumerate(of_image):
            _draw_path(panel, path, colors[path.checkpoint], lane=number)
        panel.set(ylabel="probability of the\nclean prediction", ylim=(-0.03 - 0.06 * len(of_image), 1.03))
        panel.set_yticks(np.linspace(0, 1, 6))
        panel.set_title(f"{image}: {_predictions(of_image, class_names)}", fontsize=9)
    axes[-1, 0].set_xlabel(unit)
    return panels.finish(
        figure,
        table,
        title=f"Output along {table['view'].iloc[0]}, image by image",
        notes=[f"Ticks below: tokens switch experts. Dots: the output jumps by {_LARGE} or more"],
        mark=None,
    )


def _draw_path(axes: Axes, path: "Path", color: str, *, lane: int) -> None:
    axes.plot(path.severity, path.probability, color=color, linewidth=1.2, label=path.checkpoint)
    height = np.full(len(path.switch), -0.06 * (lane + 1))
    axes.plot(path.switch, height, "|", color=color, markersize=6, markeredgewidth=0.8)
    large = np.abs(path.jump) >= _LARGE
    where = np.interp(path.switch[large], path.severity, path.probability)
    axes.plot(path.switch[large], where, "o", color=color, markersize=4)


def _predictions(paths: "Sequence[Path]", class_names: Mapping[str, Sequence[str]]) -> str:
    """Return what each checkpoint predicts for the clean image, once where they agree."""
    said = {}
    for path in paths:
        names = class_names.get(path.checkpoint) or ()
        said[path.checkpoint] = names[path.target] if names else f"class {path.target}"
    if len(set(said.values())) == 1:
        return f"“{next(iter(said.values()))}”"
    return ", ".join(f"{checkpoint} “{name}”" for checkpoint, name in said.items())


def draw_jumps(table: pd.DataFrame, colors: Mapping[str, str], *, until: str) -> Figure:
    """Return the figure of how many switches per image have a jump above a size; ``until`` says how far was gone."""
    figure, axes = panels.panels(1, 1, width=5.6, height=3.4)
    panel = axes[0, 0]
    counted = filter(None, map(SWITCHES_ABOVE.groups, dict.fromkeys(table["metric"])))
    thresholds = sorted(x for x in (float(threshold) for (threshold,) in counted) if x > 0)
    names = [SWITCHES_ABOVE.make(f"{x:g}").name for x in thresholds]
    drawn = table[table["metric"].isin(names)]
    seen = drawn[drawn["value"] > 0]
    lowest = float(seen["value"].min()) / 3 if len(seen) else 0.01
    # Apart from one another, and well within the 0.48 decades to the next size.
    apart = min(0.08, 0.24 / max(len(colors) - 1, 1))
    for number, (checkpoint, color) in enumerate(colors.items()):
        x = np.asarray(thresholds) * 10 ** (apart * (number - (len(colors) - 1) / 2))
        rows = panels.by_metric(panels.select(drawn, checkpoint=checkpoint), names)
        # A logarithm has no 0: such points have no place, and bars down to 0 end at the edge.
        rows = rows.assign(
            value=rows["value"].where(rows["value"] > 0), ci_low=rows["ci_low"].clip(lower=lowest / 10)
        )
        panels.points(panel, x, rows, color=color, label=checkpoint)
        panel.plot(x, rows["value"].to_numpy(float), "-", color=color, linewidth=1)
    panel.set(xscale="log", yscale="log")
    panel.set(xlabel="jump of the probability, at one input", ylabel="switches per image with a larger jump")
    panel.set_ylim(bottom=lowest)
    notes = [f"{until[:1].upper()}{until[1:]}"]
    if len(colors) > 1:
        notes.append("Counts at the same size stand side by side")
    if (drawn["value"] == 0).any():
        notes.append("None found: no point")
    return panels.finish(figure, drawn, title=f"Jumps at switches along {table['view'].iloc[0]}", notes=notes)
