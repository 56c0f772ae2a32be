"""Colors of checkpoints and experts: distinct for any color vision, the same throughout a run and a report."""

import colorsys
from collections.abc import Sequence

# Okabe and Ito's palette, without the black that axes and text are drawn in.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")


def colors(checkpoints: Sequence[str]) -> dict[str, str]:
    """Return a color per checkpoint, in their order; from the eighth on they repeat."""
    return {name: COLORS[number % len(COLORS)] for number, name in enumerate(checkpoints)}


# Hues far apart, each light enough to let a picture of any brightness be seen through.
_EXPERTS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#6A3D9A")
_GOLDEN = 0.618033988749895


def expert_color(expert: int) -> str:
    """Return the color of an expert; the first eight are distinct for most color visions, others by hue alone."""
    if expert < len(_EXPERTS):
        return _EXPERTS[expert]
    hue = (expert * _GOLDEN) % 1.0
    lightness = (0.35, 0.5, 0.65)[expert % 3]
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, 0.75))
