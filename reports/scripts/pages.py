"""Put the numbers of the committed reports into the README and docs/results, between markers that name their source.

    python -m reports.scripts.pages

A block begins with ``<!-- from FOLDER: NAME -->`` and ends with ``<!-- end -->``. A test holds that the pages say
what the reports say. Sentences with numbers are no blocks: read them again after this.
"""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pandas as pd

from moeprobe.results.tables import with_shown_intervals
from moeprobe.studies.paper.tables import cell, dead, layers_of
from reports.scripts import (
    align_tables,
    attack_tables,
    experts_tables,
    fashion_tables,
    faults,
    flips_tables,
    kappa_reference,
    more_tables,
    regret_tables,
    router_costs,
    scale,
    sources,
    sweep_tables,
    thesis_tables,
    training_tables,
)
from reports.scripts.contrasts import lines as contrast_lines
from reports.scripts.real import price_tables
from reports.scripts.real import tables as real_tables
from reports.scripts.real.texts import tables as texts_tables
from reports.scripts.regenerate_routers import accuracy_lines, contagion_lines, steadiness_lines
from reports.scripts.seeds import read

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "docs" / "concepts" / "good-kappa.md",
    ROOT / "docs" / "concepts" / "interval-coverage.md",
    ROOT / "docs" / "concepts" / "intervals.md",
    ROOT / "docs" / "contributing" / "architecture.md",
    *sorted((ROOT / "docs" / "results").glob("*.md")),
)
_BLOCK = re.compile(r"<!-- from (?P<folder>[^:\n]+): (?P<name>[^\n]+) -->\n.*?<!-- end -->", re.DOTALL)
# What is shown of the first seed: in the README, in its words, on its own page; and of all seeds.
IN_SHORT = {
    "random_crop: top-2 match, any order": "same two experts in two random crops",
    "random_crop: κ": "κ, the same corrected for chance",
    "random_crop: κ₁": "κ₁, of the first of the two",
    "dead as first choice": "dead experts (of 8), counting first choices",
    "accuracy": "accuracy",
}
OF_FIRST = (
    "random_crop: top-2 match, any order",
    "random_crop: κ",
    "random_crop: κ within image",
    "random_crop: top-1 match",
    "random_crop: κ₁",
    "prc_crops: κ",
    "prc_crops: κ₁",
    "highest gate",
    "load entropy",
    "dead experts",
)
OF_SEEDS = (
    "random_crop: κ",
    "random_crop: κ within image",
    "random_crop: κ₁",
    "prc_crops: κ",
    "prc_crops: κ₁",
    "highest gate",
    "load entropy",
    "dead experts",
    "dead as first choice",
)


def main() -> None:
    """Write the pages with all their blocks as the reports have them."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


def filled(text: str) -> str:
    """Return a text whose blocks say what the reports say; all else is left as it is."""

    def block(match: re.Match[str]) -> str:
        lines = "\n".join(MAKERS[match["name"]](ROOT / match["folder"]))
        return f"<!-- from {match['folder']}: {match['name']} -->\n{lines}\n<!-- end -->"

    return _BLOCK.sub(block, text)


def first_seed(folder: Path) -> list[str]:
    """Return the numbers of the first pair: a line per MoE layer and number, the first layer first."""
    first, names = _first_pair(folder)
    lines = [f"| MoE layer | | {' | '.join(names)} | difference |", "|---|---|---|---|---|"]
    for layer in layers_of(first):
        lines += [f"| `{layer}` | {_line(first, layer, number)}" for number in OF_FIRST]
    return [*lines, f"| output | {_line(first, '', 'accuracy')}"]


def in_short(folder: Path) -> list[str]:
    """Return four numbers of the first pair, of the first MoE layer; only differences have intervals."""
    first, names = _first_pair(folder)
    lines = [f"| | {' | '.join(names)} | difference [simultaneous 95 %] |", "|---|---|---|---|"]
    for number, label in IN_SHORT.items():
        rows = first[(first["number"] == number) & first["layer"].isin(["", layers_of(first)[0]])]
        *values, difference = (row for _, row in rows.iterrows())
        same = difference["ci_low"] == difference["ci_high"]  # of counts: an interval says nothing more
        shown = [cell(row).partition(" ")[0] for row in values]
        shown.append(cell(difference).partition(" ")[0] if same else cell(difference))
        lines.append(f"| {label} | {' | '.join(shown)} |")
    return lines


def all_seeds(folder: Path) -> list[str]:
    """Return the differences of all pairs, layer by layer."""
    table = _seeds(folder)
    lines = [f"| MoE layer | k | seed | {' | '.join(OF_SEEDS)} |", f"|{'---|' * (len(OF_SEEDS) + 3)}"]
    differences = table[table["kind"] == "difference"]
    for layer in layers_of(table):
        here = differences[differences["layer"] == layer]
        for (top_k, seed), rows in here.groupby(["top_k", "seed"], sort=False):
            by_number = rows.set_index("number")
            # With k = 1 the first choice is the only one.
            cells = " | ".join(
                cell(by_number.loc[name]) if name in by_number.index else "" for name in OF_SEEDS
            )
            lines.append(f"| `{layer}` | {top_k} | {seed} | {cells} |")
    return lines


def accuracies(folder: Path) -> list[str]:
    """Return the accuracies of all pairs, and their differences."""
    table = _seeds(folder)
    here = table[table["number"] == "accuracy"]
    names = dict.fromkeys(here.loc[here["kind"] == "value", "model"])
    lines = [
        f"| k | seed | {' | '.join(f'accuracy, {name}' for name in names)} | difference |",
        "|---|---|---|---|---|",
    ]
    for (top_k, seed), rows in here.groupby(["top_k", "seed"], sort=False):
        lines.append(f"| {top_k} | {seed} | {' | '.join(cell(row) for _, row in rows.iterrows())} |")
    return lines


def dead_experts(folder: Path) -> list[str]:
    """Return the dead experts, a line per MoE layer, k and choices, a cell per model: which, seed by seed."""
    load = pd.read_csv(folder / "load.csv")
    models = dict.fromkeys(load["model"])
    lines = [f"| MoE layer | k | choices | {' | '.join(models)} |", f"|{'---|' * (3 + len(models))}"]
    for (top_k, layer, choices), rows in load.groupby(["top_k", "layer", "choices"], sort=False):
        cells = []
        for model in models:
            own = rows[rows["model"] == model]
            by_seed = [dead(part) for _, part in own.groupby("seed", sort=False)]
            cells.append("; ".join(", ".join(map(str, experts)) or "none" for experts in by_seed))
        lines.append(f"| `{layer}` | {top_k} | {choices} | {' | '.join(cells)} |")
    return lines


def causes_of_accuracy(folder: Path) -> list[str]:
    """Return what the strongest noise does to the accuracy of the first pair, by features and by switching experts."""
    table = _pair_of(folder / "noise-sweep")
    strongest = table[table["severity"] == table["severity"].max()]
    numbers = {
        "accuracy": f"accuracy at σ {strongest['severity'].iloc[0]:g}",
        "accuracy_features": "its change by the features",
        "accuracy_switching": "its change by switching experts",
    }
    return _numbers(strongest, numbers)


def switches(folder: Path) -> list[str]:
    """Return how many switches per image of the first pair jump further than some sizes, and the sum of the jumps."""
    sizes = ("1e-06", "0.0001", "0.001", "0.01", "0.1")
    numbers = {f"switches_above_{size}": f"switches per image, jump above {size}" for size in sizes}
    return _numbers(_pair_of(folder / "discontinuity"), numbers | {"jump_sum": "sum of the jumps per image"})


def _both_of(run: Path) -> pd.DataFrame:
    """Return the values and differences of a run with two checkpoints; ``kind`` says which is which."""
    differences = with_shown_intervals(pd.read_csv(run / "comparison.csv"))
    tables = {"value": pd.read_csv(run / "table.csv"), "difference": differences}
    return pd.concat([rows.assign(kind=kind) for kind, rows in tables.items()])


def _pair_of(run: Path) -> pd.DataFrame:
    """Return the values and differences of the output of a run with two checkpoints."""
    table = _both_of(run)
    return table[table["layer"].isna()]


def _numbers(table: pd.DataFrame, names: Mapping[str, str]) -> list[str]:
    """Return a line per metric: what it is called here, a value per model, the difference."""
    lines = ["| | V-MoE | V-MoE with PRC | difference |", "|---|---|---|---|"]
    for metric, name in names.items():
        cells = (cell(row) for _, row in table[table["metric"] == metric].iterrows())
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def router_contagion(folder: Path) -> list[str]:
    """Return how far routers depend on the other images of a group."""
    return contagion_lines(read(folder)[0])


def gate(folder: Path) -> list[str]:
    """Return how often the gate fails a model that is no worse, a line per metric and what is judged together."""
    table = pd.read_csv(folder / "table.csv")
    counts = list(dict.fromkeys(table["images"]))
    heads = " | ".join(f"{number} images" for number in counts)
    lines = [
        f"| metric | judged as a family | comparisons | {heads} | nominal |",
        f"|{'---|' * (4 + len(counts))}",
    ]
    for (metric, family), rows in table.groupby(["metric", "family"], sort=True):
        first = rows.iloc[0]
        shares = " | ".join(
            f"{row['share']:.3f} ({row['failed']} of {row['runs']})" for _, row in rows.iterrows()
        )
        lines.append(f"| `{metric}` | {family} | {first['cells']} | {shares} | {first['nominal']:.3f} |")
    return lines


def exchanged(folder: Path) -> list[str]:
    """Return how often surfaces name a side where nothing differs, a line per run and number of images."""
    table = pd.read_csv(folder / "table.csv")
    surfaces = list(dict.fromkeys(table["surface"]))
    lines = [
        f"| run | images | plain 95 % | {' | '.join(surfaces)} |",
        f"|{'---|' * (3 + len(surfaces))}",
    ]
    for (name, images), rows in table.groupby(["run", "images"], sort=False):
        shares = rows.set_index("surface")["share"]
        cells = " | ".join(f"{shares[surface]:.3f}" if surface in shares else "–" for surface in surfaces)
        lines.append(f"| `{name}` | {images} | {rows['plain'].iloc[0]:.3f} | {cells} |")
    return lines


MAKERS: dict[str, Callable[[Path], list[str]]] = {
    "how often the gate fails an equal model": gate,
    "how often surfaces name a side": exchanged,
    "mutants that tests kill": more_tables.mutants,
    "the first seed in short": in_short,
    "the first seed": first_seed,
    "reference values of κ": kappa_reference.lines,
    "all seeds": all_seeds,
    "over trainings and images": training_tables.lines,
    "corruptions over trainings and images": training_tables.corruptions,
    "attacks over trainings and images": training_tables.attacks,
    "means of a sweep": training_tables.means,
    "accuracies": accuracies,
    "dead experts": dead_experts,
    "what changes the accuracy under noise": causes_of_accuracy,
    "switches and jumps": switches,
    "rows by state": sources.counts,
    **{source: partial(sources.lines, source=source) for source in sources.names()},
    "accuracy of routers": accuracy_lines,
    "steadiness of routers": steadiness_lines,
    "contagion of routers": router_contagion,
    "contrasts of routers": contrast_lines,
    "costs of routers": router_costs.lines,
    "quality of real models": real_tables.quality,
    "κ on photographs": real_tables.claims,
    "noise that changes sets": real_tables.margins,
    "pictures that were taken as pairs": real_tables.pairs,
    "flips along a video": real_tables.flips,
    "prices of flips on photographs": price_tables.flips,
    "interventions on experts on photographs": price_tables.experts,
    "likeness of experts on photographs": price_tables.likeness,
    "quality of text encoders": texts_tables.quality,
    "κ on texts": texts_tables.claims,
    "experts by domain": texts_tables.domains,
    "int8 form of text encoders": texts_tables.forms,
    "choices of text encoders": texts_tables.precision,
    "ranks of the router's choice": regret_tables.ranks,
    "regrets of the router's choice": regret_tables.losses,
    "ranks of the router's choice on photographs": partial(
        regret_tables.ranks, values="regret", trainings="regret-trainings"
    ),
    "flips by margin": more_tables.margins,
    "AUC of margins": more_tables.areas,
    "critical noise": more_tables.critical,
    "predicted flips": more_tables.predicted,
    "flips by prediction": more_tables.by_prediction,
    "natural deformations": more_tables.deformations,
    "ten shots of other data": more_tables.transfer,
    "corruptions": more_tables.corruptions,
    "shares of data and seed": align_tables.shares,
    "aligned pairs": align_tables.pairs,
    "prices of flips": flips_tables.prices,
    "flips by decile": flips_tables.deciles,
    "costs of flips": flips_tables.costs,
    "fit of predicted costs": flips_tables.fits,
    "bans of experts": experts_tables.bans,
    "other interventions on experts": experts_tables.interventions,
    "likeness of experts": experts_tables.likeness,
    "ranks of experts": experts_tables.ranks,
    "choices of the digits models": partial(more_tables.precision, name="digits"),
    "choices of the OLMoE": partial(more_tables.precision, name="olmoe"),
    "outputs of a sweep": sweep_tables.outputs,
    "layers of a sweep": sweep_tables.of_layers,
    "terms of PRC": sweep_tables.terms,
    "tokens without room": sweep_tables.drops,
    "Table 3 of the thesis": thesis_tables.accuracy_and_variation,
    "Table 4 of the thesis": thesis_tables.sizes,
    "Table 5 of the thesis": thesis_tables.without_experts,
    "Table 6 of the thesis": thesis_tables.manual_routing,
    "accuracy on Fashion-MNIST": fashion_tables.accuracies,
    "match on Fashion-MNIST": fashion_tables.matches,
    "information on Fashion-MNIST": fashion_tables.information,
    "settings on Fashion-MNIST": fashion_tables.settings,
    "capacity on Fashion-MNIST": fashion_tables.capacity,
    "attacks": attack_tables.lines,
    "attacks in the l2 norm": partial(attack_tables.lines, norm="l2"),
    "answers by attack": attack_tables.answers,
    "sets by attack": attack_tables.sets,
    "loads by attack": attack_tables.loads,
    "several ascents": attack_tables.restarts,
    "faults": faults.lines,
    "system calls": faults.disk_lines,
    "rates on a CPU": scale.rates,
    "300 epochs": scale.epochs,
    "a noise sweep": scale.sweep,
    "numbers of experts": scale.experts,
}


def _first_pair(folder: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return the rows of the first pair of models, and the models' names."""
    table = _seeds(folder)
    first = table[(table["seed"] == table["seed"].iloc[0]) & (table["top_k"] == table["top_k"].iloc[0])]
    return first, list(dict.fromkeys(first.loc[first["kind"] == "value", "model"]))


def _line(table: pd.DataFrame, layer: str, number: str) -> str:
    """Return the cells of one number of a layer ("" = the output): its name, then a value per model, the difference."""
    rows = table[(table["number"] == number) & (table["layer"] == layer)]
    return f"{number} | {' | '.join(cell(row) for _, row in rows.iterrows())} |"


def _seeds(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / "seeds.csv").fillna({"layer": ""})


if __name__ == "__main__":
    main()
