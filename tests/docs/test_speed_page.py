"""What docs/results/speed.md says beside its tables follows from the committed runs."""

import json

import pandas as pd

from tests.docs.pages import ROOT, text


def test_no_probe_can_gain_more_on_a_notebook_than_its_passes_alone_do() -> None:
    table = pd.read_csv(ROOT / "reports/bench/sweep/table.csv")
    of = {
        name: rows.drop_duplicates("race").set_index("race")["median"]
        for name, rows in table.groupby("contestant")
    }
    most = of["notebook"] / of["forward passes alone"].reindex(of["notebook"].index)
    assert len(most) == 4 and most.notna().all()
    page = text("results/speed.md")
    assert all(f"{race}: {ratio:.2f}" in page for race, ratio in most.items())
    left = of["forward passes alone"] / of["files, views and forward passes"]
    assert all(
        f"{race}: {ratio:.2f}" in page.split("alone leaves")[1]
        for race, ratio in left.loc[most.index].items()
    )
    found = table[(table["contestant"] == "moeprobe") & (table["against"] == "notebook")].set_index("race")
    assert (found["ratio"] <= most).all()


def test_full_size_is_the_one_that_was_asked_for_and_reaches_its_targets() -> None:
    folder = ROOT / "reports/full-size"
    size = json.loads((folder / "table.json").read_text(encoding="utf-8"))["size"]
    assert size == {"images": 50_000, "patches": 144, "layers": 4, "severities": 10, "top_k": 1}
    rows = pd.read_csv(folder / "table.csv").set_index("step")
    assert rows.loc["summarize", "seconds"] + rows.loc["compare", "seconds"] <= 600
    assert rows["mebibytes"].max() * 2**20 <= 1.5e9
    assert rows.loc["report", "seconds"] <= 30 and rows.loc["report", "bytes"] <= 10e6
    section = text("results/speed.md").split("## Full size")[1].split("\n## ")[0]
    assert section.count("| reached |") == 4 and "missed" not in section


def test_one_round_is_one_round() -> None:
    assert " 1 rounds" not in text("results/speed.md")
