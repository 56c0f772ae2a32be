"""Run ``moeprobe compare`` for the action of action.yml: its verdicts go to the step's summary.

The exit code is the one of ``moeprobe compare``: 3 where ``--fail-if-worse`` fails, 2 for a user's mistake.
Usage: ``python .github/compare.py [option …] -- REFERENCE CANDIDATE``, with ``GITHUB_STEP_SUMMARY`` naming a file.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd

from moeprobe.judging.tables import overview
from moeprobe.studies.report.render import markdown


def main() -> int:
    """Compare, append the summary, and return the exit code."""
    command = [sys.executable, "-m", "moeprobe", "compare", "--json", *sys.argv[1:]]
    run = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=False)
    text = (
        summary(json.loads(run.stdout)) if run.stdout else f"moeprobe compare exited with {run.returncode}.\n"
    )
    print(text)
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    return run.returncode


def summary(result: dict[str, Any]) -> str:
    """Return the verdicts as a table in Markdown, and what fails the step."""
    table = overview(pd.DataFrame(result["comparison"]))
    lines = [f"### {markdown(table.caption)}", "", row(table.columns), row("---" for _ in table.columns)]
    lines += [row(cell.text for cell in cells) for cells in table.rows]
    sidecar = result["sidecar"]
    if sidecar.get("look") is not None:
        looks = sidecar["request"]["looks"]
        lines += ["", f"Look {sidecar['look']} of {looks}: intervals hold in all {looks} at once."]
    if failures := result["failures"]:
        lines += ["", f"**Worse in {len(failures)} comparisons:**", ""]
        lines += ["- " + markdown(f"{failure['metric']}, {failure['layer']}") for failure in failures]
    return "\n".join(lines) + "\n"


def row(cells: object) -> str:
    """Return a row of a table in Markdown; names are shown as they are."""
    return "| " + " | ".join(markdown(str(cell)) for cell in cells) + " |"  # type: ignore[attr-defined]


if __name__ == "__main__":
    sys.exit(main())
