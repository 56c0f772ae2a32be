"""Draw what a monitor sees in the training that the page of the monitor prints.

    python -m reports.scripts.monitor_figure

Writes ``docs/img/monitor.png``; the training takes a minute.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from PIL import Image

from moeprobe.results.figures import STYLE, save
from moeprobe.results.palette import COLORS
from reports.scripts.printed import files, in_256_colors

ROOT = Path(__file__).parents[2]
# What a monitor compares: by panel the names in its keys, and what they are called.
MONITORED = {
    "the same weights, other inputs": {"gaussian_noise": "noise, σ = 0.1", "random_crop": "two crops"},
    "the same inputs, weights of an earlier step": {
        "since_first": "step 0",
        "since_last": "20 steps before",
    },
}


def main() -> None:
    """Train, and draw it."""
    [path] = save(trained(), ROOT / "docs" / "img" / "monitor")
    with Image.open(path) as image:
        in_256_colors(image).save(path, optimize=True)


def trained() -> Figure:
    """Return κ over the steps of the training on the page of the monitor."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for page in ("own-model", "monitor"):
            for name, code in files((ROOT / f"docs/guide/{page}.md").read_text(encoding="utf-8")):
                Path(name).write_text(code, encoding="utf-8")
        subprocess.run([sys.executable, "watch.py"], check=True)
        return drawn(Path("routing.jsonl"))


def drawn(file: Path) -> Figure:
    """Return κ of the records in a file, with their intervals: under views, and between steps."""
    records = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 3.4), layout="constrained")
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for panel, (title, lines) in zip(panels, MONITORED.items(), strict=True):
            for color, (name, label) in zip(COLORS, lines.items(), strict=False):
                key = f"routing/kappa/{name}"
                rows = [record for record in records if key in record]
                steps = [record["step"] for record in rows]
                low, high = zip(*(record["intervals"][key] for record in rows), strict=True)
                panel.plot(steps, [record[key] for record in rows], color=color, label=label)
                panel.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
            panel.set(title=title, xlabel="step", ylim=(-0.05, 1.2), yticks=(0, 0.25, 0.5, 0.75, 1))
            panel.legend(loc="upper left")
        panels[0].set_ylabel("κ, mean of the layers")
    return figure


if __name__ == "__main__":
    main()
