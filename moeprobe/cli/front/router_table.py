"""The routers of checkpoints as a table: each beside the untrained routers of its shape, and what stands out."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from moeprobe.metrics.router_rows import BAND, DRAWS, PARALLEL

# Columns: the heading, and the numbers in it.
_COLUMNS = {
    "row length": ("norm_low", "norm_high"),
    "largest cosine": ("largest_cosine",),
    "effective rank": ("effective_rank",),
    "in common": ("common_share",),
    "in embedding": ("embedding_share",),
}
# More rows than this are counted in a sentence, and not named.
_MOST_NAMED = 8


def show_routers(inspection: Mapping[str, Any]) -> list[Table | str]:
    """Return the table of all layers, its legend, and a sentence for each fault."""
    models = inspection["checkpoints"]
    layers = dict.fromkeys(row["layer"] for model in models for row in model["layers"])
    by_layer = {
        layer: [
            (model["checkpoint"], row) for model in models for row in model["layers"] if row["layer"] == layer
        ]
        for layer in layers
    }
    rows_with_weights = [row for rows in by_layer.values() for _, row in rows if row["rows"] is not None]
    columns = {
        heading: names
        for heading, names in _COLUMNS.items()
        if any(row[names[0]] is not None for row in rows_with_weights)
    }
    has_bias = any(row["bias_low"] is not None for row in rows_with_weights)
    table = Table(title="Routers by their weights", title_justify="left")
    for heading in ("layer", "checkpoint", "rows × width"):
        table.add_column(heading)
    for heading in (*columns, *(["bias"] if has_bias else [])):
        table.add_column(heading, justify="right")
    printed_bands: list[Any] = []
    for layer, rows in by_layer.items():
        for checkpoint, row in rows:
            if row["rows"] is None:
                continue
            size = f"{row['rows']:,} × {row['width']:,}"
            # Layers of one shape and start have the same untrained routers.
            untrained = row["untrained"]
            if untrained not in printed_bands:
                printed_bands.append(untrained)
                bands = [_band(row, names) for names in columns.values()]
                table.add_row("", "untrained", size, *bands, *([""] if has_bias else []), style="dim")
            cells = [_cell(row, names) for names in columns.values()]
            bias = [_bias(row)] if has_bias else []
            table.add_row(layer, checkpoint, size, *cells, *bias)
    legend = (
        f"* outside of what {BAND:.0%} of {DRAWS} untrained routers show. Row length: the shortest and the longest. In "
        "common: share of the squared lengths that all rows share"
    )
    # What all products have in common changes a choice where rows are normalized first.
    is_harmless = all(row["is_choice_by_scores"] for row in rows_with_weights)
    legend += ", which changes no choice." if is_harmless else "."
    if "in embedding" in columns:
        legend += (
            " In embedding: share along the leading directions of the embedding, as many as there are rows."
        )
    if any(not row["start_is_known"] for row in rows_with_weights):
        legend += " How this model's routers start is not known: as a linear layer of torch, which sets lengths alone."
    sentences = [sentence for layer, rows in by_layer.items() for sentence in _sentences(layer, rows)]
    table_with_legend: list[Table | str] = [table, legend] if rows_with_weights else []
    return [*table_with_legend, *sentences]


def _cell(row: Mapping[str, Any], names: Sequence[str]) -> str:
    if row[names[0]] is None:
        return "–"
    text = " to ".join(_mark(row, name) for name in names)
    if names == ("largest_cosine",) and row["closest"] is not None:
        text += " ({}, {})".format(*row["closest"])
    return text


def _mark(row: Mapping[str, Any], name: str) -> str:
    return f"{row[name]:.3g}{'*' if name in row['outside'] else ''}"


def _band(row: Mapping[str, Any], names: Sequence[str]) -> str:
    bands = [row["untrained"][name] for name in names if name in row["untrained"]]
    if not bands:
        return "–"
    # Of the row lengths: from the shortest to the longest.
    return f"[{bands[0][0]:.3g}, {bands[-1][1]:.3g}]"


def _bias(row: Mapping[str, Any]) -> str:
    return "–" if row["bias_low"] is None else f"{row['bias_low']:.3g} to {row['bias_high']:.3g}"


def _sentences(layer: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[str]:
    """Yield the faults of the routers of a layer."""
    for checkpoint, row in rows:
        where = f"{layer} of {checkpoint}"
        if row["rows"] is None:
            yield f"{where}: its router has not one row for each expert, so it is left out."
            continue
        if row["zero"]:
            yield f"{where}: the rows of {_experts(row['zero'])} are zero, or next to it."
        if row["parallel"]:
            pairs = [f"{first} and {second}" for first, second in row["parallel"]]
            yield f"{where}: parallel rows (cosine of at least {PARALLEL}): {_list(pairs, 'pairs')}."
        if row["unreachable"]:
            yield (
                f"{where}: no token as long as a plain normalization makes it (√D) can choose "
                f"{_experts(row['unreachable'])}: the bias is out of reach."
            )


def _experts(numbers: Sequence[int]) -> str:
    return f"expert{'s' * (len(numbers) > 1)} {_list([str(number) for number in numbers], 'in all')}"


def _list(names: Sequence[str], noun: str) -> str:
    if len(names) <= _MOST_NAMED:
        return ", ".join(names)
    return f"{', '.join(names[:_MOST_NAMED])}, … ({len(names):,} {noun})"
