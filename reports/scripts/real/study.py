"""Measure the routing of the trained models on photographs, stereo and video; write what the page says to reports/real.

python -m reports.scripts.real.study build/real
"""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from moeprobe import api
from moeprobe.inputs.images import Framing
from moeprobe.inputs.open import open_images
from moeprobe.models.checkpoints.checkpoint import load
from moeprobe.models.config import ModelConfig
from moeprobe.models.config import load as load_config
from moeprobe.models.nn.build import build_model
from moeprobe.models.training.start import upcycle_from
from moeprobe.models.training.tasks import Normalise
from moeprobe.runtime.files import write_csv
from reports.scripts.printed import shrink
from reports.scripts.real.material import PICTURES
from reports.scripts.real.train import MODELS, SEEDS, checkpoint, data_of

OUT, FIGURE = Path("reports/real"), Path("docs/img/real-overlay.png")
# Of the overlay.
LAYER, NOISE = "blocks.11", 0.1
# Probes of photographs by name, with what is asked.
SWEEPS: dict[str, Any] = {
    "noise": {"view": "gaussian_noise", "severities": (0.05, 0.1, 0.2)},
    "ground": {"view": "ground", "severities": (0.5, 1.0)},
}
_COLUMNS = [
    "run", "checkpoint", "train_seed", "layer", "view", "severity", "tokens", "metric", "null", "value", "ci_low",
    "ci_high", "images", "trials",
]  # fmt: skip
_DIGITS = 5
SIDECAR = "table.json"


def paths(root: Path) -> list[Path]:
    """Return the checkpoints, pair after pair."""
    return [checkpoint(root, model, seed) for seed in SEEDS for model in MODELS]


def measure(root: Path) -> None:
    """Run the probes and comparisons, and write the tables; finished runs are read."""
    models, data, runs = paths(root), data_of(root), root / "runs"
    options: Any = {"split": "test", "figures": False}
    pairs, clips = f"picture_pairs:{root / 'pairs'}", f"frames:{root / 'clips'}"
    questions: dict[str, Callable[[Path], object]] = {
        "crops": lambda out: api.match_ratio(models, data=data, out=out, **options),
        **{
            name: partial(
                lambda out, asked: api.sweep(models, data=data, out=out, **asked, **options), asked=asked
            )
            for name, asked in SWEEPS.items()
        },
        "pairs": lambda out: api.match_ratio(models, data=pairs, view="second_picture", out=out, **options),
        "frames": lambda out: api.frames(models, data=clips, out=out, figures=False),
        "eval": lambda out: api.evaluate(models, data=data, out=out, **options),
    }
    tables, trainings = [], []
    for name, ask in questions.items():
        out, compared = runs / name, runs / f"{name}-compared"
        if not (out / SIDECAR).exists():
            ask(out)
        tables.append(pd.read_csv(out / "table.csv").assign(run=name))
        if name not in ("pairs", "frames"):
            if not (compared / SIDECAR).exists():
                api.compare([out], out=compared, figures=False)
            trainings.append(pd.read_csv(compared / "trainings.csv").assign(run=name))
    OUT.mkdir(parents=True, exist_ok=True)
    write_csv(OUT / "table.csv", kept(pd.concat(tables, ignore_index=True))[_COLUMNS].round(_DIGITS))
    write_csv(OUT / "trainings.csv", kept(pd.concat(trainings, ignore_index=True)).round(_DIGITS))
    write_csv(OUT / "features.csv", features(root).round(_DIGITS))
    draw(root)


def kept(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the page is about: the match of patches' sets, κ by what patches show, and accuracy."""
    is_kappa = (table["metric"] == "top2_set_match_kappa") & (table["null"] == "pooled")
    is_kappa &= table["tokens"].isin(["patch", "foreground", "background"])
    # Of what is behind objects only their new ground says something.
    is_kappa &= (table["tokens"] == "patch") | (table["run"] == "ground")
    is_match = (table["metric"] == "top2_set_match") & (table["tokens"] == "patch")
    return table[is_kappa | is_match | (table["metric"] == "accuracy")]


def draw(root: Path) -> None:
    """Draw the experts of two CC0 pictures, clean and with noise, for the page."""
    models = [checkpoint(root, model, SEEDS[0]) for model in MODELS]
    folder = root / "runs" / "overlay"
    api.overlay(
        models,
        data=f"folder:{root / 'pictures'}",
        images=PICTURES,
        severity=NOISE,
        names=list(MODELS.values()),
        layers=LAYER,
        out=folder,
        overwrite=True,
    )
    shrink(folder / "figures" / f"overlay-{LAYER}.png", FIGURE)


def features(root: Path) -> pd.DataFrame:
    """Return how near the class tokens of all models are to the dense model's, and what nearest neighbors say."""
    dataset = open_images(data_of(root), split="all")
    test = set(open_images(data_of(root), split="test").image_ids)
    held_out = np.array([name in test for name in dataset.image_ids])
    config = load_config("photographs-baseline").model
    framing = Framing(int(config.image_size or 0))
    pixels = torch.stack(
        [framing.clean(dataset.example(number).image).pixels for number in range(len(dataset))]
    )
    labels = dataset.labels()
    dense = tokens_of(start_of(root, config, layers=[]), pixels, config)
    rows = [{"checkpoint": "dense", "cosine": 1.0} | neighbors(dense[:, 0], labels, held_out)]
    start = tokens_of(start_of(root, config), pixels, config)
    difference = float((start - dense).abs().max() / dense.abs().max())
    rows.append({"checkpoint": "start", "cosine": 1.0, "difference": difference})
    for path in paths(root):
        model, _ = load(str(path))
        own = tokens_of(model, pixels, config)
        cosine = torch.nn.functional.cosine_similarity(own, dense, dim=-1).mean(1).numpy()
        rows.append(
            {"checkpoint": path.name, "cosine": float(cosine[held_out].mean())}
            | neighbors(own[:, 0], labels, held_out)
        )
    return pd.DataFrame(rows).assign(images=int(held_out.sum()))


def start_of(root: Path, config: ModelConfig, **changes: object) -> nn.Module:
    """Return the model of a configuration as it is before its training; without ``layers`` the dense one."""
    assert config.upcycle is not None
    upcycle = config.upcycle.model_copy(update={"file": str(root / "vit_s14.safetensors")})
    config = config.model_copy(update={"num_classes": 7, "upcycle": upcycle} | changes)
    model = build_model(config)
    upcycle_from(model, config)
    return model


def tokens_of(model: nn.Module, pixels: torch.Tensor, config: ModelConfig) -> torch.Tensor:
    """Return the tokens ``(images, T, D)`` after the last norm."""
    normalise = Normalise(config)
    model.eval()
    with torch.inference_mode():
        parts = [model.forward_features(normalise(part)) for part in pixels.split(16)]  # type: ignore[operator]
    return torch.cat(parts)


def neighbors(
    features: torch.Tensor, labels: NDArray[np.int64], held_out: NDArray[np.bool_]
) -> dict[str, float]:
    """Return the share of held-out images whose nearest other image, by cosine, is of their class."""
    unit = nn.functional.normalize(features, dim=-1)
    cosine = (unit @ unit.T).fill_diagonal_(-2)
    hits = labels[cosine.argmax(1).numpy()] == labels
    return {"nearest_neighbor": float(hits[held_out].mean()), "all": float(hits.mean())}


if __name__ == "__main__":
    measure(Path(sys.argv[1]))
