"""Do corresponding patches choose the same experts? Table 4 of the PRC paper.

* top-1 match: same first expert;
* top-k match: same first, same second, ... in order;
* top-k set match: the same set of k, in any order (the paper's "order-agnostic").

Each stands beside what chance would reach: with the two sides' own marginals (pooled); where the grid does not move,
with the marginals of each patch position, since a position embedding alone can route; and with another patch of the
same image (image), since a router may know little but which image it is in. On request, with other images of the same
class (class; at the same position where the grid does not move), since a router may know little but the class.

The columns keep each image's choices (a few bytes per corresponding patch), because intervals of the chance levels
need them: sums alone do not say how often two independent images agree at the same position.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe.analyses.base import Columns, LayerAnalysis, LayerPair, Metric
from moeprobe.regions import REGIONS
from moeprobe.routing import LayerRouting
from moeprobe.statistics import Chance, Kappa, Ratio, Statistic, chance_within_image


class Match(LayerAnalysis):
    """Share of corresponding patches that choose the same experts, with its chance level and kappa."""

    signature = "trials"

    def __init__(self, *, class_null: bool = False) -> None:
        self._class_null = class_null

    def applies(self, layer: LayerRouting) -> bool:
        """Whether tokens choose experts, and there is more than one."""
        return layer.top_k > 0 and layer.num_experts > 1

    def sums(self, pair: LayerPair) -> dict[str, dict[str, Tensor]]:
        """Return matches and trials per image, for patches (also by what they show, if known) and prefix tokens."""
        layers, patches = (pair.reference, pair.view), (pair.reference_patch, pair.view_patch)
        prefix = pair.reference.num_prefix_tokens
        sides = {
            "patch": [
                _choices(layer, patch + prefix, present=patch >= 0)
                for layer, patch in zip(layers, patches, strict=True)
            ]
        }
        if pair.region is not None:
            for code, name in enumerate(REGIONS):
                sides[name] = [
                    _choices(layer, patch + prefix, present=(patch >= 0) & (pair.region == code))
                    for layer, patch in zip(layers, patches, strict=True)
                ]
        if prefix:
            token = torch.arange(prefix, device=patches[0].device).expand(len(patches[0]), -1)
            sides["prefix"] = [_choices(layer, token, present=token >= 0) for layer in layers]
        return {tokens: _count(*both, num_experts=pair.view.num_experts) for tokens, both in sides.items()}

    def metrics(self, columns: Columns, *, aligned: bool) -> list[Metric]:
        """Return match, chance and kappa for each kind of match."""
        reference, view = (columns[f"{side}_selected"].astype(np.int64) for side in ("reference", "view"))
        trials = columns["trials"].astype(np.float64)
        image, slot = np.nonzero(reference[..., 0] >= 0)
        nulls = {"pooled": np.zeros_like(slot)} | ({"position": slot} if aligned else {})
        if self._class_null:
            nulls["class"] = columns["label"].astype(np.int64)[image] * (reference.shape[1] if aligned else 1)
            nulls["class"] += slot if aligned else 0
        metrics: list[Metric] = []
        for name, depth, ordered in kinds(reference.shape[-1]):
            if name not in columns:
                continue
            match = Ratio(columns[name].astype(np.float64), trials)
            metrics.append(Metric(name, "", match, columns["trials"]))
            codes = encode(
                np.stack([reference[image, slot], view[image, slot]]), depth=depth, ordered=ordered
            )
            for null, stratum in nulls.items():
                # A trial without another image of its stratum has no chance level: neither has its match.
                used = slice(None) if null == "pooled" else _shared(stratum, image)
                chance = Chance(
                    image=image[used],
                    reference=codes[0][used],
                    view=codes[1][used],
                    stratum=stratum[used],
                    num_images=len(trials),
                    other_images=null != "pooled",
                )
                metrics += _beyond(name, null, chance, image[used], codes[:, used], len(trials))
            if reference.shape[1] > 1:  # a prefix token has no other in its image
                several = (trials > 1)[image]
                inside = chance_within_image(
                    image=image, reference=codes[0], view=codes[1], num_images=len(trials)
                )
                metrics += _beyond(name, "image", inside, image[several], codes[:, several], len(trials))
        return metrics


def _shared(stratum: NDArray[np.int64], image: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which trials ``(M,)`` lie in a stratum that holds more than one image."""
    different, number = np.unique(stratum, return_inverse=True)
    one = np.full(len(different), -1)
    one[number] = image
    several = np.zeros(len(different), dtype=bool)
    several[number[image != one[number]]] = True
    return several[number]


def _beyond(
    name: str,
    null: str,
    chance: Statistic,
    image: NDArray[np.int64],
    codes: NDArray[np.int64],
    num_images: int,
) -> list[Metric]:
    """Return a chance level and kappa, from the trials ``(M,)`` that the chance level is about."""
    count = np.bincount(image, minlength=num_images)
    hits = np.bincount(image[codes[0] == codes[1]], minlength=num_images)
    match = Ratio(hits.astype(np.float64), count.astype(np.float64))
    kappa = Kappa(match, chance)
    return [Metric(f"{name}_chance", null, chance, count), Metric(f"{name}_kappa", null, kappa, count)]


def kinds(top_k: int) -> list[tuple[str, int, bool]]:
    """Return (metric, k, ordered) for k <= min(K, 2) and k = K."""
    depths = sorted({1, min(top_k, 2), top_k})
    return [("top1_match", 1, True)] + [
        (f"top{depth}{kind}_match", depth, not kind) for depth in depths if depth > 1 for kind in ("", "_set")
    ]


def encode(selected: NDArray[np.generic], *, depth: int, ordered: bool) -> NDArray[np.int64]:
    """Return one integer per row of choices ``(..., K)``, equal where the first ``depth`` choices are the same."""
    rows = selected[..., :depth].astype(np.int64)
    if not ordered:
        rows = np.sort(rows, axis=-1)
    base = int(rows.max(initial=0)) + 2  # choices run from -1
    if base**depth < 2**62:
        powers = base ** np.arange(depth, dtype=np.int64)
        return ((rows + 1) * powers).sum(-1)
    return np.unique(rows.reshape(-1, depth), axis=0, return_inverse=True)[1].reshape(rows.shape[:-1])


def _choices(layer: LayerRouting, token: Tensor, *, present: Tensor) -> Tensor:
    """Return the choices ``(B, P, K)`` of the tokens ``(B, P)``, -1 where none is present or it is padding."""
    token = token.where(present, torch.zeros_like(token))
    chosen = layer.selected.gather(1, token[..., None].expand(-1, -1, layer.top_k))
    present = present & layer.valid.gather(1, token)
    return chosen.where(present[..., None], torch.full_like(chosen, -1))


def _count(reference: Tensor, view: Tensor, *, num_experts: int) -> dict[str, Tensor]:
    trial = (reference[..., 0] >= 0) & (view[..., 0] >= 0)
    absent = torch.full_like(reference, -1)
    reference, view = reference.where(trial[..., None], absent), view.where(trial[..., None], absent)
    columns = {"trials": trial.sum(1)}
    for name, depth, ordered in kinds(reference.shape[-1]):
        if depth == num_experts and not ordered:
            continue  # every token chooses the set of all experts: no measurement
        first, second = reference[..., :depth], view[..., :depth]
        if not ordered:
            first, second = first.sort(-1).values, second.sort(-1).values
        columns[name] = ((first == second).all(-1) & trial).sum(1)
    return columns | {"reference_selected": reference, "view_selected": view}
