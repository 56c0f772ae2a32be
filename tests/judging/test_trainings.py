"""Claims about trainings: which pairs they are made of, and what they say, recomputed from each image's answers."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

from moeprobe import api
from moeprobe.errors import UserError
from moeprobe.judging import trainings
from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.analyses.output import Output
from moeprobe.metrics.stats.two_way import TwoWay
from moeprobe.results.stored import of_table
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from tests.judging.test_differences import ABOUT, answered, cell, routed

REFERENCE = Path(__file__).parents[2] / "checkpoints" / "reference"
OUTPUT = Cell("", "", 0, "noise", 0.1, 0, "")
GROUPS = {f"{group}{seed}": group for group in "ab" for seed in range(3)}
PAIRS = [(f"b{seed}", f"a{seed}") for seed in range(3)]


def claims(answers: dict[str, dict[str, NDArray[Any]]]) -> Any:
    parts = []
    for checkpoint, columns in answers.items():
        accumulator = Accumulator()
        accumulator.add(OUTPUT, [f"{image:03d}" for image in range(len(columns["accuracy"]))], columns)
        parts.append(image_table(accumulator, checkpoint=checkpoint))
    return trainings.compare_trainings(
        of_table(concatenate(parts)),
        analyses=(Output(),),
        run_info=ABOUT,
        pairs=trainings.groups_of_pairs(PAIRS, GROUPS),
    )


def test_three_pairs_of_seeds_make_a_claim() -> None:
    assert trainings.groups_of_pairs(PAIRS, GROUPS) == {("b", "a"): PAIRS}
    assert not trainings.groups_of_pairs(PAIRS[:2], GROUPS)
    # One reference for all is no sample of references.
    assert not trainings.groups_of_pairs([(name, "a0") for name, _ in PAIRS], GROUPS)


def test_pairs_by_hand_are_called_by_their_groups_or_names() -> None:
    assert trainings.group_of_hand_pairs(PAIRS, GROUPS) == {("b", "a"): PAIRS}
    assert trainings.group_of_hand_pairs(PAIRS, {}) == {("b0, b1, b2", "a0, a1, a2"): PAIRS}
    four = [*PAIRS, ("x", "y")]
    assert trainings.group_of_hand_pairs(four, GROUPS) == {("b0 and 3 more", "a0 and 3 more"): four}
    # One group on both sides has no name for either.
    assert list(trainings.group_of_hand_pairs(PAIRS, dict.fromkeys(GROUPS, "a"))) == [
        ("b0, b1, b2", "a0, a1, a2")
    ]
    assert not trainings.group_of_hand_pairs(PAIRS[:2], GROUPS)


def test_the_claim_is_that_of_every_answer() -> None:
    """An accuracy is a mean, so the difference of an image is that of its two answers."""
    levels = {"a0": 0.6, "a1": 0.62, "a2": 0.58, "b0": 0.85, "b1": 0.9, "b2": 0.88}
    answers = {name: answered(seed, level) for seed, (name, level) in enumerate(levels.items())}
    table = claims(answers)
    (row,) = table[table["metric"] == "accuracy"].to_dict("records")
    by_image = np.array(
        [answers[one]["accuracy"] - answers[other]["accuracy"] for one, other in PAIRS], float
    )
    expected = TwoWay.of(by_image)
    assert (row["value"], row["error"]) == pytest.approx((expected.value, expected.error), rel=1e-6)
    assert (row["sim_low"], row["sim_high"]) == pytest.approx(expected.ends(), rel=1e-6)
    assert (row["ci_low"], row["trainings"], row["images"]) == (pytest.approx(row["sim_low"]), 3, 100)
    assert (row["freedom"], row["spread"]) == pytest.approx((expected.freedom, expected.spread), rel=1e-6)
    said = trainings.sentences(table)
    (sentence,) = said[said["metric"] == "accuracy"]["sentence"]
    assert sentence.startswith("b against a (3 pairs of trainings): better (+0.")


@pytest.mark.parametrize("aligned", [True, False])
def test_aligned_views_have_claims_beyond_the_chance_of_a_position(aligned: bool) -> None:
    parts = []
    for seed, name in enumerate(GROUPS):
        accumulator = Accumulator()
        columns = routed(seed, keep=0.8 if name.startswith("b") else 0.6)
        accumulator.add(cell(), [f"{image:03d}" for image in range(100)], columns)
        parts.append(image_table(accumulator, checkpoint=name))
    table = trainings.compare_trainings(
        of_table(concatenate(parts)),
        analyses=(Match(),),
        run_info=replace(ABOUT, aligned=aligned),
        pairs=trainings.groups_of_pairs(PAIRS, GROUPS),
    )
    rows = table[table["metric"] == "top1_match_kappa"].set_index("null")
    assert ("position" in rows.index) == aligned
    # Each stands for a κ of four experts: 0.2 more in the match.
    pooled = rows.loc["pooled"]
    assert pooled["sim_low"] < 0.2 / 0.75 < pooled["sim_high"] and pooled["judgement"] == "better"


def test_trainings_that_never_differ_make_no_claim() -> None:
    """Their error is 0, and no image tells how many would differ."""
    same = answered(0, 0.6)
    assert not len(claims(dict.fromkeys(GROUPS, same)))


def test_trainings_of_other_images_are_refused() -> None:
    answers = {name: answered(seed, 0.6) for seed, name in enumerate(GROUPS)}
    for name in ("a2", "b2"):
        answers[name] = {column: values[:-1] for column, values in answers[name].items()}
    with pytest.raises(UserError, match="probed on different images"):
        claims(answers)


def test_a_collapsed_training_makes_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {name: answered(seed, 0.6) for seed, name in enumerate(GROUPS)}
    assert len(claims(answers))
    monkeypatch.setattr(trainings, "has_collapsed", lambda values, name: values.checkpoint == "b1")
    assert not len(claims(answers))


def test_one_good_seed_is_no_claim_about_trainings() -> None:
    levels = {"a0": 0.6, "a1": 0.6, "a2": 0.6, "b0": 0.95, "b1": 0.6, "b2": 0.6}
    table = claims({name: answered(seed, level) for seed, (name, level) in enumerate(levels.items())})
    said = trainings.sentences(table)
    (sentence,) = said[said["metric"] == "accuracy"]["sentence"]
    assert "no significant difference (excludes a loss above 0." in sentence


@pytest.mark.slow
def test_a_comparison_of_three_seeds_opens_with_its_trainings(tmp_path: Path) -> None:
    names = [f"digits-{group}-k2-seed{seed}" for group in ("baseline", "prc") for seed in range(3)]
    folders = [REFERENCE / name for name in names]
    found = api.compare(folders, probe="eval", limit=40, out=tmp_path / "compared", figures=False)
    assert found.verdicts["trainings"].iloc[0] == 3 and len(found.trainings)
    assert len(pd.read_csv(tmp_path / "compared" / "trainings.csv")) == len(found.trainings)
    first = found.with_names().verdicts.iloc[0]
    assert first["sentence"].startswith("digits-prc-k2 against digits-baseline-k2 (3 pairs of trainings): ")
    assert first["sentence"] in api.report([tmp_path / "compared"]).markdown
