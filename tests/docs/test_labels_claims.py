"""What docs/results/labels.md says in words follows from the committed numbers."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from moeprobe.inputs.data.digits import Digits
from moeprobe.models.training.start import choose_labeled
from tests.docs.pages import ROOT, text
from tests.docs.sweeps import changed, differences_of, table_of

FOLDER = ROOT / "reports/sweeps/labels-digits"
FIRST, LAST = "blocks.1", "blocks.3"
SHARES = (0.05, 0.1, 0.25)
CROPS = ("κ, random_crop", "κ within the image, random_crop")
NOISE = ("κ, noise σ 0.2", "κ within the image, noise σ 0.2")
PRC = "labeled-{}-unlabeled-{}-prc-diagonal_weight-0.05-offdiagonal_weight-0.5"
BALANCED = "labeled-{}-unlabeled-False-balanced"


@pytest.fixture(scope="module")
def differences() -> pd.DataFrame:
    return differences_of(FOLDER)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return table_of(FOLDER)


def seeds(table: pd.DataFrame, group: str, metric: str, layer: str) -> pd.Series:
    """Return a number of clean patches, or of the output, by training seed."""
    here = table[(table["group"] == group) & (table["metric"] == metric) & (table["layer"] == layer)]
    here = here[(here["view"] == "clean") & here["tokens"].isin(["patch", ""]) & here["draw"].isna()]
    found = here.drop_duplicates("checkpoint")["value"]
    assert len(found) == 3
    return found


def test_how_many_images_have_labels() -> None:
    data = Digits(split="train")
    counts = [len(choose_labeled(data.labels(), share, seed=0)) for share in SHARES]
    assert f"({counts[0]}, {counts[1]} and {counts[2]} images" in " ".join(text("results/labels.md").split())
    assert np.allclose([32 * count / len(data) for count in counts], [1.5, 3.2, 8], rtol=0.02)


def test_prc_does_with_few_labels_what_it_does_with_all(
    differences: pd.DataFrame, table: pd.DataFrame
) -> None:
    for share in SHARES:
        group = PRC.format(share, False)
        for layer, number in product((FIRST, LAST), (*CROPS, *NOISE)):
            assert (changed(differences, number, group, layer=layer)["ci_low"] > 0).all()
        accuracy = changed(differences, "accuracy", group)
        assert ((accuracy["ci_low"] <= 0) & (accuracy["ci_high"] >= 0)).all()
        assert set(seeds(table, group, "dead_experts_first", FIRST)) <= {1, 2}
        assert set(seeds(table, BALANCED.format(share), "dead_experts_first", FIRST)) == {0}


def test_images_without_labels_do_not_help(differences: pd.DataFrame) -> None:
    falls = []
    for share in SHARES:
        rows = changed(differences, "accuracy", PRC.format(share, True))
        assert (rows["ci_high"] < 0).all()
        falls.append(rows["value"].mean())
    assert falls == sorted(falls)


def test_what_they_do_to_the_routing(differences: pd.DataFrame) -> None:
    groups = [PRC.format(share, True) for share in SHARES]
    for group in groups:
        assert (changed(differences, CROPS[0], group, layer=LAST)["value"] < 0).all()
        assert not any(
            (changed(differences, number, group, layer=FIRST)["ci_low"] > 0).any() for number in CROPS
        )
    noisy = pd.concat(
        [
            changed(differences, number, group, layer=layer)
            for group, number, layer in product(groups, NOISE, (FIRST, LAST))
        ]
    )
    assert (noisy["ci_low"] > 0).mean() > 0.8


def test_where_labels_say_less_prc_says_more(table: pd.DataFrame) -> None:
    gates = [seeds(table, PRC.format(share, True), "gate_highest", FIRST).mean() for share in SHARES]
    assert gates == sorted(gates, reverse=True)
    assert set(seeds(table, PRC.format(0.05, True), "dead_experts_first", FIRST)) == {2}
