"""The tables of faults that commands were put to (``make torture``), for their page."""

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
_DISK_HEAD = (
    "command, or call",
    "cases",
    "exit 0",
    "exit 2",
    "tracebacks",
    "left behind",
    "left open",
    "same",
    "all kept",
)


def lines(folder: Path) -> list[str]:
    """Return a line per fault and command."""
    table = pd.read_csv(folder / "faults.csv", dtype=str, keep_default_na=False)
    columns = ("fault", "command", "times", "exit", "partial", "left", "tracebacks", "runs", "same", "again")
    rows = [f"| {' | '.join(row[name] for name in columns)} |" for row in table.to_dict("records")]
    return [f"| {' | '.join(_HEAD)} |", f"|{'---|' * len(_HEAD)}", *rows]


def disk_lines(folder: Path) -> list[str]:
    """Return a line per command that system calls failed of, one per call, and one of all."""
    table = pd.read_csv(folder / "disk.csv")
    table["kept"] = (
        table["exit"].isin((0, 2))
        & (table["again"] == 0)
        & (table["same"] == 1)
        & (table[["tracebacks", "open", "left"]] == 0).all(axis="columns")
    )
    rows = [f"| {' | '.join(_DISK_HEAD)} |", f"|{'---|' * len(_DISK_HEAD)}"]
    for name in ("command", "call"):
        rows += [_disk_line(f"`{value}`", group) for value, group in table.groupby(name, sort=False)]
    return [*rows, _disk_line("all", table)]


def _disk_line(name: str, cases: pd.DataFrame) -> str:
    cells = [
        len(cases),
        (cases["exit"] == 0).sum(),
        (cases["exit"] == 2).sum(),
        cases["tracebacks"].sum(),
        cases["left"].sum(),
        cases["open"].sum(),
        cases["same"].sum(),
        cases["kept"].sum(),
    ]
    return f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |"
