"""Make again what is committed under ``reports/routers``, from the packed cells committed there.

    make reports

No model is needed. ``tables.md`` says the same as ``table.csv``, a line for each router and budget: of three training
seeds the middle one with its interval over images, and the lowest and the highest; every MoE layer, the first one
first. Seeds are never pooled. To train and measure again:
``moeprobe tradeoff routers-digits --out reports/routers/digits``.
"""

import sys
from pathlib import Path

import contrasts
import pandas as pd

from moeprobe import api
from moeprobe.probes.engine.checks import make_analyses
from moeprobe.results import finished, summaries
from moeprobe.results.stored import together
from moeprobe.results.stored_cell import StoredCell
from moeprobe.runtime.csv import write_csv

REPORTS = Path("reports/routers")
# Of ``moeprobe bench models``, a folder per data set: steps timed in turn.
TIMES = Path("reports/router-times")

# Title of a table, and its columns: heading, and the rows' metric, null, view, severity.
_CLEAN = ("", "clean", None)
_COST = ("", None, None)
_PERTURBED = (
    ("random_crop", "random_crop", None),
    ("prc_crops", "prc_crops", None),
    ("noise, σ 0.1", "gaussian_noise", 0.1),
    ("noise, σ 0.2", "gaussian_noise", 0.2),
)
Column = tuple[str, str, str, str | None, float | None]


def _kappas(metric: str) -> tuple[Column, ...]:
    """Return κ against chance and against other patches of the same image."""
    return tuple(
        (f"{heading}{within}", metric, null, view, severity)
        for null, within in (("pooled", ""), ("image", "; within the image"))
        for heading, view, severity in _PERTURBED
    )


OUTPUT: dict[str, tuple[Column, ...]] = {
    "What is reached, and what it costs": (
        ("accuracy", "accuracy", *_CLEAN),
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
        ("load entropy", "load_entropy", *_CLEAN),
        ("patches without an expert", "unserved", *_CLEAN),
        ("batch contagion", "batch_contagion", *_CLEAN),
        ("token contagion", "token_contagion", *_CLEAN),
        ("attention contagion", "attention_contagion", *_CLEAN),
        ("attention contagion: distance", "attention_contagion_distance", *_CLEAN),
    ),
}
# The differences to V-MoE's router of the same budget and seed: heading, folder of the probe, the analysis, and the
# rows' metric, null and severity.
REFERENCE = "softmax_token_choice"
_OF_WEIGHTS = (
    ("random_crop", "match-random_crop", None),
    ("prc_crops", "match-prc_crops", None),
    ("noise σ 0.2", "noise", 0.2),
)
DIFFERENCES: tuple[tuple[str, str, str, str, str, float | None], ...] = (
    ("accuracy", "eval", "output", "accuracy", "", None),
    ("10-shot accuracy", "fewshot", "fewshot", "fewshot_accuracy", "", 10.0),
    ("accuracy, σ 0.2", "noise", "output", "accuracy", "", 0.2),
    *(
        (f"κ{within}, {heading}", folder, "weights", "weight_cosine_kappa", null, severity)
        for null, within in (("pooled", ""), ("image", " within the image"))
        for heading, folder, severity in _OF_WEIGHTS
    ),
)
_TOKENS = ("patch", "")
# Numbers that are not shares: digits after the point, and what they are multiplied with.
_SCALES = {
    "training_spikes": (0, 1.0),
    "step_seconds_in_turn": (1, 1e3),
    "flops_per_image": (1, 1e-6),
    "active_parameters": (2, 1e-6),
}


def main(names: list[str]) -> None:
    """Draw and write, one data set after the other."""
    for name in names:
        out = REPORTS / name
        result = api.tradeoff([], out=out, times=TIMES / name, command="make reports")
        differing = differences(out, result.table)
        write_csv(out / "differences.csv", differing)
        contrasts.write(out, result.table)
        (out / "tables.md").write_text(tables(result.table, differing), encoding="utf-8")


def read(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the committed table and differences of a data set, as ``tables`` takes them."""
    words = dict.fromkeys(("layer", "tokens", "null", "view", "flag", "split"), str)
    table = pd.read_csv(folder / "table.csv", dtype=words).fillna(dict.fromkeys(words, ""))
    return table, pd.read_csv(folder / "differences.csv", dtype={"layer": str}).fillna({"layer": ""})


def differences(out: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Return differences in every MoE layer, image by image, from V-MoE's router of the same budget and seed."""
    cells = table.drop_duplicates("checkpoint").set_index("checkpoint")
    budget = cells["top_k"].fillna(cells["capacity_factor"]).astype(int)
    rows = []
    for name, cell in cells[cells["router"] != REFERENCE].iterrows():
        same = (
            (cells["router"] == REFERENCE)
            & (cells["train_seed"] == cell["train_seed"])
            & (budget == budget[name])
        )
        (reference,) = cells.index[same]
        probed = {
            (folder, analysis): _compared(out, (reference, str(name)), folder, analysis)
            for _, folder, analysis, *_ in DIFFERENCES
        }
        about = {"group": cell["group"], "train_seed": cell["train_seed"], "router": cell["router"]}
        for heading, folder, analysis, metric, null, severity in DIFFERENCES:
            found = probed[folder, analysis]
            keep = (found["metric"] == metric) & (found["null"] == null) & found["draw"].isna()
            if severity is not None:
                keep &= found["severity"] == severity
            rows.append(found[keep].drop_duplicates("layer").assign(**about, number=heading))
    return pd.concat([row.dropna(axis=1, how="all") for row in rows], ignore_index=True)


def _compared(out: Path, pair: tuple[str, str], folder: str, analysis: str) -> pd.DataFrame:
    """Return all differences that an analysis of one probe gives of two cells."""
    runs = [finished.read(out / "cells" / one / folder) for one in pair]
    severities = {severity for _, name, *_, severity in DIFFERENCES if name == folder}

    def wanted(stored: StoredCell) -> bool:
        cell = stored.cell
        of_layer = bool(cell.layer) == (analysis == "weights") and cell.tokens in _TOKENS
        return of_layer and (folder != "noise" or cell.severity in severities)

    sums = together(run.sums for run in runs).where(wanted)
    request = runs[0].request
    about = summaries.About(
        run=out.name, dataset=request["data"], split=request["split"], seed=request["seed"],
        aligned=folder == "noise", train_seeds={}, groups={},
    )  # fmt: skip
    _, found = summaries.summarize(sums, analyses=make_analyses([analysis]), about=about)
    assert found is not None
    return found


def tables(table: pd.DataFrame, differing: pd.DataFrame) -> str:
    """Return the numbers of every MoE layer in Markdown, the first one first, a line per router and budget."""
    first = table[table["metric"] == "accuracy"].iloc[0]
    parts = [
        f"# Routers on {first['dataset']}",
        f"Of three training seeds: the middle value [95 % interval over {first['images']:,} {first['split']} "
        "images], lowest to highest. Patches. –: does not exist for this router. The ten shots of 10-shot accuracy are "
        "of the training task, unlike the paper's, which are of another data set. Steps were timed while the machine "
        "did other work as well, more of it at times: `make bench` compares what routers cost. Where experts choose, "
        "an image is a group of its own in training, as in the released program; the paper's text speaks of batches of "
        "several images.",
    ]
    parts += [_table(table, title, columns, layer="") for title, columns in OUTPUT.items()]
    layers = _layers(table)
    parts += [
        _table(table, f"{title}: {layer}", columns, layer=layer)
        for title, columns in OF_LAYERS.items()
        for layer in layers
    ]
    parts.append(
        f"## Minus `{REFERENCE}` of the same budget and seed\n\n"
        "Paired, image by image. Lowest to highest of three seeds, and for how many of them the 95 % interval (each "
        "about its own number, in `differences.csv`) lies above (+) or below (−) zero. κ is that of the cosine of the "
        "combine weights; within the image, another patch of the same image is what chance would give."
    )
    parts += [_differences(table, differing, layer) for layer in ["", *_layers(differing)]]
    return "\n\n".join(parts) + "\n"


def _layers(table: pd.DataFrame) -> list[str]:
    """Return the MoE layers, the first one first."""
    return sorted({layer for layer in table["layer"] if layer}, key=lambda name: int(name.rpartition(".")[2]))


def _table(table: pd.DataFrame, title: str, columns: tuple[Column, ...], *, layer: str) -> str:
    lines = [f"## {title}", "", f"| router | k or c | {' | '.join(name for name, *_ in columns)} |"]
    lines.append(f"|{'---|' * (len(columns) + 2)}")
    for _, rows in table.groupby("group", sort=False):
        about = rows.iloc[0]
        cells = [_cell(rows, layer, *which) for _, *which in columns]
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
        cells = [_difference(rows[rows["number"] == heading]) for heading in headings]
        lines.append(
            f"| `{about.loc[group, 'router']}` | {_budget(about.loc[group])} | {' | '.join(cells)} |"
        )
    return "\n".join(lines)


def accuracy_lines(table: pd.DataFrame, differing: pd.DataFrame) -> list[str]:
    """Return the pages' table of accuracies, in Markdown: at two experts per token."""
    shown = ("accuracy", "accuracy, σ 0.2")
    lines = [
        f"| router | accuracy | 10-shot | {' | '.join(f'Δ {name}' for name in shown)} |",
        "|---|---|---|---|---|",
    ]
    for group, rows in _of_two(table).groupby("group", sort=False):
        cells = [
            _cell(rows, "", "accuracy", *_CLEAN),
            _cell(rows, "", "fewshot_accuracy", "", "clean", 10.0),
        ]
        own = differing[differing["group"] == group]
        cells += [_difference(own[own["number"] == number]) if len(own) else "" for number in shown]
        lines.append(f"| `{rows.iloc[0]['router']}` | {' | '.join(cells)} |")
    return lines


def steadiness_lines(table: pd.DataFrame, differing: pd.DataFrame) -> list[str]:
    """Return the pages' table of differences in κ, in Markdown: at two experts per token, the first layer first."""
    shown = [number for number in dict.fromkeys(differing["number"]) if number.startswith("κ")]
    lines = [f"| MoE layer | router | {' | '.join(f'Δ {name}' for name in shown)} |"]
    lines.append(f"|{'---|' * (2 + len(shown))}")
    routers = _of_two(table).drop_duplicates("group").set_index("group")["router"]
    for layer in _layers(differing):
        here = differing[(differing["layer"] == layer) & differing["group"].isin(routers.index)]
        for group, own in here.groupby("group", sort=False):
            cells = [_difference(own[own["number"] == number]) for number in shown]
            lines.append(f"| `{layer}` | `{routers[group]}` | {' | '.join(cells)} |")
    return lines


def contagion_lines(table: pd.DataFrame) -> list[str]:
    """Return the pages' table of batch contagion, in Markdown: lowest to highest of the seeds, layer by layer."""
    here = _of_two(table[(table["metric"] == "batch_contagion") & table["draw"].isna()])
    layers = _layers(here)
    lines = [f"| router | {' | '.join(f'`{layer}`' for layer in layers)} |", f"|{'---|' * (1 + len(layers))}"]
    for router, rows in here.groupby("router", sort=False):
        ends = [rows.loc[rows["layer"] == layer, "value"].agg(["min", "max"]) for layer in layers]
        cells = [f"{low:.2f} to {high:.2f}" if high else "0" for low, high in ends]
        lines.append(f"| `{router}` | {' | '.join(cells)} |")
    return lines


def _of_two(table: pd.DataFrame) -> pd.DataFrame:
    return table[table["top_k"].fillna(table["capacity_factor"]) == 2]


def _budget(about: pd.Series) -> str:
    return f"c = {about['capacity_factor']:g}" if pd.isna(about["top_k"]) else f"k = {about['top_k']:g}"


def _difference(rows: pd.DataFrame) -> str:
    """Return the lowest and highest of the seeds, and how many intervals lie on one side of zero."""
    if rows.empty:
        return "–"
    counted = {"+": int((rows["ci_low"] > 0).sum()), "−": int((rows["ci_high"] < 0).sum())}
    said = ", ".join(f"{number}{sign}" for sign, number in counted.items() if number) or "0"
    return f"{rows['value'].min():+.3f} to {rows['value'].max():+.3f} ({said})"


def _cell(
    rows: pd.DataFrame, layer: str, metric: str, null: str, view: str | None, severity: float | None
) -> str:
    """Return a number of one router: the middle seed with its interval, then the lowest and the highest."""
    here = rows[(rows["metric"] == metric) & (rows["null"] == null) & rows["draw"].isna()]
    here = here[here["layer"] == layer]
    if view is not None:
        here = here[here["view"] == view]
    if severity is not None:
        here = here[here["severity"] == severity]
    here = here.drop_duplicates("checkpoint").sort_values("value", kind="stable")
    here = here[here["value"].notna()]
    if here.empty:
        return "–"
    digits, scale = _SCALES.get(metric, (3, 1.0))

    def said(value: float) -> str:
        return f"{value * scale:,.{digits}f}"

    middle = here.iloc[len(here) // 2]
    interval = "" if pd.isna(middle["ci_low"]) else f" [{said(middle['ci_low'])}, {said(middle['ci_high'])}]"
    ends = dict.fromkeys(said(value) for value in (here["value"].iloc[0], here["value"].iloc[-1]))
    return f"{said(middle['value'])}{interval}" + (f"; {' to '.join(ends)}" if len(ends) > 1 else "")


if __name__ == "__main__":
    main(sys.argv[1:] or sorted(path.name for path in REPORTS.iterdir() if path.is_dir()))
