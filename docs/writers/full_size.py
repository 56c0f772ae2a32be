"""What statistics of a run of many images take, as ``python -m benchmarks.full_size`` measured it."""

import json
from pathlib import Path

import pandas as pd

from benchmarks.speed.facts import sentence
from writers.markdown import code, table

REPORT = Path(__file__).parents[2] / "reports" / "full-size"
# What it is to take at most: seconds of both together, MB of memory, seconds and MB of a report.
_SECONDS, _MEMORY, _REPORT_SECONDS, _REPORT_SIZE = 600, 1500, 30, 10
_COMMAND = "```bash\npython -m benchmarks.full_size build/full-size --out reports/full-size\n```"


def section() -> str:
    """Return the section of the page of speeds: what was measured, and the targets."""
    rows = pd.read_csv(REPORT / "table.csv").set_index("step")
    about = json.loads((REPORT / "table.json").read_text(encoding="utf-8"))
    size = about["size"]
    sums = f"{about['bytes_per_image_and_cell']:.0f} bytes per image and cell"
    text = (
        f"Statistics of a made-up noise sweep: {size['images']:,} images of {size['patches']} patches, "
        f"{size['layers']} layers, {size['severities']} severities, two checkpoints. The sums take {sums}. Each step "
        "is a process of its own; its memory includes the processes that it starts. Wall time of one run."
    )
    on = f"{sentence(about['machine'])}; load average {about['load_at_start']} at the start."
    return "\n\n".join(["## Full size", text, on, _measured(rows), _targets(rows), _COMMAND])


def _measured(rows: pd.DataFrame) -> str:
    lines = [
        [
            code(str(step)),
            f"{row['seconds']:.1f}",
            f"{row['cpu_seconds']:.1f}",
            f"{row['mebibytes']:,.0f}",
            f"{row['bytes'] / 1e6:,.1f}",
        ]
        for step, row in rows.iterrows()
    ]
    return table(["step", "seconds", "CPU seconds", "memory, MiB", "written, MB"], lines)


def _targets(rows: pd.DataFrame) -> str:
    report = rows.loc["report"]
    measured = [
        ("`summarize` and `compare`, seconds", rows.loc[["summarize", "compare"], "seconds"].sum(), _SECONDS),
        ("memory, MB", rows["mebibytes"].max() * 2**20 / 1e6, _MEMORY),
        ("`report`, seconds", report["seconds"], _REPORT_SECONDS),
        ("`report`, MB", report["bytes"] / 1e6, _REPORT_SIZE),
    ]
    lines = [
        [what, f"{number:,.4g}", f"≤ {most:,}", "reached" if number <= most else "missed"]
        for what, number, most in measured
    ]
    return table(["what", "measured", "target", ""], lines)
