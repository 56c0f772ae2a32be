"""The page on experts: it has what the command measures on the committed models."""

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.probes.experts.redundancy import nearest_pairs, sentences
from tests.docs.pages import ROOT, text

pytestmark = pytest.mark.slow
MODELS = ("digits-baseline-k2-seed0", "digits-prc-k2-seed0")
PAGE = "concepts/experts.md"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    models = [ROOT / "checkpoints/reference" / name for name in MODELS]
    return api.experts(models, data="digits", loss=0.02, figures=False).table


def test_the_page_has_the_sentences_of_the_command(table: pd.DataFrame) -> None:
    assert sentences(table)[0] in " ".join(text(PAGE).split())


def test_what_the_page_says(table: pd.DataFrame) -> None:
    random = table[table["metric"] == "experts_price_random"].set_index(["layer", "checkpoint"])
    assert (random.loc["blocks.1", "flag"] == "few_carriers").all()
    assert random.loc["blocks.1", "carriers"].tolist() == [8, 5]
    written = [f"{random.loc[('blocks.1', model), 'value']:.3f}" for model in MODELS]
    assert f"cost {written[0]} and {written[1]} nats" in text(PAGE)
    pairs = nearest_pairs(table)
    relative = pairs["expert_distance"] / pairs["expert_distance_permuted"]
    assert f"{relative.min():.2f} of the distance" in text(PAGE)
