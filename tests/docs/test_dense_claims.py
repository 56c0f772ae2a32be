"""What docs/results/groups-experts.md says in words of dense models follows from the committed numbers."""

import pytest

from tests.docs.pages import ROOT, text
from tests.docs.sweeps import changed, differences_of, table_of

FOLDER = ROOT / "reports/sweeps/dense-digits"
EQUAL = ("layers-none-hidden_width-128", "layers-none-hidden_width-192")
ALL = "layers-none-hidden_width-576"


def test_no_dense_model_is_less_accurate() -> None:
    differences = differences_of(FOLDER)
    equal = changed(differences, "accuracy", *EQUAL)
    assert ((equal["ci_low"] < 0) & (equal["ci_high"] > 0)).all()
    assert round(-equal["ci_low"].min(), 3) == 0.036
    said = " ".join(text("results/groups-experts.md").split())
    assert "A lead of the experts of up to 3.6 points is inside the intervals" in said
    every = changed(differences, "accuracy", ALL)
    assert (every["ci_low"] > 0).sum() == 1 and not (every["ci_high"] < 0).any()


def test_costs_are_equal() -> None:
    """But for the router: E gates for each token, two layers."""
    table = table_of(FOLDER)

    def of(group: str, metric: str) -> float:
        [value] = table[(table["group"] == group) & (table["metric"] == metric)]["value"].unique()
        return float(value)

    for dense, top_k in zip(EQUAL, (1, 2), strict=True):
        sparse = of(f"softmax_token_choice-k{top_k}", "flops_per_image")
        assert sparse - of(dense, "flops_per_image") == 2 * 2 * 17 * 64 * 8
    assert of(ALL, "parameters") == pytest.approx(of("softmax_token_choice-k2", "parameters"), rel=0.01)
    assert of(ALL, "flops_per_image") == pytest.approx(
        2 * of("softmax_token_choice-k2", "flops_per_image"), rel=0.05
    )
