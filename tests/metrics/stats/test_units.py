"""Intervals over what was sampled: against loops over units, and in experiments whose truth is known."""

import numpy as np
import pytest

from moeprobe.errors import UserError
from moeprobe.judging.differences import compare
from moeprobe.metrics.analyses.match import Match
from moeprobe.metrics.declaration import NumberName
from moeprobe.metrics.stats.bootstrap import Bootstrap, image_weights
from moeprobe.metrics.stats.proportions import critical, score_interval
from moeprobe.metrics.stats.statistic import Ratio, Share, standard_error
from moeprobe.metrics.stats.units import Units
from moeprobe.results.sampled_units import SampledUnits
from moeprobe.results.stored import of_table
from moeprobe.results.summaries import About
from moeprobe.results.sums import Accumulator, Cell
from moeprobe.results.tables import concatenate, image_table
from moeprobe.results.values import CellValues, Evaluator

PATIENTS, EACH, PATCHES = 60, 10, 6
NAMES = [f"patient-{unit:02d}/{image}" for unit in range(PATIENTS) for image in range(EACH)]
UNIT_OF = {name: name.split("/", 1)[0] for name in NAMES}
CELL = Cell("blocks.1", "r", 1, "noise", 0.1, 0, "patch")


def matches(seed: int, *, icc: float = 0.3, share: float = 0.6) -> np.ndarray:
    """Whether tokens ``(n, P)`` keep their expert: the chance is shared by the images of a patient, and by an image."""
    rng = np.random.default_rng(seed)

    def beta(mean: np.ndarray, correlation: float) -> np.ndarray:
        size = 1 / correlation - 1
        return rng.beta(mean * size, (1 - mean) * size)

    of_patient = beta(np.full(PATIENTS, share), icc)
    of_image = beta(np.repeat(of_patient.clip(1e-9, 1 - 1e-9), EACH), 0.1)
    return rng.random((PATIENTS * EACH, PATCHES)) < of_image[:, None]


def columns(kept: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    reference = rng.integers(0, 4, kept.shape)
    view = np.where(kept, reference, (reference + rng.integers(1, 4, kept.shape)) % 4)
    return {
        "trials": np.full(len(kept), PATCHES),
        "top1_match": kept.sum(1),
        "reference_selected": reference[..., None].astype(np.int16),
        "view_selected": view[..., None].astype(np.int16),
    }


def stored(*kept: np.ndarray) -> list[object]:
    parts = []
    for number, of_one in enumerate(kept):
        accumulator = Accumulator()
        accumulator.add(CELL, NAMES, columns(of_one, number))
        parts.append(image_table(accumulator, checkpoint=f"model{number}"))
    return [of_table(concatenate(parts))]


def values(kept: np.ndarray, *, units: bool, largest: int = 2000) -> CellValues:
    (sums,) = stored(kept)
    evaluate = Evaluator(
        (Match(),),
        aligned=True,
        seed=5,
        influences=True,
        largest=largest,
        unit_of=UNIT_OF if units else None,
    )
    return evaluate(next(iter(sums)))  # type: ignore[call-overload]


def test_numbers_of_units_are_a_column() -> None:
    units = Units.of(["b/0", "a/0", "b/1"], {"a/0": "a", "b/0": "b", "b/1": "b"})
    assert {name: number.tolist() for name, number in units.columns().items()} == {"unit_number": [1, 0, 1]}
    assert Units.of(["b/0", "a/0"], None).columns() == {}


@pytest.mark.parametrize("largest", [2000, 0])
def test_values_stay_and_errors_are_of_units(largest: int) -> None:
    """However the sums are read, the interval of a match is that of the sums of patients, added by hand."""
    kept = matches(1)
    of_images, of_units = (values(kept, units=units, largest=largest) for units in (False, True))
    assert of_images.numbers.keys() == of_units.numbers.keys()
    for name, number in of_units.numbers.items():
        assert number.point == of_images.numbers[name].point
        assert number.trials == of_images.numbers[name].trials
        assert number.images in (PATIENTS, 0)
    match = next(
        number for name, number in of_units.numbers.items() if name == ("top1_match", "", None, None)
    )
    by_hand = [int(kept[unit * EACH : (unit + 1) * EACH].sum()) for unit in range(PATIENTS)]
    mean = sum(by_hand) / kept.size
    spread = sum((hits - mean * EACH * PATCHES) ** 2 for hits in by_hand) / kept.size**2
    error = (PATIENTS / (PATIENTS - 1) * spread) ** 0.5
    found = match.interval()
    assert (found.low, found.high) == pytest.approx(score_interval(mean, error, PATIENTS))
    # Patients vary by much more than their images would.
    narrow = of_images.numbers[NumberName("top1_match", "")].interval()
    assert found.high - found.low > 1.5 * (narrow.high - narrow.low)


def test_a_resample_draws_whole_units() -> None:
    """Values in resamples are those of a loop that puts whole patients into a bag."""
    rng = np.random.default_rng(0)
    number = rng.integers(0, 25, 70)
    number[:25] = range(25)
    hits, tokens = rng.integers(0, 5, 70).astype(float), np.full(70, 5.0)
    (found,) = Bootstrap(70, seed=3, num_resamples=4, units=Units(number, 25)).replicate(
        [(Ratio(hits, tokens), tokens)]
    )
    drawn = image_weights(25, 3, range(4))
    for resample in range(4):
        bag = [
            image
            for unit in range(25)
            for image in np.flatnonzero(number == unit).repeat(drawn[unit, resample].astype(int))
        ]
        assert found.values[resample] == pytest.approx(hits[bag].sum() / tokens[bag].sum())
    assert found.images == 25


def test_fewer_than_twenty_units_have_points_only() -> None:
    number = np.arange(200) % 19
    (found,) = Bootstrap(200, seed=0, units=Units(number, 19)).replicate(
        [(Share(np.ones(200) / 2, np.ones(200)), np.ones(200))]
    )
    assert found.interval().flag == "few_images"
    assert found.point == 0.5


def test_an_image_without_a_unit_is_refused() -> None:
    with pytest.raises(UserError, match="unit of 'b'"):
        Units.of(["a", "b"], {"a": "one"})


def words(*, units: bool, seed: int) -> str:
    """The word of the difference of two models whose truth is the same."""
    sums = stored(matches(2 * seed), matches(2 * seed + 1))[0]
    about = About(
        "run", "digits", "test", 5, True, {}, {}, SampledUnits("patient", UNIT_OF) if units else None
    )
    table = compare(sums, analyses=(Match(),), run_info=about, selected_pairs=[("model1", "model0")])  # type: ignore[arg-type]
    row = table[(table["metric"] == "top1_match") & (table["null"] == "")].iloc[0]
    assert row["images"] == (PATIENTS if units else PATIENTS * EACH)
    assert units == ("unit" in table)
    return str(row["verdict"])


@pytest.mark.slow
@pytest.mark.promise
def test_the_word_of_a_difference_counts_units() -> None:
    """Of equal models few pairs are called different over patients, and many over images."""
    found = {units: [words(units=units, seed=seed) for seed in range(6)] for units in (True, False)}
    sides = {units: sum(word in ("higher", "lower") for word in of_all) for units, of_all in found.items()}
    assert sides[True] <= 1
    assert sides[False] >= 2


@pytest.mark.slow
@pytest.mark.promise
@pytest.mark.parametrize("patients", [40, 200])
def test_coverage(patients: int) -> None:
    """ICC 0.3 and 10 images a patient: over units 93 to 97 of 100 intervals hold the truth, over images far fewer."""
    runs, share, covered = 2000, 0.6, {True: 0, False: 0}
    rng = np.random.default_rng(7)
    number = np.repeat(np.arange(patients), EACH)
    size = 1 / 0.3 - 1
    for _ in range(runs):
        chance = np.repeat(rng.beta(share * size, (1 - share) * size, patients), EACH)
        hits, tokens = rng.binomial(PATCHES, chance).astype(float), np.full(patients * EACH, float(PATCHES))
        statistic = Share(hits, tokens)
        for units in (Units(number, patients), Units(None, patients * EACH)):
            count = units.count(tokens)
            error = standard_error(units.add_up(statistic.influence()), count)
            low, high = score_interval(statistic.value(), error, count)
            covered[units.number is not None] += low <= share <= high
    with_units, without = (covered[units] / runs for units in (True, False))
    print(
        f"{patients} patients: over units {with_units:.3f}, over images {without:.3f}; {critical(patients):.3f}"
    )
    assert 0.93 <= with_units <= 0.97
    assert without < 0.75
