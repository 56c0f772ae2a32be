"""The table of what was found: ``faults.csv`` with a row per fault and command, and what it was made with beside it."""

import json
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.torture.faults import Finding
from benchmarks.torture.jobs import JOBS
from moeprobe.results.sidecars import provenance

COLUMNS = ("fault", "command", "times", "exit", "partial", "left", "tracebacks", "runs", "same", "again")


def as_frame(findings: Sequence[Finding]) -> pd.DataFrame:
    """Return a row per finding; exit codes in one cell, those of signals with a minus."""
    rows = [
        {
            **vars(found),
            "exit": " ".join(str(code) for code in sorted(found.codes)),
            "again": "" if found.again is None else f"{found.again:.2f}",
        }
        for found in findings
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write(folder: Path, findings: Sequence[Finding], **asked: object) -> None:
    """Put rows into the table instead of those of the same fault and command, and say how they were made."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = as_frame(findings)
    if (folder / "faults.csv").is_file():
        earlier = pd.read_csv(folder / "faults.csv", dtype=str, keep_default_na=False)
        rows = (
            pd.concat([earlier, rows.astype(str)])
            .fillna("")
            .drop_duplicates(["fault", "command"], keep="last")
        )
    place = {name: number for number, name in enumerate(JOBS)}
    rows = rows.sort_values("command", key=lambda names: names.map(place), kind="stable")
    rows.to_csv(folder / "faults.csv", index=False, lineterminator="\n")
    about = {"asked": asked} | provenance()
    (folder / "faults.json").write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
