"""The page on flips: its tables are what the command measures on the committed models."""

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.metrics.analyses.flips import FORCED, flip_metric
from tests.docs.pages import ROOT, text

MODELS = ("digits-baseline-k2-seed0", "digits-prc-k2-seed0")
PAGE = "concepts/flips.md"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    models = [ROOT / "checkpoints/reference" / name for name in MODELS]
    return api.flips(models, data="digits", figures=False).table


def lines(table: pd.DataFrame) -> list[str]:
    """The rows of the page: how often flips of each kind move the log-probability."""
    rows = table.set_index(["layer", "tokens", "metric", "checkpoint"])
    written = []
    for layer, tokens in (("blocks.1", "patch"), ("blocks.1", "prefix"), ("blocks.3", "prefix")):
        for forced in FORCED:
            metric = flip_metric("beyond", forced).name
            cells = [rows.loc[(layer, tokens, metric, model)] for model in MODELS]
            values = [f"{one['value']:.3f} [{one['ci_low']:.3f}, {one['ci_high']:.3f}]" for one in cells]
            written.append(f"| `{layer}` | {tokens} | `{forced}` | {' | '.join(values)} |")
    return written


def test_the_page_has_what_is_measured(table: pd.DataFrame) -> None:
    page = text(PAGE)
    missing = [line for line in lines(table) if line not in page]
    assert not missing, "\n".join(missing)


def test_what_the_page_says(table: pd.DataFrame) -> None:
    rows = table.set_index(["layer", "tokens", "metric", "checkpoint"])

    def of(layer: str, tokens: str, measured: str, forced: str) -> list[pd.Series]:
        metric = flip_metric(measured, forced).name
        return [rows.loc[(layer, tokens, metric, model)] for model in MODELS]

    for layer, tokens in (("blocks.1", "patch"), ("blocks.1", "prefix"), ("blocks.3", "prefix")):
        for price in of(layer, tokens, "price", "runner_up"):
            assert price["flag"] == "few_carriers", "a few images carry it"
    for forced in FORCED:
        for answer in of("blocks.1", "patch", "answer", forced):
            assert answer["value"] < 0.003
        for size in of("blocks.3", "patch", "size", forced):
            assert size["value"] == size["ci_low"] == size["ci_high"] == 0
    patches, prefix = (of("blocks.1", tokens, "size", "runner_up") for tokens in ("patch", "prefix"))
    for patch, token in zip(patches, prefix, strict=True):
        assert token["value"] > 4 * patch["value"]
    baseline, prc = of("blocks.1", "patch", "output", "runner_up")
    assert baseline["value"] == pytest.approx(0.40, abs=0.005) and prc["value"] == pytest.approx(
        0.17, abs=0.005
    )
