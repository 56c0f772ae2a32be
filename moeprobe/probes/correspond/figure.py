"""Two views of each image with lines between corresponding patches (Figure 4 of the PRC paper)."""

from collections.abc import Sequence

import numpy as np
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from moeprobe.inputs.geometry import PatchGrid
from moeprobe.probes.correspond.pairs import PairedPatches
from moeprobe.results.figures import panels
from moeprobe.results.palette import COLORS

# Offset of view 2, in sides of a view: lower than view 1, or the lines of a row of patches would overlap.
_ACROSS, _DOWN = 1.25, 0.22
# More lines get no dark edge: edges of so many would be all that is seen.
_MOST_EDGED = 64
_SAME, _OTHER = COLORS[0], COLORS[1]


def draw(pairs: Sequence[PairedPatches], *, title: str, lines: int) -> Figure:
    """Return the figure: a row per image, view 1 on the left and view 2 on the right.

    At most ``lines`` pairs of an image, spread over view 1, are joined by a line.
    """
    figure, column = panels.pictures(len(pairs), 1, (6.6, 3.9 * len(pairs) + 0.8))
    axes = column[:, 0]
    for row, item in zip(axes, pairs, strict=True):
        _views(row, item, lines)
    grid = pairs[0].grid
    legend = [
        "A line joins the center of a patch of view 1 (the one that covers less, or the clean one) with the same point "
        "of view 2, whose patch is outlined. Pale: no partner",
        f"{grid.rows} × {grid.columns} patches of {grid.patch_size} pixels",
    ]
    if any((item.partner >= 0).sum() > lines for item in pairs):
        legend.append(f"{lines} pairs are drawn for each image, spread evenly")
    if any(item.experts is not None for item in pairs):
        legend.append(f"Experts: {pairs[0].experts_of}")
        for label, color_of in (("same expert", _SAME), ("another expert", _OTHER)):
            axes[0].plot([], [], color=color_of, linewidth=2, label=label)
    figure.suptitle(panels.wrap(title, figure.get_figwidth()))
    return panels.add_caption(figure, ". ".join(legend) + ".")


def color(row: int, column: int) -> str:
    """Return the color of a patch's line, different from all of its eight neighbors."""
    return COLORS[(column + 3 * row) % len(COLORS)]


def _views(axes: Axes, item: PairedPatches, lines: int) -> None:
    side = item.pixels[0].shape[0]
    corners = np.array([(0.0, 0.0), (_ACROSS * side, _DOWN * side)])
    for number, (left_x, top) in enumerate(corners):
        extent = (left_x, left_x + side, top + side, top)
        axes.imshow(item.pixels[number], extent=extent, interpolation="nearest", vmin=0, vmax=1)
        _patches(axes, item, item.matched[number], corners[number])
        name = f"view {number + 1}: {item.names[number]}"
        # Each below its outer corner, where no line passes.
        edge, align = ((left_x, "left"), (left_x + side, "right"))[number]
        axes.text(edge, top + side * 1.02, name, ha=align, va="top", fontsize=9)
    _lines(axes, item, corners, spread(item.partner, item.grid, lines))
    partners = int((item.partner >= 0).sum())
    # A path is known by its end.
    name = item.image_id if len(item.image_id) <= 40 else "…" + item.image_id[-39:]
    axes.set_title(f"{name}: {partners} of {item.grid.num_patches} patches have a partner", fontsize=10)
    axes.set(xlim=(-0.01 * side, (_ACROSS + 1.01) * side), ylim=((_DOWN + 1.1) * side, -0.01 * side))
    axes.set_axis_off()


def _patches(axes: Axes, item: PairedPatches, matched: np.ndarray, corner: np.ndarray) -> None:
    """Draw the grid thin, and make patches without a partner pale."""
    size = item.grid.patch_size
    for patch in range(item.grid.num_patches):
        corner_xy = _patch_corner(item, patch, corner)
        if not matched[patch]:
            axes.add_patch(Rectangle(corner_xy, size, size, facecolor="white", alpha=0.75, edgecolor="none"))
        axes.add_patch(Rectangle(corner_xy, size, size, fill=False, edgecolor="#9a9a9a", linewidth=0.4))


def _patch_corner(
    item: PairedPatches, patch: int, corner: np.ndarray, inset: float = 0.0
) -> tuple[float, float]:
    """Return where a patch of the view at ``corner`` begins; ``inset`` is a share of its side."""
    row, column = divmod(patch, item.grid.columns)
    size = item.grid.patch_size
    return float(corner[0] + (column + inset) * size), float(corner[1] + (row + inset) * size)


def spread(partner: np.ndarray, grid: PatchGrid, count: int) -> list[int]:
    """Return at most ``count`` patches that have a partner, in ascending order, far from one another on the grid."""
    valid = np.flatnonzero(partner >= 0)
    if len(valid) <= count:
        return [int(patch) for patch in valid]
    positions = np.stack(np.divmod(valid, grid.columns), axis=1).astype(float)
    selected = [int(np.square(positions - positions.mean(0)).sum(1).argmin())]
    distance = np.square(positions - positions[selected[0]]).sum(1)
    while len(selected) < count:
        selected.append(int(distance.argmax()))
        distance = np.minimum(distance, np.square(positions - positions[selected[-1]]).sum(1))
    return sorted(int(patch) for patch in valid[selected])


def _lines(axes: Axes, item: PairedPatches, corners: np.ndarray, valid: Sequence[int]) -> None:
    same = item.same_expert
    if same is None:
        colors = [color(*divmod(patch, item.grid.columns)) for patch in valid]
    else:
        colors = [_SAME if same[patch] else _OTHER for patch in valid]
    ends = item.grid.centers()[list(valid), :2] + corners[0], item.points[list(valid)] + corners[1]
    # Thinner the more there are.
    width = float(np.clip(6.4 / np.sqrt(max(len(valid), 1)), 0.6, 1.6))
    inside = 0.92 * item.grid.patch_size
    for patch, line in zip(valid, colors, strict=True):
        for corner, cell in zip(corners, (patch, int(item.partner[patch])), strict=True):
            # Inside its cell, so that neighbors do not draw over each other.
            cell_xy = _patch_corner(item, cell, corner, inset=0.04)
            axes.add_patch(Rectangle(cell_xy, inside, inside, fill=False, edgecolor=line, linewidth=width))
    edge = [patheffects.withStroke(linewidth=width + 1.2, foreground="black", alpha=0.5)]
    axes.add_collection(
        LineCollection(
            list(np.stack(ends, axis=1)),
            colors=colors,
            linewidths=width,
            path_effects=edge if len(valid) <= _MOST_EDGED else [],
        ),
        autolim=False,
    )
    for points in ends:
        axes.scatter(
            points[:, 0],
            points[:, 1],
            s=8 * width**2,
            c=colors,
            edgecolors="black",
            linewidths=0.3 * width,
            zorder=3,
        )
