"""Draw anew what is committed under ``reports/routers`` from the sums per image and training curves committed there.

    make reports

No model is needed. ``tables.md`` says the same as ``table.csv``, a line for each router and budget: of three training
seeds the middle one with its interval over images, and the lowest and the highest. Seeds are never pooled. To train and
measure anew: ``moeprobe tradeoff routers-digits --out reports/routers/digits``.
"""

import sys
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from moeprobe import api, sources, summaries
from moeprobe.asking import make_analyses
from moeprobe.tables import concatenate, in_order, write_csv

REPORTS = Path("reports/routers")

# Title of a table, and its columns: heading, and the rows' metric, view, severity.
_CLEAN = ("clean", None)
_PERTURBED = (
    ("random_crop", "random_crop", None),
    ("prc_crops", "prc_crops", None),
    ("noise, σ 0.1", "gaussian_noise", 0.1),
    ("noise, σ 0.2", "gaussian_noise", 0.2),
)
TABLES: dict[str, tuple[tuple[str, str, str | None, float | None], ...]] = {
    "What is reached, and what it costs": (
        ("accuracy", "accuracy", *_CLEAN),
        ("10-shot accuracy", "fewshot_accuracy", "clean", 10.0),
        ("accuracy, σ 0.2", "accuracy", "gaussian_noise", 0.2),
        ("ms per step", "step_seconds", None, None),
        ("MFLOPs per image", "flops_per_image", None, None),
        ("active parameters, M", "active_parameters", None, None),
    ),
    "Steadiness of the combine weights: κ of their cosine, which exists for every router": tuple(
        (heading, "weight_cosine_kappa", view, severity) for heading, view, severity in _PERTURBED
    ),
    "Steadiness of the experts that work on a token: κ of the Jaccard index of the two sets": tuple(
        (heading, "set_jaccard_kappa", view, severity) for heading, view, severity in _PERTURBED
    ),
    "Load and contagion": (
        ("load entropy", "load_entropy", *_CLEAN),
        ("patches without an expert", "unserved", *_CLEAN),
        ("batch contagion", "batch_contagion", *_CLEAN),
        ("token contagion", "token_contagion", *_CLEAN),
        ("attention contagion", "attention_contagion", *_CLEAN),
        ("attention contagion: distance", "attention_contagion_distance", *_CLEAN),
    ),
}
# What is told of the difference to V-MoE's router of the same budget and seed: heading, folder of the probe, the
# analysis, and the rows' metric and severity.
REFERENCE = "softmax_token_choice"
DIFFERENCES: tuple[tuple[str, str, str, str, float | None], ...] = (
    ("accuracy", "eval", "output", "accuracy", None),
    ("10-shot accuracy", "fewshot", "fewshot", "fewshot_accuracy", 10.0),
    ("accuracy, σ 0.2", "noise", "output", "accuracy", 0.2),
    ("κ, random_crop", "match-random_crop", "weights", "weight_cosine_kappa", None),
    ("κ, prc_crops", "match-prc_crops", "weights", "weight_cosine_kappa", None),
    ("κ, noise σ 0.2", "noise", "weights", "weight_cosine_kappa", 0.2),
)
_TOKENS = pa.array(["patch", ""])
# Numbers that are not shares: digits after the point, and what they are multiplied with.
_SCALES = {"step_seconds": (1, 1e3), "flops_per_image": (1, 1e-6), "active_parameters": (2, 1e-6)}


def main(names: list[str]) -> None:
    """Draw and write, one data set after the other."""
    for name in names:
        out = REPORTS / name
        result = api.tradeoff([], out=out, command="make reports")
        differing = differences(out, result.table)
        write_csv(out / "differences.csv", differing)
        (out / "tables.md").write_text(tables(result.table, differing), encoding="utf-8")
        for path in out.rglob("*.svg"):
            path.unlink()
        print("\n".join([f"{name}:", "", *readme_lines(result.table, differing), ""]))


def differences(out: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Return differences of the last MoE layer, image by image, from V-MoE's router of the same budget and seed."""
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
        for heading, folder, analysis, metric, severity in DIFFERENCES:
            runs = [sources.read(out / "cells" / one / folder) for one in (reference, str(name))]
            images = concatenate([run.images for run in runs])
            last = [part for part in pc.unique(images["layer"]).to_pylist() if part][-1:]
            wanted = last if analysis == "weights" else [""]
            kept = pc.and_(pc.is_in(images["layer"], pa.array(wanted)), pc.is_in(images["tokens"], _TOKENS))
            if severity is not None:
                kept = pc.and_(kept, pc.equal(images["severity"], severity))
            request = runs[0].request
            about = summaries.About(
                run=out.name, dataset=request["data"], split=request["split"], seed=request["seed"],
                aligned=folder == "noise", train_seeds={}, groups={},
            )  # fmt: skip
            _, found = summaries.summarise(
                in_order(images.filter(kept)), analyses=make_analyses([analysis]), about=about
            )
            assert found is not None
            found = found[
                (found["metric"] == metric) & found["null"].isin(["", "pooled"]) & found["draw"].isna()
            ]
            rows.append(
                found.iloc[[0]].assign(
                    group=cell["group"], train_seed=cell["train_seed"], router=cell["router"], number=heading
                )
            )
    return pd.concat([row.dropna(axis=1, how="all") for row in rows], ignore_index=True)


def tables(table: pd.DataFrame, differing: pd.DataFrame) -> str:
    """Return the numbers of the last MoE layer in Markdown, a line per router and budget."""
    first = table[table["metric"] == "accuracy"].iloc[0]
    parts = [
        f"# Routers on {first['dataset']}",
        f"Of three training seeds: the middle value [95 % bootstrap interval over {first['images']:,} {first['split']} "
        "images], lowest to highest. Patches, last MoE layer. –: does not exist for this router. Steps were "
        "timed while the machine did other work as well, more of it at times: `make bench` compares what routers cost.",
    ]
    for title, columns in TABLES.items():
        lines = [f"## {title}", "", f"| router | k or c | {' | '.join(name for name, *_ in columns)} |"]
        lines.append(f"|{'---|' * (len(columns) + 2)}")
        for _, rows in table.groupby("group", sort=False):
            about = rows.iloc[0]
            cells = [_cell(rows, *which) for _, *which in columns]
            lines.append(f"| `{about['router']}` | {_budget(about)} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    parts.append("\n".join(_difference_lines(table, differing)))
    return "\n\n".join(parts) + "\n"


def _difference_lines(table: pd.DataFrame, differing: pd.DataFrame) -> list[str]:
    headings = list(dict.fromkeys(differing["number"]))
    lines = [
        f"## Minus `{REFERENCE}` of the same budget and seed",
        "",
        "Paired, image by image. Lowest to highest of three seeds, and for how many of them the 95 % interval (each "
        "about its own number, in `differences.csv`) lies above (+) or below (−) zero. κ is that of the cosine.",
        "",
        f"| router | k or c | {' | '.join(headings)} |",
        f"|{'---|' * (len(headings) + 2)}",
    ]
    about = table.drop_duplicates("group").set_index("group")
    for group, rows in differing.groupby("group", sort=False):
        cells = [_difference(rows[rows["number"] == heading]) for heading in headings]
        lines.append(
            f"| `{about.loc[group, 'router']}` | {_budget(about.loc[group])} | {' | '.join(cells)} |"
        )
    return lines


def readme_lines(table: pd.DataFrame, differing: pd.DataFrame) -> list[str]:
    """Return the README's table, in Markdown: at two experts per token, all differences but those of few shots."""
    kept = table[table["top_k"].fillna(table["capacity_factor"]) == 2]
    shown = [number for number in dict.fromkeys(differing["number"]) if number != "10-shot accuracy"]
    lines = [f"| router | accuracy | 10-shot | {' | '.join(f'Δ {name}' for name in shown)} |"]
    lines.append(f"|{'---|' * (3 + len(shown))}")
    for group, rows in kept.groupby("group", sort=False):
        cells = [_cell(rows, "accuracy", *_CLEAN), _cell(rows, "fewshot_accuracy", "clean", 10.0)]
        own = differing[differing["group"] == group]
        cells += [_difference(own[own["number"] == number]) if len(own) else "" for number in shown]
        lines.append(f"| `{rows.iloc[0]['router']}` | {' | '.join(cells)} |")
    return lines


def _budget(about: pd.Series) -> str:
    return f"c = {about['capacity_factor']:g}" if pd.isna(about["top_k"]) else f"k = {about['top_k']:g}"


def _difference(rows: pd.DataFrame) -> str:
    """Return the lowest and highest of the seeds, and how many intervals lie on one side of zero."""
    counted = {"+": int((rows["ci_low"] > 0).sum()), "−": int((rows["ci_high"] < 0).sum())}
    told = ", ".join(f"{number}{sign}" for sign, number in counted.items() if number) or "0"
    return f"{rows['value'].min():+.3f} to {rows['value'].max():+.3f} ({told})"


def _cell(rows: pd.DataFrame, metric: str, view: str | None, severity: float | None) -> str:
    """Return a number of one router: the middle seed with its interval, then the lowest and the highest."""
    here = rows[(rows["metric"] == metric) & rows["null"].isin(["", "pooled"]) & rows["draw"].isna()]
    if view is not None:
        here = here[here["view"] == view]
    if severity is not None:
        here = here[here["severity"] == severity]
    here = here.groupby("checkpoint", sort=False).tail(1).sort_values("value", kind="stable")
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
