"""Make again what is committed under ``reports/sweeps``, from the packed cells there.

    make fetch-archive
    make reports

No model is needed. ``differences.csv`` holds every cell minus the reference of its sweep, of the same training seed,
image by image. To train and measure again: ``moeprobe tradeoff prc-ablation --out reports/sweeps/prc-ablation``; for S,
``python -m reports.scripts.regenerate_sweeps prc-ablation --matrix checkpoints/prc-ablation`` in addition.
"""

import argparse
from collections import defaultdict
from functools import partial
from pathlib import Path

import pandas as pd

from moeprobe import api
from moeprobe.results.packed import read_pack
from moeprobe.runtime.files import write_csv
from reports.scripts import sweep_figures
from reports.scripts.at_once import each
from reports.scripts.seeds import compared, compress, with_cells
from reports.scripts.sweep_list import SWEEPS, Number

REPORTS = Path("reports/sweeps")
_TERMS = ("prc_diagonal", "prc_offdiagonal")


def main() -> None:
    """Draw and write the sweeps that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="sweeps; all that are committed without any")
    parser.add_argument("--matrix", type=Path, help="folder of the trained cells, whose S is to be measured")
    asked = parser.parse_args()
    each(partial(regenerate, matrix=asked.matrix), with_cells(REPORTS, asked.names))


def regenerate(name: str, *, matrix: Path | None) -> None:
    """Draw and write one sweep, and its terms if the trained cells are at hand."""
    out = REPORTS / name
    result = api.tradeoff([], out=out, command="make reports")
    write_csv(out / "differences.csv", differences(out, result.table))
    compress(out)
    sweep_figures.write(out)
    if matrix:
        write_csv(out / "terms.csv", terms(matrix, result.table))


def differences(out: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Return what a sweep compares: each cell minus that of its reference group, of the same seed."""
    sweep = SWEEPS[out.name]
    cells = table.drop_duplicates("checkpoint")
    by_place = {(row["group"], row["train_seed"]): row["checkpoint"] for _, row in cells.iterrows()}
    probed: dict[tuple[str, str, bool], list[Number]] = defaultdict(list)
    for number in sweep.numbers:
        probed[number.folder, number.analysis, number.layered].append(number)
    packed = read_pack(out)
    rows = []
    for (group, seed), name in by_place.items():
        if not (reference := sweep.references.get(group)):
            continue
        for (folder, analysis, layered), numbers in probed.items():
            severities = {number.severity for number in numbers}
            pair = (by_place[reference, seed], name)
            if any(packed[one].about["router"] == "none" and folder not in packed[one].runs for one in pair):
                continue  # a dense model has no routing to be probed
            found = compared(out, pair, folder, analysis, severities=severities, layered=layered)
            for number in numbers:
                about = {"group": group, "train_seed": seed, "number": number.heading}
                rows.append(number.rows_of(found).assign(**about).dropna(axis=1, how="all"))
    return pd.concat(rows, ignore_index=True)


def terms(checkpoints: Path, table: pd.DataFrame) -> pd.DataFrame:
    """Return the two terms of PRC on S of all test images, of the checkpoints of the committed cells."""
    cells = table.drop_duplicates("checkpoint")[["checkpoint", "group", "train_seed"]]
    found = []
    for name in cells["checkpoint"]:
        rows = api.s_matrix(f"{checkpoints / name}", figures=False).table
        keep = rows["metric"].isin(_TERMS) & rows["draw"].isna() & (rows["tokens"] == "patch")
        found.append(rows[keep].assign(checkpoint=name))
    columns = ["group", "train_seed", "layer", "metric", "value", "ci_low", "ci_high", "images"]
    return pd.concat(found).merge(cells, on="checkpoint", suffixes=("_", "")).reset_index(drop=True)[columns]


if __name__ == "__main__":
    main()
