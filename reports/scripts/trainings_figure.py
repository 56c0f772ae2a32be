"""Draw how stable routers are beside V-MoE's, over trainings and images: ``docs/img/routers-differences.png``.

    python -m reports.scripts.trainings_figure

From ``reports/trainings``; a point is the mean difference of three trainings, a bar its interval.
"""

from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from moeprobe.results.figures import STYLE, panels, save
from moeprobe.results.palette import COLORS
from reports.scripts.claims import read
from reports.scripts.printed import ROOT, shrink
from reports.scripts.sweep_list import COMPARED

_DATA = ("digits", "shapes")
_LAYERS = ("blocks.1", "blocks.3")
_VIEW = "random_crop"
# Chance level, and its words.
_NULLS = {"pooled": "against pooled chance", "image": "within the image"}


def main() -> None:
    """Draw and write it."""
    [path] = save(routers(), ROOT / "docs" / "img" / "routers-differences")
    shrink(path, path)


def routers() -> Figure:
    """Return a panel per data set and layer: a row per router at two experts per token, a point per chance level."""
    # The same at one expert per token are not drawn.
    groups = [name for name in COMPARED["routers-shapes"].pairs() if name.endswith("2")]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(13, 0.9 + 0.34 * len(groups)), layout="constrained")
        axes = figure.subplots(1, len(_DATA) * len(_LAYERS), sharey=True, sharex=True)
    places = [(data, layer) for data in _DATA for layer in _LAYERS]
    for axis, (data, layer) in zip(axes, places, strict=True):
        claims = read(Path(ROOT, "reports", "trainings", f"routers-{data}"))
        claims = claims[(claims["layer"] == layer) & (claims["metric"] == "weight_cosine_kappa")]
        claims = claims[claims["view"] == _VIEW]
        axis.axvline(0, color="black", linewidth=0.8)
        for shift, (null, words), color in zip((-0.14, 0.14), _NULLS.items(), COLORS, strict=False):
            rows = claims[claims["null"] == null].set_index("group").loc[groups]
            y = [place + shift for place in range(len(groups))]
            axis.hlines(y, rows["sim_low"], rows["sim_high"], color=color, linewidth=1.5)
            axis.plot(rows["value"], y, "o", color=color, markersize=5, label=words)
        axis.set_title(f"{data}, {layer}", fontsize=10)
    names = [name.split(",")[0] if "," in name else name.rpartition("-")[0] for name in groups]
    axes[0].set_yticks(range(len(groups)), names)
    axes[0].invert_yaxis()
    note = (
        "κ of the combine weights in two random crops, minus that of V-MoE's router. Mean of three trainings; bars: "
        "95 % over trainings and images, both layers together."
    )
    return panels.add_caption(figure, note)


if __name__ == "__main__":
    main()
