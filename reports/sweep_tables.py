"""What is shown of the committed sweeps: which cells are compared with which, and the tables of the pages."""

import io
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pandas as pd
from seeds import CLEAN, Column, layers, middle, read, spread

from moeprobe.results.packed import read_pack


class Number(NamedTuple):
    """A number that is compared: its heading, where it stands, and whether it is of layers."""

    heading: str
    folder: str
    analysis: str
    metric: str
    null: str = ""
    severity: float | None = None
    layered: bool = False


@dataclass(frozen=True)
class Sweep:
    """What is shown of a sweep.

    Attributes:
        names: groups of cells, and what the page calls them.
        references: a group -> the group that it is compared with; those that are not there are references.
        numbers: what is compared.
        values: numbers of the output that are shown beside.
        of_layers: numbers of layers that are shown beside.
        drawn: numbers of the output or of the first MoE layer that the figure has a panel for.
    """

    names: dict[str, str]
    references: dict[str, str]
    numbers: tuple[Number, ...]
    values: tuple[Column, ...]
    of_layers: tuple[Column, ...]
    drawn: tuple[Column, ...]


ACCURACY: Column = ("accuracy", "accuracy", *CLEAN)
NOISY: Column = ("accuracy, σ 0.2", "accuracy", "", "gaussian_noise", 0.2)
LOAD: Column = ("load entropy", "load_entropy", *CLEAN)
DEAD: Column = ("dead experts", "dead_experts", *CLEAN)
HIGHEST: Column = ("highest gate", "gate_highest", *CLEAN)
_OF_ACCURACY = Number("accuracy", "eval", "output", "accuracy")
_OF_NOISY = Number("accuracy, σ 0.2", "noise", "output", "accuracy", severity=0.2)
_NULLS = (("pooled", ""), ("image", " within the image"))


def _of_match(view: str) -> tuple[Number, ...]:
    """Return κ of first experts under a view and under noise."""
    return tuple(
        Number(f"κ{within}, {heading}", folder, "match", "top1_match_kappa", null, severity, layered=True)
        for heading, folder, severity in ((view, f"match-{view}", None), ("noise σ 0.2", "noise", 0.2))
        for null, within in _NULLS
    )


def _kappa(view: str) -> Column:
    return f"κ of first experts, {view}", "top1_match_kappa", "pooled", view, None


_OF_WEIGHTS = tuple(
    Number(
        f"κ{within}, random_crop", "match-random_crop", "weights", "weight_cosine_kappa", null, layered=True
    )
    for null, within in _NULLS
)
_PRC = "prc-diagonal_weight-{}-offdiagonal_weight-{}"
_ABLATION = {
    "balanced": "importance and load (V-MoE)",
    "balanced-importance_weight-0-load_weight-0": "no loss on the routing",
    "jsd-weight-0.05": "JSD, weight 0.05",
    "jsd-weight-0.5": "JSD, weight 0.5",
    "jsd-weight-5": "JSD, weight 5",
    _PRC.format(0, 0.5): "PRC ×10, off the diagonal alone",
    _PRC.format(0.05, 0): "PRC ×10, the diagonal alone",
    _PRC.format(0.005, 0.05): "PRC ×1, the paper's weights",
    _PRC.format(0.05, 0.5): "PRC ×10",
    _PRC.format(0.2, 2): "PRC ×40",
    _PRC.format(0.5, 5): "PRC ×100",
    _PRC.format(0.05, 0.5) + "-noisy-True": "PRC ×10, noise in S",
    "prc_released-diagonal_weight-0.05-offdiagonal_weight-0.5": "PRC ×10 as released",
}
_LABELS = "labeled-{}-unlabeled-{}-{}"
_WITH = {
    "V-MoE, those alone": (False, "balanced"),
    "PRC ×10, those alone": (False, _PRC.format(0.05, 0.5)),
    "PRC ×10, all images": (True, _PRC.format(0.05, 0.5)),
}
SWEEPS = {
    "prc-ablation": Sweep(
        names=_ABLATION,
        references={group: "balanced" for group in _ABLATION if group != "balanced"},
        numbers=(_OF_ACCURACY, _OF_NOISY, *_of_match("prc_crops")),
        values=(ACCURACY, NOISY),
        of_layers=(
            HIGHEST,
            ("sum of the rest", "gate_rest", *CLEAN),
            ("entropy of the gates", "gate_entropy", *CLEAN),
            LOAD,
            DEAD,
        ),
        drawn=(_kappa("prc_crops"), HIGHEST, DEAD),
    ),
    # How many tokens find no room is a number of the trainings: cells are measured with room for all.
    "drops-digits": Sweep(
        names={
            "balanced": "importance and load",
            "balanced-importance_weight-0-load_weight-0": "no loss on the routing",
        },
        references={"balanced-importance_weight-0-load_weight-0": "balanced"},
        numbers=(_OF_ACCURACY, *_OF_WEIGHTS),
        values=(ACCURACY,),
        of_layers=(LOAD, DEAD),
        drawn=(LOAD, HIGHEST, DEAD),
    ),
    # Each group with the one before it: what PRC adds to the labeled images, then what the others add to PRC.
    "labels-digits": Sweep(
        names={
            _LABELS.format(share, *how): f"{100 * share:.0f} % labeled: {what}"
            for share in (0.05, 0.1, 0.25)
            for what, how in _WITH.items()
        },
        references={
            _LABELS.format(share, *how): _LABELS.format(share, *before)
            for share in (0.05, 0.1, 0.25)
            for before, how in pairwise(_WITH.values())
        },
        numbers=(_OF_ACCURACY, _OF_NOISY, *_of_match("random_crop")),
        values=(ACCURACY, NOISY),
        of_layers=(HIGHEST, LOAD, DEAD),
        drawn=(ACCURACY, _kappa("random_crop"), HIGHEST, DEAD),
    ),
}


def outputs(folder: Path) -> list[str]:
    """Return the numbers of the output, a line per group of cells, and differences to its reference."""
    sweep = SWEEPS[folder.name]
    numbers = [number.heading for number in sweep.numbers if not number.layered]
    return _lines(folder, "", sweep.values, numbers)


def of_layers(folder: Path) -> list[str]:
    """Return the same of the MoE layers, the first one first."""
    sweep = SWEEPS[folder.name]
    numbers = [number.heading for number in sweep.numbers if number.layered]
    table, _ = read(folder)
    found = [_lines(folder, layer, sweep.of_layers, numbers) for layer in layers(table)]
    return [*found[0], *(line for more in found[1:] for line in more[2:])]


def _lines(folder: Path, layer: str, values: tuple[Column, ...], numbers: list[str]) -> list[str]:
    sweep = SWEEPS[folder.name]
    table, differing = read(folder)
    headings = [*([layer and "MoE layer"] if layer else []), "", *(heading for heading, *_ in values)]
    headings += [f"Δ {number}" for number in numbers]
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for group, name in sweep.names.items():
        rows = table[table["group"] == group]
        own = differing[(differing["group"] == group) & (differing["layer"] == layer)]
        cells = [f"`{layer}`"] if layer else []
        cells += [name, *(middle(rows, layer, column, digits=_digits(column)) for column in values)]
        cells += [
            spread(own[own["number"] == number]) if group in sweep.references else "" for number in numbers
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def terms(folder: Path) -> list[str]:
    """Return the two terms of PRC, lowest to highest of the seeds."""
    rows = pd.read_csv(folder / "terms.csv")
    said = {"prc_diagonal": "diagonal", "prc_offdiagonal": "off the diagonal"}
    columns = [(layer, metric) for layer in layers(rows) for metric in said]
    lines = [
        f"| | {' | '.join(f'`{layer}`: {said[metric]}' for layer, metric in columns)} |",
        f"|{'---|' * (1 + len(columns))}",
    ]
    for group, name in SWEEPS[folder.name].names.items():
        here = rows[rows["group"] == group].set_index(["layer", "metric"])["value"]
        ends = [here.loc[column].agg(["min", "max"]) for column in columns]
        lines.append(f"| {name} | {' | '.join(f'{low:.3f} to {high:.3f}' for low, high in ends)} |")
    return lines


def drops(folder: Path) -> list[str]:
    """Return how many tokens find no room in training, lowest to highest of the seeds."""
    columns = {
        "dropped, first epoch": ("train_dropped", 0),
        "dropped, last epoch": ("train_dropped", -1),
        "room that is used, last epoch": ("train_buffer_fill", -1),
        "validation accuracy, last epoch": ("val_accuracy", -1),
    }
    curves = {name: pd.read_csv(io.StringIO(cell.metrics)) for name, cell in read_pack(folder).items()}
    lines = [f"| | {' | '.join(columns)} |", f"|{'---|' * (1 + len(columns))}"]
    for group, name in SWEEPS[folder.name].names.items():
        own = [curve for cell, curve in curves.items() if cell.rpartition("-seed")[0] == group]
        cells = []
        for column, place in columns.values():
            values = [float(curve[column].iloc[place]) for curve in own]
            cells.append(f"{min(values):.3f} to {max(values):.3f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _digits(column: Column) -> int:
    return 0 if column[1] == "dead_experts" else 3
