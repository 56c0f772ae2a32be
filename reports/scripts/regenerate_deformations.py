"""Natural deformations: how steady the routing of the committed checkpoints is under each, and how often it switches.

    python -m reports.scripts.regenerate_deformations [digits] [shapes]

For each seed and k the model with PRC is held against the one without, image by image: κ of the first MoE layer under
one severity of each view (of RandAugment between two random views), and switches of experts per image on the way to it.
Writes ``reports/deformations/DATA.csv`` and ``tables.md``. About twenty minutes; training seeds are never pooled.
"""

import sys
from pathlib import Path

import pandas as pd
import torch

from moeprobe import api
from moeprobe.runtime.files import write_csv, write_text

OUT, CHECKPOINTS = Path("reports/deformations"), Path("checkpoints/reference")
SEEDS, TOP_KS = (0, 1, 2), (2, 1)
# One severity of each view, in its own unit; None: random pairs, which have none.
VIEWS: dict[str, float | None] = {
    "rotation": 20.0,
    "affine": 0.4,
    "gaussian_blur": 1.0,
    "brightness": 0.2,
    "randaugment": None,
}
# Switches are counted along the way; each image takes hundreds of passes, so of fewer images.
PATHS, PATH_IMAGES = ("rotation", "affine"), 40
KAPPA, SWITCHES = "top1_match_kappa", "switches"
_ENDS = ["value", "ci_low", "ci_high"]


def main(families: list[str]) -> None:
    """Measure and write, one data set after the other; then all tables."""
    torch.set_num_threads(1)  # how products are cut into threads shows in their last digits
    for data in families:
        write_csv(OUT / f"{data}.csv", deformed(data))
    files = sorted(OUT.glob("*.csv"))
    write_text(OUT / "tables.md", tables({path.stem: pd.read_csv(path) for path in files}))


def deformed(data: str, *, limit: int | None = None, views: dict[str, float | None] = VIEWS) -> pd.DataFrame:
    """Return a row per k, seed, view and number: of the model without PRC, of that with it, and their difference."""
    rows = []
    for top_k in TOP_KS:
        for seed in SEEDS:
            pair = [CHECKPOINTS / f"{data}-{one}-k{top_k}-seed{seed}" for one in ("baseline", "prc")]
            for view, severity in views.items():
                about = {"top_k": top_k, "train_seed": seed, "view": view, "severity": severity}
                if severity is None:
                    result = api.match_ratio(pair, view=view, limit=limit)
                else:
                    result = api.sweep(pair, view=view, severities=[0.0, severity], limit=limit)
                rows.append(about | _numbers(result, KAPPA, severity))
                if view in PATHS:
                    paths = api.discontinuity(pair, view=view, until=severity, limit=limit or PATH_IMAGES)
                    rows.append(about | _numbers(paths, SWITCHES, None))
    return pd.DataFrame(rows)


def _numbers(
    result: api.Result | api.DiscontinuityResult, metric: str, severity: float | None
) -> dict[str, object]:
    """Return one number of two checkpoints and its paired difference, of patches in the first MoE layer."""
    assert result.comparison is not None
    found: dict[str, object] = {"metric": metric}
    table = _wanted(result.table, metric, severity)
    names = list(dict.fromkeys(table["checkpoint"]))
    sides = [table[table["checkpoint"] == name] for name in names]
    for side, rows in zip(
        ("baseline", "prc", "difference"), [*sides, _wanted(result.comparison, metric, severity)], strict=True
    ):
        row = rows.iloc[0]
        found |= {side if end == "value" else f"{side}_{end[3:]}": row[end] for end in _ENDS}
        found["images"] = row["images"]
    return found


def _wanted(table: pd.DataFrame, metric: str, severity: float | None) -> pd.DataFrame:
    keep = (table["metric"] == metric) & table["null"].isin(["", "pooled"])
    keep &= table["tokens"].isin(["patch", ""])
    if severity is not None:
        keep &= table["severity"] == severity
    rows = table[keep]
    first = [name for name in dict.fromkeys(rows["layer"]) if name][:1]
    return rows[rows["layer"].isin(first or [""])]


def tables(found: dict[str, pd.DataFrame]) -> str:
    """Return the tables of all data sets in Markdown: ranges over seeds, and how many intervals exclude zero."""
    parts = [
        "# Natural deformations",
        "First MoE layer, patches; lowest to highest of three training seeds. Of PRC minus V-MoE, paired by images, "
        "for how many seeds the 95 % interval (each about its own number) lies above (+) or below (−) zero. κ: top-1 "
        "match beyond pooled chance; switches: of experts per image, on the way from the clean image to the severity.",
    ]
    for data, rows in found.items():
        for (metric, top_k), here in rows.groupby(["metric", "top_k"], sort=False):
            name = "κ" if metric == KAPPA else "Switches per image"
            parts.append(f"## {data}, k = {top_k}: {name}, {here['images'].iloc[0]:,} images")
            lines = ["| view | severity | V-MoE | with PRC | difference |", "|---|---|---|---|---|"]
            for view, own in here.groupby("view", sort=False):
                at = "" if pd.isna(own["severity"].iloc[0]) else f"{own['severity'].iloc[0]:g}"
                above, below = int((own["difference_low"] > 0).sum()), int((own["difference_high"] < 0).sum())
                said = ", ".join(f"{number}{sign}" for number, sign in ((above, "+"), (below, "−")) if number)
                digits = ".3f" if metric == KAPPA else ".1f"
                sides = [_range(own[side], digits) for side in ("baseline", "prc")]
                apart = f"{_range(own['difference'], f'+{digits}')} ({said or 0})"
                lines.append(f"| {view} | {at} | {' | '.join(sides)} | {apart} |")
            parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _range(values: pd.Series, digits: str) -> str:
    return f"{values.min():{digits}} to {values.max():{digits}}"


if __name__ == "__main__":
    main(sys.argv[1:] or ["digits", "shapes"])
