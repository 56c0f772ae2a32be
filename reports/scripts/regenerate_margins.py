"""Do peaked routers flip less? First choices that noise changes, by decile of the margin between the first two gates.

    python -m reports.scripts.regenerate_margins [digits]

For each committed checkpoint and MoE layer, patches of the test images are cut into ten groups of equal size by the
margin of their gates on the clean image; of each group the share is measured whose first expert is another under
Gaussian noise (the draws of ``moeprobe noise-sweep``). 95 % intervals are of a bootstrap over images. Writes
``reports/margins/DATA.csv``.

With several experts per patch the same is asked of the set: how well does a margin say which patches change? The area
under the ROC curve (AUC) is the share of pairs of a patch that changes and one that does not in which the former has
the smaller margin; 0.5 = a coin. Writes ``reports/margins/DATA-auc.csv``.

Axes: n images, P patches, E experts, D deciles, R resamples.
"""

import functools
import sys
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.inputs.data.base import Example
from moeprobe.inputs.images import Framing
from moeprobe.inputs.open import open_images
from moeprobe.metrics.analyses.selection import selection_margins
from moeprobe.metrics.stats.bootstrap import with_observations
from moeprobe.metrics.stats.linearized import linearize_all
from moeprobe.metrics.stats.statistic import Share
from moeprobe.runtime.files import write_csv
from moeprobe.runtime.seeds import generator
from reports.scripts.objectives import MODELS

OUT, CHECKPOINTS = Path("reports/margins"), Path("checkpoints/reference")
SEEDS, TOP_KS, SIGMAS = (0, 1, 2), (2, 1), (0.1, 0.2)
DECILES = 10
_RESAMPLES, _BATCH, _SEED = 1000, 60, 0
FIRST_CHOICE, SET = "first choice", "set"
GATES, SELECTION, LOGITS = "first − second gate", "K-th − (K+1)-th gate", "K-th − (K+1)-th logit"
Margins = NDArray[np.float64]
Changed = NDArray[np.bool_]


@dataclass(frozen=True)
class Routed:
    """The routing of all images in one MoE layer.

    Attributes:
        gates: the highest gate less the second ``(n, P)``.
        selection: the selection margin, here of the gates ``(n, P)``.
        logits: the same of the logits, whose difference is the log of the gates' ratio ``(n, P)``.
        first: the first expert ``(n, P)``.
        chosen: whether an expert is chosen ``(n, P, E)``.
    """

    gates: Margins
    selection: Margins
    logits: Margins
    first: NDArray[np.int64]
    chosen: Changed

    def margins(self) -> dict[str, Margins]:
        """Return the margins by name."""
        return {GATES: self.gates, SELECTION: self.selection, LOGITS: self.logits}


def main(families: list[str]) -> None:
    """Measure and write, one data set after the other."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    for data in families:
        by_margin, areas = flips(data)
        write_csv(OUT / f"{data}.csv", by_margin)
        write_csv(OUT / f"{data}-auc.csv", areas)


def flips(data: str, *, limit: int | None = None) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return flips by decile (0 = all patches) and AUCs, each per model, k, seed, MoE layer and σ."""
    rows, areas = [], []
    for top_k in TOP_KS:
        for seed in SEEDS:
            for kind, model in MODELS.items():
                checkpoint = api.load_model(CHECKPOINTS / f"{data}-{kind}-k{top_k}-seed{seed}", device="cpu")
                clean, *noisy = _routed(checkpoint, data, limit)
                for layer, before in clean.items():
                    for sigma, other in zip(SIGMAS, noisy, strict=True):
                        about = {
                            "model": model,
                            "top_k": top_k,
                            "seed": seed,
                            "layer": layer,
                            "severity": sigma,
                        }
                        flipped = before.first != other[layer].first
                        rows += [about | row for row in by_decile(before.gates, flipped)]
                        # With one expert the set is the first choice, and both margins of gates are the same.
                        if top_k > 1:
                            moved = (before.chosen != other[layer].chosen).any(-1)
                            areas += [
                                about | {"event": event, "margin": name} | area(margin, changed)
                                for event, changed in ((FIRST_CHOICE, flipped), (SET, moved))
                                for name, margin in before.margins().items()
                            ]
    return pd.DataFrame(rows), pd.DataFrame(areas)


def area(margin: Margins, changed: Changed) -> dict[str, float]:
    """Return the AUC of small margins for patches that change, with an interval; both ``(n, P)``."""
    # The first is of all images once, the others of the resamples: (R + 1, n).
    times = np.concatenate([np.ones((1, len(margin)), dtype=np.int64), _resamples(len(margin))])
    order = np.argsort(margin, axis=None, kind="stable")
    ordered, moves = margin.ravel()[order], changed.ravel()[order]
    weights = times[:, order // margin.shape[1]].astype(np.float64)
    # Equal margins count half.
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
    moving = np.add.reduceat(weights * moves, starts, axis=1)
    staying = np.add.reduceat(weights * ~moves, starts, axis=1)
    larger = staying.sum(1, keepdims=True) - staying.cumsum(1) + staying / 2
    areas = (moving * larger).sum(1) / (moving.sum(1) * staying.sum(1))
    low, high = np.percentile(areas[1:], [2.5, 97.5])
    return {
        "value": areas[0],
        "ci_low": low,
        "ci_high": high,
        "changed": int(changed.sum()),
        "trials": changed.size,
        "images": len(margin),
    }


@functools.cache
def _resamples(images: int) -> NDArray[np.int64]:
    """Return how often each image is drawn ``(R, n)``."""
    drawn = generator(_SEED, "margins").integers(0, images, (_RESAMPLES, images))
    return np.apply_along_axis(np.bincount, 1, drawn, minlength=images)


def by_decile(margin: Margins, flipped: Changed) -> list[dict[str, float]]:
    """Return the share that flips, of all patches and by decile of the margin, the least first.

    Args:
        margin: ``(n, P)``.
        flipped: ``(n, P)``.
    """
    place = np.empty(margin.size, dtype=np.int64)
    place[np.argsort(margin, axis=None, kind="stable")] = np.arange(margin.size) * DECILES // margin.size
    group = place.reshape(margin.shape)
    # (n, D + 1) patches of an image and those that flip: all, then decile by decile.
    members = np.stack([np.ones_like(flipped), *(group == decile for decile in range(DECILES))], axis=-1)
    count, hits = members.sum(1), (members & flipped[..., None]).sum(1)
    shares = [Share(hits[:, one].astype(float), count[:, one].astype(float)) for one in range(DECILES + 1)]
    numbers = [linearize_all(share, share.denominator) for share in shares]
    effect = float(np.nanmean([one.effect for one in numbers[1:]]))
    times = _resamples(len(margin))
    resampled = (times @ hits) / (times @ count)
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
    # Without a flip all resamples are 0: tokens over the design effect of the other deciles bound the share.
    for decile in np.flatnonzero(low == high):
        found = with_observations(numbers[decile], effect).interval()
        low[decile], high[decile] = found.low, found.high
    return [
        {
            "decile": decile,
            "margin": float(margin[members[..., decile]].mean()),
            "value": hits[:, decile].sum() / count[:, decile].sum(),
            "ci_low": low[decile],
            "ci_high": high[decile],
            "trials": int(count[:, decile].sum()),
            "images": len(margin),
        }
        for decile in range(DECILES + 1)
    ]


def _routed(checkpoint: api.Checkpoint, data: str, limit: int | None) -> list[dict[str, Routed]]:
    """Return the routing of the clean images and of each σ by layer."""
    images = open_images(data, split="test")
    found: list[dict[str, list[Routed]]] = [{} for _ in (0, *SIGMAS)]
    samples = [_samples(checkpoint, images.example(one)) for one in range(len(images))[:limit]]
    for start in range(0, len(samples), _BATCH):
        for number, kept in enumerate(found):
            pixels = torch.stack([one[number] for one in samples[start : start + _BATCH]])
            _, routing = api.trace(checkpoint, pixels)
            for name, layer in routing.layers.items():
                patches = slice(layer.num_prefix_tokens, None)
                ordered = layer.gates[:, patches].sort(descending=True).values
                last, next_best = ordered[..., layer.top_k - 1], ordered[..., layer.top_k]
                selection = selection_margins(layer)
                assert selection is not None, "softmax routers whose tokens choose"
                kept.setdefault(name, []).append(
                    Routed(
                        gates=(ordered[..., 0] - ordered[..., 1]).double().numpy(),
                        selection=selection[:, patches].numpy(),
                        logits=(last.double() / next_best.double()).log().numpy(),
                        first=layer.selected[:, patches, 0].long().numpy(),
                        chosen=layer.selected_mask[:, patches].numpy(),
                    )
                )
    return [{name: _concatenated(parts) for name, parts in kept.items()} for kept in found]


def _concatenated(parts: list[Routed]) -> Routed:
    return Routed(
        *(np.concatenate([getattr(part, field.name) for part in parts]) for field in fields(Routed))
    )


def _samples(checkpoint: api.Checkpoint, example: Example) -> list[torch.Tensor]:
    """Return the pixels of an image, clean and with noise."""
    framing = checkpoint.framing
    if not isinstance(framing, Framing):
        raise api.UserError("Margins are measured on checkpoints that take images.")
    clean = framing.clean(example.image)
    draws = generator(_SEED, "gaussian_noise", example.image_id)
    noise = torch.from_numpy(draws.standard_normal(tuple(clean.pixels.shape), dtype=np.float32))
    return [clean.pixels, *((clean.pixels + sigma * noise).clamp(0, 1) for sigma in SIGMAS)]


if __name__ == "__main__":
    main(sys.argv[1:] or ["digits"])
