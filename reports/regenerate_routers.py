"""Draw anew what is committed under ``reports/routers`` from the sums per image and training curves committed there.

    make reports

No model is needed. ``tables.md`` says the same as ``table.csv``, a line for each router and budget: of three training
seeds the middle one with its interval over images, and the lowest and the highest. Seeds are never pooled. To train and
measure anew: ``moeprobe tradeoff routers-digits --out reports/routers/digits``.
"""

import sys
from pathlib import Path

import pandas as pd

from moeprobe import api

REPORTS = Path("reports/routers")

# Title of a table, and its columns: heading, and the rows' metric, view, severity.
_CLEAN = ("clean", None)
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
        (heading, "weight_cosine_kappa", view, severity)
        for heading, view, severity in (
            ("random_crop", "random_crop", None),
            ("prc_crops", "prc_crops", None),
            ("noise, σ 0.1", "gaussian_noise", 0.1),
            ("noise, σ 0.2", "gaussian_noise", 0.2),
        )
    ),
    "Steadiness of the experts that work on a token: κ of the Jaccard index of the two sets": tuple(
        (heading, "set_jaccard_kappa", view, severity)
        for heading, view, severity in (
            ("random_crop", "random_crop", None),
            ("prc_crops", "prc_crops", None),
            ("noise, σ 0.1", "gaussian_noise", 0.1),
            ("noise, σ 0.2", "gaussian_noise", 0.2),
        )
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
# Numbers that are not shares: digits after the point, and what they are multiplied with.
_SCALES = {"step_seconds": (1, 1e3), "flops_per_image": (1, 1e-6), "active_parameters": (2, 1e-6)}


def main(names: list[str]) -> None:
    """Draw and write, one data set after the other."""
    for name in names:
        out = REPORTS / name
        result = api.tradeoff([], out=out, command="make reports")
        (out / "tables.md").write_text(tables(result.table), encoding="utf-8")
        for path in out.rglob("*.svg"):
            path.unlink()


def tables(table: pd.DataFrame) -> str:
    """Return the numbers of the last MoE layer in Markdown, a line per router and budget."""
    first = table[table["metric"] == "accuracy"].iloc[0]
    parts = [
        f"# Routers on {first['dataset']}",
        f"Of three training seeds: the middle value [95 % bootstrap interval over {first['images']:,} {first['split']} "
        "images], lowest to highest. Patches, last MoE layer. –: does not exist for this router. Times are of "
        "trainings on one CPU core each, beside other work: they tell routers apart by tens of per cent, not by less.",
    ]
    for title, columns in TABLES.items():
        lines = [f"## {title}", "", f"| router | k or c | {' | '.join(name for name, *_ in columns)} |"]
        lines.append(f"|{'---|' * (len(columns) + 2)}")
        for _, rows in table.groupby("group", sort=False):
            about = rows.iloc[0]
            budget = (
                f"c = {about['capacity_factor']:g}" if pd.isna(about["top_k"]) else f"k = {about['top_k']:g}"
            )
            cells = [_cell(rows, *which) for _, *which in columns]
            lines.append(f"| `{about['router']}` | {budget} | {' | '.join(cells)} |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


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
