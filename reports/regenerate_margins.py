"""Do peaked routers flip less? First choices that noise changes, by decile of the margin between the first two gates.

    python reports/regenerate_margins.py [digits]

For each committed checkpoint and MoE layer, patches of the test images are cut into ten groups of equal size by the
margin of their gates on the clean image; of each group the share is measured whose first expert is another under
Gaussian noise (the draws of ``moeprobe noise-sweep``). 95 % intervals are of a bootstrap over images. Writes
``reports/margins/DATA.csv``.

Axes: n images, P patches, E experts, D deciles.
"""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.inputs.data.base import Example
from moeprobe.inputs.images import Sample
from moeprobe.inputs.open import open_images
from moeprobe.runtime.csv import write_csv
from moeprobe.runtime.seeds import generator

OUT, CHECKPOINTS = Path("reports/margins"), Path("checkpoints/reference")
MODELS = {"baseline": "V-MoE", "prc": "V-MoE with PRC"}
SEEDS, TOP_KS, SIGMAS = (0, 1, 2), (2, 1), (0.1, 0.2)
DECILES = 10
_RESAMPLES, _BATCH, _SEED = 1000, 60, 0
Margins = NDArray[np.float64]


def main(families: list[str]) -> None:
    """Measure and write, one data set after the other."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    for data in families:
        write_csv(OUT / f"{data}.csv", flips(data))


def flips(data: str, *, limit: int | None = None) -> pd.DataFrame:
    """Return a row per model, k, seed, MoE layer, σ and decile; decile 0 = all patches."""
    rows = []
    for top_k in TOP_KS:
        for seed in SEEDS:
            for kind, model in MODELS.items():
                checkpoint = api.load_model(CHECKPOINTS / f"{data}-{kind}-k{top_k}-seed{seed}", device="cpu")
                clean, *noisy = _routed(checkpoint, data, limit)
                for layer, (margin, first) in clean.items():
                    for sigma, other in zip(SIGMAS, noisy, strict=True):
                        about = {
                            "model": model,
                            "top_k": top_k,
                            "seed": seed,
                            "layer": layer,
                            "severity": sigma,
                        }
                        flipped = first != other[layer][1]
                        rows += [about | row for row in by_decile(margin, flipped)]
    return pd.DataFrame(rows)


def by_decile(margin: Margins, flipped: NDArray[np.bool_]) -> list[dict[str, float]]:
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
    drawn = generator(_SEED, "margins").integers(0, len(margin), (_RESAMPLES, len(margin)))
    times = np.apply_along_axis(np.bincount, 1, drawn, minlength=len(margin))
    resampled = (times @ hits) / (times @ count)
    low, high = np.percentile(resampled, [2.5, 97.5], axis=0)
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


def _routed(
    checkpoint: api.Checkpoint, data: str, limit: int | None
) -> list[dict[str, tuple[Margins, NDArray[np.int64]]]]:
    """Return, for the clean images and each σ, layer -> margins and first experts ``(n, P)``."""
    images = open_images(data, split="test")
    found: list[dict[str, list[tuple[Margins, NDArray[np.int64]]]]] = [{} for _ in (0, *SIGMAS)]
    samples = [_samples(checkpoint, images.example(one)) for one in range(len(images))[:limit]]
    for start in range(0, len(samples), _BATCH):
        for number, kept in enumerate(found):
            pixels = torch.stack([one[number] for one in samples[start : start + _BATCH]])
            _, routing = api.trace(checkpoint, pixels)
            for name, layer in routing.layers.items():
                gates = layer.gates[:, layer.num_prefix_tokens :]
                highest, second = gates.topk(2).values.unbind(-1)
                first = layer.selected[:, layer.num_prefix_tokens :, 0]
                kept.setdefault(name, []).append(((highest - second).double().numpy(), first.long().numpy()))
    return [
        {
            name: (np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts]))
            for name, parts in kept.items()
        }
        for kept in found
    ]


def _samples(checkpoint: api.Checkpoint, example: Example) -> list[torch.Tensor]:
    """Return the pixels of an image, clean and with noise."""
    clean: Sample = checkpoint.framing.clean(example.image)
    draws = generator(_SEED, "gaussian_noise", example.image_id)
    noise = torch.from_numpy(draws.standard_normal(tuple(clean.pixels.shape), dtype=np.float32))
    return [clean.pixels, *((clean.pixels + sigma * noise).clamp(0, 1) for sigma in SIGMAS)]


if __name__ == "__main__":
    main(sys.argv[1:] or ["digits"])
