"""Make again what is committed under ``reports/routers``, from the packed cells there.

    make fetch-archive
    make reports

No model is needed. ``tables.md`` says the same as ``table.csv``, a line for each router and budget: of three training
seeds the middle one with its interval over images, and the lowest and the highest; every MoE layer, the first one
first. Seeds are never pooled. To train and measure again:
``moeprobe tradeoff routers-digits --out reports/routers/digits``.
"""

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from moeprobe import api
from moeprobe.runtime.files import write_csv
from reports.scripts import contrasts
from reports.scripts.at_once import each
from reports.scripts.claims import cells_of, of_sweep
from reports.scripts.seeds import CLEAN, Column, compared, compress, layers, middle, read, spread, with_cells
from reports.scripts.sweep_list import COMPARED, OF_ROUTERS, VMOE, name_of

REPORTS = Path("reports/routers")
# Of ``python -m benchmarks.speed models``, a folder per data set: steps timed in turn.
TIMES = Path("reports/router-times")

# Title of a table, and its columns: heading, and the rows' metric, null, view, severity.
_COST = ("", None, None)
_PERTURBED = (
    ("random_crop", "random_crop", None),
    ("prc_crops", "prc_crops", None),
    ("noise, σ 0.1", "gaussian_noise", 0.1),
    ("noise, σ 0.2", "gaussian_noise", 0.2),
)


def _kappas(metric: str) -> tuple[Column, ...]:
    """Return κ against chance and against other patches of the same image."""
    return tuple(
        (f"{heading}{within}", metric, null, view, severity)
        for null, within in (("pooled", ""), ("image", "; within the image"))
        for heading, view, severity in _PERTURBED
    )


OUTPUT: dict[str, tuple[Column, ...]] = {
    "What is reached, and what it costs": (
        ("accuracy", "accuracy", *CLEAN),
        ("10-shot accuracy", "fewshot_accuracy", "", "clean", 10.0),
        ("accuracy, σ 0.2", "accuracy", "", "gaussian_noise", 0.2),
        ("ms per step, timed in turn", "step_seconds_in_turn", *_COST),
        ("MFLOPs per image", "flops_per_image", *_COST),
        ("active parameters, M", "active_parameters", *_COST),
    ),
}
OF_LAYERS: dict[str, tuple[Column, ...]] = {
    "Steadiness of the combine weights: κ of their cosine, which exists for every router": _kappas(
        "weight_cosine_kappa"
    ),
    "Steadiness of the experts that work on a token: κ of the Jaccard index of the two sets": _kappas(
        "set_jaccard_kappa"
    ),
    "Load and contagion (groups of four images; trained with groups of one where experts choose)": (
        ("load entropy, first choices", "load_entropy_first", *CLEAN),
        ("patches without an expert", "unserved", *CLEAN),
        ("batch contagion", "batch_contagion", *CLEAN),
        ("token contagion", "token_contagion", *CLEAN),
        ("attention contagion", "attention_contagion", *CLEAN),
        ("attention contagion: distance", "attention_contagion_distance", *CLEAN),
    ),
}
# What values and differences are, by the number of training seeds.
_VALUES = {
    1: "One training seed: the value [95 % interval over {:,} {} images]",
    3: "Of three training seeds: the middle value [95 % interval over {:,} {} images], lowest to highest",
}
_DIFFERENCES = {
    1: "The difference [95 % interval over images, each about its own number].",
    3: "Lowest to highest of three seeds, and for how many of them the 95 % interval (each about its own number, in "
    "`differences.csv`) lies above (+) or below (−) zero.",
}
# Numbers that are not shares: digits after the point, and what they are multiplied with.
_SCALES = {
    "training_spikes": (0, 1.0),
    "step_seconds_in_turn": (1, 1e3),
    "flops_per_image": (1, 1e-6),
    "active_parameters": (2, 1e-6),
}


def regenerate(name: str) -> None:
    """Draw and write one sweep."""
    out = REPORTS / name
    result = api.tradeoff([], out=out, times=TIMES / name, command="make reports")
    differing = differences(out, result.table)
    write_csv(out / "differences.csv", differing)
    contrasts.write(out, result.table)
    compress(out)
    # As pages read it: with one expert per token, the load is that of first choices.
    (out / "tables.md").write_text(tables(*read(out)), encoding="utf-8")


def differences(out: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Return differences in every MoE layer, image by image, from V-MoE's router of the same budget and seed."""
    cells = table.drop_duplicates("checkpoint").set_index("checkpoint")
    budget = cells["top_k"].fillna(cells["capacity_factor"]).astype(int)
    places = dict.fromkeys((number.folder, number.analysis, number.layered) for number in OF_ROUTERS)
    rows = []
    for name, cell in cells[cells["router"] != VMOE].iterrows():
        same = (
            (cells["router"] == VMOE) & (cells["train_seed"] == cell["train_seed"]) & (budget == budget[name])
        )
        (reference,) = cells.index[same]
        probed = {
            (folder, analysis): compared(
                out,
                (reference, str(name)),
                folder,
                analysis,
                severities={number.severity for number in OF_ROUTERS},
                layered=layered,
            )
            for folder, analysis, layered in places
        }
        about = {"group": cell["group"], "train_seed": cell["train_seed"], "router": cell["router"]}
        for number in OF_ROUTERS:
            of_number = number.rows_of(probed[number.folder, number.analysis])
            rows.append(of_number.assign(**about, number=number.heading))
    return pd.concat([row.dropna(axis=1, how="all") for row in rows], ignore_index=True)


def tables(table: pd.DataFrame, differing: pd.DataFrame) -> str:
    """Return the numbers of every MoE layer in Markdown, the first one first, a line per router and budget."""
    first, seeds = table[table["metric"] == "accuracy"].iloc[0], table["train_seed"].nunique()
    parts = [
        f"# Routers on {first['dataset']}",
        f"{_VALUES[seeds].format(first['images'], first['split'])}. Patches. –: does not exist for this router. The "
        "ten shots of 10-shot accuracy are of the training task, unlike the paper's, which are of another data set. "
        "Steps were timed while the machine "
        "did other work as well, more of it at times: `make bench` compares what routers cost. Where experts choose, "
        "an image is a group of its own in training, as in the released program; the paper's text speaks of batches of "
        "several images.",
    ]
    parts += [_table(table, title, columns, layer="") for title, columns in OUTPUT.items()]
    names = layers(table)
    parts += [
        _table(table, f"{title}: {layer}", columns, layer=layer)
        for title, columns in OF_LAYERS.items()
        for layer in names
    ]
    parts.append(
        f"## Minus `{VMOE}` of the same budget and seed\n\n"
        f"Paired, image by image. {_DIFFERENCES[seeds]} κ is that of the cosine of the "
        "combine weights; within the image, another patch of the same image is what chance would give."
    )
    parts += [_differences(table, differing, layer) for layer in ["", *layers(differing)]]
    return "\n\n".join(parts) + "\n"


def _table(table: pd.DataFrame, title: str, columns: tuple[Column, ...], *, layer: str) -> str:
    lines = [f"## {title}", "", f"| router | k or c | {' | '.join(name for name, *_ in columns)} |"]
    lines.append(f"|{'---|' * (len(columns) + 2)}")
    for _, rows in table.groupby("group", sort=False):
        about = rows.iloc[0]
        cells = [_cell(rows, layer, column) for column in columns]
        lines.append(f"| `{about['router']}` | {_budget(about)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _differences(table: pd.DataFrame, differing: pd.DataFrame, layer: str) -> str:
    here = differing[differing["layer"] == layer]
    headings = list(dict.fromkeys(here["number"]))
    lines = [
        f"### {layer or 'Output'}",
        "",
        f"| router | k or c | {' | '.join(headings)} |",
        f"|{'---|' * (len(headings) + 2)}",
    ]
    about = table.drop_duplicates("group").set_index("group")
    for group, rows in here.groupby("group", sort=False):
        cells = [spread(rows[rows["number"] == heading]) for heading in headings]
        lines.append(
            f"| `{about.loc[group, 'router']}` | {_budget(about.loc[group])} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def accuracy_lines(folder: Path) -> list[str]:
    """Return the pages' table of accuracies, in Markdown: at two experts per token."""
    table, differing = read(folder)
    changes = _changes(folder, differing)
    shown = [number.heading for number in OF_ROUTERS if not number.layered]
    values = ("", "accuracy", *CLEAN), ("", "fewshot_accuracy", "", "clean", 10.0)
    lines = [
        f"| router | accuracy | 10-shot accuracy | {' | '.join(f'Δ {name}' for name in shown)} |",
        f"|{'---|' * (3 + len(shown))}",
    ]
    for group, rows in _of_two(table).groupby("group", sort=False):
        router, cells = rows.iloc[0]["router"], [_cell(rows, "", column) for column in values]
        cells += [""] * len(shown) if router == VMOE else changes(str(group), "", shown)
        lines.append(f"| `{router}` | {' | '.join(cells)} |")
    for mean, name in _means_of_two(folder).items():
        lines.append(f"| {name} | | | {' | '.join(changes(mean, '', shown))} |")
    return lines


def steadiness_lines(folder: Path) -> list[str]:
    """Return the pages' table of differences in κ, in Markdown: at two experts per token, the first layer first."""
    table, differing = read(folder)
    changes = _changes(folder, differing)
    shown = [number.heading for number in OF_ROUTERS if number.layered]
    lines = [f"| MoE layer | router | {' | '.join(f'Δ {name}' for name in shown)} |"]
    lines.append(f"|{'---|' * (2 + len(shown))}")
    cells = _of_two(table).drop_duplicates("group")
    names = {group: f"`{router}`" for group, router in zip(cells["group"], cells["router"], strict=True)}
    compared_ones = {group: name for group, name in names.items() if name != f"`{VMOE}`"}
    for layer in layers(differing):
        for group, name in (compared_ones | _means_of_two(folder)).items():
            lines.append(f"| `{layer}` | {name} | {' | '.join(changes(group, layer, shown))} |")
    return lines


def _changes(folder: Path, differing: pd.DataFrame) -> Callable[[str, str, Sequence[str]], list[str]]:
    """Return what says by how much a group differs from V-MoE's router in a layer: a cell per number.

    Over trainings, or of the one training that there is.
    """
    if name_of(folder) in COMPARED:
        return partial(cells_of, of_sweep(folder))

    def of_one(group: str, layer: str, numbers: Sequence[str]) -> list[str]:
        own = differing[(differing["group"] == group) & (differing["layer"] == layer)]
        return [spread(own[own["number"] == number]) for number in numbers]

    return of_one


def _means_of_two(folder: Path) -> dict[str, str]:
    """Return the means over routers at two experts per token, and what a page calls them."""
    means = COMPARED[name_of(folder)].means if name_of(folder) in COMPARED else {}
    return {name: name.split(",")[0] for name in means if name.endswith("2")}


def contagion_lines(table: pd.DataFrame) -> list[str]:
    """Return the pages' table of batch contagion, in Markdown: lowest to highest of the seeds, layer by layer."""
    here = _of_two(table[(table["metric"] == "batch_contagion") & table["draw"].isna()])
    names = layers(here)
    lines = [f"| router | {' | '.join(f'`{layer}`' for layer in names)} |", f"|{'---|' * (1 + len(names))}"]
    for router, rows in here.groupby("router", sort=False):
        ends = [rows.loc[rows["layer"] == layer, "value"].agg(["min", "max"]) for layer in names]
        cells = [f"{low:.2f} to {high:.2f}" if high else "0" for low, high in ends]
        lines.append(f"| `{router}` | {' | '.join(cells)} |")
    return lines


def _of_two(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["top_k"].fillna(table["capacity_factor"]) == 2]


def _budget(about: pd.Series) -> str:
    return f"c = {about['capacity_factor']:g}" if pd.isna(about["top_k"]) else f"k = {about['top_k']:g}"


def _cell(rows: pd.DataFrame, layer: str, column: Column) -> str:
    digits, scale = _SCALES.get(column[1], (3, 1.0))
    return middle(rows, layer, column, digits=digits, scale=scale)


if __name__ == "__main__":
    each(regenerate, with_cells(REPORTS, sys.argv[1:]))
