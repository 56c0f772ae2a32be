"""Measure the routing of the trained models on photographs, stereo and video; write what the page says to reports/real.

python -m reports.scripts.real.study build/real
"""

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import nn

from moeprobe import api
from moeprobe.errors import FinishedError
from moeprobe.models.checkpoints.checkpoint import load
from moeprobe.models.config import load as load_config
from moeprobe.runtime.files import write_csv
from reports.scripts.objectives import MODELS
from reports.scripts.printed import shrink
from reports.scripts.real.dense import Photographs, start_of, tokens_of
from reports.scripts.real.material import PICTURES
from reports.scripts.real.tables import CORRUPTIONS, MARGINS, SEVERITY, WEAKEST
from reports.scripts.real.train import SEEDS, checkpoint, data_of

OUT, FIGURE = Path("reports/real"), Path("docs/img/real-overlay.png")
# Of the overlay.
LAYER, NOISE = "blocks.11", 0.1
# The data by the beginning of their name; in the folder of everything.
_PAIRS, _CLIPS, _PHOTOGRAPHS = "picture_pairs", "frames", "photographs"


def paths(root: Path) -> list[Path]:
    """Return the checkpoints, pair after pair."""
    return [checkpoint(root, model, seed) for seed in SEEDS for model in MODELS]


@dataclass(frozen=True)
class Question:
    """What is asked of all models.

    Attributes:
        probe: of ``moeprobe.api``.
        parameters: its own.
        data: kind of data: ``photographs``, or of the folder ``folder``.
        folder: in the folder of everything.
        models: returns the models in the folder of everything, pair after pair.
    """

    probe: Callable[..., Any]
    parameters: dict[str, Any] = field(default_factory=dict)
    data: str = _PHOTOGRAPHS
    folder: str = ""
    models: Callable[[Path], Sequence[api.Model]] = paths

    @property
    def is_compared(self) -> bool:
        """Whether trainings are compared: three pairs are too few, and what they and clips say is told by the seeds."""
        return self.data == _PHOTOGRAPHS


QUESTIONS = {
    "crops": Question(api.match_ratio),
    "noise": Question(api.sweep, {"view": "gaussian_noise", "severities": (0.05, 0.1, 0.2)}),
    "ground": Question(api.sweep, {"view": "ground", "severities": (0.5, 1.0)}),
    "blur": Question(api.sweep, {"view": "gaussian_blur", "severities": (0.5, 1.0, 2.0)}),
    "corruptions": Question(
        api.corruptions, {"corruptions": CORRUPTIONS, "severities": (SEVERITY,), "controls": False}
    ),
    "margins": Question(api.margins, {"sigmas": (WEAKEST, 0.1, 0.2), "draws": 4}),
    "eval": Question(api.evaluate),
    "pairs": Question(api.match_ratio, {"view": "second_picture"}, _PAIRS, "pairs"),
    "warps": Question(api.match_ratio, {"view": "second_picture"}, _PAIRS, "warps"),
    "frames": Question(api.frames, {}, _CLIPS, "clips"),
    "shifts": Question(api.frames, {}, _CLIPS, "shifts"),
}
_COLUMNS = [
    "run", "checkpoint", "train_seed", "layer", "view", "severity", "tokens", "metric", "null", "value", "ci_low",
    "ci_high", "images", "trials",
]  # fmt: skip
_DIGITS = 5
_DIGITS_OF_FEATURES = {"cosine": 5, "nearest_neighbor": 5, "all": 5, "difference": 7}
# Whose match is shown beside that of pictures that were taken.
_MATCHED = ("crops", "pairs", "warps", "frames", "shifts")


def ask(name: str, question: Question, root: Path) -> tuple[Path, Path | None]:
    """Return the folders of a question's run, and of its comparison where there is one; finished ones are read.

    Raises:
        UserError: a folder holds a run with other settings, or of other models.
    """
    out, compared = root / "runs" / name, root / "runs" / f"{name}-compared"
    data = data_of(root) if question.data == _PHOTOGRAPHS else f"{question.data}:{root / question.folder}"
    with contextlib.suppress(FinishedError):
        question.probe(
            question.models(root), data=data, split="test", out=out, figures=False, **question.parameters
        )
    if not question.is_compared:
        return out, None
    with contextlib.suppress(FinishedError):
        api.compare([out], out=compared, figures=False)
    return out, compared


def measure(root: Path) -> None:
    """Run the probes and comparisons, and write the tables."""
    tables, trainings = [], []
    for name, question in QUESTIONS.items():
        out, compared = ask(name, question, root)
        tables.append(pd.read_csv(out / "table.csv").assign(run=name))
        if compared is not None:
            trainings.append(pd.read_csv(compared / "trainings.csv").assign(run=name))
    OUT.mkdir(parents=True, exist_ok=True)
    write_csv(OUT / "table.csv", kept(pd.concat(tables, ignore_index=True))[_COLUMNS].round(_DIGITS))
    write_csv(OUT / "trainings.csv", kept(pd.concat(trainings, ignore_index=True)).round(_DIGITS))
    # A difference that is rounding alone would be 0 with the digits of the others.
    write_csv(OUT / "features.csv", features(root).round(_DIGITS_OF_FEATURES))


def kept(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that the page is about: κ by what patches show, the match of patches' sets, and the output.

    The match itself is of what is compared with something taken, where chance differs; the loss of clean photographs.
    """
    is_kappa = (table["metric"] == "top2_set_match_kappa") & (table["null"] == "pooled")
    is_kappa &= table["tokens"].isin(["patch", "foreground", "background"])
    # Of what is behind objects only their new ground says something.
    is_kappa &= (table["tokens"] == "patch") | (table["run"] == "ground")
    is_match = (table["metric"] == "top2_set_match") & (table["tokens"] == "patch")
    is_match &= table["run"].isin(_MATCHED)
    # Nor the floors of arithmetic, nor means over fewer corruptions than families have.
    is_asked = ~table["view"].isin(["clean_again", "clean_other_batch", "clean_other_dtype"])
    is_asked &= (table["run"] != "corruptions") | (table["severity"] == SEVERITY)
    is_asked &= (table["run"] != "corruptions") | table["view"].isin(CORRUPTIONS)
    # A shift is as large as a real step from one frame to the next.
    is_asked &= (table["run"] != "shifts") | (table["view"] == "frame before")
    # Of the margins, at the weakest noise, where most sets still are what they were.
    is_margin = (table["run"] == "margins") & (table["tokens"] == "patch") & table["metric"].isin(MARGINS)
    is_margin &= table["severity"].isna() | (table["severity"] == WEAKEST)
    is_output = (table["metric"] == "accuracy") | ((table["metric"] == "loss") & (table["run"] == "eval"))
    return table[((is_kappa | is_match | is_output) & is_asked) | is_margin]


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
    shrink(folder / "figures" / f"overlay-{LAYER}.png", FIGURE, is_photograph=True)


def features(root: Path) -> pd.DataFrame:
    """Return how near the class tokens of all models are to the dense model's, and what nearest neighbors say."""
    config = load_config("photographs-baseline").model
    photographs = Photographs.of(root, config)
    pixels, labels, held_out = photographs.pixels, photographs.labels, photographs.split == "test"
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
    draw(Path(sys.argv[1]))
