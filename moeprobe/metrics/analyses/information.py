"""What do the experts specialize in? Mutual information of a token's expert with class, position and color.

* ``class_information``: with the label of the token's image;
* ``position_information``: with the token's place in the image or text;
* ``color_information``: with the mean color of the patch, in ``LEVELS`` levels of red, green and blue.

Each is the information less its mean over permutations of images (``stats.information``), divided by the logarithm of
the number of experts or of classes, of the smaller one: 0 = an expert says nothing, 1 = everything that it could. The
information itself, and what permutations leave of it, stand beside, divided alike.

Patches and prefix tokens apart. Axes: B images, J tokens, n images of a whole run.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from moeprobe.metrics import token_experts
from moeprobe.metrics.base import Columns, Estimator, LayerAnalysis
from moeprobe.metrics.declaration import Metric
from moeprobe.metrics.stats.entries import Entries
from moeprobe.metrics.stats.information import Association, InformationPart
from moeprobe.metrics.token_kinds import by_token_kind

if TYPE_CHECKING:
    from torch import Tensor

    from moeprobe.routing.record import LayerPair, LayerRouting

_KINDS = {
    "class": ("the class of its image", "the classes of images exchanged"),
    "position": ("its place", "the tokens of each image in another order"),
    "color": ("the mean color of its patch", "the colors of whole images exchanged"),
}


def _metrics(kind: str) -> dict[str, Metric]:
    """Return the metrics of one kind of information by their part."""
    name, (what, how) = f"{kind}_information", _KINDS[kind]
    beyond = Metric(
        name,
        about=f"mutual information of a token's expert and {what}, minus its mean over permutations of images, "
        "divided by the largest possible: 0 = none, 1 = all",
        label=f"information on {kind}",
        noun=f"information of experts on {kind}",
    )
    plain = Metric(
        f"{name}_plain",
        about=f"mutual information of a token's expert and {what}, divided by the largest possible; few images make "
        "it larger",
        label="plain",
        below=name,
        secondary=True,
    )
    permuted = Metric(
        f"{name}_permuted",
        about=f"mean of {name}_plain with {how}; its interval ignores that other images would have another mean",
        label="by permutation",
        below=name,
        secondary=True,
    )
    return {"beyond": beyond, "plain": plain, "permuted": permuted}


_METRICS = {kind: _metrics(kind) for kind in _KINDS}


class Information(LayerAnalysis):
    """Mutual information of a token's expert with the class of its image, its place, and its patch's mean color.

    Four images of two classes, each with a single token, which has expert 0 in one class and expert 1 in the other: it
    says everything, 1. Two of the 6 ways to exchange the classes say as much, and four nothing. That is 1/3 on average,
    65 of the 200 that are drawn:

    >>> from moeprobe.metrics.analyses.information import Information
    >>> from moeprobe.metrics.by_hand import numbers, pair, route
    >>> value = numbers(Information(), pair(route([[0], [0], [1], [1]])), labels=[0, 0, 1, 1])
    >>> value["class_information_plain"], value["class_information_permuted"], value["class_information"]
    (1.0, 0.325, 0.675)
    """

    measures = tuple(metric for metrics in _METRICS.values() for metric in metrics.values())
    signature = "informed_tokens"
    trial_lists = (f"informed_{token_experts.CHOICE}", "informed_color")

    def applies(self, layer: LayerRouting) -> bool:
        """Whether there are several experts, and it is known which of them a token has."""
        return token_experts.knows_experts(layer)

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return the experts of the view's tokens, of patches with the bins of their colors."""
        columns_by_kind = {}
        colors = token_experts.color_bins(pair)
        for tokens, paired in by_token_kind(dataclasses.replace(pair, region=None)).items():
            columns = token_experts.experts(pair.view, paired, name="informed")
            columns["informed_tokens"] = paired.present.sum(1)
            if colors is not None and tokens == pair.view.modality.token:
                columns["informed_color"] = colors.gather(1, paired.view.cpu() - pair.view.num_prefix_tokens)
            columns_by_kind[tokens] = columns
        return columns_by_kind

    def estimators(self, columns: Columns, *, aligned: bool) -> list[Estimator]:
        """Return the information on class, place and color; an unknown or constant one is left out."""
        tokens, number = token_experts.entries(columns, name="informed")
        num_positions = token_experts.num_tokens(columns, name="informed")
        images = len(columns["informed_tokens"])
        estimators: list[Estimator] = []
        if "label" in columns:
            # All tokens of an image have its class, so that the sums of the image are enough.
            association = Association(
                _of_images(tokens, images, number),
                token_experts.of_classes(columns["label"]),
                num_experts=number,
                within=False,
            )
            estimators += _estimators("class", association, columns)
        positions = np.broadcast_to(np.arange(num_positions), (images, num_positions))
        estimators += _estimators(
            "position", Association(tokens, positions, num_experts=number, within=True), columns
        )
        if "informed_color" in columns:
            colors = Association(tokens, columns["informed_color"], num_experts=number, within=False)
            estimators += _estimators("color", colors, columns)
        return estimators


def _of_images(tokens: Entries, num_images: int, num_experts: int) -> Entries:
    """Return each image's sums as entries of a single token."""
    sums = tokens.per_image(num_images, num_experts)
    image, expert = np.nonzero(sums)
    return Entries(image, np.zeros_like(image), expert, sums[image, expert])


def _estimators(kind: str, association: Association, columns: Columns) -> list[Estimator]:
    """Return the metrics of one kind of information; none where it cannot exist."""
    if association.scale == 0:
        return []
    # Images without a class take no part in the information, so their tokens are no trials.
    trials = columns["informed_tokens"] * (association.trials > 0)
    return [metric.raw(InformationPart(association, part), trials) for part, metric in _METRICS[kind].items()]
