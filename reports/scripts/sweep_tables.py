"""The tables of the pages about sweeps, from their committed numbers."""

import io
from collections.abc import Iterable
from pathlib import Path

import pandas as pd

from moeprobe.results.packed import read_pack
from reports.scripts.claims import cells_of, of_sweep
from reports.scripts.seeds import Column, layers, middle, read
from reports.scripts.sweep_list import SWEEPS, Number, Sweep

# In millions.
_SCALES = {"flops_per_image": 1e-6}


def outputs(folder: Path) -> list[str]:
    """Return the numbers of the output, a line per group of cells, and mean differences from its reference."""
    sweep = SWEEPS[folder.name]
    numbers = _headings(sweep.numbers, layered=False)
    return _lines(sweep, read(folder)[0], of_sweep(folder), layer="", values=sweep.values, numbers=numbers)


def of_layers(folder: Path) -> list[str]:
    """Return the same of the MoE layers, the first one first."""
    sweep = SWEEPS[folder.name]
    numbers = _headings((*sweep.numbers, *sweep.of_trainings), layered=True)
    table, claims = read(folder)[0], of_sweep(folder)
    found = [
        _lines(sweep, table, claims, layer=layer, values=sweep.of_layers, numbers=numbers)
        for layer in layers(table)
    ]
    return [*found[0], *(line for more in found[1:] for line in more[2:])]


def _lines(
    sweep: Sweep,
    table: pd.DataFrame,
    claims: pd.DataFrame,
    *,
    layer: str,
    values: tuple[Column, ...],
    numbers: list[str],
) -> list[str]:
    headings = [*([layer and "MoE layer"] if layer else []), "", *(heading for heading, *_ in values)]
    headings += [f"Δ {number}" for number in numbers]
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for group, name in sweep.names.items():
        rows = table[table["group"] == group]
        if layer and layer not in set(rows["layer"]):
            continue  # a dense model
        cells = [f"`{layer}`"] if layer else []
        cells += [
            name,
            *(
                middle(rows, layer, column, digits=_digits(column), scale=_SCALES.get(column[1], 1.0))
                for column in values
            ),
        ]
        cells += cells_of(claims, group, layer, numbers) if group in sweep.references else [""] * len(numbers)
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


def _headings(numbers: Iterable[Number], *, layered: bool) -> list[str]:
    return [number.heading for number in numbers if number.layered == layered]


def _digits(column: Column) -> int:
    return 0 if column[1] == "dead_experts_first" else 3
