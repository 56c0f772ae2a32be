"""The benchmark of routers at a size that takes no time: it runs, and its table names every router."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from moeprobe.runtime.catalog import ROUTERS

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "routers.py"
SMALL = [
    "--images",
    "8",
    "--tokens",
    "5",
    "--width",
    "8",
    "--hidden",
    "16",
    "--experts",
    "4",
    "--rounds",
    "2",
]


@pytest.mark.slow
def test_the_benchmark_of_routers_runs(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), *SMALL, "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    frame = pd.read_csv(tmp_path / "routers.csv").set_index("router")
    assert sorted(frame.index) == ROUTERS.names()
    assert frame.loc["softmax_token_choice", "ratio"] == 1
    assert (frame[["step_ms", "ratio_low", "router_ms"]] > 0).all(axis=None)
    assert (frame["rounds"] == 2).all()
    # In groups of 8 images 40 · 2 · 1.05 / 4 = 21 places per expert, of one image 5 · 2.1 / 4 = 2.6 so 3.
    assert frame.loc["softmax_token_choice", "places"] == 21 * 4
    assert frame.loc["softmax_expert_choice", "places"] == 3 * 4 * 8
    written = (tmp_path / "routers.md").read_text(encoding="utf-8")
    for name in ROUTERS.names():
        assert f"| {name} |" in written and name in done.stdout
    for text in (written, done.stdout):
        assert "Medians of 2 interleaved rounds" in text and "[lowest, highest]" in " ".join(text.split())
