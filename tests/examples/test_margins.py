"""The page on margins: its tables and sentences are what the command measures on the committed models."""

import pandas as pd
import pytest

from moeprobe import api
from moeprobe.probes.margins import Margins
from tests.docs.pages import ROOT, text

pytestmark = pytest.mark.slow

MODELS = ("digits-baseline-k2-seed0", "digits-prc-k2-seed0")
PAGE = "concepts/margins.md"
OF_LAYER = ("selection_margin_logit", "margin_sensitivity", "critical_sigma_median", "critical_sigma_mean")
OF_LEVEL = ("set_survival", "flip_rate", "flip_rate_predicted", "flip_ece", "flip_auroc", "flip_auroc_margin")
LEVELS = (0.05, 0.2)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    models = [ROOT / "checkpoints/reference" / name for name in MODELS]
    return api.margins(models, data="digits", figures=False).table


def cells(table: pd.DataFrame, layer: str, metric: str, sigma: float | None) -> list[pd.Series]:
    """Both models' rows about patches."""
    rows = table[(table["tokens"] == "patch") & (table["layer"] == layer) & (table["metric"] == metric)]
    rows = rows[rows["severity"].isna() if sigma is None else rows["severity"] == sigma].set_index(
        "checkpoint"
    )
    return [rows.loc[model] for model in MODELS]


def lines(table: pd.DataFrame) -> list[str]:
    """The rows of the page."""
    written = []
    for layer in ("blocks.1", "blocks.3"):
        asked: list[tuple[str, float | None]] = [(metric, None) for metric in OF_LAYER]
        asked += [(metric, sigma) for sigma in LEVELS for metric in OF_LEVEL]
        for metric, sigma in asked:
            values = [
                f"{one['value']:.3f} [{one['ci_low']:.3f}, {one['ci_high']:.3f}]"
                for one in cells(table, layer, metric, sigma)
            ]
            written.append(
                f"| `{layer}` | `{metric}` | {'' if sigma is None else sigma} | {' | '.join(values)} |"
            )
    return written


def test_the_page_has_what_is_measured(table: pd.DataFrame) -> None:
    page = text(PAGE)
    missing = [line for line in lines(table) if line not in page]
    assert not missing, "\n".join(missing)
    one_line = " ".join(page.split())
    for sentence in Margins.conclusions(table):
        assert sentence in one_line, sentence


def test_what_the_page_says(table: pd.DataFrame) -> None:
    for layer in ("blocks.1", "blocks.3"):
        margins, sensitivities = (cells(table, layer, name, None) for name in OF_LAYER[:2])
        assert margins[1]["value"] > 1.6 * margins[0]["value"]
        assert sensitivities[1]["value"] > 1.7 * sensitivities[0]["value"]
        for error, late in zip(*(cells(table, layer, "flip_ece", sigma) for sigma in LEVELS), strict=True):
            assert error["value"] < 0.015 and late["value"] > 0.08
        for by_both, alone in zip(*(cells(table, layer, name, 0.05) for name in OF_LEVEL[-2:]), strict=True):
            assert abs(by_both["value"] - alone["value"]) < 0.015
    first, second = cells(table, "blocks.1", "critical_sigma_mean", None)
    assert first["ci_low"] < second["value"] < first["ci_high"]
    first, second = cells(table, "blocks.3", "critical_sigma_mean", None)
    assert second["ci_low"] > first["ci_high"]
