"""What a table of ``agree`` comes to in words: a few sentences on each form, the finding first."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from moeprobe.inputs.modality import ORDINARY, modality_of
from moeprobe.judging.scales import SCALES
from moeprobe.judging.selection import Extreme, widen_intervals
from moeprobe.judging.words import is_side, word_of, word_of_interval
from moeprobe.metrics.analyses import changed_margins, form_loss, touched
from moeprobe.metrics.analyses.first_layer import FIRST_LAYER_SHARE
from moeprobe.metrics.analyses.layer_growth import DIFFER_GROWTH
from moeprobe.metrics.declaration import KAPPA
from moeprobe.metrics.stats.statistic import PartOf
from moeprobe.results.numbers import interval
from moeprobe.results.tables import deciding_match

# How two forms route, by the best and the worst band that κ may lie in.
_BANDS = SCALES["forms"]
_GOOD, _FAIR, _POOR = 2, 1, 0
_VERBS = {
    (_GOOD, _GOOD): "routes like",
    (_GOOD, _FAIR): "routes like or nearly like",
    (_FAIR, _FAIR): "routes nearly like",
    (_GOOD, _POOR): "may or may not route like",
    (_FAIR, _POOR): "routes nearly like or unlike",
    (_POOR, _POOR): "does not route like",
}
# Characters of a hash that a sentence shows.
_HASH = 12

Row = Mapping[str, Any]


def sentences(table: pd.DataFrame, comparison: pd.DataFrame | None, sidecar: Mapping[str, Any]) -> list[str]:
    """Return lines on each form after the first: how it routes, where that differs, and what it costs."""
    first, *names = dict.fromkeys(table["checkpoint"])
    provenance = sidecar.get("checkpoints", {})
    lines = []
    for name in names:
        form = _Form(table, comparison, name, first)
        same_files = _same_files(provenance.get(first, {}), provenance.get(name, {}))
        for parts in (
            (form.leading(), form.against_itself(), same_files),
            (form.where(), form.margins()),
            (form.price(),),
        ):
            lines.append(" ".join(part for part in parts if part))
    return [line for line in lines if line]


class _Form:
    """The rows of one form, and of the first.

    Args:
        table: of the run.
        comparison: its judged differences; None = there are none.
        name: of the form.
        first: the form that it is compared with.
    """

    def __init__(self, table: pd.DataFrame, comparison: pd.DataFrame | None, name: str, first: str) -> None:
        self._name, self._first = name, first
        self._modality = modality_of(table["tokens"])
        ordinary = table[table["tokens"].isin(ORDINARY)]
        self._layers = ordinary[(ordinary["checkpoint"] == name) & (ordinary["layer"] != "")]
        self._kappa = f"{deciding_match(self._layers)}{KAPPA}" if len(self._layers) else ""
        self._rows = _by_metric(table, name)
        self._of_first = _by_metric(table, first)
        self._differences = {} if comparison is None else _by_metric(comparison, name)

    def leading(self) -> str:
        """Return how alike the two route."""
        pairs, worst = self._rows.get(touched.PAIRS_DIFFER.name), self._worst()
        if pairs is None and worst is None:
            return f"{self._name} and {self._first} choose no sets of experts that could be compared."
        if pairs is not None and pairs["value"] == 0:
            # No band: the interval of κ reaches far below 1 where few inputs were seen. Of too few there is no word.
            verb = "shows no change from" if pairs["ci_high"] == pairs["ci_high"] else "against"
            return (
                f"{self._name} {verb} {self._first}: the experts differ in {interval(pairs)} of the "
                f"pairs of {self._modality.token} and layer."
            )
        parts = []
        if pairs is not None:
            parts.append(
                f"the experts differ in {interval(pairs)} of the pairs of {self._modality.token} and layer"
            )
        verb = "against"
        if worst is not None:
            parts.append(f"κ is {interval(worst.row)} in {worst.row['layer']}{self._describe_worst(worst)}")
            if worst.is_judged:
                bands = _BANDS.bands(worst.row["ci_low"], worst.row["ci_high"])
                verb = _VERBS[bands[0], bands[-1]]
        return f"{self._name} {verb} {self._first}: {'; '.join(parts)}."

    def against_itself(self) -> str:
        """Return whether that is more than the first form differs from itself."""
        noise = self._of_first.get(touched.PAIRS_DIFFER.name)
        return "" if noise is None else self._beside_itself(noise, touched.PAIRS_DIFFER.name)

    def where(self) -> str:
        """Return in which layer tokens differ first, and whether differences grow."""
        inputs = self._rows.get(touched.SEQUENCES_TOUCHED.name)
        shares = self._layers[self._layers["metric"] == FIRST_LAYER_SHARE.name]
        if inputs is None or not inputs["value"] or shares["value"].isna().all():
            return ""
        count = round(inputs["trials"] * (1 - inputs["value"]))
        largest = Extreme.of(shares, lowest=False)
        layer, (quantity, compared) = largest.row, largest.share_words
        text = (
            f"{self._name}: in {count:,} of {self._modality.format_count(int(inputs['trials']))} nothing changes. "
            f"{quantity} {self._modality.tokens} that change differ first in {layer['layer']}{largest.inserted()}"
            f"{compared}: {interval(layer)} of them."
        )
        growth = self._rows.get(DIFFER_GROWTH.name)
        if growth is None or growth["ci_low"] != growth["ci_low"]:
            return text
        word = word_of_interval(growth["ci_low"], growth["ci_high"], margin=float("nan"))
        return f"{text} Later layers against earlier ones: {interval(growth, signed=True)}, {word}."

    def margins(self) -> str:
        """Return how near the tokens that change were to a tie."""
        rows = {
            metric: self._layers[self._layers["metric"] == metric.name].set_index("layer")
            for metric in (changed_margins.MARGIN_CHANGED, changed_margins.MARGIN_KEPT)
        }
        of_changed, of_kept = rows.values()
        if of_changed.empty or not of_changed["trials"].max():
            return ""
        # The layer that has most of them.
        layer = of_changed["trials"].idxmax()
        sides = [side.loc[layer].to_dict() for side in (of_changed, of_kept)]
        return (
            f"In {layer}, the {int(sides[0]['trials']):,} {self._modality.tokens} that change have a selection margin "
            f"of {interval(sides[0])}, and the others of {interval(sides[1])}."
        )

    def price(self) -> str:
        """Return what the form does to the loss, and how much of that is routing."""
        gap, rise = (self._rows.get(metric.name) for metric in (form_loss.LOSS_GAP, form_loss.LOSS_RISE))
        noise = self._of_first.get(form_loss.LOSS_GAP.name)
        if gap is None or rise is None or noise is None:
            return ""
        text = f"{self._name}: log-probabilities change by {interval(gap)} nats, and the loss by "
        text += f"{interval(rise, signed=True)}."
        if not gap["value"]:
            text = f"{self._name}: no log-probability changes."
        text += f" {self._beside_itself(noise, form_loss.LOSS_GAP.name)}"
        share, routing = (
            self._rows.get(metric.name) for metric in (form_loss.GAP_SHARE, form_loss.GAP_ROUTING)
        )
        if share is None or routing is None:
            return text
        if share["flag"] == PartOf.undefined:
            return (
                f"{text} The change of log-probabilities, or its interval, reaches rounding, so its share of routing "
                "is left out."
            )
        judged = self._differences.get(form_loss.LOSS_GAP.name)
        # A share of what the first form shows against itself says nothing about this one.
        if judged is None or not is_side(word_of(judged)):
            return text
        return f"{text} Routing accounts for {interval(routing)} of it, a share of {interval(share)}."

    def _worst(self) -> Extreme | None:
        """Return the lowest κ of what processes tokens, its interval one of all layers; None where no layer has one."""
        rows = self._layers[(self._layers["metric"] == self._kappa) & (self._layers["null"] == "pooled")]
        rows = rows[rows["value"].notna()]
        # The worst of several layers is the lowest by chance, too, so that its own interval would make no word.
        return None if rows.empty else Extreme.of(widen_intervals(rows), lowest=True, hold_together=True)

    @staticmethod
    def _describe_worst(worst: Extreme) -> str:
        """Return that a layer is the worst, and of how many its interval is; empty for a single layer."""
        if worst.following is None:
            return ""
        notes = f" (interval: all layers at once; {worst.clause()})" if worst.is_judged else ""
        return f", the worst layer{notes}"

    def _beside_itself(self, noise: Row, metric: str) -> str:
        """Return what the first form does against itself, and the word for the difference."""
        judged = self._differences.get(metric)
        # A mean of losses that are all 0 has no interval; a share says of how many tokens it is.
        is_unmoved = not noise["value"] and noise["metric"] == form_loss.LOSS_GAP.name
        amount = "no change" if is_unmoved else interval(noise)
        text = f"{self._first} against itself, in batches of another size: {amount}"
        if judged is None or judged["flag"]:
            return f"{text}."
        return f"{text}. The difference is {interval(judged, signed=True)}: {judged['verdict']}."


def _by_metric(table: pd.DataFrame, name: str) -> dict[str, dict[str, Any]]:
    """Return the rows of a form about all layers, or about its output, by metric."""
    rows = table[
        (table["checkpoint"] == name) & (table["layer"] == "") & table["tokens"].isin(("", *ORDINARY))
    ]
    return {row["metric"]: row for row in rows.to_dict("records")}


def _same_files(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return that two forms were read from the same files; empty where they were not, or nobody knows."""
    digest = first.get("sha256")
    if not digest or digest != second.get("sha256") or first.get("served") != second.get("served"):
        return ""
    return f"Both were read from the same files (sha256 {digest[:_HASH]})."
