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
        curves: figures of learning curves: how the names of their cells begin, and the key that has a panel per value.
    """

    names: dict[str, str]
    references: dict[str, str]
    numbers: tuple[Number, ...]
    values: tuple[Column, ...]
    of_layers: tuple[Column, ...]
    drawn: tuple[Column, ...]
    curves: tuple[tuple[str, str], ...] = ()


ACCURACY: Column = ("accuracy", "accuracy", *CLEAN)
NOISY: Column = ("accuracy, σ 0.2", "accuracy", "", "gaussian_noise", 0.2)
TEN_SHOTS: Column = ("10-shot accuracy", "fewshot_accuracy", "", "clean", 10.0)
LOAD: Column = ("load entropy", "load_entropy", *CLEAN)
DEAD: Column = ("dead experts", "dead_experts", *CLEAN)
HIGHEST: Column = ("highest gate", "gate_highest", *CLEAN)
_OF_ACCURACY = Number("accuracy", "eval", "output", "accuracy")
_OF_NOISY = Number("accuracy, σ 0.2", "noise", "output", "accuracy", severity=0.2)
_NULLS = (("pooled", ""), ("image", " within the image"))
_OF_SHOTS = Number("10-shot accuracy", "fewshot", "fewshot", "fewshot_accuracy", severity=10.0)


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
_OF_STAGES = {
    "token-choice": "token choice",
    "priority": "priority routing",
    "expert-choice": "expert choice",
    "dense": "dense transformer",
    "moe": "dense to sparse",
    "moe-kl": "dense to sparse, gates near to the dense ones",
    "moe-whole_expert_dropout-0.1": "dense to sparse, 10 % of the experts dropped",
    "moe-expert_dropout-0.1": "dense to sparse, 10 % of the units dropped",
}
# Both ways to weigh the experts' outputs, and the ways to choose them.
_COMBINED = {"softmax": "softmax", "plan": "transport plan"}
_CHOOSING = {
    f"{router}-combine-{{}}-{size}": f"{name}, {said}"
    for router, name, sizes in (
        ("sinkhorn_token_choice", "Sinkhorn token choice", {"k1": "k = 1", "k2": "k = 2"}),
        ("sinkhorn_expert_choice", "Sinkhorn expert choice", {"c1": "c = 1", "c2": "c = 2"}),
        ("sparse_expert_choice", "sparse expert choice", {"c1": "c = 1", "c2": "c = 2"}),
    )
    for size, said in sizes.items()
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
    # The plan less the softmax, each with the same choices of k or c.
    "combine-digits": Sweep(
        names={
            group.format(combine): f"{name}: {said}"
            for group, name in _CHOOSING.items()
            for combine, said in _COMBINED.items()
        },
        references={group.format("plan"): group.format("softmax") for group in _CHOOSING},
        numbers=(_OF_ACCURACY, _OF_SHOTS, *_OF_WEIGHTS),
        values=(ACCURACY, TEN_SHOTS),
        of_layers=(HIGHEST, LOAD),
        drawn=(ACCURACY, TEN_SHOTS, HIGHEST),
        curves=(
            ("sinkhorn_token_choice", "model.top_k"),
            ("sinkhorn_expert_choice", "model.capacity_factor"),
            ("sparse_expert_choice", "model.capacity_factor"),
        ),
    ),
    # Token choice from the start is the reference; of what is changed in dense-to-sparse training, that without it.
    "thesis-digits": Sweep(
        names=_OF_STAGES,
        references={
            group: "moe" if group.startswith("moe-") else "token-choice" for group in [*_OF_STAGES][1:]
        },
        numbers=(_OF_ACCURACY, _OF_NOISY, *_OF_WEIGHTS),
        values=(ACCURACY, NOISY),
        of_layers=(HIGHEST, LOAD),
        drawn=(
            ACCURACY,
            ("κ of weights, random_crop", "weight_cosine_kappa", "pooled", "random_crop", None),
            LOAD,
        ),
    ),
    "mixup-digits": Sweep(
        names={"balanced": "V-MoE", "mixup": "V-MoE with mixup", "prc": "V-MoE with PRC ×10"},
        references={"mixup": "balanced", "prc": "mixup"},
        numbers=(_OF_ACCURACY, _OF_NOISY, *_of_match("prc_crops")),
        values=(ACCURACY, NOISY),
        of_layers=(HIGHEST, LOAD, DEAD),
        drawn=(ACCURACY, NOISY, _kappa("prc_crops")),
    ),
    "manual-digits": Sweep(
        names={"learned": "token choice from the start", "manual": "by class, then a learned gate"},
        references={"manual": "learned"},
        numbers=(_OF_ACCURACY, _OF_NOISY, *_of_match("random_crop")),
        values=(ACCURACY, NOISY),
        of_layers=(HIGHEST, LOAD, DEAD),
        drawn=(ACCURACY, _kappa("random_crop"), LOAD),
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
        if layer and layer not in set(rows["layer"]):
            continue  # a dense model
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
