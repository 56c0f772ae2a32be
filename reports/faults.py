"""The table of faults that commands were put to (``make torture``), for its page."""

from pathlib import Path

import pandas as pd

_HEAD = (
    "fault",
    "command",
    "times",
    "exit codes",
    "not whole",
    "left behind",
    "tracebacks",
    "runs to the end",
    "same",
    "blocks again",
)


def lines(folder: Path) -> list[str]:
    """Return a line per fault and command."""
    table = pd.read_csv(folder / "faults.csv", dtype=str, keep_default_na=False)
    columns = ("fault", "command", "times", "exit", "partial", "left", "tracebacks", "runs", "same", "again")
    rows = [f"| {' | '.join(row[name] for name in columns)} |" for row in table.to_dict("records")]
    return [f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}", *rows]
