"""Whether every command says the same on another device, and how long it takes there.

    python -m benchmarks.devices cuda [--limit 200] [--commands match-ratio,noise-sweep] [--out FOLDER]

Each command of ``benchmarks.fingerprints`` measures two committed digits checkpoints once on the CPU and once on the
device, with the same seed. Of each table that both write are compared: words and whole numbers (experts, counts) by the
share that differs, and floats by their largest difference. Devices round differently, so a choice
between nearly equal scores may differ; a table of intervals also says how far its values moved in widths of them.
A command that fails on the device is a row that says so.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typer.testing import CliRunner

from benchmarks.fingerprints import COMMANDS, MODELS, REFERENCE
from benchmarks.speed.facts import machine
from moeprobe.cli.app import app
from moeprobe.runtime.device import choose_device
from moeprobe.runtime.files import write_csv

# All that take two checkpoints and a device.
_COMMANDS = [name for name in COMMANDS if name != "correspond"]


def main() -> None:
    """Run the commands on both devices, and print what differs."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("device")
    parser.add_argument("--limit", type=int, default=200, help="images of each command")
    parser.add_argument("--commands", default=",".join(_COMMANDS), help="comma-separated; default: all")
    parser.add_argument("--out", type=Path, help="folder of devices.csv")
    asked = parser.parse_args()
    choose_device(asked.device)
    print(machine(asked.device))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.commands.split(","):
            rows += _compared(name, asked.device, asked.limit, Path(folder))
    table = pd.DataFrame(rows)
    print(table.to_string(index=False, na_rep="", float_format="{:.3g}".format))
    if asked.out is not None:
        asked.out.mkdir(parents=True, exist_ok=True)
        write_csv(asked.out / "devices.csv", table)


def differences(first: Path, second: Path) -> dict[str, Any]:
    """Return rows, the share of entries that differ in kind, and the largest difference of floats.

    An entry differs in kind if it is another word or whole number, or a number on one side alone.
    """
    tables = [
        pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path) for path in (first, second)
    ]
    tables = [table.drop(columns="run", errors="ignore") for table in tables]
    if tables[0].shape != tables[1].shape or list(tables[0]) != list(tables[1]):
        return {"rows": f"{tables[0].shape} against {tables[1].shape}"}
    unequal, entries, furthest = 0, 0, 0.0
    for name in tables[0]:
        values = [_flat(table[name]) for table in tables]
        if values[0].shape != values[1].shape:
            unequal, entries = unequal + len(tables[0]), entries + len(tables[0])
        elif values[0].dtype.kind == "f":
            missing = [np.isnan(array) for array in values]
            unequal, entries = unequal + int((missing[0] != missing[1]).sum()), entries + values[0].size
            furthest = max(furthest, float(np.nanmax(np.abs(values[0] - values[1]), initial=0)))
        else:
            unequal, entries = unequal + int((values[0] != values[1]).sum()), entries + values[0].size
    found = {
        "rows": len(tables[0]),
        "unequal": unequal / entries if entries else 0.0,
        "largest_difference": furthest,
    }
    if {"value", "ci_low", "ci_high"} <= set(tables[0]):
        width = tables[0]["ci_high"] - tables[0]["ci_low"]
        moved = (tables[0]["value"] - tables[1]["value"]).abs() / width.where(width > 0)
        found["in_widths_of_intervals"] = float(moved.max())
    return found


def _compared(name: str, device: str, limit: int, root: Path) -> list[dict[str, Any]]:
    """Return a row for each table of a command: what differs between the CPU and the device."""
    models = [str(REFERENCE / model) for model in MODELS[:2]]
    extra = COMMANDS[name] if "--limit" in COMMANDS[name] else [*COMMANDS[name], "--limit", str(limit)]
    folders, seconds = [], []
    for nth, where in enumerate(("cpu", device)):
        folders.append(root / f"{name.replace(' ', '-')}-{nth}")
        start = time.perf_counter()
        line = [*name.split(), *models, *extra, "--device", where, "--out", str(folders[nth])]
        result = CliRunner().invoke(app, line)
        seconds.append(time.perf_counter() - start)
        if result.exit_code:
            said = result.stderr.strip().splitlines()[-1:] or [repr(result.exception)]
            return [{"command": name, "table": f"failed on {where}: {said[0]}"}]
    times = {"cpu_seconds": seconds[0], "device_seconds": seconds[1]}
    tables = sorted(path for path in folders[0].rglob("*") if path.suffix in (".csv", ".parquet"))
    return [
        {
            "command": name,
            "table": str(path.relative_to(folders[0])),
            **differences(path, folders[1] / path.relative_to(folders[0])),
            **times,
        }
        for path in tables
    ]


def _flat(column: pd.Series) -> np.ndarray:
    """Return the numbers of a column, those of its arrays one after another, or its words."""
    if column.dtype.kind in "biuf":
        return column.to_numpy()
    present = column.dropna()
    if len(present) and isinstance(present.iloc[0], np.ndarray):
        return np.concatenate([np.ravel(array) for array in present])
    return column.fillna("").astype(str).to_numpy(str)


if __name__ == "__main__":
    main()
