"""What docs/results/speed.md says beside its tables follows from the committed runs."""

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
    found = table[(table["contestant"] == "moeprobe") & (table["against"] == "notebook")].set_index("race")
    assert (found["ratio"] <= most).all()


def test_one_round_is_one_round() -> None:
    assert " 1 rounds" not in text("results/speed.md")
