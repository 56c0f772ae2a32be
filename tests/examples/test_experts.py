"""The page on experts: its table is what the command measures on the committed models."""

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.probes.experts.redundancy import nearest_pairs
from tests.docs.pages import ROOT, text

pytestmark = pytest.mark.slow
MODELS = ("digits-baseline-k2-seed0", "digits-prc-k2-seed0")
PAGE = "concepts/experts.md"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    models = [ROOT / "checkpoints/reference" / name for name in MODELS]
    return api.experts(models, data="digits", figures=False).table


def prices(table: pd.DataFrame, layer: str) -> pd.DataFrame:
    return table[(table["metric"] == "experts_price_without") & (table["layer"] == layer)]


def lines(table: pd.DataFrame) -> list[str]:
    """The rows of the page: the rise of the loss in the first layer without each expert."""
    rows = prices(table, "blocks.1").set_index(["expert", "checkpoint"])
    written = []
    for expert in range(8):
        cells = [rows.loc[(expert, model)] for model in MODELS]
        values = [f"{one['value']:.4f} [{one['ci_low']:.4f}, {one['ci_high']:.4f}]" for one in cells]
        written.append(f"| {expert} | {' | '.join(values)} |")
    return written


def test_the_page_has_what_is_measured(table: pd.DataFrame) -> None:
    page = text(PAGE)
    missing = [line for line in lines(table) if line not in page]
    assert not missing, "\n".join(missing)


def test_what_the_page_says(table: pd.DataFrame) -> None:
    first = prices(table, "blocks.1").set_index("checkpoint")
    assert [int((first.loc[model, "ci_low"] > 0).sum()) for model in MODELS] == [0, 2]
    random = table[table["metric"] == "experts_price_random"].set_index(["layer", "checkpoint"])
    assert (random.loc["blocks.1", "ci_low"] > 0).all() and (random.loc["blocks.3", "ci_low"] < 0).all()
    written = [f"{random.loc[('blocks.1', model), 'value']:.3f}" for model in MODELS]
    assert f"cost {written[0]} and {written[1]} nats" in text(PAGE)
    pairs = nearest_pairs(table)
    relative = pairs["expert_distance"] / pairs["expert_distance_permuted"]
    assert f"{relative.min():.2f} of the distance" in text(PAGE)
