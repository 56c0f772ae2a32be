"""Regenerate what is committed under ``reports/`` from the checkpoints committed in ``checkpoints/reference``.

    make reports

For each data set: every table and figure of the PRC paper for the checkpoints of the first training seed, the numbers
of all seeds in ``seeds.csv``, and ``tables.md``, where the paper's values stand beside. Training seeds are points, each
with its interval over images; they are never pooled. On one machine the same checkpoints give the same CSVs.
"""

import shutil
import sys
from pathlib import Path

import pandas as pd

from moeprobe import api
from moeprobe.runs import Result
from moeprobe.tables import write_csv

SEEDS, TOP_KS = (0, 1, 2), (2, 1)
MODELS = {"baseline": "V-MoE", "prc": "V-MoE with PRC"}

# Relative, since the sidecars remember where things lay: run this in the root of the checkout.
REPORTS = Path("reports")
CHECKPOINTS = Path("checkpoints/reference")
JUMP_IMAGES = 100
# The noise of the rows called "noise".
SIGMA = 0.2

# What seeds.csv holds: (name, which probe, metric, null); by what the patches show where the data have masks.
ROWS = (
    ("random_crop: top-1 match", "random_crop", "top1_match", ""),
    ("random_crop: top-2 match", "random_crop", "top2_match", ""),
    ("random_crop: top-2 match, any order", "random_crop", "top2_set_match", ""),
    ("random_crop: κ", "random_crop", "top1_match_kappa", "pooled"),
    ("random_crop: κ within image", "random_crop", "top1_match_kappa", "image"),
    ("prc_crops: top-1 match", "prc_crops", "top1_match", ""),
    ("prc_crops: top-2 match", "prc_crops", "top2_match", ""),
    ("prc_crops: top-2 match, any order", "prc_crops", "top2_set_match", ""),
    ("prc_crops: κ", "prc_crops", "top1_match_kappa", "pooled"),
    ("prc_crops: κ within image", "prc_crops", "top1_match_kappa", "image"),
    ("noise: top-1 match", "noise", "top1_match", ""),
    ("noise: κ", "noise", "top1_match_kappa", "pooled"),
    ("highest gate", "confidence", "gate_highest", ""),
    ("second gate", "confidence", "gate_second", ""),
    ("sum of the rest", "confidence", "gate_rest", ""),
    ("load entropy", "confidence", "load_entropy", ""),
    ("accuracy", "evaluation", "accuracy", ""),
)
REGION_ROWS = tuple(
    (f"{probe}: {name}, {tokens}", probe, metric, null, tokens)
    for probe in ("random_crop", "noise")
    for name, metric, null in (("top-1 match", "top1_match", ""), ("κ", "top1_match_kappa", "pooled"))
    for tokens in ("foreground", "boundary", "background")
)
# What the README shows of the first seed, and of all.
_OF_FIRST = (
    "random_crop: top-1 match",
    "random_crop: κ",
    "random_crop: κ within image",
    "prc_crops: top-1 match",
    "prc_crops: κ",
    "prc_crops: κ within image",
    "highest gate",
    "load entropy",
    "accuracy",
)
_OF_SEEDS = (
    "random_crop: κ",
    "random_crop: κ within image",
    "prc_crops: κ",
    "prc_crops: κ within image",
    "highest gate",
)
# The paper's tables, by the names above: Table 4 is about random views, its pretraining pair is not published.
_PAPER = {
    "2": ("Accuracy, k = 2", 2, ("accuracy",)),
    "3": ("Accuracy, k = 1", 1, ("accuracy",)),
    "4": (
        "Match of corresponding patches, last MoE layer, prc_crops",
        2,
        ("prc_crops: top-1 match", "prc_crops: top-2 match", "prc_crops: top-2 match, any order"),
    ),
    "5": (
        "Confidence, last MoE layer, patches of clean images",
        2,
        ("highest gate", "second gate", "sum of the rest"),
    ),
}


def main(families: list[str]) -> None:
    """Probe and write, one data set after the other."""
    for data in families:
        regenerate(data)


def regenerate(data: str) -> None:
    """Write ``reports/DATA``."""
    # Beside the committed folder, which is replaced at the end: its absence would make the commit look changed.
    staging = REPORTS / f"{data}.new"
    shutil.rmtree(staging, ignore_errors=True)
    pairs = {(k, seed): [load(data, name, k, seed) for name in MODELS] for k in TOP_KS for seed in SEEDS}
    probe_first(pairs[TOP_KS[0], SEEDS[0]], staging)
    table = pd.DataFrame([row for (k, seed), pair in pairs.items() for row in seed_rows(pair, k, seed)])
    write_csv(staging / "seeds.csv", table)
    paper = pd.read_csv(REPORTS / "paper.csv", dtype={"table": str})
    (staging / "tables.md").write_text(paper_tables(table, paper, data=data), encoding="utf-8")
    # Large, and made again by anyone in minutes: what is kept is what is read.
    for pattern in ("images.parquet", "*.svg", "overlay-*-0??.png"):
        for path in staging.rglob(pattern):
            path.unlink()
    shutil.rmtree(REPORTS / data, ignore_errors=True)
    staging.rename(REPORTS / data)
    print("\n".join([f"{data}:", "", *demo_lines(table), "", *seed_lines(table), ""]))


def load(data: str, model: str, top_k: int, seed: int) -> api.Checkpoint:
    """Load a committed checkpoint."""
    return api.load_model(CHECKPOINTS / f"{data}-{model}-k{top_k}-seed{seed}", device="cpu")


def probe_first(pair: list[api.Checkpoint], folder: Path) -> None:
    """Make every table and figure for the first training seed."""
    data = pair[0].provenance["training"]["data"]

    def into(name: str, **more: object) -> api.Options:
        return api.Options(out=folder / name, device="cpu", command="make reports", **more)  # type: ignore[arg-type]

    api.match_ratio(pair, data=data, view="random_crop", options=into("match-ratio"))
    api.match_ratio(pair, data=data, view="prc_crops", options=into("match-ratio-prc-crops"))
    api.s_matrix(pair, data=data, options=into("s-matrix"))
    api.confidence(pair, data=data, options=into("confidence"))
    api.noise_sweep(pair, data=data, attribute="recomputed", options=into("noise-sweep"))
    api.discontinuity(pair, data=data, options=into("discontinuity", limit=JUMP_IMAGES))
    api.overlay(pair, data=data, options=into("overlay"))
    api.overlay(pair, data=data, count=2, animate=True, options=into("animation"))
    api.correspond(pair[1].provenance["path"], data=data, count=2, options=into("correspond"))
    api.evaluate(pair, data=data, options=into("eval"))
    api.compare([folder / "noise-sweep"], options=into("compare"))


def seed_rows(pair: list[api.Checkpoint], top_k: int, seed: int) -> list[dict[str, object]]:
    """Return the numbers of one training seed: both models, and PRC minus V-MoE; last MoE layer."""
    data = pair[0].provenance["training"]["data"]
    found: dict[str, Result] = {
        "random_crop": api.match_ratio(pair, data=data, view="random_crop"),
        "prc_crops": api.match_ratio(pair, data=data, view="prc_crops"),
        "noise": api.noise_sweep(pair, data=data, sigmas=(SIGMA,)),
        "confidence": api.confidence(pair, data=data),
        "evaluation": api.evaluate(pair, data=data),
    }
    rows: list[dict[str, object]] = []
    for name, which, metric, null, *tokens in (*ROWS, *REGION_ROWS):
        result = found[which]
        assert result.comparison is not None
        for table, kind in ((result.table, "value"), (result.comparison, "difference")):
            here = table[
                (table["metric"] == metric)
                & (table["null"] == null)
                & table["tokens"].isin(tokens or ["", "patch"])
                & ((which != "noise") | ((table["view"] == "gaussian_noise") & (table["severity"] == SIGMA)))
            ]
            here = here[here["layer"] == here["layer"].iloc[-1]] if len(here) else here
            for model, (_, row) in zip(
                MODELS if kind == "value" else ("prc",), here.iterrows(), strict=False
            ):
                rows.append(
                    {
                        "top_k": top_k,
                        "seed": seed,
                        "number": name,
                        "kind": kind,
                        "model": MODELS[model],
                        "value": row["value"],
                        "ci_low": row["ci_low"],
                        "ci_high": row["ci_high"],
                        "images": row["images"],
                        "trials": row["trials"],
                    }
                )
    return rows


def demo_lines(table: pd.DataFrame) -> list[str]:
    """Return the README's table of the first seed, in Markdown."""
    first = table[(table["seed"] == SEEDS[0]) & (table["top_k"] == TOP_KS[0])]
    lines = [f"| | {' | '.join(MODELS.values())} | difference |", "|---|---|---|---|"]
    for name in _OF_FIRST:
        rows = first[first["number"] == name]
        lines.append(f"| {name} | {' | '.join(_cell(row) for _, row in rows.iterrows())} |")
    return lines


def seed_lines(table: pd.DataFrame) -> list[str]:
    """Return the README's table of all seeds, in Markdown: PRC minus V-MoE, and both accuracies."""
    lines = [
        f"| k | seed | {' | '.join(_OF_SEEDS)} | accuracy, V-MoE | accuracy, PRC |",
        f"|{'---|' * (len(_OF_SEEDS) + 4)}",
    ]
    for (top_k, seed), rows in table.groupby(["top_k", "seed"], sort=False):
        difference = rows[rows["kind"] == "difference"].set_index("number")
        accuracy = rows[(rows["kind"] == "value") & (rows["number"] == "accuracy")]
        cells = [_cell(difference.loc[name]) for name in _OF_SEEDS]
        cells += [_cell(row) for _, row in accuracy.iterrows()]
        lines.append(f"| {top_k} | {seed} | {' | '.join(cells)} |")
    return lines


def paper_tables(table: pd.DataFrame, paper: pd.DataFrame, *, data: str) -> str:
    """Return the PRC paper's Tables 2 to 5 for ``data``, with the paper's own values for ImageNet-1K beside."""
    parts = [
        f"# The tables of the PRC paper, on {data}",
        f"Each training seed is an experiment of its own; [95 % interval over the {_images(table)} test images]. The "
        "paper's values are theirs, for V-MoE-S/32 on ImageNet-1K (Kada et al. 2025, Tables 2 to 5): another model, "
        "other data, and where there is a ±, the standard deviation of three training runs.",
    ]
    for number, (title, top_k, names) in _PAPER.items():
        theirs = paper[paper["table"] == number]
        lines = [f"## Table {number}: {title}", ""]
        lines += [f"| model | seed | {' | '.join(names)} |", f"|{'---|' * (len(names) + 2)}"]
        for model in MODELS.values():
            own = table[(table["model"] == model) & (table["top_k"] == top_k) & (table["kind"] == "value")]
            for seed, rows in own.groupby("seed"):
                values = rows.set_index("number")
                cells = [_cell(values.loc[name]) for name in names]
                lines.append(f"| {model} | {seed} | {' | '.join(cells)} |")
            published = theirs[theirs["model"] == model]
            cells = [_published(row) for _, row in published.iterrows()]
            lines.append(f"| {model}, *the paper, ImageNet-1K* | | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    if table["number"].isin([row[0] for row in REGION_ROWS]).any():
        parts.append(_region_table(table))
    return "\n\n".join(parts) + "\n"


def _region_table(table: pd.DataFrame) -> str:
    """Return what corresponding patches of the object, of its outline and of the ground do, in Markdown."""
    lines = [
        "## Foreground or background: match of corresponding patches, last MoE layer, k = 2",
        "",
        "The paper remarks on Figure 5 that PRC steadies foreground patches most, and gives no numbers. Foreground: "
        f"the patch shows the object alone (up to 5 % of its pixels); background: not at all. Noise: σ = {SIGMA:g}.",
        "",
        "| number | seed | V-MoE | V-MoE with PRC | difference |",
        "|---|---|---|---|---|",
    ]
    for name, *_ in REGION_ROWS:
        own = table[(table["number"] == name) & (table["top_k"] == TOP_KS[0])]
        for seed, rows in own.groupby("seed"):
            lines.append(f"| {name} | {seed} | {' | '.join(_cell(row) for _, row in rows.iterrows())} |")
    return "\n".join(lines)


def _images(table: pd.DataFrame) -> int:
    return int(table["images"].max())


def _published(row: pd.Series) -> str:
    error = row["standard_deviation"]
    return f"{row['value']:.4f}" + ("" if error != error else f" ± {error:.4f}")


def _cell(row: pd.Series) -> str:
    sign = "+" if row["kind"] == "difference" else ""
    return "{:{s}.3f} [{:{s}.3f}, {:{s}.3f}]".format(row["value"], row["ci_low"], row["ci_high"], s=sign)


if __name__ == "__main__":
    main(sys.argv[1:] or ["digits", "shapes"])
