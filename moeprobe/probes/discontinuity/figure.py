"""The output along a severity, with the moments at which tokens switch, and how large the jumps are."""

import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from moeprobe.metrics.analyses.discontinuity import SWITCHES_ABOVE
from moeprobe.results.figures import panels

if TYPE_CHECKING:
    from moeprobe.metrics.analyses.discontinuity import Path

# Jumps that are marked on a path.
_LARGE = 0.01
# Width and height of what shows one of them larger, in shares of the panel.
_INSET = (0.3, 0.4)


def draw(
    table: pd.DataFrame,
    paths: "Sequence[Path]",
    *,
    colors: Mapping[str, str],
    unit: str,
    class_names: Mapping[str, Sequence[str]],
    selection: str = "",
) -> dict[str, Figure]:
    """Return the figures: the paths (a panel per image) and the sizes of the jumps over all images.

    ``selection`` says what the images were chosen for, empty = at random; with it an inset shows each panel's
    largest jump.
    """
    return {
        "paths": _draw_paths(table, paths, unit, colors, class_names, selection),
        "jumps": draw_jumps(table, colors, until=f"up to {paths[0].severity[-1]:g} ({unit})"),
    }


def _draw_paths(
    table: pd.DataFrame,
    paths: "Sequence[Path]",
    unit: str,
    colors: Mapping[str, str],
    class_names: Mapping[str, Sequence[str]],
    selection: str,
) -> Figure:
    images = list(dict.fromkeys(path.image_id for path in paths))
    figure, axes = panels.panels(len(images), 1, width=7.6, height=2.7)
    for panel, image in zip(axes[:, 0], images, strict=True):
        of_image = [path for path in paths if path.image_id == image]
        for number, path in enumerate(of_image):
            _draw_path(panel, path, colors[path.checkpoint], lane=number)
        panel.set(ylabel="probability of the\nclean prediction", ylim=(-0.03 - 0.06 * len(of_image), 1.03))
        panel.set_yticks(np.linspace(0, 1, 6))
        if selection:
            _enlarge(panel, of_image, colors)
        panel.set_title(f"{image}: {_predictions(of_image, class_names)}", fontsize=9)
    axes[-1, 0].set_xlabel(unit)
    return panels.finish(
        figure,
        table,
        title=f"Output along {table['view'].iloc[0]}, {selection or 'image by image'}",
        notes=[
            f"Ticks below: tokens switch experts. Dots: the output jumps by {_LARGE} or more",
            *(
                ["Small: around the largest jump; interpolated linearly between two steps, except the jumps"]
                * bool(selection)
            ),
        ],
        mark=None,
    )


def _draw_path(axes: Axes, path: "Path", color: str, *, lane: int) -> None:
    axes.plot(path.severity, path.probability, color=color, linewidth=1.2, label=path.checkpoint)
    height = np.full(len(path.switch), -0.06 * (lane + 1))
    axes.plot(path.switch, height, "|", color=color, markersize=6, markeredgewidth=0.8)
    large = np.abs(path.jump) >= _LARGE
    where = np.interp(path.switch[large], path.severity, path.probability)
    axes.plot(path.switch[large], where, "o", color=color, markersize=4)


def _largest_jump(path: "Path") -> float:
    return float(np.abs(path.jump).max(initial=0.0))


def with_jumps(path: "Path") -> tuple[np.ndarray, np.ndarray]:
    """Return severities and probabilities with each jump upright at its switch: (M + N + M) points each.

    Between two steps, the line is interpolated except for the jumps.
    """
    step = np.searchsorted(path.severity, path.switch, side="left").clip(1, len(path.severity) - 1) - 1
    jumped = np.bincount(step, weights=path.jump, minlength=len(path.severity) - 1)
    slope = (np.diff(path.probability) - jumped) / np.diff(path.severity)
    x, y = [path.severity[:1]], [path.probability[:1]]
    for number, (start, end) in enumerate(zip(path.severity[:-1], path.severity[1:], strict=True)):
        inside = np.flatnonzero(step == number)
        line = path.probability[number] + slope[number] * (path.switch[inside] - start)
        after = line + np.cumsum(path.jump[inside])
        x += [np.repeat(path.switch[inside], 2), np.array([end])]
        y += [np.stack([after - path.jump[inside], after], 1).ravel(), path.probability[[number + 1]]]
    return np.concatenate(x), np.concatenate(y)


def _enlarge(axes: Axes, of_image: "Sequence[Path]", colors: Mapping[str, str]) -> None:
    """Draw the surroundings of the largest jump of an image's paths once more, larger, where there is most room."""
    path = max(of_image, key=_largest_jump)
    if not len(path.jump):
        return
    switch = path.switch[np.abs(path.jump).argmax()]
    reach = 0.02 * (path.severity[-1] - path.severity[0])
    low, high = max(switch - reach, path.severity[0]), min(switch + reach, path.severity[-1])
    x, y = with_jumps(path)
    near = y[(x >= low) & (x <= high)]
    margin = max(0.2 * (near.max() - near.min()), 0.002)
    left_edge, bottom = _emptiest(axes, of_image, (low, high))
    inset = axes.inset_axes((left_edge, bottom, *_INSET))
    inset.plot(x, y, color=colors[path.checkpoint], linewidth=1.2)
    inset.set(xlim=(low, high), ylim=(near.min() - margin, min(near.max() + margin, 1.02)))
    inset.tick_params(labelsize=7)
    inset.locator_params(nbins=3)
    jump = f"{path.jump[np.abs(path.jump).argmax()]:+.3f}".replace("-", "−")
    inset.set_title(f"{path.checkpoint}: jump {jump}", fontsize=7)
    axes.indicate_inset_zoom(inset, edgecolor="#555555")


def _emptiest(axes: Axes, of_image: "Sequence[Path]", kept_free: tuple[float, float]) -> tuple[float, float]:
    """Return the corner, in shares of the panel, of the place for an inset that covers the least of the lines.

    ``kept_free`` are two severities; between them it covers nothing if it can be helped.
    """
    width, height = _INSET
    (first, last), (lowest, highest) = axes.get_xlim(), axes.get_ylim()
    start, end = ((severity - first) / (last - first) for severity in kept_free)
    # Points along the lines, also where they are steep.
    between = [np.linspace(0, len(path.severity) - 1, 20 * len(path.severity)) for path in of_image]
    line_points = np.concatenate(
        [
            np.column_stack(
                [
                    (np.interp(at, np.arange(len(path.severity)), path.severity) - first) / (last - first),
                    (np.interp(at, np.arange(len(path.severity)), path.probability) - lowest)
                    / (highest - lowest),
                ]
            )
            for at, path in zip(between, of_image, strict=True)
        ]
    )

    def covered_points(corner: tuple[float, float]) -> float:
        left_edge, bottom = corner
        # With the numbers and the heading around it.
        across = (line_points[:, 0] > left_edge - 0.06) & (line_points[:, 0] < left_edge + width + 0.02)
        up = (line_points[:, 1] > bottom - 0.1) & (line_points[:, 1] < bottom + height + 0.08)
        overlaps = start < left_edge + width + 0.02 and end > left_edge - 0.06
        return float((across & up).sum()) + len(line_points) * overlaps

    return min(
        itertools.product(np.linspace(0.08, 0.68, 13).tolist(), (0.24, 0.36, 0.48)), key=covered_points
    )


def _predictions(paths: "Sequence[Path]", class_names: Mapping[str, Sequence[str]]) -> str:
    """Return what each checkpoint predicts for the clean image, once where they agree."""
    predictions = {}
    for path in paths:
        names = class_names.get(path.checkpoint) or ()
        predictions[path.checkpoint] = names[path.target] if names else f"class {path.target}"
    if len(set(predictions.values())) == 1:
        return f"“{next(iter(predictions.values()))}”"
    return ", ".join(f"{checkpoint} “{name}”" for checkpoint, name in predictions.items())


def draw_jumps(table: pd.DataFrame, colors: Mapping[str, str], *, until: str) -> Figure:
    """Return the figure of how many switches per image have a jump above a size; ``until`` says how far was gone."""
    figure, axes = panels.panels(1, 1, width=5.6, height=3.4)
    panel = axes[0, 0]
    matches = filter(None, map(SWITCHES_ABOVE.groups, dict.fromkeys(table["metric"])))
    thresholds = sorted(x for x in (float(threshold) for (threshold,) in matches) if x > 0)
    names = [SWITCHES_ABOVE.make(f"{x:g}").name for x in thresholds]
    above_rows = table[table["metric"].isin(names)]
    positive = above_rows[above_rows["value"] > 0]
    lowest = float(positive["value"].min()) / 3 if len(positive) else 0.01
    # Apart from one another, and well within the 0.48 decades to the next size.
    apart = min(0.08, 0.24 / max(len(colors) - 1, 1))
    for number, (checkpoint, color) in enumerate(colors.items()):
        x = np.asarray(thresholds) * 10 ** (apart * (number - (len(colors) - 1) / 2))
        rows = panels.by_metric(panels.select(above_rows, checkpoint=checkpoint), names)
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
    if (above_rows["value"] == 0).any():
        notes.append("None found: no point")
    return panels.finish(
        figure, above_rows, title=f"Jumps at switches along {table['view'].iloc[0]}", notes=notes
    )
