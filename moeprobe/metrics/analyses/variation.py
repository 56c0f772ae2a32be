"""How differently do images load the experts? Batch-wise variation (Teo, equation of section 3.3).

For image b and expert i let S_bi be the sum of G_i over the patches of the image. CV_i = Var_b(S_bi) / (Mean_b(S_bi) +
ε) with the variance of a population and ε = 10⁻⁶; averaged over experts. 0 = every image loads the experts alike; the
most is S (1 − 1 / E) with S patches, where every image goes to one expert as a whole. It grows with the number of
patches, so its share of the maximum is given too.

The thesis does not define G: here it is the gates and, in separate rows, the weights of dispatched tokens. Axes: B
images, J tokens, E experts, n images of a whole run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.load import Dispersion
from moeprobe.metrics.token_kinds import double, patches

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

_OF = {"gates": "the gates", "weights": "the combine weights of the experts that process it"}


def _metrics(of: str) -> tuple[Metric, Metric]:
    """Return the variation of one kind of sums, and its share of the maximum."""
    name = f"image_variation_{of}"
    value = Metric(
        name,
        about=f"variance over images, divided by the mean, of an expert's sum of {_OF[of]} over an image's tokens; "
        "averaged over experts: 0 = all images load the experts alike",
        label=f"variation between images ({of})",
        unit="other",
    )
    share = Metric(
        f"{name}_share",
        about=f"{name} divided by its largest possible value, S (1 − 1 / E) with S tokens: 1 = each image has one "
        "expert",
        label="share of the maximum",
        below=name,
    )
    return value, share


_METRICS = {of: _metrics(of) for of in _OF}


class VariationAnalysis(LayerAnalysis):
    """Batch-wise variation: how differently images load the experts, by gates and by dispatched weights.

    Two images with two tokens each, which go to expert 0 in the first, and to expert 1 in the second. An expert's sums
    are 2 and 0: variance 1 over mean 1, all of the most there can be, 2 (1 − 1/2):

    >>> from moeprobe.metrics.analyses.variation import VariationAnalysis
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> value = numbers(VariationAnalysis(), pair(route([[0, 0], [1, 1]])))
    >>> value["image_variation_weights"], value["image_variation_weights_share"]
    (1.0, 1.0)
    """

    measures = tuple(metric for pair in _METRICS.values() for metric in pair)
    signature = "variation_tokens"

    def applies(self, layer: LayerRouting) -> bool:
        """Whether there are several experts, and gates that are a distribution, or anything chosen."""
        return layer.num_experts > 1 and (layer.gates_sum_to_one or layer.top_k > 0)

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the tokens of the view and their summed gates and weights ``(B, E)``."""
        paired, layer = patches(pair), pair.view
        columns = {"variation_tokens": paired.present.sum(1)}
        parts = {"gates": layer.gates} if layer.gates_sum_to_one else {}
        parts |= {"weights": layer.weights} if layer.top_k > 0 else {}
        for of, values in parts.items():
            values_of_view = paired.of_view(values).masked_fill(~paired.present[..., None], 0)
            columns[f"variation_{of}"] = double(values_of_view).sum(1)
        return {layer.modality.token: columns}

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return both numbers of each kind of sums."""
        trials = columns["variation_tokens"]
        tokens = trials.astype(np.float64)
        estimators = []
        for of, (value, share) in _METRICS.items():
            if f"variation_{of}" in columns:
                sums = columns[f"variation_{of}"].astype(np.float64)
                estimators += [
                    value.raw(Dispersion(sums, tokens, relative=False), trials),
                    share.raw(Dispersion(sums, tokens, relative=True), trials),
                ]
        return estimators
