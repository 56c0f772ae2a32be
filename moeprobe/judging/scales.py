"""The reference values of an audit: from which value on a number counts as good, and what known routers reach.

This is the only place that holds them; the docs cite it. An interval decides and not the point: one that reaches into
two bands is called by both.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Scale:
    """The bands of a number.

    Attributes:
        symbol: what the number is called before its value.
        edges: where one band ends and the next begins, growing.
        words: of each band, from the lowest values to the highest.
        best: which end is good: "highest", "lowest", or "" where neither is.
        of_chance: whether edges are multiples of 1 / classes. Then the lower end decides: what may be chance is not
            above it.
        unchanged: what a κ of exactly 1 is called, where nothing at all changed; empty = as its band.
        unmoved: what a number of exactly 0 in every resample is called, where nothing at all moved; empty = as its
            band. Layers with such a number are not the worst ones of others.
    """

    symbol: str
    edges: tuple[float, ...]
    words: tuple[str, ...]
    best: str = "highest"
    of_chance: bool = False
    unchanged: str = ""
    unmoved: str = ""

    def bands(self, low: float, high: float, *, unit: float = 1.0) -> list[int]:
        """Return the bands that an interval reaches into, the best of them first."""
        high = low if self.of_chance else high
        ends = sorted((self._band(low, unit), self._band(high, unit)), reverse=self.best != "lowest")
        return list(dict.fromkeys(ends))

    def _band(self, value: float, unit: float) -> int:
        return sum(value >= edge * unit for edge in self.edges)

    def word(self, bands: Sequence[int]) -> str:
        """Return what bands are called, e.g. "stable to moderately stable"."""
        return " to ".join(self.words[band] for band in bands)

    def grade(self, bands: Sequence[int]) -> str:
        """Return "good", "fair" or "poor" by the worst band; "" where no end is good."""
        if not self.best:
            return ""
        worst = min(bands) if self.best == "highest" else len(self.edges) - max(bands)
        return "poor" if worst == 0 else "good" if worst == len(self.edges) else "fair"


SCALES: Mapping[str, Scale] = MappingProxyType(
    {
        # κ of what processes a token: the chance-corrected match of its set of experts.
        "agreement": Scale("κ", (0.5, 0.8), ("unstable", "moderately stable", "stable")),
        # Two recordings of the same inputs.
        "recordings": Scale("κ", (0.5, 0.8), ("they disagree", "they agree in part", "they agree")),
        # The same routing again: what is lost here is arithmetic, and no property of the input.
        "repeated": Scale("κ", (0.8, 0.98), ("yes", "near ties only", "no"), unchanged="no change seen"),
        "quantized": Scale("κ", (0.95, 0.98), ("changes routing", "small changes", "safe")),
        # The bands of quantized parts, without a good end: two trainings route otherwise, and both may be good.
        "forms": Scale("κ", (0.95, 0.98), ("no", "nearly", "yes"), best="", unchanged="no change seen"),
        # The match that chance alone reaches: 1 where one choice takes all tokens.
        "collapse": Scale("chance", (0.8, 0.98), ("no", "nearly", "collapsed"), best="lowest"),
        "dead": Scale("experts", (0.5,), ("none", "some"), best="lowest"),
        "load": Scale("entropy", (0.7, 0.95), ("uneven", "slightly uneven", "even")),
        "confidence": Scale("highest gate", (0.4, 0.7), ("low", "medium", "high"), best=""),
        "information": Scale("information", (0.05,), ("nothing", "something"), best=""),
        # Per token and layer: 0.01 nats are a hundredth of the true class's probability.
        "price": Scale(
            "rise of the loss",
            (0.01, 0.1),
            ("negligible", "small", "large"),
            best="lowest",
            unmoved="none: no flip moved the loss",
        ),
        # What the loss gains by choosing: an effect of routing, and no merit of it.
        "choice": Scale("rise of the loss", (0.01, 0.1), ("no", "little", "yes"), best=""),
        # The rank of the router's choice among others: 0 by chance, 0.5 where three of four others are worse.
        "right": Scale("κ", (0.0, 0.5), ("no", "somewhat", "clearly")),
        "prediction": Scale("AUROC", (0.7, 0.9), ("hardly", "in part", "well"), best=""),
        # Two trainings may well differ in their experts, and both be good.
        "aligned": Scale("κ", (0.5, 0.8), ("no", "in part", "yes"), best=""),
        "accuracy": Scale("accuracy", (1.0,), ("at chance", "above chance"), of_chance=True),
    }
)

# Where the values below are from. Hash router and random gate are means of three training seeds.
EXPERTS = 8
MEASURED = f"digits, {EXPERTS} experts, k = 2, 360 test images"
_ROUTERS = ("hash router", "random gate", "V-MoE", "V-MoE + PRC")
# What known routers reach in the first MoE layer, by property, metric and view; of other views nothing is known.
REFERENCES: Mapping[tuple[str, str, str], Mapping[str, float]] = {
    (name, metric, view): dict(zip(_ROUTERS, values, strict=True))
    for name, metric, view, values in (
        ("crops", "top2_set_match_kappa", "random_crop", (0.09, 0.24, 0.31, 0.36)),
        ("noise", "top2_set_match_kappa", "gaussian_noise", (0.21, 0.42, 0.64, 0.64)),
    )
}
