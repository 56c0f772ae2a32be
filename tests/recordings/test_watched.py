"""Served traffic that is watched batch by batch: planted recordings, counted by loops."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.metrics.stats.always_valid import first_change, watch
from moeprobe.recorded.trace_balance.sentences import sentences
from tests.commands import run
from tests.recordings.test_trace_balance import LAYERS, Ids, highest, recording

# Intervals are asserted.
pytestmark = pytest.mark.resamples
# 44 batches of four requests, and two requests more; the load moves after batch 18.
REQUESTS, EVERY, BASELINE, MOVES, COUNT = 178, 4, 10, 72, 44


def moving(number: int, layer: int) -> Ids:
    """In the second layer, experts 0 and 1 are hot at first, and others later."""
    return highest(number, layer, dict.fromkeys((0, 1) if layer == 0 or number < MOVES else (8, 9), 0.4))


def still(number: int, layer: int) -> Ids:
    return highest(number, layer, {0: 0.4, 1: 0.4})


def numbers(table: pd.DataFrame, layer: str = "") -> dict[str, pd.Series]:
    rows = table[(table["view"] == "batches") & (table["layer"] == layer) & table["severity"].isna()]
    return {row["metric"]: row for _, row in rows.iterrows()}


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recording(tmp_path_factory.mktemp("moved"), moving, requests=REQUESTS)


def shares_by_hand() -> np.ndarray:
    """The share of the usual hot experts, two of 16 in each layer, in each batch; the last one is not full."""
    hits, totals = np.zeros((COUNT + 1, 2)), np.zeros(COUNT + 1)
    for index in range(2):
        chosen = [
            np.bincount(
                np.concatenate(
                    [moving(one, index).ravel() for one in range(first, min(first + 4, REQUESTS))]
                ),
                minlength=16,
            )
            for first in range(0, REQUESTS, 4)
        ]
        usual = np.argsort(-np.sum(chosen[: BASELINE // 2], axis=0), kind="stable")[:2]
        hits[:, index] = [counts[usual].sum() for counts in chosen]
        totals += [counts.sum() for counts in chosen]
    return hits.sum(1) / totals


@pytest.mark.pictures
def test_a_load_that_moves_is_seen(moved: Path, tmp_path: Path) -> None:
    found = api.trace_balance(moved, every=EVERY, baseline=BASELINE, out=tmp_path / "out")
    shares = shares_by_hand()[:COUNT]
    grain = 1 / (4 * 16 * 2 * 2)
    watched = watch(shares[5:10], shares[10:], grain=grain, level=0.025)
    changed = first_change(shares[5:10], shares[10:], grain=grain)
    of_all = numbers(found.table)
    change = of_all["usual_share_change"]
    assert of_all["usual_share"]["value"] == pytest.approx(shares[5:10].mean())
    assert change["value"] == pytest.approx(watched.change[-1]) and change["images"] == 34 * 4
    assert change["ci_low"] == pytest.approx(watched.change[-1] - watched.reach[-1])
    assert change["interval"] == "always valid"
    assert of_all["usual_share_changed_at"]["value"] == changed.at > 4
    recent = of_all["usual_share_change_recent"]
    assert recent["ci_high"] < 0 and recent["images"] == (34 - changed.start) * EVERY
    assert recent["trials"] == (34 - changed.start) * EVERY * 16 * 2 * 2
    assert of_all["usual_share_changed_since"]["value"] == changed.start + 1
    assert recent["value"] == pytest.approx(shares[10 + changed.start :].mean() - shares[5:10].mean())
    along = found.table[(found.table["metric"] == "usual_share_change") & found.table["severity"].notna()]
    assert along["severity"].tolist() == list(range(1, 35)) and set(along["layer"]) == {""}
    np.testing.assert_allclose(along["value"], watched.change)
    # One layer moved; its interval holds for both.
    assert "usual_share_changed_at" not in numbers(found.table, LAYERS[0])
    layer = numbers(found.table, LAYERS[1])
    assert layer["usual_share_changed_at"]["value"] > 4
    said = " ".join(found.leading(found))
    assert "The load has moved in 34 batches since the baseline" in said
    assert f"Layers that changed, with intervals for all layers at once: {LAYERS[1]} (after" in said
    assert (tmp_path / "out" / "figures" / "balance.png").exists()
    report = api.report(tmp_path / "out").markdown
    assert "Batch" in report and report.count("|  change since the baseline |") == 3, (
        "the figure has the course"
    )


def test_a_load_that_stays_is_not(tmp_path: Path) -> None:
    path = recording(tmp_path, still, requests=REQUESTS)
    result = run("trace", "balance", path, "--every", EVERY, "--baseline", BASELINE)
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "Nothing shows that the load has moved in 34 batches since the baseline" in printed
    assert "Load since the baseline" in printed


def test_batches_are_alike_where_all_layers_together_are(moved: Path) -> None:
    """Single layers have noisy correlations, the largest of which is large by chance."""
    table = api.trace_balance(moved, every=EVERY, baseline=BASELINE).table
    correlations = table["metric"] == "batch_correlation"
    assert set(table.loc[correlations, "layer"]) == {"", *LAYERS}
    for layer in ("", LAYERS[0]):
        planted = table.copy()
        planted.loc[correlations, "value"] = np.where(table.loc[correlations, "layer"] == layer, 0.45, 0.1)
        warned = [sentence for sentence in sentences(planted) if "are alike (correlation 0.45" in sentence]
        assert len(warned) == (layer == "")


def test_periods_are_batches_too(moved: Path, tmp_path: Path) -> None:
    """Hours of four requests, and the last of two: the same batches and one more."""
    hours = pd.DataFrame({"image_id": [f"r{number}" for number in range(REQUESTS)]})
    hours["hour"] = [f"{number // EVERY:02d}:00" for number in range(REQUESTS)]
    hours.to_csv(tmp_path / "hours.csv", index=False)
    by_hour = api.trace_balance(moved, periods=tmp_path / "hours.csv", baseline=BASELINE).table
    by_number = api.trace_balance(moved, every=EVERY, baseline=BASELINE).table
    metric = "usual_share_change"
    along = [
        table[(table["metric"] == metric) & table["severity"].notna()]["value"].tolist()
        for table in (by_hour, by_number)
    ]
    assert len(along[0]) == 35 and along[0][:34] == along[1]
    # The last one counts as much as any other, although it has half as many requests.
    shares = shares_by_hand()
    assert along[0][34] == pytest.approx(shares[10:].mean() - shares[5:10].mean())


def test_what_cannot_be_watched(moved: Path, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="There are 8 full batches of requests and 10 of them are the baseline"
    ):
        api.trace_balance(moved, every=20, baseline=10)
    with pytest.raises(UserError, match="says which requests are a batch; leave every out"):
        api.trace_balance(moved, every=4, periods=tmp_path / "hours.csv")
    (tmp_path / "hours.csv").write_text("image_id,hour\nr0,1\n")
    with pytest.raises(UserError, match="has no hour for"):
        api.trace_balance(moved, periods=tmp_path / "hours.csv")


def test_unchanged_requests_have_no_other_tables(moved: Path) -> None:
    result = api.trace_balance(moved)
    assert "batches" not in set(result.table["view"])
    assert not {"every", "periods", "baseline"} & set(result.sidecar.request)
