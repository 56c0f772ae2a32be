"""Where the time of probes goes, as ``python -m benchmarks.profiles`` measured it."""

import json
from pathlib import Path

import pandas as pd

from benchmarks.profiles import KINDS
from benchmarks.speed.facts import sentence
from writers.markdown import code, table

REPORT = Path(__file__).parents[2] / "reports" / "profiles"
_COMMAND = "```bash\npython -m benchmarks.profiles --out reports/profiles\n```"


def section() -> str:
    """Return the section of the page of speeds: the shares of each kind of work, a line per probe."""
    rows = pd.read_csv(REPORT / "table.csv")
    about = json.loads((REPORT / "table.json").read_text(encoding="utf-8"))
    text = (
        "What the main thread of a run does or waits for, looked at a hundred times a second: wall time of one run "
        f"on {rows['images'].iloc[0]} images, the size of the digits models. Intervals of so few images are resampled; "
        "for many images, influences of single images take the place of resamples."
    )
    on = f"{sentence(about['machine'])}; load average {about['load_at_start']} at the start."
    # One run does not separate what is closer.
    is_most = rows[list(KINDS)].ge(rows[list(KINDS)].max(axis=1) - 0.02, axis=0)
    most = "; ".join(
        f"{kind}: {', '.join(map(code, rows.loc[is_most[kind], 'probe']))}"
        for kind in KINDS
        if is_most[kind].any()
    )
    lines = [
        [code(row["probe"]), f"{row['seconds']:.1f}", *(f"{row[kind]:.0%}" for kind in KINDS)]
        for _, row in rows.iterrows()
    ]
    shares = table(["probe", "seconds", *KINDS], lines)
    return "\n\n".join(
        [
            "## Where the time of a small model goes",
            f"What takes most, by probe. {most[0].upper()}{most[1:]}.",
            text,
            on,
            shares,
            _COMMAND,
        ]
    )
